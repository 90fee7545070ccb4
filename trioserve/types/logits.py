"""The protocol of plug-ins that change logits before a token is sampled.

A plug-in is a class. --logits-processor loads it, or an entry point of the group
`trioserve.logits_processors` does (startup/plugins.py). Requests name it by its `name`, and
it changes the logits of their sequences only.
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
    """A sequence that uses a plug-in: the same object in all of its steps.

    It is one token longer in each step. After a preemption the sequence has a new object.

    Args:
      arguments: the return value of `read_arguments`.
      prompt_token_ids: -1 for a position with a vector instead of a token. Do not change.
      num_output_tokens: number of output tokens so far.
      output_token_ids: these tokens, without placeholders, if the class sets
        `needs_output_token_ids`; None otherwise. Do not change.
      state: for the plug-in's own use.
    """

    arguments: object
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int = 0
    output_token_ids: list[int] | None = None
    state: object = field(default=None)


class LogitsProcessor(ABC):
    """Changes the logits of all sequences in a step that use it, in one call.

    Args:
      vocab_size: size of the model's vocabulary.
      device: device of the logits, and the best place for the plug-in's own tensors.

    Attributes:
      name: the name in requests.
      needs_output_token_ids: rows have the output tokens of their sequences. Then the step
        waits, before it samples, for the tokens of the step before it; otherwise these may
        still be on the device.
    """

    name: ClassVar[str]
    needs_output_token_ids: ClassVar[bool] = False

    def __init__(self, *, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        """Check the arguments of a request; the return value is LogitsRow.arguments.

        It is called in a renderer worker before the request is queued, and again in the
        device's thread. It must return the same both times, and must not change
        `arguments`. The default accepts all arguments.

        Raises:
          ValueError: the client gets its message with a 400. Any other error is a 500 for
            this request.
        """
        return arguments

    @abstractmethod
    def apply(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        """Change logits in place.

        It is called in the device's thread. An exception ends the engine, as any failed
        step does; `read_arguments` is the place to refuse arguments.

        Args:
          logits: (num_rows, vocab_size) float32, the model's logits with logit_bias added;
            min_tokens, bad_words, penalties and all else come later.
          rows: the sequence of each row of logits.
        """
