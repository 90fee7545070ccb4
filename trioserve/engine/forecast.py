"""The expected times of a request."""

from __future__ import annotations

from dataclasses import dataclass

# Steps that must be measured before their speed is trusted; scheduler/step_cost.py takes as
# many until a long step may be an exception.
MIN_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected times of a request, in seconds from now.

    Args:
      queue: until the device begins with it.
      first: until its first token.
      total: until its last token.
      alone: until its last token on an idle device.
    """

    queue: float
    first: float
    total: float
    alone: float
