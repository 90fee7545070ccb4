"""The log probabilities that clients see."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...types.output import TokenLogprobs
from ..device.tensors import send_ids
from ..step.scans import Scans
from .host_copy import HostCopy, copy_to_host

# JSON has no infinity. vLLM's server sends this number for an impossible token.
_LOWEST_LOGPROB = -9999.0


class LogprobReports:
    """The log probabilities of the tokens at some positions, and of the likeliest tokens.

    The numbers may still be on the device.

    Args:
      logits: (num_rows, vocab_size), the model's raw output
      token_ids: (num_rows,) int64
      num_top: for each row, how many of the most likely tokens to list; -1 for all.
      named: for each row, the tokens to list behind its own one, in place of the most
        likely ones; an empty row names none. By default no row does.
    """

    def __init__(
        self,
        logits: Tensor,
        token_ids: Tensor,
        num_top: list[int],
        scans: Scans,
        named: Sequence[tuple[int, ...]] = (),
    ) -> None:
        logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        chosen = logprobs.gather(1, token_ids[:, None])  # (num_rows, 1)
        ranks = (logprobs > chosen).sum(dim=-1) + 1
        vocab_size = logprobs.shape[1]
        self._num_top = [vocab_size if num == -1 else num for num in num_top]
        # At least one, so that the lists have rows.
        most = min(max(1, *self._num_top), vocab_size)
        top_values, top_ids = scans.find_top(logprobs, most)  # (num_rows, most)
        # Each copy costs the host as much as several operators.
        ids = torch.cat((torch.stack((token_ids, ranks), dim=1), top_ids), dim=1)
        self._ids = copy_to_host(ids)  # (num_rows, 2 + most)
        values = _make_finite(torch.cat((chosen, top_values), dim=1))
        self._values = copy_to_host(values)  # (num_rows, 1 + most)
        self._named = named
        self._named_values = _gather(logprobs, named) if any(named) else None

    def read(self) -> tuple[TokenLogprobs, ...]:
        """Wait for the numbers; returns one report for each row."""
        rows = list(zip(self._ids.read().tolist(), self._values.read().tolist()))
        return tuple(
            TokenLogprobs(token_id=ids[0], logprob=values[0], rank=ids[1], top=top)
            for (ids, values), top in zip(rows, self._list_alternatives(rows))
        )

    def _list_alternatives(
        self, rows: list[tuple[list[int], list[float]]]
    ) -> list[tuple[tuple[int, float], ...]]:
        top = [
            tuple(zip(ids[2 : 2 + count], values[1 : 1 + count]))
            for (ids, values), count in zip(rows, self._num_top)
        ]
        if self._named_values is None:
            return top
        return [
            (
                tuple({ids[0]: values[0], **dict(zip(named, found))}.items())
                if named
                else likeliest
            )
            for (ids, values), named, found, likeliest in zip(
                rows, self._named, self._named_values.read().tolist(), top
            )
        ]


def _gather(logprobs: Tensor, named: Sequence[tuple[int, ...]]) -> HostCopy:
    """Copy the log probabilities of each row's tokens to the host.

    Args:
      logprobs: (num_rows, vocab_size)
    """
    width = max(map(len, named))
    # Filled up with token 0, whose numbers nobody reads.
    padded = [
        token_id for row in named for token_id in (*row, *[0] * (width - len(row)))
    ]
    index = send_ids(padded, logprobs.device).view(-1, width)
    return copy_to_host(_make_finite(logprobs.gather(1, index)))  # (num_rows, width)


def _make_finite(logprobs: Tensor) -> Tensor:
    return logprobs.nan_to_num(nan=_LOWEST_LOGPROB, neginf=_LOWEST_LOGPROB)
