"""A stage holds only its own weights, and describes the whole model."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from torch import nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.attention.windows import find_windows
from trioserve.model.loading.outline import outline_model
from trioserve.model.stages.loading import load_stage, outline_stage
from trioserve.testing.models import save_tiny_model, save_tiny_vision_model
from trioserve.testing.processors import save_tiny_processor
from trioserve.types.stage_place import StagePlace

from .test_pipeline import MODELS

CPU = ModelConfig(device="cpu", kernels="torch")


def list_weights(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))


@pytest.mark.parametrize("model_type", MODELS)
def test_stages_hold_the_model_between_them(
    cut: Callable[..., Any], model_type: str
) -> None:
    model = cut(model_type)
    whole = list_weights(model.loaded.model)
    parts = [list_weights(stage.model) for stage in model.stages(3)]
    assert set().union(*parts) == whole.keys()
    for name, weight in whole.items():
        holders = [part[name] for part in parts if name in part]
        # GPT-2 looks up its positions at every stage, before the layers.
        assert len(holders) == 1 or "wpe" in name
        assert all(torch.equal(each, weight) for each in holders)


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_oss", "qwen3_5_text"])
def test_the_outline_equals_the_model_and_its_stages(
    cut: Callable[..., Any], model_type: str
) -> None:
    model = cut(model_type)
    outline = outline_model(model.folder, CPU)
    assert outline is not None
    assert outline.kv_bytes_per_token == model.loaded.info.kv_bytes_per_token
    assert outline.max_model_len == model.loaded.info.max_model_len
    assert outline.device == model.loaded.device
    stage = model.stages(3)[1]
    part = outline_stage(model.folder, CPU, place=stage.place)
    if model.loaded.states:
        # Layers with states call no attention, so the others cannot be told apart.
        assert part is None
    else:
        assert part is not None
        assert part.kv_bytes_per_token == stage.info.kv_bytes_per_token


@pytest.mark.parametrize("model_type", ["llama", "gpt_oss"])
def test_stages_describe_the_model_as_the_whole_one_does(
    cut: Callable[..., Any], model_type: str
) -> None:
    model = cut(model_type)
    stages = model.stages(3)
    for stage in stages:
        # A stage tells what its own layers keep.
        expected = dataclasses.replace(
            model.loaded.info,
            kv_bytes_per_token=stage.info.kv_bytes_per_token,
            windows=find_windows(stage.layers, stage.model.dtype),
        )
        assert stage.info == expected
    total = sum(stage.info.kv_bytes_per_token for stage in stages)
    assert total == model.loaded.info.kv_bytes_per_token
    assert sum((stage.layers for stage in stages), ()) == model.loaded.layers


def test_layers_behind_which_images_are_added_stay_together(tmp_path: Path) -> None:
    folder = save_tiny_processor("qwen3_vl", tmp_path)
    save_tiny_vision_model("qwen3_vl", folder)
    place = StagePlace(stage=1, num_stages=2)
    with pytest.raises(InvalidConfig, match="behind its first 2 layers"):
        load_stage(folder, CPU, name="x", place=place)
    whole = StagePlace(stage=0, num_stages=1)
    assert load_stage(folder, CPU, name="x", place=whole).deepstack is not None


def test_other_stages_weights_are_not_needed(tmp_path: Path) -> None:
    """Files with only the weights of a stage are enough for it."""
    folder = save_tiny_model("llama", tmp_path)
    path = folder / "model.safetensors"
    own = {
        name: weight
        for name, weight in load_file(path).items()
        if "layers.0" not in name
    }
    save_file(own, path, metadata={"format": "pt"})
    stage = load_stage(folder, CPU, name="x", place=StagePlace(stage=1, num_stages=2))
    assert stage.partition.begin == 1


def test_a_tied_embedding_may_lie_under_the_heads_name(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path, tie_word_embeddings=True)
    path = folder / "model.safetensors"
    weights = load_file(path)
    embedding = weights.pop("model.embed_tokens.weight")
    save_file({**weights, "lm_head.weight": embedding}, path, metadata={"format": "pt"})
    stage = load_stage(folder, CPU, name="x", place=StagePlace(stage=0, num_stages=2))
    held = list_weights(stage.model)
    assert torch.equal(held["model.embed_tokens.weight"], embedding)
    assert "lm_head.weight" not in held


def test_layers_with_something_between_them_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model("llama", tmp_path)

    def forward(self: Any, input_ids: Any = None, **kwargs: Any) -> Any:
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = 2 * layer(hidden)
        return hidden

    monkeypatch.setattr(LlamaModel, "forward", forward)
    with pytest.raises(InvalidConfig, match="cannot be cut into stages: its layers"):
        load_stage(folder, CPU, name="x", place=StagePlace(stage=0, num_stages=2))


def test_layers_that_look_at_the_embeddings_again_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later stage has no embeddings. Its results would be wrong without an error."""
    folder = save_tiny_model("llama", tmp_path)
    forward = LlamaForCausalLM.forward
    compute = LlamaDecoderLayer.forward

    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        embeds = kwargs.get("inputs_embeds")
        if embeds is None:
            embeds = self.model.embed_tokens(kwargs["input_ids"])
        return forward(self, *args, again=embeds, **kwargs)

    def layer(self: Any, hidden: Any, *args: Any, again: Any, **kwargs: Any) -> Any:
        return compute(self, hidden + again, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", look)
    monkeypatch.setattr(LlamaDecoderLayer, "forward", layer)
    load_stage(folder, CPU, name="x", place=StagePlace(stage=0, num_stages=2))
    with pytest.raises(InvalidConfig, match="look at its tokens again"):
        load_stage(folder, CPU, name="x", place=StagePlace(stage=1, num_stages=2))


def test_a_stage_is_an_ordinary_model_to_whoever_looks_at_its_modules(
    cut: Callable[..., Any],
) -> None:
    first, _, last = cut("llama").stages(3)
    assert isinstance(first.model, LlamaForCausalLM)
    assert type(first.model).__name__ == "LlamaForCausalLM"
    assert isinstance(first.model.get_output_embeddings(), nn.Identity)
    assert isinstance(last.model.get_input_embeddings(), nn.Identity)
