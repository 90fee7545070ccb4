"""docs/commands.rst has every command, and commands and addresses on all pages exist."""

from __future__ import annotations

from pathlib import Path
import re
import shlex

import pytest

from trioserve.programs.commands import COMMANDS, Command, find_command
from trioserve.server.routes import ROUTES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "commands.rst").read_text()

# A heading, and the text below it.
SECTIONS: dict[str, str] = dict(
    re.findall(
        r"^``trioserve ([a-z -]+)``\n-+\n((?:(?!``trioserve [a-z -]+``\n-).*\n)*)",
        PAGE,
        re.M,
    )
)


def list_examples(name: str) -> list[str]:
    """Return the commands in a section, without the shell's redirections."""
    lines = re.findall(r"^    (trioserve .+)", SECTIONS.get(name, ""), re.M)
    return [re.split(r" [|>#&]", line)[0] for line in lines]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_has_a_section_with_an_example(command: Command) -> None:
    name = command.name
    assert name in SECTIONS, f"docs/commands.rst needs a section ``trioserve {name}``"
    found = [find_command(shlex.split(line)[1:]) for line in list_examples(name)]
    names = {each[0].name for each in found if each}
    assert (
        name in names
    ), f"the section ``trioserve {name}`` needs a block with an example"


def test_each_section_has_a_command() -> None:
    assert [*SECTIONS] == [
        command.name for command in COMMANDS
    ], "docs/commands.rst has the commands in the order of COMMANDS"


PAGES = [ROOT / "README.rst", *sorted(ROOT.glob("docs/*.rst"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_take_their_arguments_and_addresses_exist(page: Path) -> None:
    text = page.read_text().replace("\\\n", "")
    for line in re.findall(r"^    (?:\S.* && )?(trioserve .+)", text, re.M):
        example = re.split(r" [|>#&]", line)[0]
        found = find_command(shlex.split(example)[1:])
        assert found is not None, example
        command, arguments = found
        command.read(arguments)
    paths = [
        re.sub(r"<\w+:\w+>", "[^/]+", path) for each in ROUTES for path in each.paths
    ]
    for path in re.findall(r"\blocalhost:800\d(/[\w/-]*)", text):
        # Clients add the rest.
        assert path == "/v1" or any(re.fullmatch(each, path) for each in paths), path
