"""Each command explains itself, and refuses what it does not know, in one sentence."""

from __future__ import annotations

import pytest

from trioserve.__main__ import main
from trioserve.commands import COMMANDS, Command, find_command

EACH = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


@EACH
def test_a_command_is_found_by_its_name(command: Command) -> None:
    assert find_command([*command.name.split(), "--help"]) == (command, ["--help"])


@EACH
def test_a_command_explains_itself(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.name.split(), "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: trioserve {command.name} ")
    assert max(map(len, text.splitlines())) <= 100
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if line.endswith(f" {command.summary}")]
    assert line.startswith(f"  trioserve {command.name} ") and len(line) <= 100


@EACH
def test_an_unknown_flag_is_named(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.name.split(), "--no-such-flag"]) == 2
    assert capsys.readouterr().err.startswith("trioserve: --no-such-flag: ")
