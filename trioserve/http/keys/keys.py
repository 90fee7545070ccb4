"""The keys that clients must show, and the file that has them.

# name key [admin] [weight=NUMBER] [max_requests=NUMBER] [tokens_per_minute=NUMBER]
ann    sk-5b1c0f    weight=2
batch  sk-90e2aa    max_requests=8 tokens_per_minute=60000
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import hashlib
import hmac
from pathlib import Path
import re
from typing import TYPE_CHECKING, Any, Final

from ...config import HttpConfig, check_plain_file
from ...errors import AdminKeyNeeded, InvalidConfig, Unauthorized
from ...types.client import Client

if TYPE_CHECKING:
    from werkzeug.datastructures import Headers

KEY_RULE: Final = "a key has visible ASCII characters alone, and at least one"

# Ten thousand keys and more. They are compared one by one.
_MAX_FILE_BYTES: Final = 2**20

_LINE_RULE: Final = (
    "must have a name and a key, and may end with admin, weight=, max_requests= and "
    "tokens_per_minute="
)

# Of weights. The share of the lightest key would be too small to be of use.
_LEAST, _MOST = 0.01, 100.0

_NUMBERS = {"max_requests": 10**6, "tokens_per_minute": 10**12}

# A word behind a key.
_WORD: Final = re.compile(r"admin|(weight|max_requests|tokens_per_minute)=.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key without its secret.

    Args:
      is_admin: sees and cancels the requests of all keys.
      weight: its share of the device beside other keys with work.
      max_requests: its requests that may be answered at once; None sets no limit.
      tokens_per_minute: its tokens of prompts and answers; None sets no limit.
    """

    name: str
    is_admin: bool = False
    weight: float = 1.0
    max_requests: int | None = None
    tokens_per_minute: int | None = None

    @property
    def client(self) -> Client:
        """The client of the engine to which its requests belong."""
        return Client(name=self.name, weight=self.weight)


def name_key(key: Key | None) -> str | None:
    """Return the name of a client's key; None without one.

    Things of a key remember its name, because the file may change: a new key with the
    name of an old one belongs to the same client.
    """
    return None if key is None else key.name


def may_see(asker: Key | None, owner: str | None) -> bool:
    """Return whether the client with a key may see things of the key with a name.

    A key of an administrator sees all. Without keys, everybody sees all.
    """
    return asker is None or asker.is_admin or asker.name == owner


def check_admin(asker: Key | None) -> None:
    """Refuse a client that may not change what all clients share.

    Raises:
      AdminKeyNeeded: its key is not an administrator's. Without keys, everybody is one.
    """
    if asker is not None and not asker.is_admin:
        raise AdminKeyNeeded()


def is_sendable(key: str) -> bool:
    """Return whether all clients can send a key in a header."""
    return key.isascii() and key.isprintable() and " " not in key and bool(key)


def read_keys(path: Path) -> dict[Key, str]:
    """Read the keys of a file, with their secrets.

    Raises:
      InvalidConfig: the file cannot be read, or a line is wrong.
    """
    keys: dict[Key, str] = {}
    seen: set[str] = set()
    for number, line in enumerate(_read_lines(path), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # The line itself is not shown, because it may have a key in it.
        if len(words) < 2:
            raise _refuse(number, _LINE_RULE)
        name, secret = words[:2]
        if name in seen or secret in seen:
            raise _refuse(number, "repeats a name or a key")
        if not name.isprintable():
            # It could control the terminal that shows a log.
            raise _refuse(number, "has a name with characters that cannot be seen")
        if _WORD.fullmatch(secret):
            # The key was forgotten. Others would guess the word.
            raise _refuse(number, "has a word for its limits in the place of its key")
        if not is_sendable(secret):
            raise InvalidConfig("api_key_file", f"line {number}: {KEY_RULE}")
        seen |= {name, secret}
        keys[_read_key(number, name, words[2:])] = secret
    if not keys:
        # An empty file would open the server to everybody.
        raise InvalidConfig("api_key_file", f"{path} has no keys")
    return keys


def _read_lines(path: Path) -> list[str]:
    try:
        check_plain_file("api_key_file", path)
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidConfig("api_key_file", f"{path} is longer than 1 MiB")
        # Editors of Windows begin a file with a byte order mark.
        return path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidConfig("api_key_file", f"cannot read {path}: {reason}") from None


def _read_key(number: int, name: str, words: Sequence[str]) -> Key:
    """Read the words behind a name and a key."""
    found: dict[str, Any] = {}
    for word in words:
        field, equals, text = word.partition("=")
        if field in found:
            raise _refuse(number, f"has {field} twice")
        if word == "admin":
            found["admin"] = True
        elif equals and field == "weight":
            found[field] = _read_weight(number, text)
        elif equals and field in _NUMBERS:
            found[field] = _read_number(number, field, text)
        elif word.startswith("#"):
            raise _refuse(number, "has a comment; comments have lines of their own")
        else:
            raise _refuse(number, _LINE_RULE)
    return Key(name=name, is_admin=found.pop("admin", False), **found)


def _read_weight(number: int, text: str) -> float:
    weight = float(text) if re.fullmatch(r"\d{1,3}(\.\d{1,6})?", text, re.A) else 0.0
    if not _LEAST <= weight <= _MOST:
        raise _refuse(number, f"needs a weight from {_LEAST:g} to {_MOST:g}")
    return weight


def _read_number(number: int, field: str, text: str) -> int:
    most = _NUMBERS[field]
    value = int(text) if re.fullmatch(r"\d{1,12}", text, re.A) else 0
    if not 1 <= value <= most:
        raise _refuse(number, f"needs a {field} from 1 to {most}")
    return value


def _refuse(number: int, reason: str) -> InvalidConfig:
    return InvalidConfig("api_key_file", f"line {number} {reason}")


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
