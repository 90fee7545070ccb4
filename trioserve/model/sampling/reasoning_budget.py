"""Bound how long a model reasons before it answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...types.plan import SlotStart
from ...types.sampling import ReasoningBudget
from ..tensors import send_ids
from .rows import SlotRows, grow

# Stands where there is no token.
_NONE = -1


class ReasoningBudgets:
    """Where each slot's reasoning stands, and the end tags of those that take too long.

    What bounds a sequence is the sum over its sections of reasoning: a model that opens
    another one goes on with what is left, and could think forever otherwise. Every
    token of a section is charged, also one that may be the end tag's, until the tag is
    whole; then its tokens are given back. So a tag that is begun and broken off cannot
    exceed the budget, and once nothing is left, the tag is forced from where it stands.

    Tags are looked for in the output alone and do not overlap: a token that has ended
    one is no part of the next. A start tag inside of a section is reasoning.

    All this is a finite automaton for each sequence and a number. The automaton's
    tables, with rows only for slots that have a budget:

      alphabet  (num_rows, num_letters) int64             tokens of both tags; the
                                                          first stands for all others
      moves     (num_rows, num_states, num_letters) int64 the next state
      changes   (num_rows, num_states, num_letters) int64 added to what is left
      forced    (num_rows, num_states) int64              the end tag's next token, or
                                                          -1 outside of sections
      states    (num_rows,) int64
      left      (num_rows,) int64                         tokens that may still come
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows = SlotRows(device)
        # Slot -> how many tokens must come at least before one can be forced: the host
        # knows how many came, not which.
        self._waits: dict[int, int] = {}
        self._alphabet = self._make_table(2)
        self._moves = self._make_table(3)
        self._changes = self._make_table(3)
        self._forced = self._make_table(2)
        self._states = self._make_table(1)
        self._left = self._make_table(1)

    def start(self, start: SlotStart) -> None:
        """Take a sequence's budget; that of the slot's former one is forgotten."""
        self._waits.pop(start.slot, None)
        self._rows.release(start.slot)
        budget = start.sampling.thinking
        if budget is None:
            return
        automaton = _build(budget)
        state, left = automaton.read(start.output_token_ids, budget)
        self._waits[start.slot] = left
        row = self._rows.take(start.slot)
        self._make_room(automaton)
        self._states[row].fill_(state)
        self._left[row].fill_(left)
        self._write(row, automaton)

    def force(self, slots: list[int], token_ids: Tensor) -> None:
        """Replace, in place, what was chosen where a sequence's budget is used up.

        The token comes whatever its score was. To be called before anything takes note
        of the step's tokens.

        Args:
          slots: each at most once.
          token_ids: (num_slots,) int64
        """
        places = [
            place
            for place in self._rows.find_places(slots)
            if self._waits[slots[place]] <= 0
        ]
        if not places:
            return
        positions, rows = self._rows.locate(slots, places)
        forced = self._forced[rows, self._states[rows]]
        is_forced = (forced != _NONE) & (self._left[rows] <= 0)
        chosen = torch.where(is_forced, forced, token_ids[positions])
        token_ids.index_copy_(0, positions, chosen)

    def append(self, slots: list[int], token_ids: Tensor) -> None:
        """Take note of one new token of each of the slots.

        Args:
          token_ids: (num_slots,) int64
        """
        places = self._rows.find_places(slots)
        if not places:
            return
        for place in places:
            self._waits[slots[place]] -= 1
        positions, rows = self._rows.locate(slots, places)
        is_letter = self._alphabet[rows] == token_ids[positions, None]
        # The first of the largest: where no letter is the token, the first of all.
        letters = is_letter.int().argmax(dim=1)
        states = self._states[rows]
        self._left.index_add_(0, rows, self._changes[rows, states, letters])
        self._states.index_copy_(0, rows, self._moves[rows, states, letters])

    def _make_room(self, automaton: _Automaton) -> None:
        num_rows = self._rows.num_rows
        num_letters, num_states = len(automaton.alphabet), len(automaton.forced)
        table = num_rows, num_states, num_letters
        self._alphabet = grow(self._alphabet, (num_rows, num_letters), _NONE)
        self._moves = grow(self._moves, table, 0)
        self._changes = grow(self._changes, table, 0)
        self._forced = grow(self._forced, (num_rows, num_states), _NONE)
        self._states = grow(self._states, (num_rows,), 0)
        self._left = grow(self._left, (num_rows,), 0)

    def _write(self, row: int, automaton: _Automaton) -> None:
        num_letters, num_states = len(automaton.alphabet), len(automaton.forced)
        alphabet = send_ids(automaton.alphabet, self._device)
        # A longer one of the row's former sequence must not be found.
        self._alphabet[row].fill_(_NONE)
        self._alphabet[row, :num_letters].copy_(alphabet)
        forced = send_ids(automaton.forced, self._device)
        self._forced[row, :num_states].copy_(forced)
        for table, rows in (
            (self._moves, automaton.moves),
            (self._changes, automaton.changes),
        ):
            numbers = send_ids([n for numbers in rows for n in numbers], self._device)
            table[row, :num_states, :num_letters].copy_(numbers.view(num_states, -1))

    def _make_table(self, num_dims: int) -> Tensor:
        return torch.empty((0,) * num_dims, dtype=torch.int64, device=self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Automaton:
    """What a sequence's tokens do.

    States, of which the number counts tokens that the sequence has just written:

      0 ... num_start - 1                      outside, of the start tag
      num_start ... num_start + num_end - 1    inside: num_start + those of the end tag
    """

    alphabet: tuple[int, ...]
    moves: list[list[int]]
    changes: list[list[int]]
    forced: tuple[int, ...]

    def read(
        self, token_ids: tuple[int, ...], budget: ReasoningBudget
    ) -> tuple[int, int]:
        """Return the state that tokens lead to, and what they leave of the budget."""
        letters = {token_id: i for i, token_id in enumerate(self.alphabet)}
        state = len(budget.start_token_ids) if budget.is_open else 0
        left = budget.num_tokens
        for token_id in token_ids:
            letter = letters.get(token_id, 0)
            left += self.changes[state][letter]
            state = self.moves[state][letter]
        return state, left


def _build(budget: ReasoningBudget) -> _Automaton:
    begin, end = budget.start_token_ids, budget.end_token_ids
    alphabet = (_NONE, *sorted({*begin, *end}))
    moves, changes = [], []
    for num_read in range(len(begin)):
        steps = [_advance(begin, num_read, letter) for letter in alphabet]
        # The whole tag leads to the first state inside, which is the next number.
        moves.append(steps)
        changes.append([0] * len(alphabet))
    for num_read in range(len(end)):
        steps = [_advance(end, num_read, letter) for letter in alphabet]
        is_whole = [step == len(end) for step in steps]
        moves.append(
            [0 if whole else len(begin) + n for n, whole in zip(steps, is_whole)]
        )
        changes.append([len(end) - 1 if whole else -1 for whole in is_whole])
    return _Automaton(
        alphabet=alphabet,
        moves=moves,
        changes=changes,
        forced=(*[_NONE] * len(begin), *end),
    )


def _advance(tag: tuple[int, ...], num_read: int, token_id: int) -> int:
    """How much of a tag stands at the end when a token follows some of the tag.

    Source: Knuth, Morris, Pratt 1977, without their table of failures: tags are short.
    """
    read = (*tag[:num_read], token_id)
    lengths = range(len(read), 0, -1)
    return next((n for n in lengths if read[-n:] == tag[:n]), 0)
