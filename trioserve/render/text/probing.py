"""Finds out the form of a chat template by running it on messages of our own.

vLLM reads the form from the template's syntax tree, which can be misread; a run cannot.
Some templates refuse every probe, because they want other roles or another order. Then
the names in the template's source decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
import re
from typing import Any, Final, Protocol

from ...errors import InvalidParameter
from .template_form import CALL_CONTENTS, ROLES, CallContent, TemplateForm, text_part

Messages = list[dict[str, Any]]


class Render(Protocol):
    """Runs a template."""

    def __call__(self, messages: Messages, tool: Mapping[str, object] = ...) -> str:
        """Return the text.

        Args:
          tool: the tool of the request, if it has one; by default PROBE_TOOL.

        Raises:
          InvalidParameter: the template refuses the messages or the tool.
        """


# Words that no template contains.
_WORD: Final = "trioserveprobe"
_SECOND_WORD: Final = "trioservesecond"
_TOOL_WORD: Final = "trioservetool"
_ROLE_WORD: Final = "trioserverole"

# Statements of a template, and the words in them that may be roles.
# Each match ends before the next statement, so that the time grows with the text alone.
_STATEMENT: Final = re.compile(r"\{%(?:(?!\{%|%\}).)*%\}", re.DOTALL)
_QUOTED: Final = re.compile(r"""['"]([A-Za-z][\w.\-]{0,63})['"]""")
# Each is probed.
_MAX_ROLES: Final = 16

# Passed to the template if a conversation comes with tools.
PROBE_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _TOOL_WORD,
        "description": "Does nothing.",
        "parameters": {"type": "object", "properties": {}},
    },
}

# The same without a description.
_BARE_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _TOOL_WORD,
        "parameters": {"type": "object", "properties": {}},
    },
}

# These appear if the template prints a list of parts, or arguments, as Python writes
# them.
_PRINTED_KEYS: Final = ("'text'", '"text"', "'key'")

_CONTENTS: Final[dict[CallContent, str | None]] = {
    "text": "c",
    "empty": "",
    "none": None,
}


