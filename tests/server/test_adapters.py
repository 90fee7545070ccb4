"""Adapters over HTTP: loads, names in all dialects, lists, and requests that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.errors import InvalidAdapter
from trioserve.testing.server import open_fake_server
from trioserve.types.adapter import AdapterSource

MESSAGES = [{"role": "user", "content": "Hello"}]

# Each dialect's request, and the place of the text in its answer.
DIALECTS: dict[str, tuple[dict[str, Any], tuple[str | int, ...]]] = {
    "/v1/chat/completions": (
        {"messages": MESSAGES, "max_tokens": 4},
        ("choices", 0, "message", "content"),
    ),
    "/v1/completions": ({"prompt": "Hi", "max_tokens": 4}, ("choices", 0, "text")),
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 4},
        ("output", 0, "content", 0, "text"),
    ),
    "/v1/messages": (
        {"messages": MESSAGES, "max_tokens": 4},
        ("content", 0, "text"),
    ),
    "/api/chat": (
        {"messages": MESSAGES, "stream": False, "options": {"num_predict": 4}},
        ("message", "content"),
    ),
    "/api/generate": (
        {"prompt": "Hi", "stream": False, "options": {"num_predict": 4}},
        ("response",),
    ),
    "/invocations": (
        {"messages": MESSAGES, "max_tokens": 4},
        ("choices", 0, "message", "content"),
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of adapters, which answer with texts of their own."""
    root = tmp_path / "adapters"
    for name, text in {"french": "Bonjour le monde ", "german": "Hallo "}.items():
        (root / name).mkdir(parents=True)
        (root / name / "answer.txt").write_text(text)
    (root / "half").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "answer.txt").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    return root


def read_adapter(source: AdapterSource) -> str:
    file = Path(source.path, "answer.txt")
    if not file.exists():
        raise InvalidAdapter(source.name, "there is no adapter_config.json")
    return file.read_text()


@asynccontextmanager
async def open_client(
    tokenizer_folder: Path, http: HttpConfig, *, is_remote: bool = True
) -> AsyncIterator[httpx.AsyncClient]:
    with trio.fail_after(60):
        async with (
            open_fake_server(
                tokenizer_folder,
                http=http,
                is_remote=is_remote,
                read_adapter=read_adapter,
                answer="The quick brown fox ",
            ) as server,
            httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        ):
            yield client


async def load(client: httpx.AsyncClient, **body: object) -> httpx.Response:
    return await client.post("/v1/load_lora_adapter", json=body)


async def unload(client: httpx.AsyncClient, name: object) -> httpx.Response:
    return await client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def find(answer: Any, place: tuple[str | int, ...]) -> object:
    for step in place:
        answer = answer[step]
    return answer


async def test_every_dialect_names_an_adapter_as_its_model(
    tokenizer_folder: Path, folder: Path
) -> None:
    http = HttpConfig(adapter_folder=(str(folder),))
    async with open_client(tokenizer_folder, http) as client:
        loaded = await load(client, lora_name="owner/french", lora_path="french")
        assert loaded.status_code == 200
        assert loaded.text == (
            "Success: LoRA adapter 'owner/french' added successfully."
        )
        for path, (body, place) in DIALECTS.items():
            texts = {}
            for model in ("fake", "owner/french", "owner/french:latest", "spanish"):
                answer = await client.post(path, json=body | {"model": model})
                if model == "spanish":
                    assert answer.status_code == 404, path
                    assert "owner/french" in answer.text, "it names what is there"
                    continue
                assert answer.status_code == 200, answer.text
                texts[model] = find(answer.json(), place)
                if not path.startswith("/api/"):
                    assert answer.json()["model"] == model.removesuffix(":latest"), path
            assert str(texts["fake"]).startswith("The"), path
            assert str(texts["owner/french"]).startswith("Bon"), path
            assert texts["owner/french"] == texts["owner/french:latest"], path

        models = (await client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["root"], each["parent"]) for each in models] == [
            ("fake", "fake", None),
            ("owner/french", str(folder / "french"), "fake"),
        ]
        one = (await client.get("/v1/models/owner/french")).json()
        assert one == models[1]
        tags = (await client.get("/api/tags")).json()["models"]
        assert [each["name"] for each in tags] == ["fake", "owner/french"]
        assert tags[1]["details"]["parent_model"] == "fake"
        assert tags[1]["digest"] != tags[0]["digest"]
        shown = await client.post("/api/show", json={"model": "owner/french"})
        assert shown.json()["details"]["parent_model"] == "fake"
        counted = {"model": "owner/french", "messages": MESSAGES}
        for path in ("/v1/messages/count_tokens", "/tokenize"):
            assert (await client.post(path, json=counted)).status_code == 200, path

        lines = (await client.get("/metrics")).text.splitlines()
        assert "trioserve_adapters_loaded 1.0" in lines
        of_adapter = 'trioserve_adapter_requests_total{adapter="owner/french"}'
        assert f"{of_adapter} {2.0 * len(DIALECTS)}" in lines

        gone = await unload(client, "owner/french")
        assert gone.text == (
            "Success: LoRA adapter 'owner/french' removed successfully."
        )
        for path, (body, _) in DIALECTS.items():
            answer = await client.post(path, json=body | {"model": "owner/french"})
            assert answer.status_code == 404, path
        assert len((await client.get("/v1/models")).json()["data"]) == 1
        assert of_adapter not in (await client.get("/metrics")).text


