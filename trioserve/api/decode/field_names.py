"""Looks at the names of an object's fields before it is decoded.

A field that is not implemented, or that another server has, is refused unless its value is
neutral. So is a name that is one letter away from the name of a field: temprature. All other
unknown fields are ignored.

The names are found by one pass that decodes no value. The JSON decoder asks Python for unknown
names alone, and there may be few of them, so the pass costs what the decoder takes to skip the
object. A name is looked up eight times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import enum
import os
import threading
from typing import Any, Final

import msgspec

from ...errors import InvalidParameter
from .errors import Refused, explain, refuse
from .shapes import list_fields, list_structs

# Clients were not seen to send more than ten.
MAX_UNKNOWN_FIELDS: Final = 128

# Names with fewer letters are not compared: too many words are near them.
_FEWEST_LETTERS: Final = 4
# A longer name is near no field of any request.
_MOST_LETTERS: Final = 32

# Stands for all unknown names.
_UNKNOWN: Final = "\0"


class FieldNames:
    """The names of the fields that one object may have.

    Args:
      taken: names that have a meaning.
      ignored: names that change nothing.
      refused: fields that are refused unless they have one of these values.
      inside: the objects in fields, by the name of the field.
    """

    def __init__(
        self,
        taken: Iterable[str],
        *,
        ignored: frozenset[str] = frozenset(),
        refused: Mapping[str, Refused] = {},
        inside: Mapping[str, FieldNames] = {},
    ) -> None:
        names = frozenset(taken)
        self._refused = refused
        self._inside = inside
        self._mistakes = _Mistakes(names - ignored)
        self._unknown = _Unknown()
        self._decoder = msgspec.json.Decoder(
            dict[self._make_keys({*names, *ignored, *refused}), msgspec.Raw]  # type: ignore[misc]
        )

    def check(self, body: bytes | msgspec.Raw, path: str = "") -> None:
        """Refuse an object with a wrong field.

        Args:
          path: the name of the object in its request; empty for a whole body.

        Raises:
          InvalidParameter: the body is not JSON, a name is misspelt, or too many are
            unknown.
          NotSupported: the server does not implement a field, or gives it another name.
        """
        unknown: list[str] = []
        self._unknown.names = unknown
        try:
            fields = self._decoder.decode(body)
        except (ValueError, RecursionError) as error:
            if len(unknown) > MAX_UNKNOWN_FIELDS:
                reason = f"at most {MAX_UNKNOWN_FIELDS} unknown fields are ignored"
                raise InvalidParameter(path or None, reason) from None
            raise explain(error, dict, path) from None
        for key, value in fields.items():
            name = key._value_
            if name in self._refused:
                refuse(_join(path, name), value, self._refused[name])
            elif name in self._inside and bytes(memoryview(value)[:1]) == b"{":
                self._inside[name].check(value, _join(path, name))
        if unknown:
            self._refuse_mistakes(body, path, unknown)

    def _refuse_mistakes(
        self, body: bytes | msgspec.Raw, path: str, unknown: Sequence[str]
    ) -> None:
        found = {
            name: near
            for name in dict.fromkeys(unknown)
            if (near := self._mistakes.find(name))
        }
        if not found:
            return
        # Rare. There are few names, as the first pass has shown.
        values = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        for name, near in found.items():
            if bytes(values[name]) != b"null":
                raise InvalidParameter(
                    _join(path, name),
                    f"there is no such field; is {' or '.join(near)} meant?",
                )

    def _make_keys(self, known: set[str]) -> Any:
        """Return an enumeration that the decoder looks names up in."""

        class Keys(enum.Enum):
            @classmethod
            def _missing_(cls, value: object) -> Any:
                return cls(self._unknown.note(str(value)))

        names = [_UNKNOWN, *sorted(known)]
        return Keys("Keys", {f"key_{i}": name for i, name in enumerate(names)})  # type: ignore[call-arg]


class _Unknown(threading.local):
    """The unknown names of the object that this thread decodes."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def note(self, name: str) -> str:
        # A name may be megabytes long. Such a name is not a typing mistake.
        self.names.append(name if len(name) <= 2 * _MOST_LETTERS else "")
        if len(self.names) > MAX_UNKNOWN_FIELDS:
            raise ValueError("too many unknown fields")
        return _UNKNOWN


class _Mistakes:
    """Finds the names that are one letter away from another name.

    One letter is missing, added or changed, which leaves one half of the name as it is, or two
    neighbours have changed places, which leaves all letters. The case of letters, and dashes
    and underscores, do not count: maxTokens.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_key: dict[object, list[str]] = {}
        for name in sorted(names):
            plain = _simplify(name)
            keys = {plain, "".join(sorted(plain)), *_list_halves(plain, len(plain))}
            for key in keys:
                self._by_key.setdefault(key, []).append(name)

    def find(self, name: str) -> list[str]:
        """Return the names that may be meant."""
        plain = _simplify(name)
        keys: list[object] = [plain]
        if len(plain) <= _MOST_LETTERS:
            keys.append("".join(sorted(plain)))
            for length in range(len(plain) - 1, len(plain) + 2):
                keys += _list_halves(plain, length)
        near = {each for key in keys for each in self._by_key.get(key, ())}
        same = [each for each in sorted(near) if _simplify(each) == plain]
        return same or [
            each for each in sorted(near) if _is_near(plain, _simplify(each))
        ]


def _list_halves(plain: str, length: int) -> tuple[object, ...]:
    """Return the two ends of a name, each half as long as a name of `length` letters.

    Names that differ by one letter share one of them, because the letter is in the other.
    """
    if length < _FEWEST_LETTERS:
        return ()
    half = length // 2
    return (length, plain[:half], ""), (length, "", plain[half - length :])


def _is_near(one: str, other: str) -> bool:
    begin = len(os.path.commonprefix([one, other]))
    one, other = one[begin:], other[begin:]
    end = len(os.path.commonprefix([one[::-1], other[::-1]]))
    one, other = one[: len(one) - end], other[: len(other) - end]
    is_swapped = len(one) == 2 and one == other[::-1]
    return is_swapped or max(len(one), len(other)) <= 1


def find_inside(
    struct: type[msgspec.Struct], refused: Mapping[str, Refused], path: str = ""
) -> dict[str, FieldNames]:
    """Return the names of the fields of each object in a struct.

    Lists are left out: a list of messages may be long, and messages may have fields for
    their template.

    Args:
      refused: refused fields by their paths, also fields of other objects.
    """
    inside = {}
    for name, kind in list_fields(struct):
        if structs := list_structs(kind):
            whole = f"{path}{name}."
            inside[name] = FieldNames(
                {field for each in structs for field in _list_names(each)},
                refused={
                    field.removeprefix(whole): row
                    for field, row in refused.items()
                    if field.rpartition(".")[0] == whole[:-1]
                },
                inside={
                    field: names
                    for each in structs
                    for field, names in find_inside(each, refused, whole).items()
                },
            )
    return inside


def _list_names(struct: type[msgspec.Struct]) -> Iterator[str]:
    yield from struct.__struct_encode_fields__
    if tag := struct.__struct_config__.tag_field:
        yield tag


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _simplify(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
