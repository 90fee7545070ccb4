"""The ways in which clients send requests, and leave before they have the answer."""

from __future__ import annotations

from typing import TypedDict

from .dice import Dice
from .plans import Break, Leave

_HTTP1_LEAVES: tuple[Leave, ...] = ("close", "reset", "half_close", "stall")
_HTTP2_LEAVES: tuple[Leave, ...] = ("close", "close", "reset", "goaway", "stall")

# The losses of a connection behind which a client takes its stream up again.
_HTTP1_BREAKS: tuple[Leave, ...] = ("close", "reset")
_HTTP2_BREAKS: tuple[Leave, ...] = ("close", "reset", "goaway")


class Delivery(TypedDict):
    """The fields of RequestPlan."""

    number: int
    waits: float
    timeout: float | None
    leaves: Leave | None
    leaves_after: float
    pieces: int
    breaks: tuple[Break, ...]


def draw_delivery(
    dice: Dice, number: int, *, is_http2: bool, resume_seconds: float
) -> Delivery:
    """Draw how a request is sent.

    Args:
      resume_seconds: 0 if its stream cannot be taken up again.
    """
    draw = dice.random
    leaves = draw.choice(_HTTP2_LEAVES if is_http2 else _HTTP1_LEAVES)
    return Delivery(
        number=number,
        waits=draw.choice([0.0, draw.uniform(0.0, 1.0), draw.uniform(0.0, 0.1), 6.0]),
        timeout=draw.uniform(0.01, 1.0) if dice.mishap(0.25) else None,
        leaves=leaves if dice.mishap(0.2) else None,
        leaves_after=draw.choice([0.0, draw.uniform(0, 0.1), draw.uniform(0, 2.0)]),
        pieces=draw.choice([1, 1, 1, 2, 5]),
        breaks=_draw_breaks(dice, is_http2, resume_seconds) if resume_seconds else (),
    )


def _draw_breaks(
    dice: Dice, is_http2: bool, resume_seconds: float
) -> tuple[Break, ...]:
    draw = dice.random
    # A break is not a mishap: the client gets its whole answer.
    if not dice.chance(0.7):
        return ()
    return tuple(
        Break(
            after=draw.choice([draw.uniform(0.05, 0.3), draw.uniform(0.0, 1.0)]),
            how=draw.choice(_HTTP2_BREAKS if is_http2 else _HTTP1_BREAKS),
            pause=draw.choice([0.0, draw.uniform(0, 0.9), 0.9, 1.1]) * resume_seconds,
        )
        for _ in range(draw.randint(1, 3))
    )
