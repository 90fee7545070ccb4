"""The endpoints of sleep, as vLLM's; and everything else that asks an engine that sleeps."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx
import trio

from trioserve.config import HttpConfig
from trioserve.testing.fake_device import FakeMemory
from trioserve.testing.server import open_fake_server

COMPLETION = {"model": "fake", "prompt": "Hi", "max_tokens": 3}
ROOT = {"Authorization": "Bearer sk-root"}
ANN = {"Authorization": "Bearer sk-ann"}


async def test_an_operator_lets_the_engine_sleep_and_wakes_it(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann sk-ann\nroot sk-root admin\n")
    memory = FakeMemory(give_seconds=0.0, take_seconds=0.0)
    with trio.fail_after(60):
        async with (
            open_fake_server(
                tokenizer_folder,
                http=HttpConfig(api_key_file=str(keys)),
                memory=memory,
            ) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        ):

            async def ask(method: str, path: str, **options: object) -> httpx.Response:
                options = {"headers": ROOT} | options
                return await client.request(method, path, **options)  # type: ignore

            refusals = [
                # path, key, status, a part of the message
                ("/sleep", ANN, 403, "key of an administrator"),
                ("/wake_up", ANN, 403, "key of an administrator"),
                ("/sleep?level=0", ROOT, 400, "level: must be 1"),
                ("/sleep?level=2&level=1", ROOT, 400, "level: may be given once"),
                ("/sleep?mode=keep", ROOT, 400, "mode: keep is not possible"),
                ("/sleep?mode=now", ROOT, 400, "mode: must be abort or wait"),
                ("/sleep?tags=weights", ROOT, 400, "tags: is not known; only level"),
                ("/wake_up?tags=weights", ROOT, 400, "tags: is not taken"),
                ("/wake_up?level=1", ROOT, 400, "level: is not known; only model"),
            ]
            for path, key, status, text in refusals:
                answer = await ask("POST", path, headers=key)
                assert answer.status_code == status, path
                assert text in answer.json()["error"]["message"], path
            assert memory.moves == []

            assert (await ask("GET", "/is_sleeping")).json() == {"is_sleeping": False}
            answer = await ask("POST", "/sleep?level=2&mode=wait")
            assert (answer.status_code, answer.content) == (200, b"")
            assert memory.moves == [2]
            # Probes need no key, and wake nothing.
            asked = await client.get("/is_sleeping")
            assert asked.json() == {"is_sleeping": True}
            rows = [
                ("/health", 503),
                ("/readyz", 503),
                ("/livez", 200),
                ("/progressz", 200),
                ("/metrics", 200),
                ("/v1/models", 200),
                ("/v1/requests", 200),
            ]
            for path, status in rows:
                assert (await ask("GET", path)).status_code == status, path
            metrics = (await ask("GET", "/metrics")).text
            assert "trioserve_sleep_level 2.0" in metrics
            refused = await ask("POST", "/v1/completions", json=COMPLETION)
            assert refused.status_code == 503
            assert refused.headers["Retry-After"] == "10"
            assert "POST /wake_up" in refused.json()["error"]["message"]
            tokens = await ask("POST", "/tokenize", json={"prompt": "Hi"})
            assert tokens.status_code == 200
            assert memory.moves == [2]

            assert (await ask("POST", "/wake_up")).status_code == 200
            assert memory.moves == [2, 0]
            assert (await ask("GET", "/health")).status_code == 200
            answer = await ask("POST", "/v1/completions", json=COMPLETION)
            assert answer.status_code == 200


async def test_a_stream_ends_with_an_error_when_its_engine_is_put_to_sleep(
    tokenizer_folder: Path,
) -> None:
    with trio.fail_after(60):
        async with (
            open_fake_server(
                tokenizer_folder,
                step_seconds=0.05,
                memory=FakeMemory(give_seconds=0.0, take_seconds=0.0),
            ) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        ):
            body = COMPLETION | {"max_tokens": 200, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.aiter_lines()
                assert (await anext(lines)).startswith("data: ")
                assert (await client.post("/sleep")).status_code == 200
                rest = [line async for line in lines]
            assert any("asleep by order of an operator" in line for line in rest)
            assert (await client.post("/wake_up")).status_code == 200
            assert (await client.post("/v1/completions", json=COMPLETION)).is_success
