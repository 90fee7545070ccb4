"""Encoders give the same states on a GPU as on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trioserve.testing.encoders import TINY_ENCODERS

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("kind", sorted({*TINY_ENCODERS} - {"t5", "fnet"}))
def test_mixed_lengths(tiny_encoder: Any, make_input: Any, kind: str) -> None:
    tiny_encoder(kind, device=DEVICE).check_states(
        *(make_input(length, seed=length) for length in (17, 3, 40, 17, 100)),
        tolerance=1e-4,
    )


def test_logits(tiny_encoder: Any, make_input: Any) -> None:
    tiny = tiny_encoder("bert", "sequence", device=DEVICE)
    item = make_input(12)
    torch.testing.assert_close(
        tiny.pool_by_head_mode(item), tiny.run_alone(item).logits, atol=1e-4, rtol=1e-4
    )
