"""The checks that replies to all kinds of requests have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .causes import Causes
from .history import History
from .key_checks import KeyChecks
from .model import SimulatedModel
from .reading import claim
from .replies import Reply


class ReplyChecks(ABC):
    """Checks the replies of one history."""

    def __init__(
        self, model: SimulatedModel, history: History, keys: KeyChecks
    ) -> None:
        self._model = model
        self._history = history
        self._causes = Causes(history)
        self._keys = keys

    @abstractmethod
    def check(self, reply: Reply) -> None:
        """Raise Wrong if a reply is not one that its request can get.

        Raises:
          Wrong
        """

    def _check_error(self, reply: Reply, error: int) -> None:
        allowed = self._list_errors(reply)
        claim(error in allowed, f"the error {error} has no cause")

    def _list_errors(self, reply: Reply) -> set[int]:
        """Return the statuses of errors that a request may end with."""
        allowed = self._causes.list_errors(reply) | self._keys.list_errors(reply)
        return allowed | {429} if self._history.is_tight else allowed
