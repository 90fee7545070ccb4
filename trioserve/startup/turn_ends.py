"""Tokens that end a turn, for models whose files name only the end of a text.

The model's generation_config.json names all of its ends. GGUF files have a field for one or
two, and often only the end of a text is there: a chat would then go on with the next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
import json
import logging
from pathlib import Path
from typing import Final

import msgspec

from ..types.model_info import ModelInfo
from ..weights import Weights

logger = logging.getLogger(__name__)

# Names that llama.cpp knows. </s> is left out: where it is an end, the files say so, and in
# Gemma's vocabulary it is a tag of HTML. Those that fill in the middle end files, not turns.
# Source: llama.cpp, llama_vocab::impl::load, the list of "end of generation" tokens.
_TURN_ENDS: Final = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>"),
        *("<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
        *("<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>", "<|tool_response>"),
    }
)
_TEXT_ENDS: Final = frozenset({"<|endoftext|>", "<|end_of_text|>", "[EOS]", "<eos>"})

# With one of these, <|end|> ends a message within a turn, such as the reasoning.
_ENDS_BEHIND_MESSAGES: Final = frozenset({"<|return|>", "<|flush|>"})


class _Token(msgspec.Struct, frozen=True):
    id: int
    content: str
    special: bool = False


class _AddedTokens(msgspec.Struct, frozen=True):
    """The part of tokenizer.json that names tokens beside the vocabulary."""

    added_tokens: tuple[_Token, ...] = ()


def find_turn_ends(
    weights: Weights, info: ModelInfo, chat_template: str | None
) -> frozenset[int]:
    """Return the tokens that end a turn, besides the tokens in the model's files.

    Args:
      chat_template: used instead of the model's own.
    """
    folder = weights.folder
    if weights.gguf is None and _names_ends(folder):
        return frozenset()
    added = {token.content: token.id for token in _read_added(folder)}
    if not added:
        return frozenset()
    found = _find_by_name(added)
    names = {token_id: name for name, token_id in added.items()}
    known = {names.get(each) for each in found | info.eos_token_ids} & _TURN_ENDS
    if not _contains(folder, chat_template, known):
        found |= _ask_template(folder, chat_template)
    found = frozenset(each for each in found if each < info.vocab_size)
    if new := sorted(names.get(each, str(each)) for each in found - info.eos_token_ids):
        logger.info("answers end at %s, too", ", ".join(new))
    return found


def _names_ends(folder: Path) -> bool:
    """Return whether the author of the model names the tokens that end an answer."""
    try:
        described = json.loads((folder / "generation_config.json").read_bytes())
        return described.get("eos_token_id") is not None
    except (OSError, ValueError, AttributeError):
        return False


def _read_added(folder: Path) -> tuple[_Token, ...]:
    try:
        content = (folder / "tokenizer.json").read_bytes()
        return msgspec.json.decode(content, type=_AddedTokens).added_tokens
    # The renderer reads the file, too, and reports its mistakes.
    except (OSError, ValueError):
        return ()


def _find_by_name(added: Mapping[str, int]) -> frozenset[int]:
    names = (_TURN_ENDS | _TEXT_ENDS) & added.keys()
    if names & _ENDS_BEHIND_MESSAGES:
        names -= {"<|end|>"}
    return frozenset(added[name] for name in names)


def _contains(
    folder: Path, chat_template: str | None, names: Iterable[str | None]
) -> bool:
    """True if the chat template has one of the names; False if that is not quickly known."""
    with suppress(OSError, ValueError):
        source = chat_template or (folder / "chat_template.jinja").read_text("utf-8")
        return any(name in source for name in names if name is not None)
    return False


def _ask_template(folder: Path, chat_template: str | None) -> frozenset[int]:
    # Imported here, because few models need it.
    from ..render.text.loading import load_tokenizer, set_chat_template
    from ..render.text.turn_end import find_turn_end

    end = find_turn_end(set_chat_template(load_tokenizer(folder), chat_template))
    return frozenset() if end is None else frozenset({end})
