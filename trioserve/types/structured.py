"""The form that an answer must have: as a request gives it, and as the device uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StructureKind = Literal[
    "json_object", "json", "regex", "choice", "grammar", "structural_tag"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """The form that a client wants.

    Args:
      kind: json_object is any JSON object, json a JSON schema, regex a regular expression
        for the whole text, choice one of several texts, grammar a context-free grammar in
        llguidance's variant of Lark, structural_tag text with marked parts.
      value: the schema (JSON), the expression, the grammar, or the tags (JSON); empty for
        json_object and choice.
      choices: for choice alone.
      whitespace: allow one blank, or a line end and its indentation, where JSON allows
        whitespace; otherwise none.
      closed: objects have no other properties than those that their schema lists, unless
        it says something else.
      param: the field of the request, for errors.
      parts: (field of the request, JSON schema) for each schema that the grammar was written
        from, for errors.
    """

    kind: StructureKind
    value: str = ""
    choices: tuple[str, ...] = ()
    whitespace: bool = True
    closed: bool = False
    param: str = "structured_outputs"
    parts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A compiled form, for the device.

    Args:
      text: the grammar as llguidance takes it.
      param: the field of the request, for errors.
      start_token_ids, end_token_ids: the tags around the reasoning of the model, which the
        grammar does not describe; none if the answer begins at once.
      is_open: the prompt ends inside the reasoning.
    """

    text: str
    param: str = "structured_outputs"
    start_token_ids: tuple[int, ...] = ()
    end_token_ids: tuple[int, ...] = ()
    is_open: bool = False
