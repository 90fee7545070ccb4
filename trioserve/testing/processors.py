"""Tiny processors of vision-language models, for tests that show images to models.

    folder = save_tiny_processor("qwen2_vl", tmp_path / "model")

A folder holds what a model's has on the Hub besides its weights: a tokenizer with the
special tokens of that kind of model, its chat template and its image processor's
settings, small enough that an image costs a few tokens. Part of the shipped test kit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from .tokenizer import tiny_tokenizer

ProcessorKind = Literal["qwen2_vl", "qwen2_5_vl", "smolvlm", "llava"]

# Tokens of every tokenizer here: text, special ones, and reserved ones up to this.
VOCAB_SIZE = 640

_QWEN_TOKENS = (
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
# SmolVLM names up to 6 x 6 parts of a large image.
_SMOLVLM_TOKENS = (
    *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"),
    *(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)),
)
_SPECIAL_TOKENS: dict[ProcessorKind, tuple[str, ...]] = {
    "qwen2_vl": _QWEN_TOKENS,
    "qwen2_5_vl": _QWEN_TOKENS,
    "smolvlm": _SMOLVLM_TOKENS,
    "llava": ("<image>", "<pad>"),
}

_QWEN_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
_PLACEHOLDERS: dict[ProcessorKind, str] = {
    "qwen2_vl": _QWEN_PLACEHOLDER,
    "qwen2_5_vl": _QWEN_PLACEHOLDER,
    "smolvlm": "<image>",
    "llava": "<image>",
}

# Contents are strings or lists of parts, as in Qwen2-VL's own template.
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
    # From one to eight vectors an image, one for each 28 x 28 pixels.
    "min_pixels": 28 * 28,
    "max_pixels": 8 * 28 * 28,
}

# What stands in preprocessor_config.json.
_IMAGE_SETTINGS: dict[ProcessorKind, dict[str, Any]] = {
    "qwen2_vl": {**_QWEN_IMAGES, "processor_class": "Qwen2VLProcessor"},
    "qwen2_5_vl": {**_QWEN_IMAGES, "processor_class": "Qwen2_5_VLProcessor"},
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
}

# What stands in processor_config.json, where such a model has one.
_PROCESSOR_SETTINGS: dict[ProcessorKind, dict[str, Any]] = {
    # A part of 64 x 64 pixels has 4 x 4 patches of 16 x 16, of which the model's
    # connector makes one vector of each 2 x 2 (scale_factor 2).
    "smolvlm": {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
    # 4 x 4 patches and CLIP's class token, which the strategy "default" drops.
    "llava": {
        "processor_class": "LlavaProcessor",
        "image_token": "<image>",
        "patch_size": 14,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    },
}


def save_tiny_processor(kind: ProcessorKind, folder: Path, **changes: Any) -> Path:
    """Save a tokenizer and an image processor as a model's folder has them.

    Args:
      changes: settings of the image processor that replace those of this module.

    Returns:
      The folder, in Hugging Face layout.
    """
    tiny_tokenizer(folder)
    _add_special_tokens(folder / "tokenizer.json", _SPECIAL_TOKENS[kind])
    template = _TEMPLATE.replace("PLACEHOLDER", _PLACEHOLDERS[kind])
    (folder / "chat_template.jinja").write_text(template)
    settings = {**_IMAGE_SETTINGS[kind], **changes}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))
    if (processor := _PROCESSOR_SETTINGS.get(kind)) is not None:
        (folder / "processor_config.json").write_text(json.dumps(processor, indent=2))
    return folder


def special_token_ids(folder: Path) -> dict[str, int]:
    """Tell the ids of a saved tokenizer's special tokens, reserved ones included.

    A model's config wants, for example, "<|image_pad|>" as its image_token_id.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: token_id for token_id, token in added.items()}


def _add_special_tokens(path: Path, special: tuple[str, ...]) -> None:
    tokenizer = Tokenizer.from_file(str(path))
    # Reserved tokens fill the vocabulary, so that whatever a random model samples is
    # a token.
    num_reserved = VOCAB_SIZE - tokenizer.get_vocab_size() - len(special)
    reserved = [f"<|reserved_{number}|>" for number in range(num_reserved)]
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text in (*special, *reserved)]
    )
    tokenizer.save(str(path))
