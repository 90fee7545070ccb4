"""A server's figures of its event loop, as its process reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from trioserve.http.state import ServerState


class LoopReport(msgspec.Struct, kw_only=True):
    """The figures since the last reset."""

    loop_gap_seconds: float
    longest_step_seconds: float
    longest_step_task: str
    num_streams: int
    offenders: list[str]


def report_loop(state: ServerState) -> LoopReport:
    """Read the figures of a server that generates."""
    from trioserve.frontend import TextEngine

    seen = state.loop_stall.statistics()
    assert isinstance(state.engine, TextEngine), "its model generates text"
    return LoopReport(
        loop_gap_seconds=seen.turns.longest_seconds,
        longest_step_seconds=seen.steps.longest_seconds,
        longest_step_task=seen.offenders[0].name if seen.offenders else "-",
        num_streams=state.engine.engine.statistics().num_streams,
        offenders=[
            f"{each.name}: {each.num_steps} steps, longest "
            f"{1000 * each.longest_seconds:.1f} ms"
            for each in seen.offenders
        ],
    )
