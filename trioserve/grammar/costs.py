"""The time that the masks of each grammar take.

All sequences with the same grammar share one account, so n multiplies neither a client's
allowance nor the knowledge about its grammar.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from .limits import allow_seconds

# More grammars than run at once.
_MAX_ACCOUNTS: Final = 1024

# Ten times a usual mask. The masks of a step's other sequences wait for one that takes less.
_COSTLY_SECONDS: Final = 0.0005

# The part of the last mask in the typical time: about the last ten masks count.
_WEIGHT: Final = 0.25


@dataclass(slots=True)
class _Account:
    seconds: float = 0.0
    num_tokens: int = 0
    typical_seconds: float = 0.0

    @property
    def is_spent(self) -> bool:
        return self.seconds > allow_seconds(self.num_tokens)


class MaskCosts:
    """The accounts of the grammars that were used last; not for several threads at once."""

    def __init__(self) -> None:
        # By the hashes of the texts, which may be long.
        self._accounts: OrderedDict[int, _Account] = OrderedDict()

    def is_known(self, text: str) -> bool:
        """Return whether a mask of a grammar was counted."""
        return hash(text) in self._accounts

    def is_spent(self, text: str) -> bool:
        """Return whether the masks of a grammar took longer than they may."""
        account = self._accounts.get(hash(text))
        return account is not None and account.is_spent

    def is_costly(self, text: str) -> bool:
        """Return whether the next mask of a grammar will probably take long."""
        account = self._accounts.get(hash(text))
        return account is not None and account.typical_seconds > _COSTLY_SECONDS

    def charge(self, text: str, seconds: float, num_tokens: int) -> bool:
        """Count a mask, and return whether the grammar may go on.

        Args:
          seconds: how long the mask took.
          num_tokens: tokens that were read before it.
        """
        account = self._accounts.setdefault(hash(text), _Account())
        self._accounts.move_to_end(hash(text))
        if len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        account.seconds += seconds
        account.num_tokens += num_tokens
        account.typical_seconds += _WEIGHT * (seconds - account.typical_seconds)
        return not account.is_spent
