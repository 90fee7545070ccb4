"""Preemption between clients: one below its share takes a place from one above its share.

The next waiting sequence belongs to the client c that has used least (shared_queue.py). If the
sequence lacks a slot or blocks, sequences of other clients may have to leave. A client has an
amount of slots and an amount of blocks, each divided by its weight. A client v may lose a
sequence in two ways:

* By shares. v has used at least as much as c. When c has its sequence, v still has at least the
  amount of c. So v is not below its share then, and c is not above its own.
* By turns, if no client could lose one by shares, and c runs nothing: there are more clients
  than slots, or one sequence holds much of the cache. v has used more than c, and its sequence
  has had its turn: its decoding since it took its slot was more work than to compute all its
  tokens again. Its place is large enough for the sequence of c.

The client with the largest amount loses its latest sequence. The blocks of that sequence stay
in the prefix cache, so that it resumes cheaply. If it has to repeat tokens nevertheless, it
keeps its next slot until its decoding was as much work.

Invariant: a sequence cannot take its place back by the same rule. By shares: v has at least the
amount of c then, so with one sequence more it would have more than c. And num_running ** 2 /
weight, summed over all clients, falls with each preemption for a slot. So while no sequence
comes or ends, their number is bounded. By turns: v has used more than c, so it is the turn of c
until c has used more than v.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from .block_tables import BlockTables
from .running import RunningSequences, get_standing
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
        """Return the next waiting sequence, and those that leave for it.

        None if it lacks nothing, or if not enough sequences may leave.

        Args:
          step_id: the step that is planned; sequences that start with it stay.
        """
        if not self._waiting.are_shared:
            return None
        sequence = self._waiting.peek()
        if sequence is None or sequence.num_placeholders:
            return None
        claim = _Claim(sequence, step_id, self._running, self._waiting)
        # Prompts are computed one after another. If a client took several slots for them, a
        # prompt of another client would come after all of them.
        if claim.has_new_prompt:
            return None
        if not self._running.has_free_slot and not claim.take(_count_slots, 1):
            return None
        num_needed = self._blocks.count_needed(sequence)
        while self._lacks_blocks(claim):
            if not claim.take(_count_blocks, num_needed):
                return None
        return (sequence, claim.victims) if claim.victims else None

    def _lacks_blocks(self, claim: _Claim) -> bool:
        num_running = len(self._running) - len(claim.victims)
        return not self._blocks.can_admit(claim.sequence, num_running, claim.victims)


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
        self._own: list[Sequence] = []
        self._others: list[Sequence] = []
        # By name, because a client's weight may have changed between two requests.
        self._used: dict[str, float] = {}
        for each in running:
            client = each.flow.client
            if client.name == self._client.name:
                self._own.append(each)
            else:
                self._others.append(each)
                self._used[client.name] = waiting.get_used(client)
        self._own_used = waiting.get_used(self._client)

    @property
    def has_new_prompt(self) -> bool:
        """Whether the client has a slot already in which nothing is computed yet."""
        return any(each.num_computed == each.num_found for each in self._own)

    def take(self, count: Callable[[Sequence], int], num_needed: int) -> bool:
        """Add a victim, if there is one.

        Args:
          count: returns how many slots, or blocks, a running sequence holds.
          num_needed: how many the waiting sequence will hold.
        """
        amounts: defaultdict[str, float] = defaultdict(float)
        for each in self._others:
            amounts[each.flow.client.name] += count(each) / each.flow.client.weight
        level = num_needed / self._client.weight
        level += sum(count(each) / each.flow.client.weight for each in self._own)

        def keeps_its_share(victim: Sequence) -> bool:
            client = victim.flow.client
            return amounts[client.name] - count(victim) / client.weight >= level

        if choices := list(filter(keeps_its_share, self._others)):
            choices = list(filter(self._has_paid, choices))
        elif not self._own:
            choices = [
                each
                for each in self._others
                if count(each) >= num_needed and self._has_had_turn(each)
            ]
        if not choices:
            return False
        victim = max(choices, key=lambda each: self._rank(each, amounts))
        self._others.remove(victim)
        self.victims.append(victim)
        return True

    def _has_paid(self, victim: Sequence) -> bool:
        """Return whether a sequence has done as much new work as it had to repeat."""
        return (
            self._used[victim.flow.client.name] >= self._own_used
            and victim.started_in < self._step_id
            and _measure_decoded(victim) >= victim.num_repeated
        )

    def _has_had_turn(self, victim: Sequence) -> bool:
        """Return whether a sequence has done more work than it may have to repeat."""
        return (
            self._used[victim.flow.client.name] > self._own_used
            and victim.started_in < self._step_id
            and _measure_decoded(victim) >= victim.num_repeated + victim.num_tokens
        )

    def _rank(
        self, victim: Sequence, amounts: dict[str, float]
    ) -> tuple[float, float, tuple[float, int]]:
        name = victim.flow.client.name
        return amounts[name], self._used[name], get_standing(victim)


def _measure_decoded(sequence: Sequence) -> float:
    """Return the work of a sequence's decoding since it took its slot, in tokens."""
    return sequence.num_decoded * measure_row(sequence)


def _count_slots(sequence: Sequence) -> int:
    return 1


def _count_blocks(sequence: Sequence) -> int:
    return len(sequence.block_ids)
