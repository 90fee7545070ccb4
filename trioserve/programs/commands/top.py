"""`trioserve top`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..command import Command, importing, write_output

if TYPE_CHECKING:
    from ...config.flags import CommandLine

_DESCRIPTION = """\
Show the running requests of a server in the terminal, live; keys sort and
cancel them. If the output is not a terminal, print one table.
"""


def _run(line: CommandLine) -> int:
    from ...config import build_config
    from ..top import TopConfig, run_top

    return run_top(build_config(TopConfig, line.values), write_output)


TOP: Final = Command(
    name="top",
    synopsis="[options]",
    summary="show the running requests of a server, live",
    description=_DESCRIPTION,
    load_config=importing("..top", "TopConfig"),
    run=_run,
)
