"""The sampler's operators for GPUs: Triton kernels that sort no vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...kernels.triton.draw import ALL, BEST, CUT, MIN_P
from ...kernels.triton.sampling import choose_plain, choose_tokens, lower_repeated
from ..device.numbers import StepNumbers
from ..device.tensors import send_doubles
from .choice import Choice
from .operators import RepeatedTokens, list_keys, list_plain


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
        samplings = [choice.sampling for choice in choices]
        ways = [_number_way(choice) for choice in choices]
        keys = list_keys(choices, num_outputs)
        settings = [
            # Nothing is divided for greedy rows.
            *(1.0 if c.is_greedy else c.sampling.temperature for c in choices),
            *(each.top_p for each in samplings),
            *(choice.top_k for choice in choices),
            *ways,
            *(key % 2**32 for key in keys),
            *(key // 2**32 % 2**32 for key in keys),
            *(each.min_p for each in samplings),
        ]
        # One transfer for all. Whole numbers of this size are exact.
        sent = send_doubles(settings, self._device).view(-1, len(choices))
        # The logarithm is torch's own, so that the limits equal the limits in draw.py.
        sent[MIN_P.value] = sent[MIN_P.value].float().log()
        return choose_tokens(scores, sent, has_cut=CUT.value in ways)

    def choose_plain(
        self, logits: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        plain, numbers = list_plain(choices, num_outputs), StepNumbers(self._device)
        temperatures, keys = numbers.add(plain.temperatures), numbers.add(plain.keys)
        return choose_plain(logits, temperatures.get(), keys.get())


def _number_way(choice: Choice) -> int:
    """Return the number that the kernels have for a row's way."""
    if choice.is_greedy:
        return int(BEST.value)
    return int((CUT if choice.is_cut else ALL).value)
