"""The keys that clients must show."""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..config import HttpConfig
from ..errors import InvalidConfig, Unauthorized

if TYPE_CHECKING:
    from werkzeug.datastructures import Headers

KEY_RULE: Final = "a key has visible ASCII characters alone, and at least one"

# Ten thousand keys and more. They are compared one by one.
_MAX_FILE_BYTES: Final = 2**20

# Anthropic's clients send the key in a header of its own.
_ANTHROPIC_HEADER: Final = "x-api-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key without its secret.

    Args:
      is_admin: sees and cancels the requests of all keys.
    """

    name: str
    is_admin: bool = False


class KeyRing:
    """The keys of one server. Without keys, everybody may enter.

    Args:
      config: has keys, or names a file with a name and a key in each line, and perhaps
        the word admin.

    Raises:
      InvalidConfig: the file cannot be read, or a line is wrong.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._path = config.api_key_file
        self._given = {
            Key(name=f"key {i}"): key for i, key in enumerate(config.api_key, 1)
        }
        if not all(map(_is_sendable, config.api_key)):
            raise InvalidConfig("api_key", KEY_RULE)
        self._digests: dict[Key, bytes] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again; after an error, the keys stay as they were.

        Raises:
          InvalidConfig
        """
        keys = self._given | ({} if self._path is None else _read(Path(self._path)))
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


def _is_sendable(key: str) -> bool:
    """Whether all clients can send a key in a header."""
    return key.isascii() and key.isprintable() and " " not in key and bool(key)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _read(path: Path) -> dict[Key, str]:
    try:
        # To read a pipe would wait for its writer.
        if path.exists() and not path.is_file():
            raise InvalidConfig("api_key_file", f"{path} is no plain file")
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidConfig("api_key_file", f"{path} is longer than 1 MiB")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidConfig("api_key_file", f"cannot read {path}: {reason}") from None
    keys: dict[Key, str] = {}
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # The line itself is not shown, because it may have a key in it.
        if len(words) != 2 and words[2:] != ["admin"]:
            raise InvalidConfig(
                "api_key_file",
                f"line {number} must have a name and a key, and may end with admin",
            )
        name, secret = words[:2]
        if name in seen or secret in seen:
            raise InvalidConfig(
                "api_key_file", f"line {number} repeats a name or a key"
            )
        if not _is_sendable(secret):
            raise InvalidConfig("api_key_file", f"line {number}: {KEY_RULE}")
        seen |= {name, secret}
        keys[Key(name=name, is_admin=len(words) > 2)] = secret
    if not keys:
        # An empty file would open the server to everybody.
        raise InvalidConfig("api_key_file", f"{path} has no keys")
    return keys
