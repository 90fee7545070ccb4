"""The requests of docs/examples.rst get answers with the fields that the page shows."""

from __future__ import annotations

import json
from pathlib import Path
import re
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.http.wire.respond import JSON
from trioserve.server.routes import ROUTES
from trioserve.testing.server import open_fake_pooling_server

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "examples.rst"
BLOCK = re.compile(r"^(Request|Answer)::\n\n((?:    .*\n|\n)+)", re.MULTILINE)

POOLING = (
    *("/v1/embeddings", "/pooling", "/v1/embed", "/v2/embed", "/score", "/rerank"),
    *("/api/embed", "/api/embeddings"),
)


class Example:
    """A request and the text of its answer.

    Attributes:
      path: with its query.
      body: None for a request without one.
    """

    def __init__(self, request: str, answer: str) -> None:
        line, _, body = request.partition("\n")
        self.method, self.path = line.split(" ")
        self.body: Any = json.loads(body) if body.strip() else None
        self.answer = answer.strip()

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"


def read_page() -> list[Example]:
    blocks = [
        "\n".join(line[4:] for line in text.splitlines())
        for _, text in BLOCK.findall(PAGE.read_text())
    ]
    return [Example(*pair) for pair in zip(blocks[::2], blocks[1::2], strict=True)]


EXAMPLES = read_page()


def check_same(shown: Any, got: Any) -> None:
    """Check that two answers have the same fields. Null and empty lists tell nothing."""
    if shown is None or got is None:
        return
    if isinstance(shown, dict):
        assert list(shown) == list(got)
        for name in shown:
            check_same(shown[name], got[name])
    elif isinstance(shown, list):
        assert isinstance(got, list)
        if shown and got:
            check_same(shown[0], got[0])
    else:
        numbers = (int, float)
        both = isinstance(shown, numbers) and isinstance(got, numbers)
        assert both or type(shown) is type(got)


def parse(text: str) -> list[Any]:
    """Return the JSON of an answer or of its lines, or the names and data of its events."""
    try:
        return [json.loads(text)]
    except ValueError:
        return list(map(parse_line, text.splitlines()))


def parse_line(line: str) -> Any:
    if line.startswith("{"):
        return json.loads(line)
    name, _, value = line.partition(": ")
    return json.loads(value) if value.startswith("{") else {name: value}


def check_answer(example: Example, answer: httpx.Response) -> None:
    shown, got = parse(example.answer), parse(answer.text.strip())
    assert len(shown) == len(got)
    for one, other in zip(shown, got):
        check_same(one, other)
        for name in ("type", "object", "event", "stop_reason", "error"):
            if name in one and isinstance(one[name], str):
                assert one[name] == other[name]
    assert answer.is_error == ('"error"' in example.answer[:30])


def test_the_page_shows_each_endpoint_with_json() -> None:
    shown = {(each.method, each.path.partition("?")[0]) for each in EXAMPLES}
    for route in ROUTES:
        # A server with one model has not got /models/load and /models/unload.
        if route.answers.get(JSON) is None or route.paths[0].startswith("/models/"):
            continue
        patterns = [re.sub(r"<\w+:\w+>", "[^/]+", path) for path in route.paths]
        assert any(
            method == route.method and re.fullmatch(pattern, path)
            for pattern in patterns
            for method, path in shown
        ), route.paths


def test_the_default_model_answers_as_the_page_shows(default_url: str) -> None:
    """In the order of the page: later requests name earlier responses."""
    ids: dict[str, str] = {}

    def put_ids(text: str) -> str:
        for shown, own in ids.items():
            text = text.replace(shown, own)
        return text

    with httpx.Client(base_url=default_url, timeout=60) as client:
        for example in EXAMPLES:
            if example.path.startswith((*POOLING, "/classify")):
                continue
            body = put_ids(json.dumps(example.body))
            answer = client.request(
                example.method, put_ids(example.path), json=json.loads(body)
            )
            check_answer(example, answer)
            if (example.method, example.path) == ("POST", "/v1/responses"):
                if not example.body.get("stream"):
                    shown = json.loads(example.answer)["id"]
                    ids[shown] = answer.json()["id"]


@pytest.mark.parametrize("task", ["embed", "classify"])
async def test_models_that_pool_answer_as_the_page_shows(
    tokenizer_folder: Path, task: Any
) -> None:
    paths = POOLING if task == "embed" else ("/classify",)
    labels = ("sad", "glad") if task == "classify" else ()
    examples = [each for each in EXAMPLES if each.path in paths]
    assert len(examples) == len(paths)
    with trio.fail_after(30):
        async with (
            open_fake_pooling_server(
                tokenizer_folder, task=task, num_outputs=2, labels=labels
            ) as server,
            httpx.AsyncClient(base_url=server.url) as client,
        ):
            for example in examples:
                # Ollama's clients always name a model.
                named = {"model": "fake"} if "model" in example.body else {}
                answer = await client.post(example.path, json=example.body | named)
                check_answer(example, answer)


def test_the_page_shows_probabilities_of_labels() -> None:
    """The fake device of the other tests gives plain numbers."""
    [example] = (each for each in EXAMPLES if each.path == "/classify")
    for row in json.loads(example.answer)["data"]:
        assert sum(row["probs"]) == pytest.approx(1)
        assert row["label"] == ("sad", "glad")[row["probs"].index(max(row["probs"]))]
