"""Commands and programs of pages are pasted as they stand, against a server that runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
import re
import subprocess

import pytest
from server_process import SERVE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def read_commands(page: str, heading: str) -> list[str]:
    """Return the blocks of commands below a heading, up to the next one."""
    section = (ROOT / page).read_text().split(f"\n{heading}\n---")[1].split("\n---")[0]
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", section)
    return ["\n".join(line[4:] for line in block.splitlines()) for block in blocks]


def paste(commands: str, url: str, folder: Path) -> str:
    """Run commands in a shell, and return what they wrote."""
    commands = commands.replace("localhost:8000", url.removeprefix("http://"))
    trioserve = " ".join([*SERVE[:-1], "top", "--once", "--url", url])
    commands = re.sub(r"^trioserve top\b", trioserve, commands, flags=re.MULTILINE)
    done = subprocess.run(
        ["bash", "-euc", commands + "\nwait"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readmes_request_is_listed_and_cancelled(
    default_url: str, tmp_path: Path
) -> None:
    [block] = read_commands("README.rst", "Operate it")
    written = paste(block, default_url, tmp_path)
    # In the list, in the answer of DELETE, and no longer in the table of `top`.
    assert written.count('"id":"story"') == 2
    assert written.count('"phase":"decode"') == 2
    assert "0 requests" in written
    assert '"type":"RequestCancelled"' in (tmp_path / "story.txt").read_text()


def test_the_quickstarts_questions_are_answered(
    default_url: str, tmp_path: Path
) -> None:
    blocks = read_commands("docs/quickstart.rst", "Ask it")
    blocks += read_commands("docs/quickstart.rst", "Ask for a form")
    question, form = (block for block in blocks if "curl" in block)
    assert "Paris" in paste(question, default_url, tmp_path)
    assert "is_capital" in paste(form, default_url, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("page", "package"),
    [("clients", "langchain_openai"), ("clients", "litellm"), ("api", "ollama")],
)
def test_a_library_answers_by_its_settings(
    default_url: str, capsys: pytest.CaptureFixture[str], page: str, package: str
) -> None:
    if find_spec(package) is None:
        pytest.skip("needs the extra clients")
    text = (ROOT / "docs" / f"{page}.rst").read_text()
    blocks = re.findall(r"code-block:: python\n\n((?:    .*\n|\n)+)", text)
    [program] = (
        block for block in blocks if re.match(rf"    (import|from) {package}\b", block)
    )
    program = re.sub("^    ", "", program, flags=re.MULTILINE)
    program = program.replace("http://localhost:8000", default_url)
    # The server of all tests has no name but its own.
    program = re.sub(r'(["/])local"', r'\1SmolLM2-135M-Instruct"', program)
    exec(compile(program, "<program>", "exec"), {})
    assert "Paris" in capsys.readouterr().out
