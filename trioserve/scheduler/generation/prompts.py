"""The prompts of a step: partly computed ones, and new ones.

A prompt that is longer than the rest of the budget takes only half of it, if prompts of
other requests come after it and have at most half as many tokens left. So a short
prompt does not wait until a long one is computed. Prompts of about the same length are
computed one after the other: if they shared steps, the first would be late and the
second hardly earlier. A prompt takes a slot when its step has room for it, or when it takes the
slot of another client. So few prompts of a client are before one of another client.
"""

from __future__ import annotations

from collections import deque
import operator

from ...types.plan import SlotStart
from .block_tables import BlockTables
from .draft import Draft
from .running import RunningSequences, group_by_client
from .sequence import Sequence
from .shared_queue import SharedQueue

# The most cached tokens that one step looks up for new sequences, except for the last of
# them. They cost nothing of the step's budget, but 25 ns each on the event loop.
_MAX_CACHED_TOKENS = 65_536


class PromptPlanner:
    """Gives prompts their chunks of a step, and waiting sequences their slots.

    Attributes:
      num_admitted_tokens: prompt tokens of all admitted sequences.
    """

    def __init__(
        self, running: RunningSequences, waiting: SharedQueue, blocks: BlockTables
    ) -> None:
        self.num_admitted_tokens = 0
        self._running = running
        self._waiting = waiting
        self._blocks = blocks
        self._now = 0.0

    def plan(self, prompts: list[Sequence], draft: Draft, now: float) -> None:
        """Give the rest of a step to prompts, and admit new ones.

        Args:
          prompts: running sequences whose prompts are computed in part, in order.
          now: the scheduler's clock.
        """
        self._now = now
        line = deque(
            _take_turns(prompts) if self._waiting.shares.are_shared else prompts
        )
        while draft.has_room and (line or self._admit_next(line, draft)):
            sequence = line.popleft()
            num_tokens = draft.measure_chunk(sequence)
            draft.prompt_flows.add(sequence.flow)
            if num_tokens < sequence.num_uncomputed:
                limit = draft.measure_share(num_tokens)
                num_left = self._leave_to_shorter(sequence, limit, line, draft)
                if num_left > 0 and limit == num_tokens:
                    line.append(sequence)
                    continue
                num_tokens -= num_left
            num_tokens = draft.keep_whole(sequence, num_tokens)
            if not num_tokens:
                # An image waits for the next step.
                continue
            num_tokens, saves = self._blocks.cut_chunk(sequence, num_tokens)
            draft.add_chunk(sequence, num_tokens, saves)
            self._blocks.register([sequence])

    def _leave_to_shorter(
        self, sequence: Sequence, limit: int, line: deque[Sequence], draft: Draft
    ) -> int:
        """Return how many tokens a long prompt leaves to shorter ones of other requests.

        Waiting sequences are admitted until they use up the tokens. Only prompts of at most
        half the length count: with these the mean time to the first token is shorter.
        """
        flows, longest = draft.prompt_flows, sequence.num_uncomputed // 2
        needed = sum(
            each.num_uncomputed
            for each in line
            if each.flow not in flows and each.num_uncomputed <= longest
        )
        while needed < limit:
            first = self._waiting.peek()
            if first is None or first.flow in flows:
                break
            num_tokens = first.num_tokens - self._blocks.count_found(first)
            if num_tokens > longest or not self._admit_next(line, draft):
                break
            needed += num_tokens
        return min(limit, needed)

    def _admit_next(self, line: deque[Sequence], draft: Draft) -> bool:
        """Append the first waiting sequence to the step's line of prompts, if it can run."""
        if draft.is_closed or draft.num_cached >= _MAX_CACHED_TOKENS:
            return False
        sequence = self._waiting.peek()
        if sequence is None or not self._admit(sequence):
            # Planning more rows frees neither slots nor blocks.
            draft.is_closed = True
            return False
        draft.num_cached += sequence.num_computed
        draft.starts.append(sequence.start(draft.step_id))
        line.append(sequence)
        return True

    def admit(self, sequence: Sequence, step_id: int, now: float) -> SlotStart:
        """Let the first sequence of a client run, for which there is a slot and blocks.

        Args:
          step_id: the step that starts it.
          now: the scheduler's clock.
        """
        self._now = now
        is_admitted = self._admit(sequence)
        assert is_admitted, "there is a slot and enough blocks"
        return sequence.start(step_id)

    def _admit(self, sequence: Sequence) -> bool:
        """Let the first waiting sequence of a client run, if it can."""
        if not self._running.has_free_slot or sequence.num_placeholders:
            return False
        if not self._blocks.admit(sequence, len(self._running)):
            return False
        is_first = sequence.place is None
        if is_first:
            sequence.place = sequence.flow.place
            sequence.flow.turn = self._now
        self._running.enter(sequence)
        self._waiting.pop(sequence)
        self._waiting.charge_prompt(sequence)
        if is_first:
            # Later it finds its own results.
            sequence.num_cached_tokens = sequence.num_computed
            self.num_admitted_tokens += sequence.num_tokens
            self._blocks.count_admission(sequence)
        return True


def _take_turns(prompts: list[Sequence]) -> list[Sequence]:
    """Let clients take turns in the order in which their prompts took slots.

    Places depend on arrivals, so a client that sent many prompts would come before another
    one, however many of them take slots later. The prompts of one client stay in order.
    """
    turns = {
        name: iter(sorted(each.started_in for each in group))
        for name, group in group_by_client(prompts).items()
    }
    keys = [next(turns[each.flow.client.name]) for each in prompts]
    entries = sorted(zip(keys, prompts), key=operator.itemgetter(0))
    return [sequence for _, sequence in entries]
