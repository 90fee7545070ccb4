"""A hub repository is fetched in two parts: its description, then its weights."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json
from pathlib import Path
import threading

from huggingface_hub import constants
import pytest

from trioserve.errors import WeightsNotFound
from trioserve.weights import complete_weights, resolve_description, resolve_weights

COMMIT = "0123456789" * 4


class Hub(ThreadingHTTPServer):
    """Serves a repository, org/tiny, as far as huggingface_hub needs it.

    Attributes:
      sent: files whose content was requested.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.sent: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        _, is_file, name = self.path.partition(f"/resolve/{COMMIT}/")
        body = self.describe()
        if is_file:
            body = (self.server.folder / name).read_bytes()
            if with_body:
                self.server.sent.append(name)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{len(body)}-{name}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def describe(self) -> bytes:
        files = [
            {"type": "file", "path": path.name, "oid": "0", "size": path.stat().st_size}
            for path in self.server.folder.iterdir()
        ]
        siblings = [{"rfilename": file["path"]} for file in files]
        model = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings}
        return json.dumps(files if "/tree/" in self.path else model).encode()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    with Hub(model_folder) as hub:
        address = f"http://127.0.0.1:{hub.server_port}"
        # The client has read the environment at its import.
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


@pytest.mark.slow
def test_weights_are_fetched_last(hub: Hub) -> None:
    (hub.folder / "tokenizer.json").write_text("{}")
    (hub.folder / "README.md").write_text("nobody reads it")
    described = resolve_description("org/tiny")
    assert not described.is_complete
    assert sorted(hub.sent) == ["config.json", "tokenizer.json"]
    weights = complete_weights(described)
    assert weights.is_complete
    assert hub.sent[2:] == ["model.safetensors"]
    assert resolve_weights("org/tiny") == complete_weights(weights) == weights
    assert len(hub.sent) == 3


@pytest.mark.slow
def test_a_folder_without_a_model_is_refused_before_weights_are_fetched(
    hub: Hub,
) -> None:
    (hub.folder / "config.json").unlink()
    with pytest.raises(WeightsNotFound, match="has no config.json"):
        resolve_weights("org/tiny")
    assert hub.sent == []
