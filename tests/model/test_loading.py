"""Models are loaded from folders, or refused with a reason."""

from __future__ import annotations

import copy
import json
from pathlib import Path
import re

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig, UnsupportedModel, WeightsBroken
from trioserve.model.loading.load import load_model
from trioserve.model.loading.outline import outline_model
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.testing.models import TINY_MODELS, save_tiny_model

from .planning import Planner, make_prompt


def load(folder: Path, **fields: object) -> LoadedModel:
    config = ModelConfig(**{"device": "cpu", **fields})  # type: ignore[arg-type]
    return load_model(folder, config, name="tiny")


def change_json(path: Path, **fields: object) -> None:
    """Set fields of a JSON file; None removes a field."""
    described = {**json.loads(path.read_text()), **fields}
    path.write_text(
        json.dumps(
            {key: value for key, value in described.items() if value is not None}
        )
    )


def test_info(folder: Path) -> None:
    info = load(folder).info
    assert info.name == "tiny"
    assert info.architecture == "LlamaForCausalLM"
    assert info.vocab_size == 131
    assert info.max_model_len == 128
    assert info.eos_token_ids == {2}
    assert info.hidden_size == 32
    assert info.dtype == "float32"
    assert not info.takes_images


def test_layers_that_look_every_token_up_take_no_vectors(
    tmp_path: Path,
) -> None:
    config = AutoConfig.for_model(
        "gemma4_text",
        **copy.deepcopy(TINY_MODELS["gemma3_text"]),
        vocab_size_per_layer_input=131,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
        global_head_dim=16,
    )
    config.layer_types = ["sliding_attention", "sliding_attention", "full_attention"]
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert load(tmp_path).info.hidden_size == 0


def test_dtype(folder: Path) -> None:
    assert load(folder).dtype == torch.float32
    assert load(folder, dtype="bfloat16").dtype == torch.bfloat16
    assert load(folder, dtype="bfloat16").info.dtype == "bfloat16"


def test_num_threads(folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        for number in (3, 1):
            load(folder, num_threads=number)
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)


def test_end_of_sequence_is_an_id_or_a_list_and_generation_config_decides(
    folder: Path,
) -> None:
    change_json(folder / "generation_config.json", eos_token_id=[5, 6])
    assert load(folder).info.eos_token_ids == {5, 6}
    (folder / "generation_config.json").unlink()
    change_json(folder / "config.json", eos_token_id=7)
    assert load(folder).info.eos_token_ids == {7}


def test_default_sampling_comes_from_the_file(folder: Path) -> None:
    change_json(
        folder / "generation_config.json",
        do_sample=False,
        temperature=0.6,
        top_k=20.0,
        num_beams=1,
    )
    found = dict(load(folder).info.default_sampling)
    assert found == {"temperature": 0.6, "top_k": 20}
    assert isinstance(found["top_k"], int)
    assert load(folder, generation_config="none").info.default_sampling == ()


@pytest.mark.parametrize("value", [0.0, "high", [1]])
def test_default_sampling_that_no_request_could_use(
    folder: Path, value: object
) -> None:
    change_json(folder / "generation_config.json", top_p=value)
    with pytest.raises(InvalidConfig, match="top_p|generation_config"):
        load(folder)


SHORT = {"original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "rope, length",
    [
        ({"rope_type": "linear", "factor": 4.0}, 512),
        ({"rope_type": "dynamic", "factor": 2.0}, 256),
        ({"rope_type": "yarn", "factor": 4.0, **SHORT}, 256),
        (
            {"rope_type": "llama3", "factor": 8.0, **SHORT}
            | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
            128,
        ),
    ],
)
def test_scaled_rotary_embeddings_reach_further(
    tmp_path: Path, rope: dict[str, object], length: int
) -> None:
    rope = {**rope, "rope_theta": 10000.0}
    folder = save_tiny_model("llama", tmp_path, rope_parameters=rope)
    assert load(folder).info.max_model_len == length


