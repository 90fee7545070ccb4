"""What a step sampled: at once on the device, later on the host."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...types.output import TokenLogprobs
from .host_copy import HostCopy
from .logprobs import LogprobReports


class SampledIds:
    """The tokens of one step, one a row.

    Attributes:
      on_device: (num_rows,) int64
    """

    def __init__(self, token_ids: Tensor) -> None:
        self.on_device = token_ids
        self._copy = HostCopy(token_ids)
        self._read: list[int] | None = None

    def read(self) -> list[int]:
        """Wait for the ids; any thread may, and only the first one converts them."""
        if self._read is None:
            self._read = self._copy.read().tolist()
        return self._read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the sampler chose.

    Args:
      ids: one for each row.
      reports: those of the rows in `reported`, if any asked for log probabilities.
    """

    ids: SampledIds
    reported: tuple[int, ...] = ()
    reports: LogprobReports | None = None

    def read_reports(self) -> dict[int, TokenLogprobs]:
        """Wait for the reports; row -> its."""
        if self.reports is None:
            return {}
        return dict(zip(self.reported, self.reports.read()))
