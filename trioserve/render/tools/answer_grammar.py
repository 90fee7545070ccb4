"""The grammar of an answer whose text stands in a message, as gpt-oss writes it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
import json
from typing import Final

from .call_form import AnswerForm
from .literals import write_literal, write_thought

# The grammar of the text, in that of the answer.
_TEXT: Final = "text"


def write_answer(
    form: AnswerForm, special_tags: Mapping[str, int], grammar: str
) -> str:
    """Return the grammar of the whole answer.

    Args:
      special_tags: ids of the format's tags that are special tokens.
      grammar: that of the text, as llguidance takes it: JSON, or its variant of Lark.
    """
    write = partial(write_literal, special_tags)
    if grammar.startswith("{"):
        whole = json.loads(grammar)
    else:
        whole = {"grammars": [{"lark_grammar": grammar}]}
    whole["grammars"][0]["name"] = _TEXT
    rules = [
        f"start: thought? {write(form.before)} @{_TEXT}",
        write_thought(form.thought, special_tags),
    ]
    whole["grammars"].insert(0, {"lark_grammar": "\n".join(rules)})
    return json.dumps(whole)