def test_max_model_len_may_be_lower(folder: Path) -> None:
    assert load(folder, max_model_len=50).info.max_model_len == 50
    with pytest.raises(InvalidConfig, match="129 is more than the model's own 128"):
        load(folder, max_model_len=129)


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99"])
def test_device_that_is_not_there(folder: Path, device: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(folder, device=device)
    assert caught.value.field == "device"


DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.5, 2.0, 3.0, 4.0],
}
# A type for each kind of layer, whose heads have 16 numbers.
LAYERED = {
    "full_attention": {
        **LONGROPE,
        "short_factor": [1.0] * 8,
        "long_factor": [1.5, 2.0, 3.0, 4.0] * 2,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


@pytest.mark.parametrize(
    "model_type, rope, original, longest",
    [
        ("llama", DYNAMIC, 128, 512),
        ("phi3", LONGROPE, 16, 128),
        ("gemma3_text", LAYERED, 16, 128),
    ],
)
def test_rotary_embeddings_are_those_of_the_longest_sequence(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    model_type: str,
    rope: dict[str, object],
    original: int,
    longest: int,
) -> None:
    """Up to the original length, they equal transformers' at every length."""
    folder = save_tiny_model(
        model_type, tmp_path, rope_parameters=rope, original_max_position_embeddings=16
    )
    caplog.set_level("INFO", "trioserve.model")
    theirs = AutoModelForCausalLM.from_pretrained(folder).model
    for max_model_len in (original, longest):
        model = load(folder, max_model_len=max_model_len)
        rotary = model.model.model.rotary_emb
        for length in (3, max_model_len):
            reference = copy.deepcopy(theirs)
            reference(torch.zeros(1, length, dtype=torch.int64))
            is_same = all(
                torch.equal(numbers, rotary.get_buffer(name))
                for name, numbers in reference.rotary_emb.named_buffers()
                if name.endswith("inv_freq") and "original" not in name
            )
            assert is_same == (max_model_len == original or length == longest)
        logged = f"--max-model-len {original} keeps the embeddings for short texts"
        assert (logged in caplog.text) == (max_model_len > original)
    # A short sequence beside one that is beyond the scaling, and alone.
    planner = Planner(model, num_blocks=200, max_model_len=160)
    beside = [planner.begin(make_prompt(6)), planner.begin(make_prompt(140, 1), slot=1)]
    alone = planner.begin(make_prompt(6), slot=2)
    planner.run(*beside, num_tokens=8)
    planner.run(alone, num_tokens=8)
    assert beside[0].outputs == alone.outputs


@pytest.mark.parametrize(
    "model_type, fields, reason",
    [
        ("bert", {"num_hidden_layers": 1}, "tokens that follow"),
        ("falcon", {}, "its layers do not call transformers' attention interface"),
        ("mamba", {}, r"its layers keep states \(Mamba-1\) besides keys and values"),
        ("minimax", {}, r"keep states \(lightning attention\)"),
        ("deepseek_v4", {}, r"a cache of their own \(DeepseekV4"),
        ("t5", {}, "not a decoder"),
        ("vit", {}, "not a decoder"),
        (
            "bart",
            {"is_encoder_decoder": False, "decoder_layers": 1, "d_model": 64},
            "counts the positions of tokens by itself",
        ),
        ("jamba", {}, r"keep states \(Mamba-1\)"),
        ("paligemma", {}, "neither the images nor the text alone"),
    ],
)
def test_architectures_that_cannot_be_served(
    tmp_path: Path, model_type: str, fields: dict[str, object], reason: str
) -> None:
    """The error is a sentence, and no weights are there to read."""
    config = AutoConfig.for_model(model_type, **fields)
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=reason):
        outline_model(tmp_path, ModelConfig(device="cpu"))


def test_texts_that_need_an_indexer_are_refused(tmp_path: Path) -> None:
    """Up to so many tokens, an indexer chooses all of them."""
    fields = {"num_hidden_layers": 1, "index_topk": 64, "n_routed_experts": 8}
    config = AutoConfig.for_model("deepseek_v32", **fields, dtype="float32")
    config.save_pretrained(tmp_path)
    outline = outline_model(tmp_path, ModelConfig(device="cpu"))
    assert outline is not None and outline.max_model_len == 64
    with pytest.raises(
        InvalidConfig, match="the keys that the model's indexer chooses"
    ):
        outline_model(tmp_path, ModelConfig(device="cpu", max_model_len=65))


def test_a_class_that_can_keep_states_runs_without_them(tmp_path: Path) -> None:
    fields = {"layer_types": ["full_attention"], "num_hidden_layers": 1}
    config = AutoConfig.for_model("granitemoehybrid", **fields, dtype="float32")
    config.save_pretrained(tmp_path)
    assert outline_model(tmp_path, ModelConfig(device="cpu")) is not None


def test_unknown_model_type(folder: Path) -> None:
    change_json(folder / "config.json", model_type="llama_nine", architectures=["X"])
    with pytest.raises(UnsupportedModel, match="llama_nine"):
        load(folder)


def test_code_beside_the_weights_is_never_run(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('was run')")
    change_json(
        folder / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
    )
    with pytest.raises(UnsupportedModel):
        load(folder)


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{", b"\xff\xfe", b'"text"'])
def test_broken_config(folder: Path, content: bytes | None) -> None:
    path = folder / "config.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(WeightsBroken, match=re.escape(str(folder))):
        load(folder)


@pytest.mark.parametrize("fields", [{"hidden_size": "x"}, {"hidden_size": None}])
def test_config_whose_values_make_no_sense(
    folder: Path, fields: dict[str, object]
) -> None:
    change_json(folder / "config.json", **fields)
    with pytest.raises((WeightsBroken, UnsupportedModel)):
        load(folder)


@pytest.mark.parametrize("content", [None, b"", b"\0" * 64, b"cut"])
def test_broken_weights(folder: Path, content: bytes | None) -> None:
    path = folder / "model.safetensors"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:5000] if content == b"cut" else content)
    with pytest.raises(WeightsBroken):
        load(folder)


def test_weights_of_another_shape(folder: Path) -> None:
    change_json(folder / "config.json", intermediate_size=48)
    with pytest.raises(WeightsBroken):
        load(folder)


def test_missing_tensors_are_not_made_up(tmp_path: Path) -> None:
    """transformers would fill a missing output projection with random numbers."""
    config = AutoConfig.from_pretrained(
        save_tiny_model("llama", tmp_path / "whole", tie_word_embeddings=False)
    )
    AutoModel.from_config(config).save_pretrained(tmp_path / "part")
    with pytest.raises(WeightsBroken, match="lm_head"):
        load(tmp_path / "part")
