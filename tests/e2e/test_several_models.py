"""Three models behind one address, with an engine process each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import json
from pathlib import Path
import signal
from typing import Any

import httpx2 as httpx
import pytest
from server_process import LONG, list_own

from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.tokenizer import tiny_tokenizer

pytestmark = pytest.mark.slow

# Each process holds 400 to 600 MiB, most of it for libraries, so two of them fit into 1280 MiB.
MODELS = """
[first]
model = "{model}"
num_threads = 1
preload = true

[second]
model = "{model}"
num_threads = 1

[embed]
model = "encoder"
num_threads = 1
"""


@pytest.mark.usefixtures("no_shared_memory_left")
def test_three_models_under_load_and_one_engine_is_killed(
    start_server: Callable[..., Any], model_folder: Path, tmp_path: Path
) -> None:
    tiny_tokenizer(save_tiny_encoder("bert", tmp_path / "encoder"))
    path = tmp_path / "models.toml"
    path.write_text(MODELS.format(model=model_folder))
    server = start_server(
        *("--models", str(path), "--memory", "1280MiB", "--min-residence", "0"),
        # The encoder has none.
        *("--kv-cache-memory", "64MiB"),
    )

    def ask(model: str) -> int:
        if model == "embed":
            body = {"model": model, "input": "Hi"}
            answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=120)
        else:
            body = {"model": model, "prompt": "Hi", "max_tokens": 8}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
        assert answer.json()["model"] == model
        return answer.status_code

    def read_states() -> dict[str, dict[str, Any]]:
        cards = httpx.get(f"{server.url}/v1/models", timeout=30).json()["data"]
        states = {each["id"]: each["status"] for each in cards if "status" in each}
        values = [each["value"] for each in states.values()]
        assert values.count("loaded") <= 2, "the budget is kept"
        return states

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, name) for name in ["first", "embed", "second"] * 4]
        assert {each.result() for each in asked} == {200}
        assert 400 < read_states()["second"]["memory_bytes"] / 2**20 < 640
        httpx.post(f"{server.url}/models/unload", json={"model": "second"})
        while read_states()["second"]["value"] != "unloaded":
            pass
        before = list_own(server.process.pid)
        body = LONG | {"model": "second"}
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=body, timeout=120
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            [engine] = {*list_own(server.process.pid)} - {*before}
            others = [pool.submit(ask, "embed") for _ in range(8)]
            engine.send_signal(signal.SIGKILL)
            last = [line for line in lines if line][-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == 500
    assert {each.result() for each in others} == {200}
    while (second := read_states()["second"])["value"] != "failed":
        pass
    assert "was ended by SIGKILL" in second["reason"]
    assert ask("embed") == 200
    order = f"{server.url}/sleep?model=embed&level=2"
    assert httpx.post(order, timeout=60).status_code == 200
    asleep = read_states()["embed"]
    assert asleep["value"] == "sleeping"
    assert 100 < asleep["memory_bytes"] / 2**20 < 640
    order = f"{server.url}/wake_up?model=embed"
    assert httpx.post(order, timeout=60).status_code == 200
    assert ask("embed") == 200
    assert server.stop(signal.SIGTERM) == 0
    assert "--kv-cache-memory has no effect on" in server.read_log()
    # The engine processes say whose they are.
    assert "INFO first trioserve." in server.read_log()
    assert "INFO embed trioserve." in server.read_log()
    assert "Traceback" not in server.read_log()
    assert not any(each.is_running() for each in [engine, *before])
