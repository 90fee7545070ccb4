"""The forms that answers must have, and checks that do not use the server's grammars."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
import json
import re


class Form(ABC):
    """A form of an answer."""

    @abstractmethod
    def write_field(self) -> dict[str, object]:
        """Return the field of the request."""

    @abstractmethod
    def matches(self, text: str) -> bool:
        """Return whether a whole answer has the form."""


@dataclass(frozen=True)
class RegexForm(Form):
    pattern: str

    def write_field(self) -> dict[str, object]:
        return {"structured_outputs": {"regex": self.pattern}}

    def matches(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text) is not None


@dataclass(frozen=True)
class ChoiceForm(Form):
    choices: tuple[str, ...]

    def write_field(self) -> dict[str, object]:
        return {"structured_outputs": {"choice": list(self.choices)}}

    def matches(self, text: str) -> bool:
        return text in self.choices


class ObjectForm(Form):
    """An object with a number, a word, and perhaps some booleans."""

    def write_field(self) -> dict[str, object]:
        properties = {
            "a": {"enum": [1, 20, 300]},
            "b": {"enum": ["yes", "no"]},
            "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        }
        schema = {
            "type": "object",
            "properties": properties,
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        # Blanks would make it longer than the answers.
        return {"structured_outputs": {"json": schema, "disable_any_whitespace": True}}

    def matches(self, text: str) -> bool:
        try:
            data = json.loads(text)
        except ValueError:
            return False
        flags = data.pop("c", [])
        return (
            set(data) == {"a", "b"}
            and data["a"] in (1, 20, 300)
            and data["b"] in ("yes", "no")
            and len(flags) <= 2
            and all(type(each) is bool for each in flags)
        )


# All texts are ASCII, so each token is some characters.
FORMS: tuple[Form, ...] = (
    RegexForm(r"[a-c]{2,8}(x|yz)+"),
    RegexForm(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    ChoiceForm(("red", "green", "green and blue")),
    ObjectForm(),
)
