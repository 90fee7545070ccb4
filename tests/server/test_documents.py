"""The documents for people: their headers, their addresses, and who may read them."""

from __future__ import annotations

import base64
import configparser
import hashlib
import html.parser
import json
from pathlib import Path
import re
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig
from trioserve.server.openapi import openapi_document
from trioserve.server.page import Document, load_page, render_reference
from trioserve.server.page.libraries import load_libraries
from trioserve.server.routes import ROUTES
from trioserve.testing.server import open_fake_pooling_server, open_fake_server
from trioserve.types.pooling import PoolingTask

PATHS = ("/", "/docs")
LIBRARY = "/libraries/temml.css"

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=PATHS)
def document(request: pytest.FixtureRequest) -> Document:
    if request.param == "/":
        return load_page()
    return describe()


def describe() -> Document:
    return render_reference(openapi_document("0", ROUTES, None))


# The only addresses in the documents: names of formats, an example, and an expression.
HARMLESS = ("http://www.w3.org/2000/svg", "http://localhost:8000")


class Reader(html.parser.HTMLParser):
    """Collects the addresses that a browser would fetch, and the anchors."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.feed(document.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name in ("src", "href", "action", "srcset", "data"):
                self.fetched.append(value or "")
            elif name.startswith("on") or name == "style":
                self.handlers.append(name)


def test_a_browser_fetches_nothing_else(document: Document) -> None:
    seen = Reader(document)
    assert all(each.startswith("data:") for each in seen.fetched)
    assert seen.handlers == []
    found = set(re.findall(r"[a-z]+://[^\s\"'<]*", document.html))
    assert found <= {*HARMLESS}
    assert "@import" not in document.html


def test_links_inside_lead_somewhere_and_no_id_is_there_twice(
    document: Document,
) -> None:
    seen = Reader(document)
    assert len(seen.ids) == len({*seen.ids})
    anchors = {link[1:] for link in seen.links if link.startswith("#")}
    assert anchors <= {*seen.ids}
    # All others are relative, so that a proxy may put the document below any path.
    others = {link for link in seen.links if not link.startswith("#")}
    assert others <= {"./", "docs", "openapi.json"}


def list_packed(folder: str) -> list[Path]:
    """List the files of a folder of the package, all of which are packed."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["trioserve"].split()
    package = ROOT / "trioserve"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    found = [*(package / folder).iterdir()]
    assert {*found} <= packed
    return found


def test_each_part_of_the_documents_is_packed_and_joined() -> None:
    parts = list_packed("server/page/browser")
    assert {path.suffix for path in parts} == {".html", ".css", ".js"}
    documents = load_page().html + describe().html
    for path in parts:
        text = path.read_text("utf-8")
        if path.suffix != ".html":
            assert f">\n{text}</" in documents, path
            # Nothing in a part ends the tag around it.
            assert "</s" not in text, path


def test_the_page_is_small() -> None:
    assert len(load_page().content) < 150_000


def test_a_document_makes_no_html_of_text(document: Document) -> None:
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
        assert name not in document.html
    assert not re.search(r"\beval\(|new Function|\.cookie", document.html)


