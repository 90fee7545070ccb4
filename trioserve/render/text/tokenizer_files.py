"""The small files of a tokenizer: its settings, special tokens and chat templates.

Source: PreTrainedTokenizerBase._from_pretrained and __init__ in
tokenization_utils_base.py, transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any, Final

SETTINGS_FILE: Final = "tokenizer_config.json"

# The order in which missing tokens are added to a tokenizer.
_NAMES: Final = (
    *("bos_token", "eos_token", "unk_token", "sep_token"),
    *("pad_token", "cls_token", "mask_token"),
)

# Settings that change more than this module knows. Most files have none of them, or
# they are empty.
_UNKNOWN_SETTINGS: Final = (
    *("auto_map", "fast_tokenizer_files", "fix_mistral_regex", "gguf_file"),
    *("init_inputs", "merges", "model_specific_special_tokens", "post_processor"),
    *("split_special_tokens", "tokenizer_file", "tokenizer_object"),
    *("tokenizer_padding", "tokenizer_truncation", "trust_remote_code", "vocab"),
    *("_json_padding", "_json_truncation", "_spm_precompiled_charsmap"),
)

Settings = dict[str, Any]


class UnknownTokenizer(Exception):
    """Raised when the files ask for more than this code does as transformers does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The contents of the files.

    Args:
      settings: tokenizer_config.json.
      model: config.json; empty if there is none.
      named: special tokens by name; None for a name that the files set to null.
      extra: special tokens without names.
      styled: special tokens with settings of their own, such as "lstrip".
      added: the tokens that `settings` adds, by id; None if it lists none.
      chat_templates: as in ModelTokenizer.
    """

    settings: Settings
    model: Settings
    named: Mapping[str, str | None]
    extra: tuple[str, ...]
    styled: frozenset[str]
    added: Mapping[int, Settings] | None
    chat_templates: Mapping[str, str]

    @property
    def special_tokens(self) -> dict[str, str]:
        """The special tokens by name."""
        return {name: token for name, token in self.named.items() if token is not None}


def read_files(folder: Path) -> TokenizerFiles:
    """Read all small files of a tokenizer.

    Raises:
      UnknownTokenizer: they ask for more than this module knows.
      OSError, ValueError, LookupError, TypeError, AttributeError: a file is broken or
        missing.
    """
    settings = _read_json(folder / SETTINGS_FILE)
    for name in _UNKNOWN_SETTINGS:
        if settings.get(name):
            raise UnknownTokenizer(name)
    added = _read_added(settings, folder)
    merged = settings if added is not None else _merge_special_tokens(settings, folder)
    model_path = folder / "config.json"
    found = _find_named(merged)
    return TokenizerFiles(
        settings=settings,
        model=_read_json(model_path) if model_path.exists() else {},
        named={name: _read_token(token) for name, token in found.items()},
        extra=_read_extra(merged),
        styled=frozenset(
            token["content"] for token in found.values() if isinstance(token, dict)
        ),
        added=added,
        chat_templates=_read_templates(settings, folder),
    )


def _read_json(path: Path) -> Settings:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _read_added(settings: Settings, folder: Path) -> dict[int, Settings] | None:
    added = settings.get("added_tokens_decoder")
    if added is None:
        # An older list, which transformers then reads.
        if (folder / "added_tokens.json").exists():
            raise UnknownTokenizer("added_tokens.json")
        return None
    return {int(index): dict(token) for index, token in added.items()}


def _merge_special_tokens(settings: Settings, folder: Path) -> Settings:
    """Merge special_tokens_map.json, which wins, into the settings."""
    path = folder / "special_tokens_map.json"
    if not path.exists():
        return settings
    others = _read_json(path)
    # transformers merges lists in ways of its own.
    if "extra_special_tokens" in others:
        raise UnknownTokenizer("extra_special_tokens")
    if _name_extra(settings) is not None:
        others.pop("additional_special_tokens", None)
    return settings | others


def _name_extra(settings: Settings) -> str | None:
    """Return the setting that lists special tokens without names."""
    if settings.get("extra_special_tokens"):
        return "extra_special_tokens"
    old = "additional_special_tokens"
    return old if old in settings else None


def _find_named(settings: Settings) -> Settings:
    """Return the special tokens with names, in the order in which they are added."""
    named = {
        name: token
        for name, token in settings.items()
        # Switches, such as add_bos_token, have the same ending.
        if name in _NAMES
        or (name.endswith("_token") and isinstance(token, (str, dict)))
    }
    extra = settings.get("extra_special_tokens")
    if isinstance(extra, dict):
        if settings.get("additional_special_tokens"):
            raise UnknownTokenizer("two kinds of special tokens")
        named |= extra
    order = {name: place for place, name in enumerate(_NAMES)}
    return dict(sorted(named.items(), key=lambda item: order.get(item[0], len(order))))


def _read_extra(settings: Settings) -> tuple[str, ...]:
    name = _name_extra(settings)
    tokens = None if name is None else settings[name]
    if tokens is None or isinstance(tokens, dict):
        return ()
    if not all(isinstance(token, str) for token in tokens):
        raise UnknownTokenizer("special tokens with settings of their own")
    return tuple(tokens)


def _read_token(token: object) -> str | None:
    if isinstance(token, dict):
        token = token["content"]
    if token is not None and not isinstance(token, str):
        raise UnknownTokenizer("a special token that is not text")
    return token


def _read_templates(settings: Settings, folder: Path) -> dict[str, str]:
    """Read the chat templates: files win over the settings."""
    found = {
        path.name.removesuffix(".jinja"): path.read_text(encoding="utf-8")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    default = folder / "chat_template.jinja"
    if default.exists():
        found = {"default": default.read_text(encoding="utf-8")} | found
    if found:
        return found
    template = settings.get("chat_template")
    if template is None:
        return {}
    if isinstance(template, str):
        return {"default": template}
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}
    if not all(isinstance(text, str) for text in template.values()):
        raise UnknownTokenizer("a chat template that is not text")
    return dict(template)
