"""A real Prometheus, with the files of deploy/, finds series for all that they ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import shutil
import subprocess
import time
from typing import Any

import httpx2 as httpx
import promql_parser as promql
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.testing.server import open_fake_server

from .conftest import DEPLOY, adapt
from .test_monitoring import ALERTS, EXPRESSIONS, walk

pytestmark = pytest.mark.slow

SECONDS = 60

# Series that alerts wait for: the server of the test has no errors of its own.
NEVER_HERE = 'status="500"'


def list_queries() -> dict[str, str]:
    """The queries of the board, and all metrics of the alerts with their labels."""
    alerts = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}
    found = {}
    for place, expression in EXPRESSIONS.items():
        if place not in alerts:
            found[place] = expression
            continue
        for node in walk(promql.parse(expression)):
            if isinstance(node, promql.VectorSelector):
                # Without the range and the offset around it.
                labels = ",".join(
                    f'{each.name}{"=~" if "Re" in str(each.op) else "="}"{each.value}"'
                    for each in node.matchers.matchers
                )
                found[f"{place} {labels}"] = f"{node.name}{{{labels}}}"
    return {place: query for place, query in found.items() if NEVER_HERE not in query}


@contextmanager
def run_prometheus(folder: Path, target: str, port: int) -> Iterator[str]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs prometheus (Debian: prometheus), as promtool does")
    changes = {
        '"trioserve-1:8000", "trioserve-2:8000"': f'"{target}"',
        # A rate needs two scrapes.
        "scrape_interval: 5s": "scrape_interval: 500ms",
    }
    text = adapt((DEPLOY / "prometheus.yml").read_text(), changes)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(DEPLOY / "alerts.yml", folder)
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


async def use(client: httpx.AsyncClient) -> None:
    """Answer, refuse and cancel, and hold the event loop."""
    body: dict[str, Any] = {"prompt": "a", "max_tokens": 3}
    for key, status in (("one", 200), ("two", None), ("two", 429)):
        headers = {"authorization": f"Bearer {key}"}
        answer = await client.post("/v1/completions", json=body, headers=headers)
        assert status is None or answer.status_code == status
    long = body | {"max_tokens": 200, "stream": True}
    headers = {"authorization": "Bearer one"}
    with trio.CancelScope() as leaving:
        async with client.stream(
            "POST", "/v1/completions", json=long, headers=headers
        ) as answer:
            async for _ in answer.aiter_lines():
                leaving.cancel()
    time.sleep(0.02)  # noqa: ASYNC251


async def list_missing(client: httpx.AsyncClient, queries: dict[str, str]) -> set[str]:
    missing = set()
    for place, query in queries.items():
        answer = await client.get("/api/v1/query", params={"query": query})
        assert answer.status_code == 200, (place, answer.text)
        if not answer.json()["data"]["result"]:
            missing.add(place)
    return missing


async def test_each_query_has_series(
    tokenizer_folder: Path, tmp_path: Path, choose_port: Any
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("ann one\nbatch two tokens_per_minute=1\n")
    http = HttpConfig(api_key_file=str(keys))
    queries = list_queries()
    with trio.fail_after(2 * SECONDS):
        async with open_fake_server(tokenizer_folder, http=http) as server:
            # `trioserve serve` adds it.
            trio.lowlevel.add_instrument(server.state.loop_stall)
            address = server.url.removeprefix("http://")
            with run_prometheus(tmp_path, address, choose_port()) as url:
                async with (
                    httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as client,
                    httpx.AsyncClient(base_url=url, timeout=SECONDS) as prometheus,
                ):
                    await wait_until_ready(prometheus)
                    missing = set(queries)
                    with trio.move_on_after(SECONDS):
                        while missing:
                            await use(client)
                            await trio.sleep(0.5)
                            asked = {place: queries[place] for place in missing}
                            missing = await list_missing(prometheus, asked)
                    assert not missing
                    targets = (await prometheus.get("/api/v1/targets")).json()
    assert [each["health"] for each in targets["data"]["activeTargets"]] == ["up"]


async def wait_until_ready(client: httpx.AsyncClient) -> None:
    while True:
        try:
            if (await client.get("/-/ready")).status_code == 200:
                return
        except httpx.ConnectError:
            pass
        await trio.sleep(0.1)
