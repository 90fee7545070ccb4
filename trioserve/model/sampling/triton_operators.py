"""The sampler's operators for GPUs: Triton kernels that sort no vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...kernels.triton.draw import ALL, BEST, CUT, MIN_P, WAY
from ...kernels.triton.sampling import choose_plain, choose_tokens, lower_repeated
from ..device.numbers import StepNumbers
from .choice import Choice
from .draw import make_key
from .operators import RepeatedTokens, list_plain


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
        # Nothing is divided for greedy rows, and they read nothing else.
        greedy = 1.0, 1.0, 1, int(BEST.value), 0, 0, 0.0
        rows = [
            greedy if choice.is_greedy else _list_settings(choice, count)
            for choice, count in zip(choices, num_outputs, strict=True)
        ]
        # Whole numbers of this size are exact.
        settings = np.ascontiguousarray(np.array(rows, dtype=np.float64).T)
        sent = StepNumbers(self._device).add(settings).get()
        # The logarithm is torch's own, so that the limits equal the limits in draw.py.
        sent[MIN_P.value] = sent[MIN_P.value].float().log()
        has_cut = bool((settings[WAY.value] == CUT.value).any())
        return choose_tokens(scores, sent, has_cut=has_cut)

    def choose_plain(
        self, logits: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        plain, numbers = list_plain(choices, num_outputs), StepNumbers(self._device)
        temperatures, keys = numbers.add(plain.temperatures), numbers.add(plain.keys)
        return choose_plain(logits, temperatures.get(), keys.get())


def _list_settings(choice: Choice, num_outputs: int) -> tuple[float, ...]:
    """Return the numbers of a row that is drawn, in the order of draw.py."""
    sampling, key = choice.sampling, make_key(choice.seed, num_outputs)
    way = CUT if choice.is_cut else ALL
    return (
        sampling.temperature,
        sampling.top_p,
        choice.top_k,
        int(way.value),
        key % 2**32,
        key // 2**32 % 2**32,
        sampling.min_p,
    )
