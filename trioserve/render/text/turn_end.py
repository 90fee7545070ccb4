"""The token that ends a turn in a chat template."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from ...errors import InvalidParameter
from .model_tokenizer import ModelTokenizer
from .rendering import TemplateCall
from .template_form import text_part

# A word that no template contains.
_WORD: Final = "trioserveprobe"


def find_turn_end(tokenizer: ModelTokenizer) -> int | None:
    """Return the special token behind the last answer of a chat.

    Returns:
      None if the template writes text there, or nothing, or refuses the chat.
    """
    rest = _render_end(tokenizer).lstrip()
    added = tokenizer.backend.get_added_tokens_decoder()
    found = [
        (len(token.content), token_id)
        for token_id, token in added.items()
        if token.special and rest.startswith(token.content)
    ]
    return max(found)[1] if found else None


def _render_end(tokenizer: ModelTokenizer) -> str:
    """Return the text behind the last answer."""
    source = tokenizer.chat_templates.get("default", "")
    contents: tuple[Any, ...] = (str, lambda text: [text_part(text)])
    for make in contents:
        call = TemplateCall(
            source=source,
            messages=[
                {"role": "user", "content": make("a")},
                {"role": "assistant", "content": make(_WORD)},
            ],
            variables=tokenizer.special_tokens,
        )
        with suppress(InvalidParameter):
            _, found, rest = call.render().partition(_WORD)
            if found:
                return rest
    return ""
