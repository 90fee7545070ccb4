"""The keys that clients must show."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...config import HttpConfig
from ...errors import InvalidConfig, Unauthorized
from .key_file import KEY_RULE, Key, is_sendable, read_keys

if TYPE_CHECKING:
    from werkzeug.datastructures import Headers

# Anthropic's clients send the key in a header of its own.
_ANTHROPIC_HEADER: Final = "x-api-key"


class KeyRing:
    """The keys of one server. Without keys, everybody may enter.

    Args:
      config: has keys, or names a file with them; see key_file.py.

    Raises:
      InvalidConfig: the file cannot be read, or a line is wrong.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._path = config.api_key_file
        self._given = {
            Key(name=f"key {i}"): key for i, key in enumerate(config.api_key, 1)
        }
        if not all(map(is_sendable, config.api_key)):
            raise InvalidConfig("api_key", KEY_RULE)
        self._digests: dict[Key, bytes] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again; after an error, the keys stay as they were.

        Raises:
          InvalidConfig
        """
        keys = self._given | ({} if self._path is None else read_keys(Path(self._path)))
        self._digests = {key: _digest(secret) for key, secret in keys.items()}

    def check(self, headers: Headers) -> Key | None:
        """Return the client's key; None if the server has no keys.

        Raises:
          Unauthorized
        """
        if not self._digests:
            return None
        shown = _list_keys(headers)
        # All keys are compared, and digests of one length, so that the time of an answer
        # says nothing about a key.
        found = [
            key
            for digest in map(_digest, shown)
            for key, expected in self._digests.items()
            if hmac.compare_digest(digest, expected)
        ]
        if not found:
            raise Unauthorized(has_key=bool(shown))
        return found[0]


def _list_keys(headers: Headers) -> list[str]:
    """Return the keys of a request; clients that send two may know one of them."""
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    keys = [
        key if scheme.lower() == "bearer" else "",
        headers.get(_ANTHROPIC_HEADER, ""),
    ]
    return [key.strip() for key in keys if key.strip()]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
