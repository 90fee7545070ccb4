"""A backend that computes something else, or fails, is found before a client finds it."""

from __future__ import annotations

from dataclasses import replace

from interpreter import require_triton
import pytest
import torch
from torch import Tensor, nn

from trioserve.model.attention.backend import PagedModel
from trioserve.model.attention.bridge import AttentionCall, StepAttention
from trioserve.model.attention.gather import GatherAttention
from trioserve.model.attention.self_check import find_disagreement
from trioserve.model.step.layout import StepInputs

from .steps import LAYERS, make_model


def make_all(dtype: torch.dtype = torch.float32) -> PagedModel:
    return replace(make_model(dtype=dtype), layers=tuple(LAYERS.values()))


class Wrong(GatherAttention):
    """Changes what decodes return, by `change`."""

    change = 0.0

    def begin(self, step: StepInputs) -> StepAttention:
        attention = super().begin(step)
        num_decodes = sum(row.num_tokens == 1 for row in step.rows)
        return _WrongStep(attention, num_decodes, self.change)


class _WrongStep:
    def __init__(
        self, attention: StepAttention, num_decodes: int, change: float
    ) -> None:
        self.attention = attention
        self.num_decodes = num_decodes
        self.change = change

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        output = self.attention.attend(module, query, key, value, call)
        output[: self.num_decodes] += self.change
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_operators_agree_with_themselves(dtype: torch.dtype) -> None:
    assert find_disagreement(GatherAttention, make_all(dtype)) is None


@pytest.mark.parametrize("change", [0.5, float("nan")])
def test_other_numbers_are_found(change: float) -> None:
    backend = type("Changed", (Wrong,), {"change": change})
    reason = find_disagreement(backend, make_all())
    assert reason is not None and reason.startswith("its output would differ by ")


class Failing(GatherAttention):
    def begin(self, step: StepInputs) -> StepAttention:
        raise RuntimeError("no kernel image is available")


def test_a_failure_is_told() -> None:
    reason = find_disagreement(Failing, make_all())
    assert reason == "it fails: no kernel image is available"


@pytest.mark.parametrize("name", ["all", "odd latents"])
def test_tritons_kernels_agree(name: str) -> None:
    require_triton()
    from trioserve.model.attention.paged_triton import TritonAttention

    model = make_model(layer=LAYERS[name])
    assert find_disagreement(TritonAttention, model) is None