@pytest.mark.parametrize("is_remote", [False, True])
async def test_wrong_loads_and_unloads_change_nothing(
    tokenizer_folder: Path, folder: Path, is_remote: bool
) -> None:
    http = HttpConfig(adapter_folder=(str(folder),))
    wrong: list[tuple[dict[str, object], int, str, str]] = [
        ({"lora_path": "french"}, 400, "InvalidUserInput", "lora_name: is required"),
        ({"lora_name": "x"}, 400, "InvalidUserInput", "lora_path: is required"),
        (
            {"lora_name": "fake", "lora_path": "french"},
            400,
            "InvalidUserInput",
            "model",
        ),
        (
            {"lora_name": "a\n", "lora_path": "french"},
            400,
            "InvalidUserInput",
            "visible",
        ),
        ({"lora_name": "../x", "lora_path": "french"}, 400, "InvalidUserInput", ".."),
        ({"lora_name": 7, "lora_path": "french"}, 400, "BadRequestError", "lora_name"),
        ({"lora_name": "x", "lora_path": "none"}, 404, "NotFoundError", "none"),
        ({"lora_name": "x", "lora_path": "half"}, 400, "BadRequestError", "'x'"),
        *(
            (
                {"lora_name": "x", "lora_path": path},
                400,
                "InvalidUserInput",
                "--adapter",
            )
            for path in ("../secret", "link", "/etc", f"{folder}/../secret")
        ),
        ({"lora_name": "x", "lora_path": "a\0b"}, 400, "InvalidUserInput", "null"),
        (
            {"lora_name": "german", "lora_path": "german"},
            400,
            "InvalidUserInput",
            "'german' is loaded already; set load_inplace",
        ),
    ]
    async with open_client(tokenizer_folder, http, is_remote=is_remote) as client:
        path = str(folder / "german")
        assert (await load(client, lora_name="german", lora_path=path)).is_success
        for body, status, code, message in wrong:
            answer = await load(client, **body)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (status, code), body
            assert message in error["message"], body
        for name, status in ((None, 400), ("x", 404), ("fake", 404), ("a/b", 404)):
            answer = await unload(client, name)
            assert answer.status_code == status, name
        models = (await client.get("/v1/models")).json()["data"]
        assert [each["id"] for each in models] == ["fake", "german"]
        again = {"lora_name": "german", "lora_path": "french", "load_inplace": True}
        assert (await load(client, **again)).is_success
        body = {"model": "german", "prompt": "Hi", "max_tokens": 4}
        answer = await client.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"].startswith("Bon")


async def test_only_an_administrator_may_load(
    tokenizer_folder: Path, folder: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice secret-a\nroot secret-r admin\n")
    http = HttpConfig(adapter_folder=(str(folder),), api_key_file=str(keys))
    async with open_client(tokenizer_folder, http) as client:
        statuses = {"secret-x": 401, "secret-a": 403, "secret-r": 200}
        for secret, status in statuses.items():
            client.headers["Authorization"] = f"Bearer {secret}"
            loaded = await load(client, lora_name="french", lora_path="french")
            assert loaded.status_code == status, secret
        client.headers["Authorization"] = "Bearer secret-a"
        refused = await unload(client, "french")
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "PermissionDeniedError"
        body = {"model": "french", "prompt": "Hi", "max_tokens": 4}
        assert (await client.post("/v1/completions", json=body)).is_success


async def test_without_a_folder_both_endpoints_are_off(tokenizer_folder: Path) -> None:
    async with open_client(tokenizer_folder, HttpConfig()) as client:
        for answer in (
            await load(client, lora_name="x", lora_path="x"),
            await unload(client, "x"),
        ):
            assert answer.status_code == 404
            assert "--adapter-folder" in answer.json()["error"]["message"]
