"""Options of the commands that talk to a server: where it is, and how it knows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import re
import ssl
from urllib.parse import urlsplit

from ..errors import InvalidConfig
from .checks import FilePath


def find_base_path(url: str) -> str:
    """Return the path of an address up to /v1, which people may write or leave out.

    Some write the path of an endpoint, too.
    """
    path = urlsplit(url).path.rstrip("/").removesuffix("/completions")
    return path.removesuffix("/chat").removesuffix("/v1")


def find_ascii_host(url: str) -> str:
    """Return the host of an address in ASCII, as the DNS and TLS know it; "" without a host.

    Raises:
      ValueError: the DNS cannot have such a name.

    Source: RFC 3490.
    """
    return (urlsplit(url).hostname or "").encode("idna").decode()


def find_netloc(url: str) -> str:
    """Return the host and the port of an address in ASCII, as a Host field has them.

    Raises:
      ValueError: as find_ascii_host, or the port is not one.
    """
    host, port = find_ascii_host(url), urlsplit(url).port
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """The server.

    Args:
      url: Address of the server, with http or https.
      uds: Unix socket of the server; the path of --url is still used.
      api_key: Key that the server wants. Other users of this machine can read it in the
        list of processes.
      api_key_file: File with that key, and nothing else: not the file of the server.
      tls_cafile: Certificates to trust in place of the system's, as PEM.
    """

    url: str = "http://127.0.0.1:8000"
    uds: FilePath | None = None
    api_key: str | None = None
    api_key_file: FilePath | None = None
    tls_cafile: FilePath | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            host = find_ascii_host(self.url)
            is_whole = bool(host) and parts.port != 0 and _is_visible(parts.path)
        except ValueError:
            is_whole = False
        if not is_whole or parts.scheme not in ("http", "https"):
            raise InvalidConfig("url", "must be like http://127.0.0.1:8000")
        if "@" in parts.netloc:
            raise InvalidConfig("url", "must have no user and no password")
        if self.api_key is not None and self.api_key_file is not None:
            raise InvalidConfig("api_key", "and --api-key-file exclude each other")

    @property
    def where(self) -> str:
        """The place of the server, for messages."""
        return self.uds or self.url

    def explain_unknown_key(self) -> str:
        """Return why the server answers 401, for people."""
        if self.api_key is None and self.api_key_file is None:
            return f"{self.where} wants a key: --api-key or --api-key-file"
        return f"{self.where} does not know this key"

    def read_key(self) -> str | None:
        """Return the key that the server wants; None if none was given.

        Raises:
          InvalidConfig: the file cannot be read, or its content is not a key.
        """
        field, key = "api_key", self.api_key
        if self.api_key_file is not None:
            field, key = "api_key_file", self._read_file(self.api_key_file)
        if key is not None and not (key and _is_visible(key)):
            raise InvalidConfig(field, "a key has visible ASCII characters alone")
        return key

    def _read_file(self, path: str) -> str:
        try:
            key = Path(path).read_text("utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig.of_file("api_key_file", "read", path, error) from error
        # Such as the file of the server.
        if len(key.split()) != 1:
            raise InvalidConfig(
                "api_key_file", "must have the key alone, without its name"
            )
        return key

    def make_tls(self) -> ssl.SSLContext | None:
        """Return how the server's certificate is checked; None for http.

        Raises:
          InvalidConfig: the file with the certificates cannot be read.
        """
        if urlsplit(self.url).scheme != "https":
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_cafile)
        except (OSError, ssl.SSLError) as error:
            assert self.tls_cafile is not None, "the system's certificates can be read"
            raise InvalidConfig.of_file(
                "tls_cafile", "read", self.tls_cafile, error
            ) from error


def _is_visible(text: str) -> bool:
    """Return whether a text has visible ASCII characters alone, so that HTTP can carry it."""
    return re.fullmatch("[!-~]*", text) is not None
