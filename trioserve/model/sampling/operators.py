"""The operators of the sampler on whole vocabularies: penalties, and the choice itself.

TorchOperators run on any device. TritonOperators (triton_operators.py) do the same on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ..device.numbers import StepNumbers
from ..device.tensors import send_floats, send_ids
from ..step.scans import Scans
from .choice import Choice
from .draw import draw_from_best, drop_unlikely, make_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTokens:
    """The tokens that came before, of the rows of a step with penalties.

    Args:
      places: (num_places,) int64, rows of the logits
      rows: (num_places,) int64, their rows in the tables
      counts: (num_rows, vocab_size) int32, output tokens
      seen: (num_rows, vocab_size) bool, prompt and output tokens
      penalties: (3, num_places) float32, for repetition, frequency and presence
    """

    places: Tensor
    rows: Tensor
    counts: Tensor
    seen: Tensor
    penalties: Tensor


class SamplingOperators(Protocol):
    """Operators over logits, (num_rows, vocab_size) float32.

    Attributes:
      is_capturable: their kernels may choose in captured steps.
    """

    @property
    def is_capturable(self) -> bool: ...

    def penalize(self, scores: Tensor, repeated: RepeatedTokens) -> None:
        """Lower the logits of tokens that came before, in place.

        Source: Keskar et al. 2019 (CTRL), section 4.1 for the repetition penalty;
        OpenAI's API reference for the other two.
        """

    def choose(
        self, scores: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        """Choose the next token of each row; may change scores.

        Args:
          choices: of each row.
          num_outputs: output tokens of each row so far.

        Returns:
          (num_rows,) int64
        """

    def choose_plain(
        self, logits: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        """Choose the same for rows that are plain (Choice.plain_from).

        Args:
          logits: (num_rows, vocab_size) of any float type; not changed

        Returns:
          (num_rows,) int64
        """


class TorchOperators:
    """The SamplingOperators of any device."""

    is_capturable = False

    def __init__(self, scans: Scans, device: torch.device) -> None:
        self._scans = scans
        self._device = device

    def penalize(self, scores: Tensor, repeated: RepeatedTokens) -> None:
        counts, seen = repeated.counts[repeated.rows], repeated.seen[repeated.rows]
        repetition, frequency, presence = repeated.penalties[:, :, None]
        logits = scores[repeated.places]
        changed = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, changed, logits)
        scores[repeated.places] = logits - frequency * counts - presence * (counts > 0)

    def choose(
        self, scores: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        rows_by_way: dict[int, list[int]] = {}
        for row, choice in enumerate(choices):
            rows_by_way.setdefault(choice.way, []).append(row)
        if len(rows_by_way) == 1:
            # Most batches end here, and the logits are not copied once more.
            return self._choose_alike(scores, choices, num_outputs)
        token_ids = torch.empty(len(choices), dtype=torch.int64, device=self._device)
        for rows in rows_by_way.values():
            index = send_ids(rows, self._device)
            token_ids[index] = self._choose_alike(
                scores[index],
                [choices[row] for row in rows],
                [num_outputs[row] for row in rows],
            )
        return token_ids

    def choose_plain(
        self, logits: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        if all(choice.is_greedy for choice in choices):
            return self._scans.find_best(logits)
        return self.choose(logits.to(torch.float32, copy=True), choices, num_outputs)

    def _choose_alike(
        self, scores: Tensor, choices: Sequence[Choice], num_outputs: Sequence[int]
    ) -> Tensor:
        """Choose for rows of one way; changes scores."""
        if choices[0].is_greedy:
            return self._scans.find_best(scores)
        return self._draw(scores, choices, num_outputs, choices[0].is_cut)

    def _draw(
        self,
        scores: Tensor,
        choices: Sequence[Choice],
        num_outputs: Sequence[int],
        is_cut: bool,
    ) -> Tensor:
        samplings = [choice.sampling for choice in choices]
        keys = StepNumbers(self._device).add(list_keys(choices, num_outputs)).get()
        scores /= self._send_floats([s.temperature for s in samplings])[:, None]
        if any(s.min_p > 0.0 for s in samplings):
            scores = drop_unlikely(
                scores, self._send_floats([s.min_p for s in samplings])
            )
        if not is_cut:
            return self._scans.race(scores, keys)
        return draw_from_best(
            scores,
            keys,
            send_ids([choice.top_k for choice in choices], self._device),
            self._send_floats([s.top_p for s in samplings]),
            self._scans,
        )

    def _send_floats(self, values: list[float]) -> Tensor:
        return send_floats(values, self._device)


def list_keys(
    choices: Sequence[Choice], num_outputs: Sequence[int]
) -> NDArray[np.int64]:
    """Return the key of each row's noise, (num_rows,) int64."""
    seeds = np.array([choice.seed for choice in choices], dtype=np.uint64)
    return make_keys(seeds, np.array(num_outputs, dtype=np.int64))
