"""The inputs that a chat template reads and shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ...types.model_info import SEES_NO_IMAGES

# Contents of a message that calls tools: some text, the empty text, or None.
CallContent = Literal["text", "empty", "none"]
# OpenAI's roles, which every template gets; `developer` is its newer name for what
# templates call `system`.
ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

CALL_CONTENTS: Final[tuple[CallContent, ...]] = get_args(CallContent)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateForm:
    """The inputs that a template reads, and shows to the model.

    Args:
      takes_strings: it reads contents that are strings.
      takes_parts: it reads contents that are lists of parts.
      image_token: the text for an image, for templates that take strings alone; None
        for a model that takes no images.
      image_refusal: the reason why it takes none, for clients.
      shows_tools: it shows the tools that the model may call.
      shows_calls_beside: contents of a message beside which it shows the calls.
      shows_all_calls: it shows all calls of a message, not only the first one.
      takes_arguments_as_text: it reads the arguments of a call as JSON in a string,
        otherwise as an object.
      shows_broken_arguments: it shows arguments that are a text and not JSON.
      shows_results: it shows messages of the role `tool`.
      joins_reasoning: it refuses a message with calls, a text and reasoning, so the text
        becomes reasoning.
      wants_descriptions: it refuses tools without a description.
      shows_system: it shows messages of the role `system`.
      describes_tools: tools, calls and results that it does not show are written into its
        texts (tool_prompt.py).
      roles: further roles that it names, and whose messages it shows.
      hidden_roles: further roles that it names, and whose messages it does not show.
      takes_any_role: it shows messages of all other roles, with their names.
    """

    takes_strings: bool = True
    takes_parts: bool = False
    image_token: str | None = None
    image_refusal: str = SEES_NO_IMAGES
    shows_tools: bool = True
    shows_calls_beside: frozenset[CallContent] = frozenset(CALL_CONTENTS)
    shows_all_calls: bool = True
    takes_arguments_as_text: bool = False
    shows_broken_arguments: bool = False
    shows_results: bool = True
    joins_reasoning: bool = False
    wants_descriptions: bool = False
    shows_system: bool = True
    describes_tools: bool = False
    roles: frozenset[str] = frozenset()
    hidden_roles: frozenset[str] = frozenset()
    takes_any_role: bool = False

    @property
    def writes_calls(self) -> bool:
        """True if calls are written into the content of their message."""
        return self.describes_tools and not self.shows_calls_beside

    @property
    def writes_results(self) -> bool:
        """True if results are written into messages of the user."""
        return self.describes_tools and not self.shows_results


def text_part(text: str) -> dict[str, str]:
    """Return a text part for a content that is a list."""
    return {"type": "text", "text": text}
