"""The sampled tokens of a step: at once on the device, later on the host."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...types.output import SequenceError, TokenLogprobs
from .dead_ends import DeadEnds
from .host_copy import copy_to_host
from .logprobs import LogprobReports


class SampledIds:
    """The tokens of one step, one for each row.

    Attributes:
      on_device: (num_rows,) int64
    """

    def __init__(self, token_ids: Tensor) -> None:
        self.on_device = token_ids
        self._copy = copy_to_host(token_ids)
        self._read: list[int] | None = None

    def read(self) -> list[int]:
        """Wait for the ids; any thread may call this."""
        if self._read is None:
            self._read = self._copy.read().tolist()
        return self._read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The result of the sampler.

    Args:
      ids: one for each row.
      reported: the rows that asked for log probabilities.
      reports: their log probabilities; None if no row asked.
      dead_ends: the rows that may have no token; None if there are none.
    """

    ids: SampledIds
    reported: tuple[int, ...] = ()
    reports: LogprobReports | None = None
    dead_ends: DeadEnds | None = None

    def read_errors(self) -> dict[int, SequenceError]:
        """Wait for the tokens; returns why sequences cannot go on, by row."""
        return {} if self.dead_ends is None else self.dead_ends.read_errors()

    def read_reports(self) -> dict[int, TokenLogprobs]:
        """Wait for the log probabilities; returns them by row."""
        if self.reports is None:
            return {}
        return dict(zip(self.reported, self.reports.read()))
