"""Grammars of arguments that are not one JSON object, for families that force such calls.

They allow what the scanners read as arguments that match the schema, and less where a form
cannot tell values apart: properties come in the order of the schema, and only a schema that
says so has further ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
import json
import re
from typing import Any, Final

from .call_form import ArgumentsForm
from .lark import escape_regex, split_tags, write_json, write_literal
from .schema_cases import Part, SchemaCases, Unwritable, list_types

# The scanners read these as names.
_KEY: Final = re.compile(r"[\w.\-/]{1,128}")
_ANY_KEY: Final = r"[A-Za-z0-9_.\-\/]{1,64}"

_PROPERTIES: Final = ("properties", "additionalProperties")

# Values that scanners take for constants, if their parameter may have such values.
_CONSTANTS: Final = {
    "true": "boolean",
    "false": "boolean",
    "null": "null",
    "none": "null",
}


class ArgumentsWriter:
    """Writes expressions for arguments, and the rules that they share.

    Args:
      special_tags: ids of the format's tags that are special tokens.
    """

    def __init__(self, form: ArgumentsForm, special_tags: Mapping[str, int]) -> None:
        self.form = form
        self.literal = partial(write_literal, special_tags)
        self._special_tags = special_tags
        # The text of a rule from its colon on, and its name.
        self._names: dict[str, str] = {}

    def list_rules(self) -> list[str]:
        """Return the rules that the expressions so far refer to."""
        return [f"{name}{text}" for text, name in self._names.items()]

    def name(self, text: str, kind: str, options: str = "") -> str:
        """Return the name of a rule; names of terminals are in capitals."""
        name = f"{kind}_{len(self._names)}"
        return self._names.setdefault(f"{options}: {text}", name)

    def write(self, schema: Part) -> str:
        """Return the expression of the arguments of a function.

        Raises:
          Unwritable: a grammar in this form cannot keep them to the schema.
        """
        cases = SchemaCases(schema)
        choices = []
        for case in cases.list_cases(schema):
            if case.get("type", "object") != "object":
                continue
            if (
                self.form.text_end
                and not self.form.nests
                and any(case.get(key) is not schema.get(key) for key in _PROPERTIES)
            ):
                # Scanners look the type of a value up where tools usually tell it.
                raise Unwritable("properties that a reference or a case lists")
            choices.append(self.write_pairs(cases, case))
        if not choices:
            raise Unwritable("values that this form cannot have")
        return f"({' | '.join(choices)})"

    def write_pairs(self, cases: SchemaCases, schema: Part) -> str:
        """Return the expression of the keys and the values of an object."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        missing = [
            key for key in map(str, required) if properties.get(key, False) is False
        ]
        if missing:
            raise Unwritable(f"the required property {missing[0]}, which is not listed")
        pairs = [
            (self._write_pair(cases, key, part), key in required)
            for key, part in properties.items()
            if part is not False
        ]
        others = schema.get("additionalProperties", not properties)
        if others is not False:
            pair = self._write_other_pair(cases, others, properties)
            pairs.append(
                (f"{pair} ({self.literal(self.form.separator)} {pair})*", False)
            )
        return self._join(pairs)

    def write_value(self, cases: SchemaCases, part: object) -> str:
        """Return the expression of what stands behind a key."""
        types = list_types(cases.root, part)
        if not self.form.text_end or (types and "string" not in types):
            json_value = write_json(cases.make_root(part))
            return self._write_words(json_value)
        choices = [
            choice
            for case in cases.list_cases(part)
            for choice in self._write_choices(case, types)
        ]
        if not choices:
            raise Unwritable("values that this form cannot have")
        return f"({' | '.join(dict.fromkeys(choices))})"

    def write_text(self, case: Part, closing: str) -> str:
        """Return the expression of a text, and of what ends it."""
        before, tag, behind = closing.partition(self.form.text_end)
        first, *rest = split_tags(self._special_tags, before + tag)
        end = escape_regex(self.form.text_end)
        forbidden = f"/(?s:.*){end}(?s:.{'*' if rest else '+'})/"
        least, most = case.get("minLength", 0), case.get("maxLength", "")
        if most != "" and most < max(0, least):
            raise Unwritable("values that this form cannot have")
        contents = [f"(?s:.{{{least},{most}}})" if least or most != "" else "(?s:.*)"]
        if "pattern" in case:
            contents.append(_read_pattern(case["pattern"]))
        texts = [f"/{content}{escape_regex(first)}/" for content in contents]
        if most != "" and not least and len(texts) == 1 and not rest:
            # The first end ends it, with or without a line end, which scanners drop.
            # llguidance takes long to find a text of bounded length that matches
            # `forbidden`, too.
            text = self.name(f"/{contents[0]}{end}/", "text", "[lazy]")
        else:
            text = self.name(" & ".join([*texts, f"~{forbidden}"]), "TEXT")
        return f"{text} {self.literal(''.join(rest) + behind)}"

    def _write_pair(self, cases: SchemaCases, key: str, part: object) -> str:
        if not _KEY.fullmatch(key):
            raise Unwritable(f"the name of the property {key!r}")
        try:
            value = self.write_value(cases, part)
        except Unwritable as error:
            raise Unwritable(error.reason, (key, *error.path)) from None
        return f"{self.literal(self.form.before + key)} {value}"

    def _write_other_pair(
        self, cases: SchemaCases, part: object, properties: Mapping[str, Any]
    ) -> str:
        key = f"/{_ANY_KEY}/"
        if properties:
            key += f" & ~/{'|'.join(map(escape_regex, properties))}/"
        value = self.write_value(cases, part)
        return f"{self.literal(self.form.before)} {self.name(key, 'KEY')} {value}"

    def _write_choices(self, case: Part, types: frozenset[str]) -> Iterator[str]:
        """Yield the values of a case that are read as values of it."""
        form, kind = self.form, case.get("type")
        if "enum" in case:
            for value in case["enum"]:
                if isinstance(value, str) and self._is_text(value, types):
                    yield self.literal(form.text_between + value + form.after)
                elif value is None or isinstance(value, bool):
                    yield self._write_words(self.literal(json.dumps(value)))
        elif kind in (None, "string"):
            text = self.write_text(case, form.after)
            yield f"{self.literal(form.text_between)} {text}"
        elif kind in ("boolean", "null"):
            words = ("true", "false") if kind == "boolean" else ("null",)
            for word in words:
                yield self._write_words(self.literal(word))

    def _write_words(self, value: str) -> str:
        between, after = self.literal(self.form.between), self.literal(self.form.after)
        return f"{between} {value} {after}"

    def _is_text(self, value: str, types: frozenset[str]) -> bool:
        """Return whether a value without quotes is read as a text."""
        constant = _CONSTANTS.get(value.strip().lower())
        return self.form.text_end not in value and constant not in types

    def _join(self, pairs: list[tuple[str, bool]]) -> str:
        """Return the expression of pairs, each with whether it is required."""
        separator = self.literal(self.form.separator)
        first = next((i for i, (_, is_needed) in enumerate(pairs) if is_needed), None)
        if first is None and separator:
            return self._join_optional([pair for pair, _ in pairs], separator)
        parts = []
        for index, (pair, is_needed) in enumerate(pairs):
            if first is not None and index > first:
                pair = f"{separator} {pair}"
            elif index != first:
                pair = f"{pair} {separator}"
            parts.append(pair if is_needed else f"({pair})?")
        return " ".join(parts)

    def _join_optional(self, pairs: list[str], separator: str) -> str:
        """Return the expression of pairs each of which may be the first one, or missing."""
        rest, choices = "", []
        for pair in reversed(pairs):
            choices.append(f"{pair} {rest}")
            rest = self.name(f"({separator} {pair})? {rest}", "rest")
        return f"({' | '.join(reversed(choices))})?" if choices else ""


def _read_pattern(pattern: str) -> str:
    """Return the regular expression of whole texts with a part that matches a pattern.

    Raises:
      Unwritable: it has an anchor that does not stand around all of it.
    """
    body = pattern.removeprefix("^").replace("\n", r"\n")
    is_closed = body.endswith("$") and not body.endswith("\\$")
    body = body[:-1] if is_closed else body
    has_anchor = body != pattern
    is_group = re.fullmatch(r"\((\?:)?[^()\[\]\\]*\)", body)
    outside = re.sub(r"\\.|\[[^]]*\]", "", body)
    if re.search(r"[\^$]", outside) or (has_anchor and "|" in outside and not is_group):
        raise Unwritable(f"the pattern {pattern}")
    begin = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if is_closed else "(?s:.*)"
    slashes = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", body)
    return f"{begin}(?:{slashes}){end}"
