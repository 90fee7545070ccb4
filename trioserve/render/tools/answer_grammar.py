"""The grammars of answers whose text has a form, beside the text around it and calls."""

from __future__ import annotations

from collections.abc import Mapping
import json
from typing import Final

from .call_form import AnswerForm
from .literals import write_literal, write_thought

# The names of the grammars of the text and of the calls, in the answer's grammar.
_TEXT: Final = "text"
_CALLS: Final = "calls"


def write_answer(
    form: AnswerForm | None,
    special_tags: Mapping[str, int],
    text: str,
    calls: str | None = None,
) -> str:
    """Return the grammar of the whole answer.

    Args:
      form: the parts around the text; None for nothing.
      special_tags: ids of the format's tags that are special tokens.
      text: the grammar of the text, as llguidance takes it: JSON, or its variant of Lark.
      calls: the grammar of an answer that calls tools instead; None if it may not.
    """
    if form is None and calls is None:
        return text
    grammars = _read_parts(text, _TEXT)
    rules = [f"start: {_write_before(form, special_tags)}@{_TEXT}"]
    if form is not None:
        rules.append(write_thought(form.thought, special_tags))
    if calls is not None:
        grammars += _read_parts(calls, _CALLS)
        rules[0] += f" | @{_CALLS}"
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *grammars]})


def _write_before(form: AnswerForm | None, special_tags: Mapping[str, int]) -> str:
    if form is None:
        return ""
    return f"thought? {write_literal(special_tags, form.before)} "


def _read_parts(grammar: str, name: str) -> list[dict[str, object]]:
    """Return the parts of a grammar; the first one gets a name."""
    if not grammar.startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *others = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *others]