@pytest.mark.parametrize("path", PATHS)
async def test_a_document_has_a_strict_policy(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = dict(
        each.split(" ", 1)
        for each in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["base-uri"] == "'none'"
    assert policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["img-src"] == "data: blob:"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    [*scripts] = re.findall(r"<script[^>]*>(.*?)</script>", answer.text, re.DOTALL)
    if path == "/":
        # The libraries, which the import map names with the same hashes.
        [found] = re.findall(r'<script type="importmap">(.*?)</script>', answer.text)
        loaded = json.loads(found)
        assert {*loaded["integrity"]} == {*loaded["imports"].values()}
        for address in loaded["imports"].values():
            library = await client.get(f"/{address}")
            assert library.headers["content-type"] == "text/javascript; charset=utf-8"
            assert f"'{loaded['integrity'][address]}'" == hash_text(library.text)
            scripts.append(library.text)
    styles = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert policy["script-src"] == " ".join(map(hash_text, scripts))
    assert policy["style-src"] == " ".join(map(hash_text, styles))


def hash_text(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def test_libraries_are_packed_with_their_licences() -> None:
    [*paths] = list_packed("server/page/libraries")
    assert {path.name for path in paths} == {
        *load_libraries(),
        "README.rst",
        "highlight.LICENSE",
        "temml.LICENSE",
    }
    about = next(path for path in paths if path.suffix == ".rst").read_text("utf-8")
    for path in paths:
        if path.suffix == ".js":
            # The version of the file is the one that is written down.
            [version] = set(
                re.findall(
                    r'v(11\.\d+\.\d+) |version:"(0\.\d+\.\d+)"', path.read_text("utf-8")
                )
            )
            assert "".join(version) in about, path


@pytest.mark.parametrize("path", [*PATHS, LIBRARY])
async def test_a_browser_keeps_a_document_until_it_changes(
    client: httpx.AsyncClient, path: str
) -> None:
    first = await client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    etag = first.headers["etag"]
    again = await client.get(path, headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag
    # Proxies that compress make weak tags of strong ones.
    assert (
        await client.get(path, headers={"If-None-Match": f"W/{etag}"})
    ).status_code == 304
    other = await client.get(path, headers={"If-None-Match": '"another"'})
    assert other.status_code == 200
    head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == etag


async def test_the_description_has_one_address(client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs/")
    assert (answer.status_code, answer.headers["location"]) == (308, "../docs")


def serve(**http: Any) -> pytest.MarkDecorator:
    return pytest.mark.server(http=HttpConfig(**http))


@serve(ui=False)
async def test_an_option_turns_them_off(client: httpx.AsyncClient) -> None:
    for path in (*PATHS, LIBRARY):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert "--ui" in answer.json()["error"]["message"]
    assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    "ui",
    [
        pytest.param(ui, marks=serve(api_key=("sk-one",), ui=ui), id=str(ui))
        for ui in (True, False)
    ],
)
async def test_they_need_no_key(client: httpx.AsyncClient, ui: bool) -> None:
    for path in (*PATHS, LIBRARY):
        # Without them, strangers do not learn that the paths exist.
        expected = 200 if ui else 401
        assert (await client.get(path)).status_code == expected
        assert (await client.post(path)).status_code in (401, 405)


@serve(root_path="/llm")
async def test_they_are_below_the_path_of_a_proxy(client: httpx.AsyncClient) -> None:
    for path in ("/", "/llm", "/llm/"):
        answer = await client.get(path)
        assert answer.content == load_page().content
    described = await client.get("/llm/docs")
    assert "$URL/llm/v1/chat/completions" in described.text


@pytest.mark.parametrize(
    "ui", [pytest.param(ui, marks=serve(ui=ui), id=str(ui)) for ui in (True, False)]
)
async def test_the_base_url_says_where_to_go(
    client: httpx.AsyncClient, ui: bool
) -> None:
    for path in ("/v1", "/v1/", "/v2"):
        answer = await client.get(path)
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert ("/docs" in message) == ui


async def test_examples_are_answered(tokenizer_folder: Path, tmp_path: Path) -> None:
    asked = set()
    (tmp_path / "french").mkdir()
    (tmp_path / "french" / "answer.txt").write_text("Bonjour")
    http = HttpConfig(adapter_folder=(str(tmp_path),))
    async with (
        open_fake_server(tokenizer_folder, http=http) as server,
        httpx.AsyncClient(timeout=60) as client,
    ):
        with trio.fail_after(60):
            asked |= await ask_examples(client, server.url)
    tasks: list[tuple[PoolingTask, tuple[str, ...]]] = [
        ("embed", ()),
        ("classify", ("a", "b")),
    ]
    for task, labels in tasks:
        async with (
            open_fake_pooling_server(
                tokenizer_folder,
                task=task,
                labels=labels,
                num_outputs=len(labels) or 8,
                http=http,
            ) as pooling,
            httpx.AsyncClient(timeout=60) as client,
        ):
            with trio.fail_after(60):
                asked |= await ask_examples(client, pooling.url)
    assert asked | {*OFF} == {
        path for route in ROUTES if route.bodies for path in route.documented_paths
    }


# They need a server with several models, or with --adapter-folder.
OFF = (
    *("/models/load", "/models/unload"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
)


async def ask_examples(client: httpx.AsyncClient, url: str) -> set[str]:
    """Send all examples to a server; returns the paths that its model answers."""
    answered = set()
    for route in ROUTES:
        if not route.bodies:
            continue
        for path in route.documented_paths:
            body = {**route.example}
            if "model" in body:
                body["model"] = "fake"
            answer = await client.post(url + path, json=body)
            if answer.status_code == 200:
                answered.add(path)
            else:
                reasons = ("this server uses it to", "This endpoint is off")
                assert any(each in answer.text for each in reasons), (path, answer.text)
    return answered
