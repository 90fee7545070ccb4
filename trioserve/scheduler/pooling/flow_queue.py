"""The waiting inputs of one client's requests, which take turns."""

from __future__ import annotations

from collections import deque
import heapq
import itertools

from ...types.client import Client
from ...types.pooling import PoolingRow

# Tokens that one level of priority is worth. A guess: a small encoder on a CPU reads this
# many in ten seconds.
LEVEL_TOKENS = 65_536


class PoolingFlow:
    """The inputs of one request. They take turns with inputs of other requests.

    Args:
      priority: requests with a lower number go first.
      request_id: for reports to people.
      client: the one that it belongs to.
    """

    def __init__(
        self, priority: int, request_id: str = "", client: Client = Client()
    ) -> None:
        self.priority = priority
        self.client = client
        self.request_id = request_id
        # The turn of its next input, in tokens of the clock.
        self.turn = 0
        self.num_waiting = 0
        # Waiting inputs, and aborted ones that have not been dropped yet.
        self.jobs: deque[PoolingJob] = deque()
        # Number of its valid entry in the heap of its queue.
        self.number = -1

    @property
    def place(self) -> int:
        """The flow with the lowest place is next."""
        return self.turn + LEVEL_TOKENS * self.priority


class PoolingJob:
    """One input on its way through the scheduler."""

    __slots__ = ("row", "flow", "is_waiting")

    def __init__(self, row: PoolingRow, flow: PoolingFlow) -> None:
        self.row = row
        self.flow = flow
        self.is_waiting = True


class FlowQueue:
    """The requests of one client that have waiting inputs, the next one first."""

    def __init__(self) -> None:
        # (place, number, flow) of each flow with waiting inputs, and old entries.
        self._heap: list[tuple[int, int, PoolingFlow]] = []
        self._num_flows = 0
        # Tokens of all planned inputs of the client.
        self._clock = 0
        self._numbers = itertools.count()

    def add(self, job: PoolingJob) -> None:
        """Let an input wait, behind the earlier ones of its flow."""
        flow = job.flow
        flow.jobs.append(job)
        flow.num_waiting += 1
        if flow.num_waiting == 1:
            self._num_flows += 1
            flow.turn = max(flow.turn, self._clock)
            self._push(flow)

    def drop(self, job: PoolingJob) -> None:
        """Drop a waiting input."""
        self._leave(job)
        _drop_aborted(job.flow)

    def compact(self) -> None:
        """Drop old entries once they are the majority.

        So the cost of rebuilding the heap is spread over many of them.
        """
        if len(self._heap) > 64 and len(self._heap) > 2 * self._num_flows:
            self._heap = [entry for entry in self._heap if _is_valid(entry)]
            heapq.heapify(self._heap)

    def peek(self) -> PoolingJob | None:
        """Return the next input, or None."""
        while self._heap and not _is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._heap:
            return None
        flow = self._heap[0][2]
        while not flow.jobs[0].is_waiting:
            flow.jobs.popleft()
        return flow.jobs[0]

    def pop(self, job: PoolingJob) -> None:
        """Remove the input that `peek` returned."""
        flow, num_tokens = job.flow, job.row.input.num_tokens
        # Each waiting flow gets as many tokens before this one's next turn.
        flow.turn += num_tokens * self._num_flows
        self._clock += num_tokens
        flow.jobs.popleft()
        self._leave(job)
        if flow.num_waiting:
            self._push(flow)

    def _push(self, flow: PoolingFlow) -> None:
        flow.number = next(self._numbers)
        heapq.heappush(self._heap, (flow.place, flow.number, flow))

    def _leave(self, job: PoolingJob) -> None:
        job.is_waiting = False
        job.flow.num_waiting -= 1
        self._num_flows -= job.flow.num_waiting == 0


def _is_valid(entry: tuple[int, int, PoolingFlow]) -> bool:
    _, number, flow = entry
    return flow.number == number and flow.num_waiting > 0


def _drop_aborted(flow: PoolingFlow) -> None:
    """Drop the aborted inputs of a flow, once they are the majority."""
    if len(flow.jobs) > 64 and len(flow.jobs) > 2 * flow.num_waiting:
        flow.jobs = deque(job for job in flow.jobs if job.is_waiting)
