"""Preemption between clients: one below its share takes a place from one above its share.

The next waiting sequence belongs to the client c that has used least (shared_queue.py). If the
sequence lacks a slot or blocks, sequences of other clients may have to leave. A client has an
amount of slots and an amount of blocks, each divided by its weight. A client v may lose a
sequence in two ways:

* By shares. v has used at least as much as c. When c has its sequence, v still has at least the
  amount of c. So v is not below its share then, and c is not above its own.
* By turns, if no client loses one by shares, and c runs nothing: there are more clients than
  slots, one sequence holds much of the cache, or those above their shares have used less or
  have repeated tokens. v has used more than c, and its sequence has had its turn: its decoding
  since it took its slot was more work than to compute all its tokens again. Its place is large
  enough for the sequence of c.

The client with the largest amount loses its latest sequence. The blocks of that sequence stay
in the prefix cache, so that it resumes cheaply. If it has to repeat tokens nevertheless, it
keeps its next slot until its decoding was as much work. A block that several sequences of a
client share counts once for the client.

Invariant: a sequence cannot take its place back by the same rule. By shares: v has at least the
amount of c then, so with one sequence more it would have more than c. And num_running ** 2 /
weight, summed over all clients, falls with each preemption for a slot. So while no sequence
comes or ends, their number is bounded. By turns: v has used more than c, so it is the turn of c
until c has used more than v.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .block_tables import BlockNeed, BlockTables
from .rivals import Amount, BlockAmount, Rival, SlotAmount
from .running import RunningSequences, group_by_client
from .sequence import Sequence
from .shared_queue import SharedQueue, measure_row


class ClientPreemption:
    """Chooses the sequences that leave for a sequence of another client."""

    def __init__(
        self, running: RunningSequences, waiting: SharedQueue, blocks: BlockTables
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._blocks = blocks

    def choose(self, step_id: int) -> tuple[Sequence, list[Sequence]] | None:
        """Return the next waiting sequence, and the sequences that leave for it.

        None if it lacks nothing, or if not enough sequences may leave.

        Args:
          step_id: the step that is planned; sequences that start with it stay.
        """
        sequence = self._waiting.peek()
        if sequence is None or sequence.num_placeholders:
            return None
        # Most often there are enough blocks, even if the sequence finds none of its own.
        has_blocks = self._blocks.has_room(sequence, len(self._running))
        if has_blocks and self._running.has_free_slot:
            return None
        claim = _Claim(sequence, step_id, self._running, self._waiting)
        # Prompts are computed one after another. If a client took several slots for them, a
        # prompt of another client would come after all of them.
        if claim.has_new_prompt:
            return None
        if not self._running.has_free_slot and not claim.take_slot():
            return None
        if not has_blocks and not self._take_blocks(claim):
            return None
        return (claim.sequence, claim.victims) if claim.victims else None

    def _take_blocks(self, claim: _Claim) -> bool:
        """Add the victims whose blocks the sequence needs, if they are enough."""
        need = self._blocks.find_need(claim.sequence)
        for victim in claim.victims:
            need.release(victim)
        num_lacking = self._count_lacking(need, claim)
        if num_lacking <= 0:
            return True
        # A claim that fails is made again in each step.
        if not claim.can_take_blocks(num_lacking, need.num_blocks):
            return False
        for victim in claim.take_blocks(need.num_blocks):
            need.release(victim)
            if self._count_lacking(need, claim) <= 0:
                return True
        return False

    def _count_lacking(self, need: BlockNeed, claim: _Claim) -> int:
        return need.count_lacking(len(self._running) - len(claim.victims))


class _Claim:
    """The claim of a waiting sequence to places of other clients.

    Attributes:
      victims: the sequences that leave.
    """

    def __init__(
        self,
        sequence: Sequence,
        step_id: int,
        running: RunningSequences,
        waiting: SharedQueue,
    ) -> None:
        self.sequence = sequence
        self.victims: list[Sequence] = []
        self._step_id = step_id
        self._client = sequence.flow.client
        by_client = group_by_client(running)
        self._own = by_client.pop(self._client.name, [])
        self._rivals = [
            Rival(sequences, waiting.shares.get_used(sequences[-1].flow.client))
            for sequences in by_client.values()
        ]
        self._own_used = waiting.shares.get_used(self._client)

    @property
    def has_new_prompt(self) -> bool:
        """True if the client has a slot already in which nothing is computed yet."""
        # A decoding sequence may compute its last token again, and has nothing else then.
        return any(
            each.num_computed == each.num_found and each.num_uncomputed > 1
            for each in self._own
        )

    def take_slot(self) -> bool:
        """Add a victim that gives its slot, if there is one."""
        level = (len(self._own) + 1) / self._client.weight
        amounts = [SlotAmount(rival) for rival in self._rivals]
        return next(self._take(amounts, 1, level), None) is not None

    def take_blocks(self, num_needed: int) -> Iterator[Sequence]:
        """Add victims one after the other, as long as there are any, and yield them.

        Args:
          num_needed: how many blocks the waiting sequence will hold.
        """
        amounts = [BlockAmount(rival) for rival in self._rivals]
        return self._take(amounts, num_needed, self._measure_blocks(num_needed))

    def can_take_blocks(self, num_lacking: int, num_needed: int) -> bool:
        """Return False if all that the others hold above the level is too little.

        It reads no block table of another client. By turns, the level does not matter.
        """
        if not self._own and any(
            each.num_blocks >= num_needed and self._has_had_turn(each)
            for rival in self._rivals
            for each in rival.sequences
        ):
            return True
        level = self._measure_blocks(num_needed)
        num_spare = 0.0
        for rival in self._rivals:
            num_held = sum(each.num_blocks for each in rival.sequences)
            # One block more need not stay free for each sequence that leaves.
            spare = num_held - level * rival.weight
            num_spare += max(0.0, spare + len(rival.sequences))
        return num_spare >= num_lacking

    def _measure_blocks(self, num_needed: int) -> float:
        """Return the blocks of the client with its sequence, for its weight."""
        own = {id for each in self._own for id in each.list_blocks()}
        return (len(own) + num_needed) / self._client.weight

    def _take(
        self,
        amounts: Iterable[Amount],
        num_needed: int,
        level: float,
    ) -> Iterator[Sequence]:
        """Add victims one after the other, as long as there are any, and yield them.

        A sequence that may not leave by shares may not do so after others have left. So each
        is looked at once.
        """
        pairs = list(zip(self._rivals, amounts, strict=True))
        candidates = [
            (rival, amount, rival.sequences.copy())
            for rival, amount in pairs
            if rival.used >= self._own_used
        ]
        while True:
            candidates = [each for each in candidates if each[2]]
            candidates.sort(key=lambda each: _rank(*each[:2]), reverse=True)
            found = self._find_by_shares(candidates, level)
            if found is None and not self._own:
                found = self._find_by_turns(pairs, num_needed)
            if found is None:
                return
            rival, amount, victim = found
            amount.remove(victim)
            rival.sequences.remove(victim)
            self.victims.append(victim)
            yield victim

    def _find_by_shares(
        self,
        candidates: list[tuple[Rival, Amount, list[Sequence]]],
        level: float,
    ) -> tuple[Rival, Amount, Sequence] | None:
        for rival, amount, sequences in candidates:
            while sequences and amount.num_held >= level * rival.weight:
                victim = sequences.pop()
                if not self._has_paid(victim):
                    continue
                num_kept = amount.num_held - amount.count_lost(victim)
                if num_kept / rival.weight >= level:
                    return rival, amount, victim
        return None

    def _find_by_turns(
        self, pairs: list[tuple[Rival, Amount]], num_needed: int
    ) -> tuple[Rival, Amount, Sequence] | None:
        ranked = sorted(pairs, key=lambda pair: _rank(*pair), reverse=True)
        for rival, amount in ranked:
            if rival.used <= self._own_used:
                continue
            for victim in reversed(rival.sequences):
                if not self._has_had_turn(victim):
                    continue
                if amount.count_lost(victim) >= num_needed:
                    return rival, amount, victim
        return None

    def _has_paid(self, victim: Sequence) -> bool:
        """Return whether a sequence has done as much new work as it had to repeat."""
        return (
            victim.started_in < self._step_id
            and _measure_decoded(victim) >= victim.num_repeated
        )

    def _has_had_turn(self, victim: Sequence) -> bool:
        """Return whether a sequence has done more work than it may have to repeat."""
        return (
            victim.started_in < self._step_id
            and _measure_decoded(victim) >= victim.num_repeated + victim.num_tokens
        )


def _rank(rival: Rival, amount: Amount) -> tuple[float, float]:
    return amount.num_held / rival.weight, rival.used


def _measure_decoded(sequence: Sequence) -> float:
    """Return the work of a sequence's decoding since it took its slot, in tokens."""
    return sequence.num_decoded * measure_row(sequence)
