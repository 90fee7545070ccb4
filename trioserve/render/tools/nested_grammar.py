"""Grammars of arguments whose objects and lists are like JSON without being JSON."""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Final

from .arguments_grammar import ArgumentsWriter
from .call_form import ArgumentsForm
from .lark import write_json
from .nested_values import MAX_DEPTH
from .schema_cases import Part, SchemaCases, Unwritable

# The keywords of scalars, which are written as in JSON.
_NUMBERS: Final = frozenset(
    [
        *("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        "multipleOf",
    ]
)


class NestedWriter(ArgumentsWriter):
    """Writes texts between quotes, and the form's pairs in every object.

    The scanner that reads them is NestedValueScanner.
    """

    def __init__(self, form: ArgumentsForm, special_tags: Mapping[str, int]) -> None:
        super().__init__(form, special_tags)
        # The names of parts that are being written, as far as they contain themselves.
        self._open: dict[int, str] = {}
        self._circles: dict[str, str] = {}
        self._num_parts = 0

    def list_rules(self) -> list[str]:
        circles = [f"{name}: {text}" for name, text in self._circles.items()]
        return [*super().list_rules(), *circles]

    def write_value(self, cases: SchemaCases, part: object) -> str:
        return f"{self.literal(self.form.between)} {self._write_part(cases, part)}"

    def _write_part(self, cases: SchemaCases, part: object) -> str:
        """Return the expression of a value; a part within itself is a rule."""
        if id(part) in self._open:
            name = self._open[id(part)]
            self._circles.setdefault(name, "")
            return name
        if len(self._open) > MAX_DEPTH:
            raise Unwritable(f"more than {MAX_DEPTH} objects in each other")
        self._num_parts += 1
        name = self._open[id(part)] = f"part_{self._num_parts}"
        choices = [self._write_case(cases, case) for case in cases.list_cases(part)]
        del self._open[id(part)]
        if not choices:
            raise Unwritable("values that this form cannot have")
        text = f"({' | '.join(dict.fromkeys(choices))})"
        if name not in self._circles:
            return text
        self._circles[name] = text
        return name

    def _write_case(self, cases: SchemaCases, case: Part) -> str:
        kind = case.get("type")
        if "enum" in case:
            return " | ".join(self._write_constant(value) for value in case["enum"])
        if kind == "string":
            quote = self.form.text_end
            return f"{self.literal(quote)} {self.write_text(case, quote)}"
        if kind == "array":
            return self._write_list(cases, case)
        if kind == "object":
            return f'"{{" {self.write_pairs(cases, case)} "}}"'
        if kind is None:
            return self._write_anything()
        return write_json({key: case[key] for key in case if key in _NUMBERS})

    def _write_list(self, cases: SchemaCases, case: Part) -> str:
        items = case.get("items", True)
        least, most = case.get("minItems", 0), case.get("maxItems")
        if most is not None and most < max(0, least):
            raise Unwritable("values that this form cannot have")
        if most == 0 or items is False:
            return '"[" "]"'
        item = self._write_part(cases, items)
        last = "" if most is None else most - 1
        more = f"({self.literal(self.form.separator)} {item}){{{max(0, least - 1)},{last}}}"
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _write_constant(self, value: object) -> str:
        quote, separator = self.form.text_end, self.literal(self.form.separator)
        if isinstance(value, str):
            if quote in value:
                raise Unwritable(f"the value {value}")
            return self.literal(quote + value + quote)
        if isinstance(value, list):
            items = [self._write_constant(each) for each in value]
            return f'"[" {f" {separator} ".join(items)} "]"'
        if isinstance(value, Mapping):
            between = self.form.between
            pairs = [
                f"{self.literal(key + between)} {self._write_constant(each)}"
                for key, each in value.items()
            ]
            return f'"{{" {f" {separator} ".join(pairs)} "}}"'
        return self.literal(json.dumps(value))

    def _write_anything(self) -> str:
        """Return the name of the rule for any value."""
        if "anything" not in self._circles:
            self._circles["anything"] = ""
            free = SchemaCases({})
            kinds = ("string", "number", "boolean", "null", "array", "object")
            self._circles["anything"] = " | ".join(
                self._write_case(free, {"type": kind}) for kind in kinds
            )
        return "anything"