class TemplateProbe:
    """Probes one template.

    Args:
      source: the template.
      render: runs it.
      describes_tools: tools that it does not show are written into its texts; see TemplateForm.
    """

    def __init__(
        self, source: str, render: Render, *, describes_tools: bool = False
    ) -> None:
        self._source = source
        self._render = render
        self._describes_tools = describes_tools
        # A template that wants a system message first refuses this message. Then assume
        # strings, because most templates take them.
        self._takes_strings = self._shows(_WORD, [_user(_WORD)]) is not False

    def find_form(self) -> TemplateForm:
        """Probe each field of TemplateForm that does not depend on images."""
        takes_parts = self._shows(_WORD, [_user([text_part(_WORD)])])
        shows_tools = self._shows(_TOOL_WORD, [_user("a")])
        wants_descriptions = bool(shows_tools) and self._refuses(
            [_user("a")], _BARE_TOOL
        )
        contents, as_text = self._find_calls()
        named = frozenset(find_roles(self._source))
        roles = frozenset(filter(self._shows_role, named))
        return TemplateForm(
            takes_strings=self._takes_strings,
            takes_parts=bool(takes_parts),
            shows_tools="tools" in self._source if shows_tools is None else shows_tools,
            shows_calls_beside=contents,
            shows_all_calls=all(
                self._shows_call(_SECOND_WORD, each, as_text) is not False
                for each in contents
            ),
            takes_arguments_as_text=as_text,
            shows_broken_arguments=as_text or self._shows_broken(contents),
            shows_results=self._shows_results(),
            wants_descriptions=wants_descriptions,
            joins_reasoning="text" in contents and self._refuses_reasoning(as_text),
            describes_tools=self._describes_tools,
            shows_system=self._shows_role("system"),
            roles=roles,
            hidden_roles=named - roles,
            takes_any_role=(
                self._shows_role(_ROLE_WORD)
                and self._shows_role(_ROLE_WORD, _ROLE_WORD)
            ),
        )

    def _find_calls(self) -> tuple[frozenset[CallContent], bool]:
        """Return the contents with which calls show, and whether arguments are text."""
        has_run = False
        for as_text in (False, True):
            found = {
                each: self._shows_call(_WORD, each, as_text) for each in CALL_CONTENTS
            }
            if found["none"] and self._prints_none(as_text):
                found["none"] = False
            if any(found.values()):
                return frozenset(each for each in found if found[each]), as_text
            has_run = has_run or False in found.values()
        if has_run or "tool_calls" not in self._source:
            return frozenset(), False
        return frozenset({"text", "empty"}), False

    def _shows_call(self, word: str, beside: CallContent, as_text: bool) -> bool | None:
        """Return whether the last of one or two calls shows; None if none renders."""
        names = [_WORD] if word == _WORD else [_WORD, word]
        return self._shows(word, *self._talk(names, beside, as_text))

    def _shows_broken(self, contents: frozenset[CallContent]) -> bool:
        """Return whether it shows the arguments of a call that was cut off."""
        conversations = [
            talk for each in contents for talk in self._talk(["f"], each, False)
        ]
        for messages in conversations:
            [call] = messages[1]["tool_calls"]
            call["function"]["arguments"] = f'{{"key": "{_WORD}'
        return bool(self._shows(_WORD, *conversations))

    def _prints_none(self, as_text: bool) -> bool:
        """Return whether the template writes "None" for a message without content."""
        nothing, empty = (
            "".join(self._render_all(*self._talk([_WORD], beside, as_text)))
            for beside in ("none", "empty")
        )
        return nothing.count("None") > empty.count("None")

    def _refuses(self, messages: Messages, tool: Mapping[str, object]) -> bool:
        try:
            self._render(messages, tool)
        except InvalidParameter:
            return True
        return False

    def _refuses_reasoning(self, as_text: bool) -> bool:
        """True if calls beside a text show, and are refused beside a reasoning as well."""
        conversations = self._talk([_WORD], "text", as_text)
        for messages in conversations:
            messages[1]["reasoning_content"] = "r"
        return self._shows(_WORD, *conversations) is None

    def _shows_results(self) -> bool:
        conversations = [
            [
                _user(self._make_content("a")),
                self._call(["f"], beside, as_text),
                _result(self._make_content(_WORD)),
            ]
            for beside in CALL_CONTENTS
            for as_text in (False, True)
        ]
        shows = self._shows(_WORD, *conversations)
        # Refused results can be written as text, if that is done at all.
        return not self._describes_tools if shows is None else shows

    def _shows_role(self, role: str, word: str = _WORD) -> bool:
        """Return whether the word shows in or beside a message of the role."""
        message = {"role": role, "content": self._make_content(_WORD)}
        return bool(
            self._shows(
                word,
                [_user(self._make_content("a")), message],
                [message, _user(self._make_content("a"))],
            )
        )

    def _make_content(self, text: str) -> object:
        return text if self._takes_strings else [text_part(text)]

    def _shows(self, word: str, *conversations: Messages) -> bool | None:
        """Return whether a conversation shows the word; None if each is refused."""
        texts = self._render_all(*conversations)
        if not texts:
            return None
        return any(
            word in text and not any(key in text for key in _PRINTED_KEYS)
            for text in texts
        )

    def _render_all(self, *conversations: Messages) -> list[str]:
        """Render the conversations that the template does not refuse."""
        texts = []
        for messages in conversations:
            with suppress(InvalidParameter):
                texts.append(self._render(messages))
        return texts

    def _talk(
        self, names: Sequence[str], beside: CallContent, as_text: bool
    ) -> list[Messages]:
        """Make a conversation with calls, and the same with the first call's result.

        Some templates refuse the first one, some the second one.
        """
        begun = [_user("a"), self._call(names, beside, as_text)]
        return [begun, [*begun, _result("b")]]

    def _call(
        self, names: Sequence[str], beside: CallContent, as_text: bool
    ) -> dict[str, Any]:
        text = _CONTENTS[beside]
        content = None if text is None else self._make_content(text)
        calls = [_make_call(index, name, as_text) for index, name in enumerate(names)]
        return {"role": "assistant", "content": content, "tool_calls": calls}


def find_roles(source: str) -> list[str]:
    """Return the words that a template may compare roles with, besides common ones."""
    words = (
        word
        for statement in _STATEMENT.findall(source)
        if "role" in statement
        for word in _QUOTED.findall(statement)
    )
    known = {*ROLES, "role", "content"} - {"developer"}
    return [word for word in dict.fromkeys(words) if word not in known][:_MAX_ROLES]


def _user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _result(content: object) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": _call_id(0),
        "name": "f",
    }


def _make_call(index: int, name: str, as_text: bool) -> dict[str, Any]:
    arguments = f'{{"key": "{name}"}}' if as_text else {"key": name}
    return {
        "id": _call_id(index),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _call_id(index: int) -> str:
    # Mistral's templates want nine letters or digits.
    return f"probe{index:04}"
