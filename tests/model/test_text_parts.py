"""The text part of a model that reads images writes what `generate` of the whole model writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import shutil
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForImageTextToText

from trioserve.config import ModelConfig
from trioserve.errors import WeightsBroken
from trioserve.model.loading.files.facts import find_image_refusal
from trioserve.model.loading.load import load_model
from trioserve.model.loading.outline import outline_model
from trioserve.model.runtimes.vision import TEXT_PARTS
from trioserve.model.stages.loading import load_stage
from trioserve.types.stage_place import StagePlace

from .conftest import TinyVision, make_oracle
from .planning import Planner, make_prompt

CPU = ModelConfig(device="cpu", text_only=True)

_TEXT: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.4,
    "sliding_window": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
}
_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "depth": 2,
    "num_heads": 2,
    "embed_dim": 32,
    "image_size": 56,
    "patch_size": 14,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0, 1],
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
# Fields of the text models of some types.
_CHANGES: dict[str, dict[str, Any]] = {
    # With tied embeddings they would repeat one token for ever; see testing/models.py.
    "gemma4_unified": {
        "tie_word_embeddings": False,
        "global_head_dim": 16,
        "num_global_key_value_heads": None,
        "vocab_size_per_layer_input": 131,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
        "use_bidirectional_attention": "vision",
    },
    "glm46v": {"rope_parameters": _MROPE},
    "glm4v": {"rope_parameters": _MROPE},
    "glm_ocr": {"rope_parameters": _MROPE},
    "glm4v_moe": {
        "rope_parameters": {
            **_MROPE,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 2],
        }
    },
    "kimi_k25": {
        "head_dim": 8,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
    },
    "lfm2_vl": {
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
    },
    "paddleocr_vl": {"rope_parameters": _MROPE},
    "qwen3_vl": {"rope_parameters": _MROPE},
}

# The types that are tried by default.
SOME = ["gemma4_unified", "idefics2"]


def shrink(model_type: str) -> Any:
    """Return the configuration of a type with few and small layers."""
    config = CONFIG_MAPPING[model_type]()
    fields: dict[str, Any] = {"text_config": pick(config.text_config, _TEXT)}
    fields["text_config"] |= _CHANGES.get(model_type, {})
    if getattr(config, "vision_config", None) is not None:
        fields["vision_config"] = pick(config.vision_config, _VISION)
    fields["tie_word_embeddings"] = False
    # Ovis2 has these beside its text model.
    for name in ("hidden_size", "vocab_size"):
        if name in config.to_dict():
            fields[name] = _TEXT[name]
    # Tokens of images and sound, which lie outside of the small vocabulary.
    for name, value in config.to_dict().items():
        if name.endswith("_token_id") and isinstance(value, int) and value > 130:
            fields[name] = 130
    return AutoConfig.for_model(model_type, **fields)


def pick(config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of fields that a configuration has."""
    fields = config.to_dict()
    known = {
        name: value for name, value in changes.items() if fields.get(name) is not None
    }
    return {"model_type": config.model_type, **known}


@pytest.fixture
def qwen(tiny_vision: Callable[..., TinyVision]) -> Path:
    return tiny_vision("qwen3_vl").folder


@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(each, marks=() if each in SOME else pytest.mark.matrix)
        for each in sorted(TEXT_PARTS)
    ],
)
def test_text(tmp_path: Path, model_type: str) -> None:
    """Prompts are shorter and longer than the window, alone and in chunks."""
    torch.manual_seed(0)
    build: Any = AutoModelForImageTextToText.from_config
    whole = build(shrink(model_type), dtype=torch.float32)
    whole.save_pretrained(tmp_path)
    loaded, oracle = load_model(tmp_path, CPU, name="tiny"), make_oracle(whole)
    num_weights = sum(weight.numel() for weight in loaded.model.parameters())
    num_all = sum(weight.numel() for weight in oracle.model.parameters())
    has_vision = oracle.model.config.vision_config is not None
    assert (num_weights < num_all) == has_vision
    planner = Planner(loaded, num_blocks=128)
    sequences = [
        planner.begin(make_prompt(length, slot), slot=slot)
        for slot, length in enumerate((5, 70))
    ]
    planner.run(*sequences, num_tokens=12, chunk=17)
    for sequence in sequences:
        inputs = torch.tensor([sequence.prompt])
        oracle.check(sequence.outputs, input_ids=inputs)
        assert len(set(sequence.outputs)) > 1


def test_weights_of_the_vision_part_may_be_missing_but_no_others(
    qwen: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(qwen, tmp_path / "model")
    path = folder / "model.safetensors"
    weights = load_file(path)
    text = {name: each for name, each in weights.items() if "visual" not in name}
    assert len(text) < len(weights)
    save_file(text, path, metadata={"format": "pt"})
    load_model(folder, CPU, name="tiny")
    missing = next(name for name in text if "layers.1." in name)
    del text[missing]
    save_file(text, path, metadata={"format": "pt"})
    with pytest.raises(WeightsBroken, match="1 missing keys"):
        load_model(folder, CPU, name="tiny")


def test_stages_and_the_outline_have_no_vision_part(qwen: Path) -> None:
    whole = load_model(qwen, CPU, name="tiny")
    outline = outline_model(qwen, CPU)
    assert outline is not None
    assert outline.kv_bytes_per_token == whole.info.kv_bytes_per_token
    first, last = (
        load_stage(qwen, CPU, name="x", place=StagePlace(stage=stage, num_stages=2))
        for stage in range(2)
    )
    assert first.layers + last.layers == whole.layers
    assert not any("visual" in name for name, _ in first.model.named_parameters())
    assert not first.info.takes_images


@pytest.mark.parametrize(
    ("model_type", "text_only", "reason"),
    [
        ("aria", False, "only the text part of aria models is served"),
        ("qwen2_vl", True, "started with --text-only"),
        ("llama", True, "sees no images"),
    ],
)
def test_images_are_refused_with_the_reason(
    tmp_path: Path, model_type: str, text_only: bool, reason: str
) -> None:
    CONFIG_MAPPING[model_type]().save_pretrained(tmp_path)
    refusal = find_image_refusal(tmp_path, ModelConfig(text_only=text_only))
    assert refusal is not None and reason in refusal
