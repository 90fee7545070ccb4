"""`trioserve simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..command import Command, importing, write_output

if TYPE_CHECKING:
    from ...config.flags import CommandLine

_DESCRIPTION = """\
Play a load on a pipeline of simulated stages, in virtual time: without a model,
with the real scheduler.
"""


def _run(line: CommandLine) -> int:
    from ...config import build_config
    from ..simulate import SimulateConfig, report_simulation

    return write_output(report_simulation(build_config(SimulateConfig, line.values)))


SIMULATE: Final = Command(
    name="simulate",
    synopsis="[options]",
    summary="play a load on a simulated pipeline, without a model",
    description=_DESCRIPTION,
    load_config=importing("..simulate", "SimulateConfig"),
    run=_run,
)
