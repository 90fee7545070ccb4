"""Encoders are loaded with the right limits, or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig, UnsupportedModel, WeightsBroken
from trioserve.model.encoder import LoadedEncoder, load_encoder
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.models import save_tiny_model
from trioserve.types.pooling import PoolingTask
from trioserve.types.sentence import SentenceFolder


def load(
    folder: Path,
    *,
    task: PoolingTask = "embed",
    sentence: SentenceFolder | None = None,
    **fields: Any,
) -> LoadedEncoder:
    config = ModelConfig(device="cpu", **fields)
    return load_encoder(folder, config, name="tiny", task=task, sentence=sentence)


def test_the_description_of_an_encoder(tmp_path: Path) -> None:
    loaded = load(save_tiny_encoder("electra", tmp_path))
    info = loaded.info
    assert (info.name, info.architecture) == ("tiny", "ElectraModel")
    assert (info.vocab_size, info.max_model_len) == (640, 128)
    # The width of the embeddings is half of that.
    assert info.hidden_size == loaded.hidden_size == 32
    assert (info.dtype, info.takes_images) == ("float32", False)
    assert (info.eos_token_ids, info.kv_bytes_per_token) == (frozenset(), 0)
    assert loaded.device == torch.device("cpu") and loaded.dtype == torch.float32
    assert (loaded.head, loaded.projection) == (None, None)


@pytest.mark.parametrize(
    ("kind", "trained", "max_len", "limit"),
    [
        ("bert", None, None, 128),
        ("bert", 64, None, 64),
        ("bert", 64, 100, 100),
        ("bert", 64, 32, 32),
        # Of 130 positions, texts begin at the third.
        ("mpnet", 512, None, 128),
        ("roberta", None, 128, 128),
    ],
)
def test_the_longest_text(
    saved_encoder: Callable[[str], Path],
    kind: str,
    trained: int | None,
    max_len: int | None,
    limit: int,
) -> None:
    """The trained length can be exceeded; the number of positions cannot."""
    sentence = SentenceFolder(modes=("mean",), max_seq_length=trained)
    loaded = load(saved_encoder(kind), sentence=sentence, max_model_len=max_len)
    assert loaded.info.max_model_len == limit


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_longer_than_the_positions(
    saved_encoder: Callable[[str], Path], kind: str
) -> None:
    with pytest.raises(InvalidConfig, match="129 is more than the model's own 128"):
        load(saved_encoder(kind), max_model_len=129)


@pytest.mark.parametrize("kind", ["roberta", "modernbert", "mpnet"])
def test_texts_of_full_length(
    saved_encoder: Callable[[str], Path], make_input: Any, kind: str
) -> None:
    loaded = load(saved_encoder(kind))
    assert loaded.encode([make_input(128)]).states.isfinite().all()


def test_the_transformer_may_lie_deeper(tmp_path: Path) -> None:
    save_tiny_encoder("bert", tmp_path / "0_Transformer")
    sentence = SentenceFolder(modes=("mean",), transformer_path="0_Transformer")
    assert load(tmp_path, sentence=sentence).info.architecture == "BertModel"


def test_an_encoder_with_another_head(tmp_path: Path, make_input: Any) -> None:
    """Checkpoints of masked language models have no pooler."""
    save_tiny_encoder("bert", tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    item = make_input(12)
    expected = model.bert(torch.tensor([list(item.token_ids)]))[0][0]
    torch.testing.assert_close(loaded.encode([item]).states, expected)


def test_a_decoder_loses_its_output_layer(tmp_path: Path, make_input: Any) -> None:
    """The remaining model ends with the last norm."""
    save_tiny_model("qwen3", tmp_path)
    loaded = load(tmp_path, task="token_embed")
    assert loaded.is_causal
    item = make_input(12, limit=150)
    reference = AutoModel.from_pretrained(tmp_path).eval()
    expected = reference(torch.tensor([list(item.token_ids)])).last_hidden_state[0]
    encoded = loaded.encode([item])
    torch.testing.assert_close(encoded.states, expected, atol=1e-5, rtol=1e-5)


def test_stretched_positions(tmp_path: Path, make_input: Any) -> None:
    """A short text is read beside a long text as it is read alone."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    loaded = load(save_tiny_encoder("llama", tmp_path, rope_parameters=rope))
    assert loaded.info.max_model_len == 256
    alone = loaded.encode([make_input(12)]).states
    together = loaded.encode([make_input(200), make_input(12)]).states
    torch.testing.assert_close(together[:12], alone, atol=1e-5, rtol=1e-5)


def test_colbert_checkpoints(tmp_path: Path) -> None:
    save_colbert(tmp_path)
    loaded = load(tmp_path, task="token_embed")
    assert loaded.projection is not None
    assert loaded.projection.shape == (16, 32)
    assert loaded.info.architecture == "HF_ColBERT"


def test_colbert_without_its_projection(tmp_path: Path) -> None:
    save_colbert(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["linear.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsBroken, match="no linear.weight"):
        load(tmp_path, task="token_embed")


def save_colbert(folder: Path) -> None:
    """Save a checkpoint like Stanford's: BERT under its own name, and a matrix."""
    save_tiny_encoder("bert", folder)
    path = folder / "model.safetensors"
    tensors = {f"bert.{name}": value for name, value in load_file(path).items()}
    tensors["linear.weight"] = torch.randn(16, 32)
    save_file(tensors, path, metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    described["architectures"] = ["HF_ColBERT"]
    (folder / "config.json").write_text(json.dumps(described))


def test_an_encoder_and_a_decoder_in_one(tmp_path: Path) -> None:
    save_tiny_encoder("t5", tmp_path)
    with pytest.raises(UnsupportedModel, match="an encoder and a decoder in one"):
        load(tmp_path)


@pytest.mark.parametrize(
    "described",
    [
        {"model_type": "vit", "architectures": ["ViTModel"]},
        {"model_type": "clip", "architectures": ["CLIPModel"]},
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
    ],
)
def test_models_of_more_than_text(tmp_path: Path, described: Any) -> None:
    """They are refused before their weights are read."""
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(UnsupportedModel, match="it reads more than text"):
        load(tmp_path)


def test_a_head_that_was_not_saved(tmp_path: Path) -> None:
    save_tiny_encoder("bert", tmp_path)
    with pytest.raises(WeightsBroken, match="missing keys, such as classifier.bias"):
        load(tmp_path, task="classify")


def test_a_model_that_reads_tokens_by_their_neighbours(tmp_path: Path) -> None:
    """It mixes all tokens of a rectangle, including padding."""
    path = save_tiny_encoder("fnet", tmp_path)
    with pytest.raises(UnsupportedModel, match="depends on the other texts of a batch"):
        load(path)


def test_no_weights(tmp_path: Path) -> None:
    save_tiny_encoder("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsBroken):
        load(tmp_path)
