"""The sampler's operators for GPUs: Triton kernels that sort no vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...kernels.triton.draw import CUT
from ...kernels.triton.sampling import choose_plain, choose_tokens, lower_repeated
from ..device.numbers import StepNumbers
from .choice import Choice
from .operators import RepeatedTokens
from .plain_columns import list_plain


class TritonOperators:
    """The SamplingOperators of Triton kernels."""

    is_capturable = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def penalize(self, scores: Tensor, repeated: RepeatedTokens) -> None:
        lower_repeated(
            scores,
            repeated.places,
            repeated.rows,
            repeated.counts,
            repeated.seen,
            repeated.penalties,
        )

    def choose(
        self, scores: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        rows, numbers = list_plain(choices, num_outputs), StepNumbers(self._device)
        if rows.settings is not None:
            has_cut = any(choice.way == CUT.value for choice in choices)
            settings = numbers.add(rows.settings).get()
            return choose_tokens(scores, settings, has_cut=has_cut)
        temperatures, keys = numbers.add(rows.temperatures), numbers.add(rows.keys)
        return choose_plain(scores, temperatures.get(), keys.get())

    # It changes nothing, and reads any float type.
    choose_plain = choose
