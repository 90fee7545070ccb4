"""The bytes of each token: text is put together from them.

A token need not end where a character ends, so its text is bytes. Byte-level tokenizers
(GPT-2, Llama 3, Qwen, SmolLM) spell every byte as a printable character. SentencePiece
tokenizers (Llama 2, Gemma, Mistral) spell words, with U+2581 for a space, and bytes
outside of words as <0xE4>. In both, the bytes of a text are the bytes of its tokens in
a row. One exception: SentencePiece drops a space at the beginning of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
import json
import re

from tokenizers import Tokenizer

# Before serving, this text is joined token by token and compared with the tokenizer's
# own result. It has several scripts, bytes outside any vocabulary, runs of spaces, line
# ends.
_SAMPLE = (
    'Hello, world! It\'s 12:30.\n\n  naïve café, "quoted"\t你好 мир 🙂 e\u0301\u200d.'
)

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _map_byte_characters() -> dict[str, int]:
    """Map each printable character to the byte that it stands for.

    Source: bytes_to_unicode of OpenAI's GPT-2 encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return table


_BYTE_OF_CHARACTER = _map_byte_characters()


class _Table(dict[int, bytes]):
    """Bytes by token id, each computed at its first use.

    A vocabulary has up to 256,000 tokens, and a conversation uses few of them. A hit is
    one dictionary access without a Python frame.
    """

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        super().__init__()
        self._spell = spell

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._spell(token_id)
        return piece


class Vocabulary:
    """The bytes of every token of a tokenizer.

    Args:
      tokenizer: it is only read, and only by calls that take microseconds.

    Attributes:
      size: ids run from 0 to size - 1; some may be unused.
      longest_token: an upper bound of the characters of a token.
      special_token_ids: tokens that `skip_special_tokens` leaves out.
      drops_first_space: the tokenizer leaves out a space at the beginning of a text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(ids.values(), default=-1) + 1
        # Bytes for byte-level tokenizers, which are never fewer than characters.
        self.longest_token = max(map(len, ids), default=1)
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._all = _Table(self._choose_spelling())
        # Tables without special tokens, by the special tokens that are kept.
        self._plain: dict[frozenset[int], _Table] = {}
        self.drops_first_space = self._drops_first_space()

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token inside a text; none for an id without a token."""
        return self._all[token_id]

    def token_text(self, token_id: int) -> str:
        """Return a token as the tokenizer spells it; empty for an id without a token."""
        return self._tokenizer.id_to_token(token_id) or ""

    def has_token(self, token: str) -> bool:
        """Return whether the tokenizer has a token of this name."""
        return self._tokenizer.token_to_id(token) is not None

    def choose_speller(
        self, *, skip_special_tokens: bool, kept_token_ids: frozenset[int] = frozenset()
    ) -> Callable[[int], bytes]:
        """Return a function from a token id to the bytes that it adds to a text.

        Args:
          kept_token_ids: special tokens that are not skipped.
        """
        if not skip_special_tokens:
            return self._all.__getitem__
        if kept_token_ids not in self._plain:
            left_out = self.special_token_ids - kept_token_ids
            self._plain[kept_token_ids] = _Table(partial(self._spell_unless, left_out))
        return self._plain[kept_token_ids].__getitem__

    def join(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> bytes:
        """Return the bytes that tokens add inside a text."""
        spell = self.choose_speller(skip_special_tokens=skip_special_tokens)
        return b"".join(map(spell, token_ids))

    def joins_as_decoded(self) -> bool:
        """Return whether the joined bytes of a sample's tokens are the sample's text."""
        sample = self._tokenizer.encode_batch_fast([_SAMPLE], add_special_tokens=False)
        ids = sample[0].ids
        joined = self.join(ids, skip_special_tokens=False)
        if self.drops_first_space:
            joined = joined.removeprefix(b" ")
        return joined.decode(errors="replace") == self._decode(ids)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _spell_unless(self, left_out: frozenset[int], token_id: int) -> bytes:
        return b"" if token_id in left_out else self._all[token_id]

    def _choose_spelling(self) -> Callable[[int], bytes]:
        decoders = list_decoders(self._tokenizer)
        if "ByteLevel" in decoders:
            return self._spell_byte_level
        # Decoded in front of each token, so that the token stands inside a text.
        anchor = self._tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        anchor_text = self._decode(anchor)
        has_byte_tokens = "ByteFallback" in decoders

        def spell(token_id: int) -> bytes:
            token = self._tokenizer.id_to_token(token_id)
            if token is None:
                return b""
            if has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(token)):
                return bytes.fromhex(byte[1])
            text = self._decode([*anchor, token_id])
            return text.removeprefix(anchor_text).encode()

        return spell

    def _spell_byte_level(self, token_id: int) -> bytes:
        token = self.token_text(token_id)
        try:
            return bytes(map(_BYTE_OF_CHARACTER.__getitem__, token))
        except KeyError:
            # An added token is plain text; the decoder uses the same rule.
            return token.encode()

    def _drops_first_space(self) -> bool:
        ids = self._tokenizer.encode("a a", add_special_tokens=False).ids
        spaced = [i for i in ids if self.token_bytes(i).startswith(b" ")]
        return bool(spaced) and not self._decode(spaced[:1]).startswith(" ")


def list_decoders(tokenizer: Tokenizer) -> frozenset[str]:
    """Return the types of the tokenizer's decoding steps, such as "ByteLevel"."""
    if tokenizer.decoder is None:
        return frozenset()
    spec = json.loads(tokenizer.decoder.__getstate__())
    return frozenset(part["type"] for part in [spec, *spec.get("decoders", ())])
