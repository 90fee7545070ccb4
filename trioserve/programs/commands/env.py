"""`trioserve env`: the facts about the machine for a report of a defect."""

from __future__ import annotations

from dataclasses import dataclass
import json
from typing import TYPE_CHECKING, Final

from ...types.version import __version__
from ..command import Command, write_output

if TYPE_CHECKING:
    from ...config.flags import CommandLine

_DESCRIPTION = """\
Print the versions, the processor, the kernels, the memory and the GPUs of this
machine, for reports of defects. It works without torch, too. Of environment variables
it prints those that libraries read, and the values of harmless ones alone: no keys,
tokens or addresses.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """The report.

    Args:
      json: Print JSON.
    """

    json: bool = False


def _run(line: CommandLine) -> int:
    from ...kernels.machine import describe_machine

    facts = {"trioserve": __version__, **describe_machine()}
    if line.values.get("json"):
        return write_output(json.dumps(facts, indent=2) + "\n")
    width = max(map(len, facts))
    return write_output("".join(f"{k.ljust(width)}  {v}\n" for k, v in facts.items()))


ENV: Final = Command(
    name="env",
    synopsis="[--json]",
    usage="[--json]",
    summary="describe this machine, for reports of defects",
    description=_DESCRIPTION,
    load_config=lambda: EnvConfig,
    run=_run,
)
