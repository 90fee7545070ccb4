"""Servers that are measured: their addresses and their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import re
from urllib.parse import urlsplit

import msgspec

from ....config.remote import RemoteConfig
from ...http.client import Connection, RequestFailed, RequestRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of one server, and its label in the results.

    `turn` is the number of earlier servers of this run with the same URL. Prompts
    depend on it, so a server that is measured against itself gets no prompt twice.
    """

    label: str
    url: str
    model: str | None = None
    turn: int = 0
    key: str | None = None


class ServerUnusable(Exception):
    """Raised before any load when a server cannot be measured at all."""

    def __init__(self, server: Server, reason: object) -> None:
        super().__init__(f"{server.label} ({server.url}): {reason}")


def read_servers(
    texts: Sequence[str],
    label: str | None = None,
    model: str | None = None,
    key: str | None = None,
) -> list[Server]:
    """Read [LABEL=]URL; the host and port are the label of a URL that has none.

    Raises:
      ValueError: a URL is malformed, or two servers have the same label.
    """
    servers: list[Server] = []
    for text in texts:
        match = re.fullmatch(r"(?:([^=:/]+)=)?(https?://[^/]+.*)", text)
        if match is None:
            raise ValueError(f"{text!r} is not [LABEL=]http://HOST:PORT")
        url = match[2]
        # Refuses settings that no request can carry.
        RemoteConfig(url=url, api_key=key).read_key()
        servers.append(
            Server(
                label=match[1] or label or urlsplit(url).netloc,
                url=url,
                model=model,
                key=key,
                turn=sum(url == earlier.url for earlier in servers),
            )
        )
    labels = [server.label for server in servers]
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"labels must differ: {', '.join(labels)}; write LABEL=URL for each"
        )
    return servers


class ModelCard(msgspec.Struct):
    id: str


class ModelList(msgspec.Struct):
    data: list[ModelCard]


async def fetch_model(connection: Connection) -> str:
    """Fetch the name of the first model that a server lists.

    Raises:
      RequestFailed: it lists none.
    """
    data = await connection.fetch("GET", "/v1/models")
    listed = msgspec.json.decode(data, type=ModelList)
    if not listed.data:
        raise RequestFailed("/v1/models is empty; give --model")
    return listed.data[0].id


async def has_path(connection: Connection, path: str) -> bool:
    """Return whether a GET of this path is answered with 200."""
    try:
        await connection.fetch("GET", path)
    except RequestRefused:
        return False
    return True
