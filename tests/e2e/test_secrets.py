"""A server on a Unix socket, with TLS and keys that change while it runs."""

from __future__ import annotations

from contextlib import ExitStack
import json
from pathlib import Path
import signal
import ssl

from certificates import make_certificate
import httpx2 as httpx
import pytest
from server_process import SERVE, start_process

pytestmark = pytest.mark.slow


def test_a_server_takes_new_secrets_while_it_runs(
    model_folder: Path, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path) / "fullchain.pem"
    keys, path = tmp_path / "keys", tmp_path / "socket"
    requests = tmp_path / "requests"
    keys.write_text("ann sk-a")

    def ask(token: str) -> int:
        """Return the status of an answer to a new connection."""
        verify = ssl.create_default_context(cafile=certificate)
        transport = httpx.HTTPTransport(uds=str(path), verify=verify)
        with httpx.Client(transport=transport, base_url="https://localhost") as client:
            headers = {"Authorization": f"Bearer {token}"}
            return client.get("/v1/models", headers=headers).status_code

    with ExitStack() as stack:
        server = start_process(
            stack,
            [
                *(*SERVE, str(model_folder), "--uds", str(path)),
                *("--kv-cache-memory", "16MiB", "--num-threads", "1"),
                *(
                    "--tls-certfile",
                    str(certificate),
                    "--tls-keyfile",
                    str(tmp_path / "privkey.pem"),
                ),
                *("--api-key-file", str(keys), "--api-key", "sk-secret"),
                *("--request-log", str(requests)),
            ],
        )

        def reload(*lines: str) -> None:
            """Let the server read its files, and wait until it has logged the result."""
            before = len(server.log)
            server.process.send_signal(signal.SIGHUP)
            while not all(any(x in y for y in server.log[before:]) for x in lines):
                pass

        assert server.url == f"https://unix:{path}"
        tokens = ("sk-a", "sk-b", "sk-secret")
        assert [ask(token) for token in tokens] == [200, 401, 200]
        # The log of requests is moved away, as logrotate does it.
        first = requests.rename(tmp_path / "requests.1")
        # ask() verifies the new certificate from here on.
        make_certificate(tmp_path)
        keys.write_text("bob sk-b")
        reload("keys read again", "certificate read again")
        assert [ask(token) for token in tokens] == [401, 200, 200]
        keys.write_text("bob")
        good = certificate.read_bytes()
        certificate.write_bytes(b"nothing")
        reload("keys as before", "certificate as before")
        certificate.write_bytes(good)
        assert [ask(token) for token in tokens] == [401, 200, 200]
        assert server.stop() == 0
        names = [
            [json.loads(x)["key"] for x in each.read_text().splitlines()]
            for each in (first, requests)
        ]
        assert names[0] == ["ann", None, "key 1"]
        assert names[1] == [None, "bob", "key 1"] * 2
        assert "sk-" not in server.read_log()
        assert not path.exists()
