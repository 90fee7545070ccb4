"""The work of all open requests, as far as it is known, and the lengths of past answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...scheduler.generation.shared_queue import HELD_WORK
from ...types.client import Client
from ...types.ids import SequenceId
from ...types.output import TokenDelta
from ..backlog import ClientBacklog, ClientWork, list_parts
from ..peer_work import TOTALS
from .cached_prompts import CachedPrompts

# The weight of a finished sequence halves after 34 others, as a step's weight does in
# scheduler/step_cost.py.
_KEPT = 0.98

# A mean of fewer answers is worth little. A guess.
_MIN_FINISHED = 8


class _Request:
    """The sequences of an open request.

    Args:
      ids: of its sequences.
      prompt_lengths: each prompt has the same number of sequences, one after the other.

    Attributes:
      num_prompt_tokens: of all its prompts. Each counts once, because the sequences of a
        prompt share its blocks.
      num_computed: the part of them that is expected to be computed.
      work: see Backlog.measure_work.
      num_open: sequences that have not ended.
      has_begun: a step with one of its sequences has begun.
      has_token: one of its sequences has a token.
    """

    __slots__ = (
        "client",
        "has_begun",
        "has_token",
        "num_open",
        "num_prompt_tokens",
        "num_computed",
        "work",
        "_first_id",
        "_lengths",
        "_per_prompt",
    )

    def __init__(
        self,
        ids: Sequence[SequenceId],
        prompt_lengths: Sequence[int],
        client: Client,
        num_computed: int,
        work: float,
    ) -> None:
        self.client = client
        self.num_computed = num_computed
        self.work = work
        self.num_open = len(ids)
        self.num_prompt_tokens = sum(prompt_lengths)
        self.has_begun = False
        self.has_token = False
        self._first_id = ids[0]
        self._lengths = prompt_lengths
        self._per_prompt = len(ids) // len(prompt_lengths)

    def measure_prompt(self, sequence_id: SequenceId) -> int:
        """Return the length of a sequence's prompt."""
        return self._lengths[(sequence_id - self._first_id) // self._per_prompt]

    def leads(self, sequence_id: SequenceId) -> bool:
        """Return whether a sequence is the first one of its prompt, so that it computes it."""
        return (sequence_id - self._first_id) % self._per_prompt == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogStatistics:
    """The present state; see Backlog.

    Args:
      num_sequences: sequences that have not ended.
      num_clients: those with requests that have no token yet.
      num_answers: answers that have begun.
    """

    num_open_requests: int
    num_queued_requests: int
    num_queued_tokens: int
    num_running: int
    num_context_tokens: int
    num_output_tokens: int
    num_sequences: int
    num_clients: int
    num_answers: int


class Backlog(ClientBacklog):
    """Counts the work of open requests, also of the peers' requests.

    Attributes:
      places: sequences that have not ended.
      num_open_requests: all of them.
      num_queued_requests: requests with which the device has not begun.
      queued_tokens: prompt tokens of requests that have no token yet.
      num_running: sequences with which the device has begun, also preempted ones.
      num_context_tokens: tokens of these sequences.
      num_output_tokens: the part of them that was generated.
      cached: the part of prompts that is not computed.
    """

    _totals = TOTALS

    def __init__(self) -> None:
        super().__init__()
        self.num_open_requests = 0
        self.num_queued_requests = 0
        self.num_running = 0
        self.num_context_tokens = 0
        self.num_output_tokens = 0
        self.cached = CachedPrompts()
        self._requests: dict[SequenceId, _Request] = {}
        # Tokens of the answers of running sequences.
        self._num_output: dict[SequenceId, int] = {}
        self._num_finished = 0
        # Sums over finished sequences; old ones count less and less.
        self._weight = 0.0
        self._prompt_tokens = 0.0
        self._output_tokens = 0.0

    def statistics(self) -> BacklogStatistics:
        """Return the present state."""
        return BacklogStatistics(
            num_open_requests=self.num_open_requests,
            num_queued_requests=self.num_queued_requests,
            num_queued_tokens=self.queued_tokens.total,
            num_running=self.num_running,
            num_context_tokens=self.num_context_tokens,
            num_output_tokens=self.num_output_tokens,
            num_sequences=self.places.total,
            num_clients=len(self._queues),
            num_answers=len(self._num_output),
        )

    @property
    def mean_prompt_tokens(self) -> float:
        """The mean length of the prompts of finished sequences."""
        return self._prompt_tokens / max(1.0, self._weight)

    @property
    def expected_output_tokens(self) -> float:
        """The mean length of finished answers.

        Before there are enough of them, the open ones count so far.
        """
        if self._num_finished < _MIN_FINISHED:
            return self.num_output_tokens / max(1, self.num_running)
        return self._output_tokens / self._weight

    def count_before(self, client: Client, work: float) -> tuple[float, float]:
        """Return the requests, and the tokens to compute, before a new request of a client.

        Args:
          work: of the new request; see measure_work.
        """
        own = self._queues.get(client.name, ClientWork())
        num_requests, num_tokens = float(own.num_requests), float(own.num_tokens)
        for other, part in list_parts(self._queues, client, own.work + work):
            num_requests += part * other.num_requests
            num_tokens += part * other.num_tokens
        return num_requests, num_tokens

    def measure_share(self, client: Client, num_slots: int) -> float:
        """Return the slots that a client has if it always has work; not rounded.

        The clients with open sequences share the slots by their weights. What one of them
        cannot use is shared by the others.
        """
        others = sorted(
            (self.places.count(name) / weight, weight)
            for name, weight in self._weights.items()
            if name != client.name
        )
        left = float(num_slots)
        weights = client.weight + sum([weight for _, weight in others])
        for level, weight in others:
            if level * weights >= left:
                break
            left -= level * weight
            weights -= weight
        return left * client.weight / weights

    def measure_work(
        self, num_computed: int, num_sequences: int, mean_prompt_tokens: float
    ) -> float:
        """Return the work for which the scheduler will charge a request's client.

        Args:
          num_computed: tokens of all its prompts that are computed.
        """
        length = max(1.0, self.expected_output_tokens)
        per_token = 1 + HELD_WORK * (mean_prompt_tokens + length / 2)
        return num_computed + num_sequences * length * per_token

    def add(
        self,
        ids: Sequence[SequenceId],
        prompt_lengths: Sequence[int],
        client: Client = Client(),
    ) -> None:
        """Count a request; its sequences have successive ids."""
        num_computed = sum(
            length - self.cached.estimate(client.name, length)
            for length in prompt_lengths
        )
        mean_prompt = sum(prompt_lengths) / len(prompt_lengths)
        work = self.measure_work(num_computed, len(ids), mean_prompt)
        request = _Request(ids, prompt_lengths, client, num_computed, work)
        # At once, because there may be thousands.
        self._requests.update(dict.fromkeys(ids, request))
        self.num_open_requests += 1
        self.num_queued_requests += 1
        self._change_places(client, len(ids))
        self._change_queue(
            client,
            num_requests=1,
            num_queued_tokens=request.num_prompt_tokens,
            num_tokens=num_computed,
            work=work,
        )

    def note(self, delta: TokenDelta) -> None:
        """Count the progress of a sequence that is open."""
        sequence_id = delta.sequence_id
        if sequence_id not in self._num_output:
            self._begin(sequence_id)
        if num_tokens := len(delta.token_ids):
            request = self._requests[sequence_id]
            if not self._num_output[sequence_id] and request.leads(sequence_id):
                num_prompt = request.measure_prompt(sequence_id)
                self.cached.note(
                    request.client.name, num_prompt, delta.num_cached_tokens
                )
            if not request.has_token:
                self._note_token(request)
            self._num_output[sequence_id] += num_tokens
            self.num_context_tokens += num_tokens
            self.num_output_tokens += num_tokens

    def finish(self, sequence_id: SequenceId, *, is_complete: bool) -> None:
        """Remove a sequence that has ended, and learn its length.

        An incomplete answer shows only that it would have been at least so long. If short ones
        counted, each late request would let in more requests, which would be late, too.
        """
        num_output = self._num_output.get(sequence_id, 0)
        if is_complete or num_output > self.expected_output_tokens:
            num_prompt = self._requests[sequence_id].measure_prompt(sequence_id)
            self._num_finished += 1
            self._weight = _KEPT * self._weight + 1
            self._prompt_tokens = _KEPT * self._prompt_tokens + num_prompt
            self._output_tokens = _KEPT * self._output_tokens + num_output
        self.drop([sequence_id])

    def drop(self, ids: Iterable[SequenceId]) -> None:
        """Remove sequences."""
        for sequence_id in ids:
            request = self._requests.pop(sequence_id)
            self._change_places(request.client, -1)
            num_output = self._num_output.pop(sequence_id, None)
            if num_output is not None:
                num_prompt = request.measure_prompt(sequence_id)
                self.num_running -= 1
                self.num_context_tokens -= num_prompt + num_output
                self.num_output_tokens -= num_output
            self._close(request)

    def clear(self) -> None:
        """Remove all sequences; the device has lost them, and its prefix cache."""
        self.drop(list(self._requests))
        self.cached = CachedPrompts()

    def _begin(self, sequence_id: SequenceId) -> None:
        request = self._requests[sequence_id]
        self._num_output[sequence_id] = 0
        self.num_running += 1
        self.num_context_tokens += request.measure_prompt(sequence_id)
        self._note_begun(request)

    def _close(self, request: _Request) -> None:
        """Remove a sequence of a request, and the request behind its last one."""
        request.num_open -= 1
        if not request.num_open:
            self._note_begun(request)
            self._note_token(request)
            self.num_open_requests -= 1

    def _note_begun(self, request: _Request) -> None:
        """Note that the device has begun with a request."""
        if not request.has_begun:
            self.num_queued_requests -= 1
            self._change_queue(request.client, num_requests=-1)
        request.has_begun = True

    def _note_token(self, request: _Request) -> None:
        """Note that a request has a token."""
        if not request.has_token:
            self._change_queue(
                request.client,
                num_queued_tokens=-request.num_prompt_tokens,
                num_tokens=-request.num_computed,
                work=-request.work,
            )
        request.has_token = True
