"""Each command explains itself, and refuses what it does not know, in one sentence."""

from __future__ import annotations

import ast
from pathlib import Path
import subprocess
import sys

import pytest

from trioserve.__main__ import main
from trioserve.programs.commands import COMMANDS, Command, find_command

ROOT = Path(__file__).parents[3]

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


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["sreve"], "did you mean trioserve serve?"),
        (["server", "MODEL"], "did you mean trioserve serve?"),
        (["--port", "8000"], "write trioserve serve --port 8000"),
        (["--verison"], "did you mean --version?"),
        (["--revision", "x"], "write trioserve serve --revision x"),
        (
            ["Qwen/Qwen3-0.6B", "--port", "1"],
            "write trioserve serve Qwen/Qwen3-0.6B --port 1",
        ),
        (["model.gguf"], "write trioserve serve model.gguf"),
        (["help"], "write trioserve --help"),
        (["help", "top"], "write trioserve top --help"),
        (["version"], "write trioserve --version"),
        (["-v"], "did you mean --version?"),
        (["rm", "x"], "write trioserve models rm x"),
        (["run", "x"], "write trioserve chat x"),
        (["pull", "x"], "and trioserve models lists those that are here"),
        (["stop"], "ends a server"),
        (["models", "pull", "x"], "and trioserve serve MODEL fetches one"),
        (["xyzzy"], "trioserve --help lists all"),
    ],
)
def test_a_word_that_is_no_command_gets_an_advice(
    arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("trioserve: ") and error.endswith(f"{advice}\n")
    assert error.count("\n") == 1


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """A checkout that nobody has installed: `-S` leaves out site-packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "trioserve", "serve"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert f"pip install {ROOT}`\n" in done.stderr
    assert done.stderr.startswith("trioserve: msgspec is not installed for ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["__init__", "types/version", "__main__"])
def test_an_old_python_reads_as_far_as_the_sentence_about_it(name: str) -> None:
    text = (ROOT / "trioserve" / f"{name}.py").read_text()
    ast.parse(text, feature_version=(3, 8))


def test_the_sentence_about_an_old_python_comes_before_other_imports() -> None:
    tree = ast.parse((ROOT / "trioserve" / "__main__.py").read_text())
    [place] = [i for i, node in enumerate(tree.body) if isinstance(node, ast.If)][:1]
    before = [
        node
        for node in tree.body[:place]
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    names = [name.name for node in before for name in node.names]
    assert names == ["annotations", "sys"]
    assert "sys.exit" in ast.unparse(tree.body[place])
