"""Tiny processors of vision-language models, for tests with images.

    folder = save_tiny_processor("qwen2_vl", tmp_path / "model")

A folder has the files of a model on the Hub except the weights: a tokenizer with the
special tokens of the model, a chat template, and settings of the image processor with
which an image takes only a few tokens. Part of the shipped test kit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from .tokenizer import tiny_tokenizer

ProcessorKind = Literal[
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "smolvlm",
    "llava",
    "internvl",
    "mistral3",
    "glm4v",
    "gemma3",
    "gemma4",
    "llava_next",
]

# Size of every vocabulary here. Reserved tokens follow the tokens of text and the
# special tokens, up to this size.
VOCAB_SIZE = 640

_QWEN_TOKENS = (
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
# SmolVLM cuts a large image into up to 6 x 6 parts, and has a token for each.
_SMOLVLM_TOKENS = (
    *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"),
    *(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)),
)
# InternVL's processor reads the names of its tokens from the tokenizer.
_INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
# So do Gemma's.
_GEMMA_TOKENS = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
_GEMMA4_TOKENS = {
    **_GEMMA_TOKENS,
    "boa_token": "<start_of_audio>",
    "eoa_token": "<end_of_audio>",
    "audio_token": "<audio_soft_token>",
}
_NAMED_TOKENS = {
    "internvl": _INTERNVL_TOKENS,
    "gemma3": _GEMMA_TOKENS,
    "gemma4": _GEMMA4_TOKENS,
}
_SPECIAL_TOKENS: dict[ProcessorKind, tuple[str, ...]] = {
    "qwen2_vl": _QWEN_TOKENS,
    "qwen2_5_vl": _QWEN_TOKENS,
    "qwen3_vl": _QWEN_TOKENS,
    "smolvlm": _SMOLVLM_TOKENS,
    "llava": ("<image>", "<pad>"),
    "llava_next": ("<image>", "<pad>"),
    "internvl": tuple(_INTERNVL_TOKENS.values()),
    "mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "glm4v": ("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
    "gemma3": tuple(_GEMMA_TOKENS.values()),
    "gemma4": (*_GEMMA4_TOKENS.values(), "<|video|>", "<pad>"),
}

_QWEN_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
_PLACEHOLDERS: dict[ProcessorKind, str] = {
    "qwen2_vl": _QWEN_PLACEHOLDER,
    "qwen2_5_vl": _QWEN_PLACEHOLDER,
    "qwen3_vl": _QWEN_PLACEHOLDER,
    "smolvlm": "<image>",
    "llava": "<image>",
    "llava_next": "<image>",
    "internvl": "<IMG_CONTEXT>",
    "mistral3": "[IMG]",
    "glm4v": "<|begin_of_image|><|image|><|end_of_image|>",
    # An image has a token, and its vectors have another one.
    "gemma3": "<start_of_image>",
    "gemma4": "<image_soft_token>",
}

# The content of a message is a string or a list of parts, as in Qwen2-VL's template.
_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'PLACEHOLDER' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_QWEN_IMAGES: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    # One vector for each 28 x 28 pixels, so one to eight vectors for an image.
    "min_pixels": 28 * 28,
    "max_pixels": 8 * 28 * 28,
}

# The content of preprocessor_config.json.
_IMAGE_SETTINGS: dict[ProcessorKind, dict[str, Any]] = {
    "qwen2_vl": {**_QWEN_IMAGES, "processor_class": "Qwen2VLProcessor"},
    "qwen2_5_vl": {**_QWEN_IMAGES, "processor_class": "Qwen2_5_VLProcessor"},
    "qwen3_vl": {
        **_QWEN_IMAGES,
        "processor_class": "Qwen3VLProcessor",
        "patch_size": 16,
        "min_pixels": 32 * 32,
        "max_pixels": 8 * 32 * 32,
    },
    "smolvlm": {
        "image_processor_type": "SmolVLMImageProcessor",
        "processor_class": "SmolVLMProcessor",
        "do_image_splitting": True,
        "max_image_size": {"longest_edge": 64},
        "size": {"longest_edge": 128},
    },
    "llava": {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "size": {"shortest_edge": 56},
        "crop_size": {"height": 56, "width": 56},
    },
    "llava_next": {
        "image_processor_type": "LlavaNextImageProcessor",
        "processor_class": "LlavaNextProcessor",
        "size": {"shortest_edge": 56},
        "crop_size": {"height": 56, "width": 56},
        "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112]],
    },
    "internvl": {
        "image_processor_type": "GotOcr2ImageProcessor",
        "processor_class": "InternVLProcessor",
        "size": {"height": 56, "width": 56},
        "crop_to_patches": True,
        "max_patches": 3,
    },
    "glm4v": {
        "image_processor_type": "Glm4vImageProcessor",
        "processor_class": "Glm4vProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        # For two frames: an image is doubled.
        "size": {"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 8 * 28 * 28},
    },
    # The processor, which needs torchvision, multiplies its own patch_size and merge size.
    "mistral3": {
        "image_processor_type": "PixtralImageProcessor",
        "processor_class": "PixtralProcessor",
        "size": {"longest_edge": 112},
        "patch_size": {"height": 28, "width": 28},
    },
    # Always 16 vectors.
    "gemma3": {
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "size": {"height": 64, "width": 64},
    },
    # Up to 70 vectors, the fewest that it takes, and nearly as many for each image.
    "gemma4": {
        "image_processor_type": "Gemma4ImageProcessor",
        "processor_class": "Gemma4Processor",
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "max_soft_tokens": 70,
    },
}

# The content of processor_config.json, for models that have this file.
_PROCESSOR_SETTINGS: dict[ProcessorKind, dict[str, Any]] = {
    # A part of 64 x 64 pixels has 4 x 4 patches of 16 x 16 pixels. The model's
    # connector turns each 2 x 2 patches into one vector (scale_factor 2).
    "smolvlm": {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
    # 4 x 4 patches and CLIP's class token. The strategy "default" drops that token.
    "llava": {
        "processor_class": "LlavaProcessor",
        "image_token": "<image>",
        "patch_size": 14,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    },
    # The same for each part of an image, and a vector behind each row of the whole.
    "llava_next": {
        "processor_class": "LlavaNextProcessor",
        "image_token": "<image>",
        "patch_size": 14,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    },
    # 4 x 4 patches, of which 2 x 2 become one vector.
    "internvl": {"processor_class": "InternVLProcessor", "image_seq_length": 4},
    "mistral3": {
        "processor_class": "PixtralProcessor",
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
    "gemma3": {"processor_class": "Gemma3Processor", "image_seq_length": 16},
}


def save_tiny_processor(kind: ProcessorKind, folder: Path, **changes: Any) -> Path:
    """Save a tokenizer and an image processor in the layout of a model's folder.

    Args:
      changes: settings of the image processor that replace the tiny ones.

    Returns:
      The folder, in Hugging Face layout.
    """
    tiny_tokenizer(folder)
    _add_special_tokens(folder / "tokenizer.json", _SPECIAL_TOKENS[kind])
    if kind in _NAMED_TOKENS:
        path = folder / "tokenizer_config.json"
        named = {
            **json.loads(path.read_text()),
            "extra_special_tokens": _NAMED_TOKENS[kind],
            # Gemma 4's processor asks for it.
            **({"pad_token": "<pad>"} if kind == "gemma4" else {}),
        }
        path.write_text(json.dumps(named, indent=2))
    template = _TEMPLATE.replace("PLACEHOLDER", _PLACEHOLDERS[kind])
    (folder / "chat_template.jinja").write_text(template)
    settings = {**_IMAGE_SETTINGS[kind], **changes}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))
    if (processor := _PROCESSOR_SETTINGS.get(kind)) is not None:
        (folder / "processor_config.json").write_text(json.dumps(processor, indent=2))
    return folder


def special_token_ids(folder: Path) -> dict[str, int]:
    """Return the ids of a saved tokenizer's special tokens, reserved ones included.

    A model's config needs some of them: image_token_id may be the id of "<|image_pad|>".
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: token_id for token_id, token in added.items()}


def _add_special_tokens(path: Path, special: tuple[str, ...]) -> None:
    tokenizer = Tokenizer.from_file(str(path))
    # Reserved tokens fill the vocabulary, so every id that a random model samples is a
    # token.
    num_reserved = VOCAB_SIZE - tokenizer.get_vocab_size() - len(special)
    reserved = [f"<|reserved_{number}|>" for number in range(num_reserved)]
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text in (*special, *reserved)]
    )
    tokenizer.save(str(path))
