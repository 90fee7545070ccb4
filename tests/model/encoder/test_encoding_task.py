"""The task of a model is found from its files, and an option overrides it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trioserve.config import PoolingConfig
from trioserve.errors import UnsupportedModel, WeightsBroken
from trioserve.model.encoder import find_task
from trioserve.types.sentence import SentenceFolder

POOLS = SentenceFolder(modes=("mean",))
KEEPS_TOKENS = SentenceFolder()


def write_config(folder: Path, model_type: str, *architectures: str) -> Path:
    described = {"model_type": model_type, "architectures": list(architectures)}
    (folder / "config.json").write_text(json.dumps(described))
    return folder


@pytest.mark.parametrize(
    ("model_type", "architecture", "sentence", "task"),
    [
        ("bert", "BertModel", None, "embed"),
        ("bert", "BertForMaskedLM", None, "embed"),
        ("bert", "BertModel", POOLS, "embed"),
        ("bert", "BertModel", KEEPS_TOKENS, "token_embed"),
        ("bert", "HF_ColBERT", None, "token_embed"),
        ("bert", "BertForSequenceClassification", None, "classify"),
        # sentence-transformers saves cross-encoders with modules.json, too.
        ("bert", "BertForSequenceClassification", KEEPS_TOKENS, "classify"),
        ("bert", "BertForTokenClassification", None, "token_classify"),
        ("qwen3", "Qwen3ForCausalLM", None, "generate"),
        ("qwen3", "Qwen3ForCausalLM", POOLS, "embed"),
        ("qwen3", "Qwen3Model", None, "embed"),
        ("qwen3", "Qwen3ForSequenceClassification", None, "classify"),
        ("gpt2", "GPT2LMHeadModel", None, "generate"),
        ("qwen2_vl", "Qwen2VLForConditionalGeneration", None, "generate"),
        # The loader of generating models refuses it.
        ("t5", "T5ForConditionalGeneration", None, "generate"),
    ],
)
def test_by_its_files(
    tmp_path: Path,
    model_type: str,
    architecture: str,
    sentence: SentenceFolder | None,
    task: str,
) -> None:
    folder = write_config(tmp_path, model_type, architecture)
    assert find_task(folder, sentence, PoolingConfig()) == task


@pytest.mark.parametrize(
    ("model_type", "task"), [("llama", "generate"), ("bert", "embed")]
)
def test_without_a_named_architecture(
    tmp_path: Path, model_type: str, task: str
) -> None:
    write_config(tmp_path, model_type)
    assert find_task(tmp_path, None, PoolingConfig()) == task


@pytest.mark.parametrize(
    ("model_type", "architecture", "task"),
    [
        ("qwen3", "Qwen3ForCausalLM", "embed"),
        ("qwen3", "Qwen3Model", "generate"),
        ("bert", "BertModel", "token_embed"),
        ("bert", "BertForSequenceClassification", "embed"),
        ("bert", "BertForSequenceClassification", "classify"),
    ],
)
def test_by_force(
    tmp_path: Path, model_type: str, architecture: str, task: Any
) -> None:
    folder = write_config(tmp_path, model_type, architecture)
    assert find_task(folder, POOLS, PoolingConfig(task=task)) == task


@pytest.mark.parametrize(
    ("model_type", "architecture", "task", "reason"),
    [
        ("bert", "BertModel", "classify", "no head that classifies texts"),
        (
            "bert",
            "BertForSequenceClassification",
            "token_classify",
            "no head that classifies tokens",
        ),
        ("bert", "BertForMaskedLM", "generate", "does not generate text"),
        ("qwen3", "Qwen3ForSequenceClassification", "generate", "does not generate"),
    ],
)
def test_tasks_that_cannot_be_forced(
    tmp_path: Path, model_type: str, architecture: str, task: Any, reason: str
) -> None:
    folder = write_config(tmp_path, model_type, architecture)
    with pytest.raises(UnsupportedModel, match=reason):
        find_task(folder, None, PoolingConfig(task=task))


def test_the_configuration_may_lie_deeper(tmp_path: Path) -> None:
    (tmp_path / "0_Transformer").mkdir()
    write_config(tmp_path / "0_Transformer", "bert", "BertModel")
    sentence = SentenceFolder(transformer_path="0_Transformer", modes=("mean",))
    assert find_task(tmp_path, sentence, PoolingConfig()) == "embed"


def test_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(WeightsBroken, match="config.json"):
        find_task(tmp_path, None, PoolingConfig())
