"""Limit the reasoning of a model before its answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...types.plan import SlotStart
from ...types.sampling import ReasoningBudget
from ..device.tensors import send_ids
from .rows import SlotRows, grow

# Fills places without a token.
_NONE = -1


class ReasoningBudgets:
    """The reasoning budgets of all slots; forces the end tag when a budget is used up.

    The budget covers all sections of reasoning of a sequence together. Otherwise a model
    could open one section after the other and reason forever. Every token of a section
    uses the budget, also the tokens of an end tag; a complete end tag gives its tokens
    back. So a tag that begins and is not completed cannot exceed the budget. When nothing
    is left, the rest of the end tag is forced.

    Tags are searched in the output alone and do not overlap: the last token of a tag
    cannot begin the next one. A start tag inside of a section is reasoning.

    An answer with a grammar has one section at most, and only at its beginning. The grammar
    describes all that follows, which may have the text of a tag, for example in a string.

    The state of a sequence is a number and the state of a finite automaton. The tables of
    the automata have rows only for slots with a budget:

      alphabet  (num_rows, num_letters) int64             tokens of both tags; the first
                                                          letter means any other token
      moves     (num_rows, num_states, num_letters) int64 the next state
      changes   (num_rows, num_states, num_letters) int64 added to `left`
      forced    (num_rows, num_states) int64              the end tag's next token, or
                                                          -1 outside of sections
      states    (num_rows,) int64
      left      (num_rows,) int64                         rest of the budget, in tokens
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows = SlotRows(device)
        # Slot -> number of tokens before which none can be forced. The host knows how many
        # tokens came, but not which.
        self._waits: dict[int, int] = {}
        self._alphabet = self._make_table(2)
        self._moves = self._make_table(3)
        self._changes = self._make_table(3)
        self._forced = self._make_table(2)
        self._states = self._make_table(1)
        self._left = self._make_table(1)

    def start(self, start: SlotStart) -> None:
        """Take the budget of a sequence, in place of its slot's former one."""
        self._waits.pop(start.slot, None)
        self._rows.release(start.slot)
        budget = start.sampling.reasoning_budget
        if budget is None:
            return
        automaton = _build(budget, has_grammar=start.sampling.grammar is not None)
        state, left = automaton.read(start.output_token_ids, budget)
        self._waits[start.slot] = left
        row = self._rows.take(start.slot)
        self._make_room(automaton)
        self._states[row].fill_(state)
        self._left[row].fill_(left)
        self._write(row, automaton)

    def has_any(self, slots: list[int]) -> bool:
        """Return whether one of these slots has a budget."""
        return self._rows.has_any(slots)

    def force(self, slots: list[int], token_ids: Tensor) -> None:
        """Replace, in place, the chosen tokens of sequences whose budget is used up.

        The score of the new token does not matter. Call this before the step's tokens are
        counted or stored anywhere.

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
        """Advance the automata by one new token of each slot.

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
        # argmax returns the first of the largest: letter 0 if no letter is the token.
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
        # The row's former sequence may have had a longer alphabet.
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
    """The automaton of one sequence.

    A state says how many tokens of a tag are at the end of the output:

      0 ... num_start - 1                      outside: tokens of the start tag
      num_start ... num_start + num_end - 1    inside: num_start + tokens of the end tag
      num_start + num_end                      behind the only section; nothing is searched
    """

    alphabet: tuple[int, ...]
    moves: list[list[int]]
    changes: list[list[int]]
    forced: tuple[int, ...]

    def read(
        self, token_ids: tuple[int, ...], budget: ReasoningBudget
    ) -> tuple[int, int]:
        """Return the state after these tokens, and the rest of the budget."""
        letters = {token_id: i for i, token_id in enumerate(self.alphabet)}
        state = len(budget.start_token_ids) if budget.is_open else 0
        left = budget.num_tokens
        for token_id in token_ids:
            letter = letters.get(token_id, 0)
            left += self.changes[state][letter]
            state = self.moves[state][letter]
        return state, left


def _build(budget: ReasoningBudget, *, has_grammar: bool) -> _Automaton:
    begin, end = budget.start_token_ids, budget.end_token_ids
    alphabet = (_NONE, *sorted({*begin, *end}))
    behind = len(begin) + len(end)
    after = behind if has_grammar else 0
    moves, changes = [], []
    for num_read in range(len(begin)):
        steps = [_advance(begin, num_read, letter) for letter in alphabet]
        # A complete start tag leads to the first state inside, which is the next number.
        moves.append(
            [step if step > num_read else behind for step in steps]
            if has_grammar
            else steps
        )
        changes.append([0] * len(alphabet))
    for num_read in range(len(end)):
        steps = [_advance(end, num_read, letter) for letter in alphabet]
        is_whole = [step == len(end) for step in steps]
        moves.append(
            [after if whole else len(begin) + n for n, whole in zip(steps, is_whole)]
        )
        changes.append([len(end) - 1 if whole else -1 for whole in is_whole])
    moves.append([behind] * len(alphabet))
    changes.append([0] * len(alphabet))
    return _Automaton(
        alphabet=alphabet,
        moves=moves,
        changes=changes,
        forced=(*[_NONE] * len(begin), *end, _NONE),
    )


def _advance(tag: tuple[int, ...], num_read: int, token_id: int) -> int:
    """Return how many tokens of a tag are at the end after one more token.

    Args:
      num_read: tokens of the tag that are at the end before it.

    Source: Knuth, Morris, Pratt 1977; without their failure table, because tags are short.
    """
    read = (*tag[:num_read], token_id)
    lengths = range(len(read), 0, -1)
    return next((n for n in lengths if read[-n:] == tag[:n]), 0)
