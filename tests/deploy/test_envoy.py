"""The file for Envoy fits the server; where Envoy is installed, it reads the file."""

from __future__ import annotations

from pathlib import Path
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from trioserve.config import BindConfig, HttpConfig
from trioserve.config.checks import parse_bytes

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXT = (DEPLOY / "envoy.yaml").read_text()
RESOURCES: dict[str, Any] = yaml.safe_load(TEXT)["static_resources"]


def test_a_body_of_the_servers_limit_can_be_repeated() -> None:
    [listener] = RESOURCES["listeners"]
    limit = parse_bytes("max_body_size", HttpConfig().max_body_size)
    assert listener["per_connection_buffer_limit_bytes"] == limit


def test_it_asks_both_replicas_at_the_servers_port() -> None:
    [cluster] = RESOURCES["clusters"]
    [group] = cluster["load_assignment"]["endpoints"]
    addresses = [
        each["endpoint"]["address"]["socket_address"] for each in group["lb_endpoints"]
    ]
    assert addresses == [
        {"address": name, "port_value": BindConfig().port}
        for name in ("trioserve-1", "trioserve-2")
    ]


def test_metrics_are_refused_however_their_path_is_written() -> None:
    [listener] = RESOURCES["listeners"]
    [chain] = listener["filter_chains"]
    config = chain["filters"][0]["typed_config"]
    assert config["normalize_path"] and config["merge_slashes"]
    assert config["path_with_escaped_slashes_action"] == "REJECT_REQUEST"
    [host] = config["route_config"]["virtual_hosts"]
    route = {"match": {"prefix": "/metrics"}, "direct_response": {"status": 404}}
    assert host["routes"][0] == route


def test_envoy_reads_the_file(tmp_path: Path, certificate: Path) -> None:
    program = shutil.which("envoy")
    if program is None:
        pytest.skip("needs envoy")
    path = tmp_path / "envoy.yaml"
    assert "/etc/envoy/tls/" in TEXT
    path.write_text(TEXT.replace("/etc/envoy/tls/", f"{certificate}/"))
    done = subprocess.run(
        [program, "--mode", "validate", "-c", path],
        check=False,
        timeout=60,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
