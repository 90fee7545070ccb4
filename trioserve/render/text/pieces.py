"""Finds a lower bound of the number of a text's tokens without reading the whole text.

Blocking: runs in a renderer worker. A text of a megabyte that the model cannot hold is
refused after its first pieces, not after a second of tokenizing.

The text is tokenized in pieces. A tokenizer splits text into words first, and the
tokens of a word depend on little else. A cut through a word changes tokens near the
cut, but not at some distance from it. So each piece has at least as many tokens as the
whole text has in the same place, less a few at each cut. This number cannot be proved
for all tokenizers. But only a text that was built to break the rule is refused wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

# Tokens next to a cut that do not count. WordPiece needs the most: it reads a word of
# more than 100 characters as one unknown token, but its parts as up to a token a
# character.
DOUBTED_TOKENS = 128

# The length of the longest pieces, as a multiple of the first one's.
_MAX_GROWTH = 8


def count_at_least(
    backend: Tokenizer, texts: Sequence[str], enough: int, *, size: int
) -> int:
    """Count the tokens of texts, without special ones, until there are enough.

    Args:
      size: characters of the first piece. Later pieces are longer, because each cut
        costs some tokens, and a text with long tokens has few of them.

    Returns:
      A lower bound of the number of tokens.
    """
    num_tokens = 0
    for piece, num_doubted in _cut(texts, size):
        encodings = backend.encode_batch_fast([piece], add_special_tokens=False)
        num_tokens += max(0, len(encodings[0]) - num_doubted)
        if num_tokens >= enough:
            break
    return num_tokens


def _cut(texts: Sequence[str], size: int) -> Iterator[tuple[str, int]]:
    """Yield pieces, each with the number of its tokens that do not count."""
    longest = _MAX_GROWTH * size
    for text in texts:
        begin = 0
        while begin < len(text):
            end = begin + size
            num_cuts = (begin > 0) + (end < len(text))
            yield text[begin:end], num_cuts * DOUBTED_TOKENS
            begin, size = end, min(2 * size, longest)
