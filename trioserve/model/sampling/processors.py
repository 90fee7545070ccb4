"""Let plug-ins change the logits of the sequences that named them.

A plug-in may want the tokens that a sequence has written. When a step is launched, those
of the steps before it may still be on the device, so what is kept of them is a queue of
what has yet to be read: how many tokens are missing is counted, and no list ever holds
anything in place of one.
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
from ..tensors import send_ids


class LateIds(Protocol):
    """What a step has sampled, which may not have reached the host: SampledIds."""

    def read(self) -> list[int]:
        """Wait for the ids, one for each row that sampled."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Member:
    """A sequence in which plug-ins take part.

    Args:
      rows: what each plug-in is told of it, by the plug-in's name.
      output_token_ids: the list that all its rows have which have any; None where no
        plug-in wants it.
    """

    rows: dict[str, LogitsRow]
    output_token_ids: list[int] | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Unread:
    """Tokens of one step that are not in their sequences' lists yet.

    Args:
      lists: (index among the step's tokens, list of the sequence). The list and not the
        slot, which may have another sequence by the time that they are read.
    """

    tokens: LateIds
    lists: list[tuple[int, list[int]]]


class LogitsProcessors:
    """The plug-ins of a device, and what they keep of each slot.

    What a step costs does not depend on how long an output is.

    Args:
      classes: in the order in which they see a step's logits.
      vocab_size: of the model.
      device: where logits are.

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
        # Never long: before a sequence that stands in it gets its next token, `apply`
        # empties it.
        self._unread: deque[_Unread] = deque()

    def start(self, start: SlotStart) -> None:
        """Take the plug-ins that a sequence names; the slot's former one is forgotten."""
        if start.slot in self._members:
            self._forget(self._members.pop(start.slot))
        named = start.sampling.logits_processors
        if not named:
            return
        # Invariant: admission has refused requests that name others.
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
        """Whether a plug-in takes part in one of these slots."""
        members = self._members
        return bool(members) and any(slot in members for slot in slots)

    def needs_history(self, slots: Sequence[int]) -> bool:
        """Whether `apply` will have to read what was sampled before."""
        return bool(self._members) and any(
            member.output_token_ids is not None
            for member in map(self._members.get, slots)
            if member is not None
        )

    def apply(self, scores: Tensor, slots: list[int], num_outputs: list[int]) -> None:
        """Change scores in place, by one call of each plug-in that was named.

        Waits for the tokens sampled before where a plug-in wants them.

        Args:
          scores: (num_slots, vocab_size) float32
          num_outputs: tokens that each slot's sequence has written, unread ones included.
        """
        if self.needs_history(slots):
            self._read_all()
        shares = self._share_out(slots, num_outputs)
        for name, processor in self._processors.items():
            if name in shares:
                self._apply_one(processor, scores, shares[name])

    def append(self, slots: list[int], tokens: LateIds) -> None:
        """Remember that each slot has a new token, without a look at it."""
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
        """Leave out what is unread of a sequence that has ended or was preempted."""
        outputs = member.output_token_ids
        if outputs is None:
            return
        for unread in self._unread:
            unread.lists = [pair for pair in unread.lists if pair[1] is not outputs]
        self._unread = deque(unread for unread in self._unread if unread.lists)

    def _share_out(
        self, slots: list[int], num_outputs: list[int]
    ) -> dict[str, dict[int, LogitsRow]]:
        """Find whose logits each plug-in is to see.

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
            ), "every token written before is read"
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
    # It may raise whatever its code raises.
    except Exception as error:
        raise InvalidConfig(
            "logits_processor",
            f"{processor.name} cannot be made: {type(error).__name__}: {error}",
        ) from error
