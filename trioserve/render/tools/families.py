"""The families of tool calls, by the names that --tool-call-parser takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
import logging
from typing import Any, Final

from ...types.families import TOOL_FAMILIES
from ..text.model_tokenizer import ModelTokenizer
from ..text.vocabulary import Vocabulary
from .call_form import CallForm
from .forced_calls import write_answer, write_forced_calls
from .scanner import ToolScanner

logger = logging.getLogger(__name__)


# The family of the calls that text/tool_prompt.py describes.
_DESCRIBED: Final = "hermes"


@cache
def find_scanner(family: str) -> type[ToolScanner]:
    """Return the scanner of a family of TOOL_FAMILIES."""
    module, _, name = TOOL_FAMILIES[family].partition(".")
    scanner: type[ToolScanner] = getattr(import_module(f".{module}", __package__), name)
    return scanner


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The form in which a model writes tool calls.

    Args:
      family: a name of TOOL_FAMILIES.
      scanner: finds the calls.
      special_tags: ids of the format's tags that are special tokens. Text leaves out
        special tokens, but must keep these.
      form: the text around names and arguments.
      describes_tools: the chat template has no place for tools, so a text describes them
        (text/tool_prompt.py).
    """

    family: str
    scanner: type[ToolScanner]
    special_tags: Mapping[str, int]
    form: CallForm
    describes_tools: bool = False

    @property
    def splits_reasoning(self) -> bool:
        """True if the scanner finds the reasoning, too."""
        return self.scanner.splits_reasoning

    @property
    def can_join(self) -> bool:
        """True if an answer can have a form or calls: their beginnings tell them apart."""
        return self.scanner.marks(self.form)

    def place_answer(self, text: str, calls: str | None = None) -> str:
        """Return the grammar of an answer whose text has a grammar; see write_answer."""
        return write_answer(self.scanner.answer_form, self.special_tags, text, calls)

    def write_grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        names: frozenset[str],
        *,
        takes_one: bool,
        is_free: bool = False,
    ) -> str:
        """Return the grammar of an answer that calls tools; see write_forced_calls."""
        return write_forced_calls(
            self.form,
            tools,
            self.special_tags,
            names=names,
            takes_one=takes_one,
            is_free=is_free,
        )


def load_tool_format(
    parser: str, tokenizer: ModelTokenizer, vocabulary: Vocabulary
) -> ToolFormat | None:
    """Find the form of a model's tool calls; None if its calls stay text.

    Args:
      parser: a name of TOOL_FAMILIES, or `auto` or `none`.
      tokenizer: with the chat templates that are used. If they do not tell the family, the
        rules of transformers may.
    """
    family = parser
    template = "\n".join(tokenizer.chat_templates.values())
    has_no_place = bool(template) and "tools" not in template
    if parser == "auto":
        for text in (template, tokenizer.response_rules):
            family = recognise_family(text, tokenizer.backend.token_to_id)
            if family != "none":
                break
        if family == "none" and has_no_place:
            family = _DESCRIBED
        if family != "none":
            logger.info("tool calls are read in the form of %s", family)
    if family == "none":
        return None
    scanner = find_scanner(family)
    ids = {tag: tokenizer.backend.token_to_id(tag) for tag in scanner.tags}
    return ToolFormat(
        family=family,
        scanner=scanner,
        special_tags={
            tag: token_id
            for tag, token_id in ids.items()
            if token_id in vocabulary.special_token_ids
        },
        form=scanner.choose_form(template),
        describes_tools=has_no_place and family == _DESCRIBED,
    )


def recognise_family(template: str, find_token: Callable[[str], int | None]) -> str:
    """Return the family whose calls a chat template writes; `none` if it does not tell.

    Args:
      template: a chat template, or another text with all tags of the form.
      find_token: returns the id of a token of the tokenizer; None if there is none.
    """
    for name in TOOL_FAMILIES:
        scanner = find_scanner(name)
        if all(part in template for part in scanner.template_parts) and not any(
            find_token(token) is None for token in scanner.template_tokens
        ):
            return name
    return "none"
