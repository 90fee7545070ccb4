"""The cases of a JSON schema: conditions on values of one type each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...types.json_pointer import find_part

Part = Mapping[str, Any]

# The keywords that are read, with the types of their values. All others that bind values
# are refused.
_READ: Final[dict[str, tuple[type, ...]]] = {
    "type": (str, list),
    "enum": (list,),
    "const": (object,),
    "pattern": (str,),
    "minLength": (int,),
    "maxLength": (int,),
    "minItems": (int,),
    "maxItems": (int,),
    "minimum": (int, float),
    "maximum": (int, float),
    "multipleOf": (int, float),
    "exclusiveMinimum": (int, float, bool),
    "exclusiveMaximum": (int, float, bool),
    "items": (dict, bool),
    "properties": (dict,),
    "required": (list,),
    "additionalProperties": (dict, bool),
}
# Source: JSON Schema drafts 7 and 2020-12. `format` only describes a text.
_REFUSED: Final = frozenset(
    [
        *("not", "if", "dependentRequired", "dependentSchemas", "dependencies"),
        *("patternProperties", "propertyNames", "minProperties", "maxProperties"),
        *("prefixItems", "additionalItems", "contains", "uniqueItems"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    ]
)
_DEFINITIONS: Final = ("$defs", "definitions")

# Of references to references, and of the parts that are read of one schema, again wherever
# a reference leads to them. The largest tools of agents have some hundred.
_MAX_DEPTH: Final = 16
_MAX_PARTS: Final = 4096

# A keyword implies a type where no type is named.
_IMPLIED: Final = {"properties": "object", "items": "array"}

_TYPES: Final[dict[type, str]] = {
    **{type(None): "null", bool: "boolean", int: "integer", float: "number"},
    **{str: "string", list: "array", dict: "object"},
}


class Unwritable(Exception):
    """A grammar cannot hold values to a schema.

    Args:
      reason: the part of the schema, as the end of a sentence.
      path: the names of the properties in each other that have it.
    """

    def __init__(self, reason: str, path: tuple[str, ...] = ()) -> None:
        place = f" in the property {'.'.join(path)}" if path else ""
        super().__init__(reason + place)
        self.reason = reason
        self.path = path


class SchemaCases:
    """The cases of the parts of one schema.

    Args:
      root: the whole schema, to which references point.
    """

    def __init__(self, root: Part) -> None:
        self.root = root
        self._num_parts = 0
        self._definitions = {key: root[key] for key in _DEFINITIONS if key in root}

    def list_cases(self, part: object) -> list[Part]:
        """Return the cases of a part, without references.

        Each has the keys of _READ alone, and at most one `type`.

        Raises:
          Unwritable
        """
        return list(self._split(part, 0))

    def make_root(self, part: object) -> Part:
        """Return a part as a schema of its own, with the definitions that it refers to.

        Raises:
          Unwritable: a reference leads elsewhere.
        """
        found = part if isinstance(part, Mapping) else {}
        for reference in _list_references([found, self._definitions]):
            if not reference.startswith(("#/$defs/", "#/definitions/")):
                raise Unwritable(f"the reference {reference}")
        return {**self._definitions, **found}

    def _split(self, part: object, depth: int) -> Iterator[Part]:
        if part is False:
            return
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise Unwritable(f"more than {_MAX_PARTS} parts")
        if depth > _MAX_DEPTH:
            raise Unwritable("references that go round in a circle")
        part = part if isinstance(part, Mapping) else {}
        for keyword in sorted(part.keys() & _REFUSED):
            if part[keyword]:
                raise Unwritable(f"the keyword {keyword}")
        own = {key: part[key] for key in part if key in _READ}
        for key, value in own.items():
            if not isinstance(value, _READ[key]):
                raise Unwritable(f"the keyword {key} in a wrong form")
        for others in self._list_others(part):
            if others is None:
                yield from _split_types(own)
                continue
            for case in self._split(others, depth + 1):
                yield from _split_types(_join(own, case))

    def _list_others(self, part: Part) -> list[Any]:
        """Return the parts one of which must match, too; None stands for no condition."""
        named = [key for key in ("$ref", "anyOf", "oneOf", "allOf") if key in part]
        if not named:
            return [None]
        keyword, value = named[0], part[named[0]]
        if not isinstance(value, str if keyword == "$ref" else list):
            raise Unwritable(f"the keyword {keyword} in a wrong form")
        if len(named) > 1 or (keyword == "allOf" and len(value) != 1):
            raise Unwritable(f"the keyword {named[-1]} beside other conditions")
        if keyword == "$ref":
            found = find_part(self.root, str(value))
            if not isinstance(found, Mapping):
                raise Unwritable(f"the reference {value}")
            return [found]
        if keyword == "oneOf" and not self._are_disjoint(list(value)):
            raise Unwritable("the keyword oneOf with cases that are not disjoint")
        return list(value)

    def _are_disjoint(self, parts: list[Any]) -> bool:
        types = [
            {"number" if name == "integer" else name for name in found}
            for found in (list_types(self.root, part) for part in parts)
        ]
        return all(types) and len(set().union(*types)) == sum(map(len, types))


def list_types(root: object, part: object) -> frozenset[str]:
    """Return the JSON types that values of a part may have; none if it does not tell."""
    types: set[str] = set()
    seen: set[int] = set()
    parts = [part]
    while parts:
        part = parts.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        types |= _list_own_types(part)
        if isinstance(part.get("$ref"), str):
            parts.append(find_part(root, part["$ref"]))
        for keyword in ("anyOf", "oneOf", "allOf"):
            parts += _list(part.get(keyword))
    return frozenset(types)


def _list_own_types(part: Part) -> set[str]:
    named = part.get("type")
    if isinstance(named, str):
        return {named}
    if named is not None:
        return set(map(str, _list(named)))
    values = [*_list(part.get("enum")), *([part["const"]] if "const" in part else [])]
    implied = {kind for key, kind in _IMPLIED.items() if key in part}
    return implied | {_TYPES[type(value)] for value in values if type(value) in _TYPES}


def _split_types(case: Part) -> Iterator[Part]:
    """Yield a case of each type, with the values of that type where values are listed."""
    types: set[str | None] = {*_list_own_types(case)} or {None}
    for name in sorted(types, key=str):
        each = {key: case[key] for key in case if key not in ("type", "enum", "const")}
        if name is not None:
            each["type"] = name
        if "enum" in case or "const" in case:
            values = _list(case["enum"]) if "enum" in case else [case["const"]]
            values = [value for value in values if _fits(value, name)]
            if "const" in case:
                values = [value for value in values if value == case["const"]]
            if not values:
                continue
            each["enum"] = values
        yield each


def _fits(value: object, name: str | None) -> bool:
    kind = _TYPES.get(type(value))
    return name in (None, kind) or (name == "number" and kind == "integer")


def _join(own: Part, other: Part) -> Part:
    """Return a part with the conditions of two.

    Raises:
      Unwritable: both have the same keyword.
    """
    for key in own.keys() & other.keys():
        if own[key] != other[key] and key != "type":
            raise Unwritable(f"the keyword {key} in two places")
    if "type" in own and "type" in other:
        both = _list_own_types(own) & _list_own_types(other)
        return {**own, **other, "type": sorted(both)}
    return {**own, **other}


def _list_references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _list_references(each)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
