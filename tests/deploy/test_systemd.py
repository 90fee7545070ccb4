"""The unit for systemd, as systemd reads it, and the options that belong to it."""

from __future__ import annotations

from pathlib import Path
import re
import shutil
import subprocess

import pytest

from trioserve.config import HttpConfig
from trioserve.programs.commands.serve import parse_serve

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = (DEPLOY / "trioserve.service").read_text()

# The drain is followed by two seconds for the ends of streams, and by one step.
SECONDS_BEHIND_DRAIN = 2 + 10


@pytest.fixture
def analyze(tmp_path: Path) -> list[str]:
    """The command of systemd-analyze, and a copy of the unit whose program exists."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze (Debian: systemd)")
    unit = tmp_path / "trioserve.service"
    assert "=/opt/trioserve/bin/trioserve " in UNIT
    unit.write_text(UNIT.replace("=/opt/trioserve/bin/trioserve ", "=/bin/true "))
    return [program, str(unit)]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        check=False,
        timeout=60,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_systemd_finds_no_mistake(analyze: list[str]) -> None:
    program, unit = analyze
    done = run(program, "verify", "--man=no", unit)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_unit_is_hardened(analyze: list[str]) -> None:
    program, unit = analyze
    version = re.match(r"systemd (\d+)", run(program, "--version").stdout)
    if version is None or int(version[1]) < 250:
        pytest.skip("needs systemd 250 or newer")
    # The threshold is ten times the exposure.
    done = run(program, "security", "--offline=true", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout


def test_the_unit_waits_for_the_drain() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)s$", UNIT, re.M)
    assert found is not None
    config = parse_serve(["--config", str(DEPLOY / "trioserve.toml")])
    assert config.http.drain_timeout == HttpConfig().drain_timeout
    assert int(found[1]) >= config.http.drain_timeout + SECONDS_BEHIND_DRAIN


def test_the_file_with_options_has_what_a_reload_reads() -> None:
    config = parse_serve(["--config", str(DEPLOY / "trioserve.toml")])
    assert config.http.api_key_file == "/etc/trioserve/keys.txt"
    assert "ExecReload=/bin/kill -HUP $MAINPID" in UNIT
    # The unit lets the server write to this folder.
    assert config.http.request_log == "/var/log/trioserve/requests.jsonl"
    assert "LogsDirectory=trioserve\n" in UNIT
