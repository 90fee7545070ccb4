"""The options of `trioserve top`: one field is one flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from ..config.checks import check_seconds
from ..errors import InvalidConfig

Order = Literal["age", "phase", "tokens", "key", "id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopConfig:
    """The server, and the way in which its requests are shown.

    Args:
      url: Address of the server, with http or https.
      uds: Unix socket of the server; the path of --url is still used.
      api_key: Key that the server wants. Other users of this machine can read it in the
        list of processes.
      api_key_file: File with that key, and nothing else: not the file of the server.
      tls_cafile: Certificates to trust in place of the system's, as PEM.
      interval: Time from one look at the server to the next, in seconds.
      sort: Order of the requests at the beginning.
      once: Print one table and end, as if the output were no terminal.
    """

    url: str = "http://127.0.0.1:8000"
    uds: str | None = None
    api_key: str | None = None
    api_key_file: str | None = None
    tls_cafile: str | None = None
    interval: float = 1.0
    sort: Order = "age"
    once: bool = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            # Names that the DNS cannot have are refused by the encoding.
            host = (parts.hostname or "").encode("idna")
            is_whole = bool(host) and parts.port != 0 and parts.path.isascii()
        except ValueError:
            is_whole = False
        if not is_whole or parts.scheme not in ("http", "https"):
            raise InvalidConfig("url", "must be like http://127.0.0.1:8000")
        if self.api_key is not None and self.api_key_file is not None:
            raise InvalidConfig("api_key", "and --api-key-file exclude each other")
        check_seconds("interval", self.interval)
