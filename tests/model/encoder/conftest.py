"""Tiny encoders, each loaded twice: by trioserve, and by transformers alone."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
import functools
from pathlib import Path
import random
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from trioserve.config import ModelConfig, PoolingConfig
from trioserve.model.encoder import LoadedEncoder, find_task, load_encoder
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.types.pooling import PoolingInput


@dataclass(frozen=True)
class TinyEncoder:
    """An encoder, and transformers' own model of the same folder."""

    folder: Path
    loaded: LoadedEncoder
    reference: Any

    @torch.inference_mode()
    def run_alone(self, item: PoolingInput) -> Any:
        """Return transformers' states of one input, with its unseen tokens masked."""
        input_ids = torch.tensor([list(item.token_ids)], device=self.reference.device)
        attention_mask = torch.ones_like(input_ids)
        attention_mask[:, item.num_tokens - item.num_unseen :] = 0
        arguments = {"input_ids": input_ids, "attention_mask": attention_mask}
        if item.second_begin:
            arguments["token_type_ids"] = torch.zeros_like(input_ids)
            arguments["token_type_ids"][:, item.second_begin :] = 1
        return self.reference(**arguments)

    def check_states(self, *inputs: PoolingInput, tolerance: float = 1e-5) -> None:
        """Assert that inputs have the same states together as alone."""
        encoded = self.loaded.encode(inputs)
        assert encoded.states.shape == (
            sum(item.num_tokens for item in inputs),
            self.loaded.hidden_size,
        )
        for item, (begin, end) in zip(inputs, encoded.spans, strict=True):
            expected = self.run_alone(item).last_hidden_state[0]
            torch.testing.assert_close(
                encoded.states[begin:end], expected, atol=tolerance, rtol=tolerance
            )

    def pool_by_head_mode(self, *inputs: PoolingInput) -> torch.Tensor:
        """Return the logits of texts from the state that the head reads."""
        encoded = self.loaded.encode(inputs)
        choose: Any = {
            "cls": lambda states: states[0],
            "lasttoken": lambda states: states[-1],
            "mean": lambda states: states.mean(0),
        }[self.loaded.head_mode or ""]
        rows = [choose(encoded.states[begin:end]) for begin, end in encoded.spans]
        assert self.loaded.head is not None
        return self.loaded.head(torch.stack(rows))


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Build a tiny encoder of a kind, once for all tests."""

    @functools.cache
    def save(kind: str, head: Any, device: str, **changes: Any) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(kind)
        save_tiny_encoder(kind, folder, head=head, **changes)
        reference: Any = {
            None: AutoModel,
            "sequence": AutoModelForSequenceClassification,
            "token": AutoModelForTokenClassification,
        }[head].from_pretrained(folder)
        return folder, reference.eval().to(device)

    @functools.cache
    def build(
        kind: str,
        head: Any = None,
        device: str = "cpu",
        kernels: Any = "auto",
        **changes: Any,
    ) -> TinyEncoder:
        folder, reference = save(kind, head, device, **changes)
        task: Any = find_task(folder, None, PoolingConfig())
        return TinyEncoder(
            folder=folder,
            loaded=load_encoder(
                *(folder, ModelConfig(device=device, kernels=kernels)),
                **{"name": kind, "task": task, "sentence": None},
            ),
            reference=reference,
        )

    return build


@pytest.fixture(scope="session")
def saved_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Save a tiny encoder of a kind, once for all tests, which leave it as it is."""
    return functools.cache(
        lambda kind: save_tiny_encoder(kind, tmp_path_factory.mktemp(kind))
    )


@pytest.fixture
def make_input() -> Callable[..., PoolingInput]:
    """Return random tokens that are special in no model."""

    def make(
        length: int, *, seed: int | None = None, limit: int = 600, **fields: Any
    ) -> PoolingInput:
        rng = random.Random(length if seed is None else seed)
        tokens = array("i", [rng.randrange(8, limit) for _ in range(length)])
        return PoolingInput(token_ids=tokens, **fields)

    return make
