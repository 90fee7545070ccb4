"""How many tokens a text has at least, told without reading all of it.

Blocking: runs in a renderer worker. A text of a megabyte that the model cannot hold is
refused after its first pieces, and not after a second of tokenizing.

What a tokenizer does to a word depends on that word and little else: text is split into
words first, and inside a word the tokens next to a cut may differ from those of the whole
text, but not those at some distance from it. So a piece has as many tokens as the whole
text has in the same place, less a few at each cut. Nobody can prove how few for all
tokenizers, and nobody needs to: a text that was made to have fewer as a whole is refused
to the client who made it, and to nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

# Tokens next to a cut that are not believed. WordPiece has the widest reach: a word of
# more than 100 characters is one unknown token, and cut it may be as many as characters.
DOUBTED_TOKENS = 128

# How long the longest pieces are, in first ones.
_MAX_GROWTH = 8


def count_at_least(
    backend: Tokenizer, texts: Sequence[str], enough: int, *, size: int
) -> int:
    """Count tokens that texts have in all, special ones aside, until there are enough.

    Args:
      size: characters of the first piece. Those that follow are longer, because each
        cut costs some tokens, and a text whose tokens are long has few.

    Returns:
      never more than the texts have.
    """
    num_tokens = 0
    for piece, num_doubted in _cut(texts, size):
        encodings = backend.encode_batch_fast([piece], add_special_tokens=False)
        num_tokens += max(0, len(encodings[0]) - num_doubted)
        if num_tokens >= enough:
            break
    return num_tokens


def _cut(texts: Sequence[str], size: int) -> Iterator[tuple[str, int]]:
    """Yield pieces, and how many of the tokens of each are doubted."""
    longest = _MAX_GROWTH * size
    for text in texts:
        begin = 0
        while begin < len(text):
            end = begin + size
            num_cuts = (begin > 0) + (end < len(text))
            yield text[begin:end], num_cuts * DOUBTED_TOKENS
            begin, size = end, min(2 * size, longest)
