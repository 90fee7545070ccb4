"""An encoder with a table of states, and tiny sentence-transformers models."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
import pytest
import torch
from torch import Tensor
from transformers import BertTokenizer

from trioserve.config import PoolingConfig
from trioserve.model.encoder import EncodedInputs, LoadedEncoder
from trioserve.model.pooling import PoolingRunner
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.types.model_info import ModelInfo
from trioserve.types.pooling import (
    PoolingInput,
    PoolingParams,
    PoolingPlan,
    PoolingRow,
    QueryKey,
)
from trioserve.types.sentence import SentenceFolder
from trioserve.types.tensors import TensorBytes

Floats = NDArray[np.float32]

VOCAB_SIZE = 50
HIDDEN_SIZE = 8


@dataclass
class Table:
    """A forward pass that looks up the state of each token in a table."""

    states: Tensor

    def encode(self, inputs: Sequence[PoolingInput]) -> EncodedInputs:
        """Return states in reverse order, so that no test relies on their order."""
        spans: list[tuple[int, int]] = []
        end = sum(each.num_tokens for each in inputs)
        states = self.states.new_empty(end, self.states.shape[1])
        for each in inputs:
            begin = end - each.num_tokens
            states[begin:end] = self.states[list(each.token_ids)]
            spans.append((begin, end))
            end = begin
        return EncodedInputs(states=states, spans=tuple(spans))


@pytest.fixture
def table() -> Table:
    generator = torch.Generator().manual_seed(1)
    return Table(torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=generator))


def make_row(
    text: Sequence[int] | PoolingInput,
    *,
    keep_as: int | None = None,
    compare_with: int | None = None,
    **params: Any,
) -> PoolingRow:
    if not isinstance(text, PoolingInput):
        text = PoolingInput(token_ids=array("i", text))
    return PoolingRow(
        input=text,
        params=PoolingParams(**params),
        keep_as=None if keep_as is None else QueryKey(keep_as),
        compare_with=None if compare_with is None else QueryKey(compare_with),
    )


@pytest.fixture
def row() -> Callable[..., PoolingRow]:
    """Return a function that makes a row from a text and fields of PoolingParams."""
    return make_row


class Bench:
    """A runner and a shorter way to use it."""

    def __init__(
        self,
        table: Table,
        folder: Path,
        sentence: SentenceFolder | None = None,
        config: PoolingConfig = PoolingConfig(),
        **fields: Any,
    ) -> None:
        if not (folder / "config.json").exists():
            (folder / "config.json").write_text("{}")
        fields.setdefault("task", "embed")
        encoder = LoadedEncoder(
            info=ModelInfo(
                name="table",
                architecture="Table",
                vocab_size=VOCAB_SIZE,
                max_model_len=16,
                eos_token_ids=frozenset(),
            ),
            forward=table,
            device=table.states.device,
            dtype=table.states.dtype,
            hidden_size=HIDDEN_SIZE,
            **fields,
        )
        self.table = table
        self.runner = PoolingRunner(encoder, folder, sentence, config)

    def run(self, *texts: Sequence[int] | PoolingInput, **params: Any) -> list[Floats]:
        """Run texts in one step."""
        params.setdefault("task", self.runner.info.task)
        rows = [make_row(text, **params) for text in texts]
        return self.step(rows)

    def step(
        self, rows: Sequence[PoolingRow], releases: Sequence[int] = ()
    ) -> list[Floats]:
        keys = tuple(QueryKey(key) for key in releases)
        plan = PoolingPlan(step_id=7, rows=tuple(rows), releases=keys)
        result = self.runner.step(plan)
        assert result.step_id == 7
        self.num_kept = result.num_kept
        return [read(tensor) for tensor in result.tensors]


def read(tensor: TensorBytes) -> Floats:
    assert tensor.dtype == "float32"
    return np.frombuffer(tensor.data, dtype=np.float32).reshape(tensor.shape)


@pytest.fixture
def bench(table: Table, tmp_path: Path) -> Callable[..., Bench]:
    """Return a function that makes a runner of an encoder with that table.

    The encoder's folder is tmp_path. Arguments are PoolingRunner's, and fields of
    LoadedEncoder.
    """

    def make(*args: Any, **fields: Any) -> Bench:
        return Bench(table, tmp_path, *args, **fields)

    return make


_WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] [unused0] [unused1] the a of quick brown fox jump "
    "##s ##ed over lazy dog sleep and on what is where ? . , ! ##a ##b ##c x y z query "
    "document : [ ] unused ##0 ##1"
).split()


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a tokenizer of words."""
    folder = tmp_path_factory.mktemp("bert")
    save_tiny_encoder("bert", folder, vocab_size=len(_WORDS))
    (folder / "vocab.txt").write_text("\n".join(_WORDS))
    tokenizer = BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(folder)
    return folder
