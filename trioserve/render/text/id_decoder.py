"""Turns token ids back into text. Blocking: runs in a renderer worker."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from ...errors import InvalidParameter


class IdDecoder:
    """The half of a tokenizer that takes token ids.

    Args:
      backend: a tokenizer without truncation or padding, which nobody changes.
      highest_id: the largest token id that the tokenizer and the model know.
    """

    def __init__(self, backend: Tokenizer, highest_id: int) -> None:
        self._backend = backend
        self._highest_id = highest_id

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Check token ids from a client.

        Raises:
          InvalidParameter: the tokenizer does not have one of the ids.
        """
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= self._highest_id:
            raise InvalidParameter(
                param, f"ids must be between 0 and {self._highest_id}"
            )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        texts: list[str] = self._backend.decode_batch(
            [token_ids], skip_special_tokens=skip_special_tokens
        )
        return texts[0]
