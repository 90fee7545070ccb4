"""Let plug-ins change the logits of the sequences that named them.

A plug-in may want the output tokens of a sequence. When a step is launched, the tokens of
earlier steps may still be on the device. A queue holds the tokens that are yet to be read.
The lists of output tokens hold no placeholders; the missing tokens are only counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...errors import InvalidConfig
from ...types.logits import LogitsProcessor, LogitsRow
from ...types.plan import SlotStart
from ..device.tensors import send_ids


class LateIds(Protocol):
    """The tokens of a step, which may not have reached the host yet: SampledIds."""

    def read(self) -> list[int]:
        """Wait for the ids, one for each row that sampled."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Member:
    """A sequence that uses plug-ins.

    Args:
      rows: name of a plug-in -> the description of the sequence for it.
      output_token_ids: the list shared by all rows; None if no plug-in wants it.
    """

    rows: dict[str, LogitsRow]
    output_token_ids: list[int] | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Unread:
    """Tokens of one step that are not in the lists of their sequences yet.

    Args:
      lists: (index among the step's tokens, list of the sequence). It names the list, not
        the slot, because the slot may have another sequence when the tokens are read.
    """

    tokens: LateIds
    lists: list[tuple[int, list[int]]]


class LogitsProcessors:
    """The plug-ins, and the slots that use them.

    The cost of a step does not depend on the length of outputs.

    Args:
      classes: in the order in which they change a step's logits.
      vocab_size: of the model.
      device: the device of the logits.

    Raises:
      InvalidConfig: a plug-in cannot be made.
    """

    def __init__(
        self,
        classes: Sequence[type[LogitsProcessor]],
        *,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._device = device
        self._processors = {
            each.name: _make(each, vocab_size, device) for each in classes
        }
        self._members: dict[int, _Member] = {}
        # Never long: `apply` empties the queue before any sequence in it gets its next
        # token.
        self._unread: deque[_Unread] = deque()

    def start(self, start: SlotStart) -> None:
        """Take the plug-ins of a sequence, in place of its slot's former one."""
        if start.slot in self._members:
            self._forget(self._members.pop(start.slot))
        named = start.sampling.logits_processors
        if not named:
            return
        # Invariant: requests with other names were refused at admission.
        processors = {name: self._processors[name] for name, _ in named}
        needs_outputs = any(p.needs_output_token_ids for p in processors.values())
        outputs = list(start.output_token_ids) if needs_outputs else None
        rows = {
            name: LogitsRow(
                arguments=processors[name].read_arguments(arguments),
                prompt_token_ids=start.prompt_token_ids,
                num_output_tokens=len(start.output_token_ids),
                output_token_ids=(
                    outputs if processors[name].needs_output_token_ids else None
                ),
            )
            for name, arguments in named
        }
        self._members[start.slot] = _Member(rows=rows, output_token_ids=outputs)

    def has_any(self, slots: Sequence[int]) -> bool:
        """Return whether one of these slots uses a plug-in."""
        members = self._members
        return bool(members) and any(slot in members for slot in slots)

    def needs_history(self, slots: Sequence[int]) -> bool:
        """Return whether `apply` must read the tokens of earlier steps."""
        return bool(self._members) and any(
            member.output_token_ids is not None
            for member in map(self._members.get, slots)
            if member is not None
        )

    def apply(self, scores: Tensor, slots: list[int], num_outputs: list[int]) -> None:
        """Change scores in place, by one call of each plug-in that a slot uses.

        Waits for the tokens of earlier steps if a plug-in wants them.

        Args:
          scores: (num_slots, vocab_size) float32
          num_outputs: output tokens of each slot's sequence, including unread tokens.
        """
        if not self._members:
            return
        if self.needs_history(slots):
            self._read_all()
        shares = self._share_out(slots, num_outputs)
        for name, processor in self._processors.items():
            if name in shares:
                self._apply_one(processor, scores, shares[name])

    def append(self, slots: list[int], tokens: LateIds) -> None:
        """Note that each slot has a new token, without reading the token."""
        if not self._members:
            return
        lists = [
            (index, member.output_token_ids)
            for index, member in enumerate(map(self._members.get, slots))
            if member is not None and member.output_token_ids is not None
        ]
        if lists:
            self._unread.append(_Unread(tokens=tokens, lists=lists))

    def _read_all(self) -> None:
        while self._unread:
            unread = self._unread.popleft()
            token_ids = unread.tokens.read()
            for index, output_token_ids in unread.lists:
                output_token_ids.append(token_ids[index])

    def _forget(self, member: _Member) -> None:
        """Drop the unread tokens of a sequence that has ended or was preempted."""
        outputs = member.output_token_ids
        if outputs is None:
            return
        for unread in self._unread:
            unread.lists = [pair for pair in unread.lists if pair[1] is not outputs]
        self._unread = deque(unread for unread in self._unread if unread.lists)

    def _share_out(
        self, slots: list[int], num_outputs: list[int]
    ) -> dict[str, dict[int, LogitsRow]]:
        """Find the rows that each plug-in changes.

        Returns:
          name -> row of the scores -> the sequence's row, in the order of the scores
        """
        shares: dict[str, dict[int, LogitsRow]] = {}
        for index, slot in enumerate(slots):
            if (member := self._members.get(slot)) is None:
                continue
            known = member.output_token_ids
            assert (
                known is None or len(known) == num_outputs[index]
            ), "all earlier tokens are read"
            for name, row in member.rows.items():
                row.num_output_tokens = num_outputs[index]
                shares.setdefault(name, {})[index] = row
        return shares

    def _apply_one(
        self, processor: LogitsProcessor, scores: Tensor, share: dict[int, LogitsRow]
    ) -> None:
        rows = list(share.values())
        if len(rows) == len(scores):
            processor.apply(scores, rows)
            return
        index = send_ids(list(share), self._device)
        part = scores.index_select(0, index)  # (num_rows, vocab_size)
        processor.apply(part, rows)
        scores.index_copy_(0, index, part)


def _make(
    processor: type[LogitsProcessor], vocab_size: int, device: torch.device
) -> LogitsProcessor:
    try:
        return processor(vocab_size=vocab_size, device=device)
    # The code of a plug-in may raise any error.
    except Exception as error:
        raise InvalidConfig(
            "logits_processor",
            f"{processor.name} cannot be made: {type(error).__name__}: {error}",
        ) from error
