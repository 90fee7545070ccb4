"""Plug-ins that change logits before a token is chosen: the protocol.

A plug-in is a class. It is named by its `name`, loaded by --logits-processor or by an
entry point of the group `trioserve.logits_processors` (startup/plugins.py), and takes part in
those sequences whose requests name it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, kw_only=True, eq=False)
class LogitsRow:
    """A sequence in which a plug-in takes part: the same object in all its steps.

    With each step it is one token longer. After a preemption it is a new one.

    Args:
      arguments: what `read_arguments` made of the request's.
      prompt_token_ids: -1 where a vector stands that has no token. Not to be changed.
      num_output_tokens: tokens that the sequence has written so far.
      output_token_ids: these tokens, all of them real ones, if the class says that it
        `needs_output_token_ids`; None otherwise. Not to be changed.
      state: the plug-in's own, to keep what it likes.
    """

    arguments: object
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int = 0
    output_token_ids: list[int] | None = None
    state: object = field(default=None)


class LogitsProcessor(ABC):
    """Changes the logits of all sequences of a step that named it, in one call.

    Args:
      vocab_size: of the model.
      device: where logits are, and where the plug-in's own tensors should be.

    Attributes:
      name: what requests call it.
      needs_output_token_ids: rows come with the tokens that their sequences have written.
        The step then waits, before it samples, for the tokens of the step before it;
        without, they may still be on the device.
    """

    name: ClassVar[str]
    needs_output_token_ids: ClassVar[bool] = False

    def __init__(self, *, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        """Check what a request wants; what is returned stands in LogitsRow.arguments.

        Called in a renderer worker before the request is queued, and again in the
        device's thread: it must give the same both times, and leave `arguments` as they
        are. By default anything goes.

        Raises:
          ValueError: its message is told to the client, who gets a 400. Anything else
            is a 500 for this request.
        """
        return arguments

    @abstractmethod
    def apply(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        """Change logits in place.

        Called in the device's thread. An exception ends the engine as any failed step
        does: `read_arguments` is the place to refuse.

        Args:
          logits: (num_rows, vocab_size) float32, as the model gave them but for
            logit_bias; min_tokens, bad_words, penalties and all else come later.
          rows: whose they are.
        """
