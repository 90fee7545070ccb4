"""Counts and histograms of requests, and of their cancellations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import logging
from typing import get_args

import trio

from ...observe import Histogram
from ...types.output import FinishReason
from ...types.sampling import SamplingParams
from .progress import PHASES, Phase

# The bounds are vLLM's, so that dashboards for vLLM fit. The last two are numbers of tokens
# and of sequences; the others are in seconds.
_FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_INTER_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
# vLLM's bounds end at the model's length. These end at a length that few models exceed.
_TOKEN_BOUNDS = tuple(
    float(digit * 10**power) for power in range(6) for digit in (1, 2, 5)
)
_SEQUENCES_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
# vLLM has no such histogram. A turn of the event loop takes about a millisecond; a thread
# that cannot be interrupted may take seconds.
_CANCEL_BOUNDS = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0),
)


class RequestCounts:
    """Counters and histograms of one server; server/metrics/requests.py explains each of them.

    Attributes:
      answered: answered requests, by path and status.
      cancelled: requests whose client left, by phase.
      finished: finished sequences, by finish reason.
      cancel_to_free: see cancellation.py; by phase.
    """

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, ...]] = Counter()
        # Phases and reasons that have not occurred yet are shown as 0.
        self.cancelled: Counter[tuple[str, ...]] = Counter(
            {(each,): 0 for each in PHASES}
        )
        self.finished: Counter[tuple[str, ...]] = Counter(
            {(each,): 0 for each in get_args(FinishReason)}
        )
        self.cancel_to_free = {each: Histogram(_CANCEL_BOUNDS) for each in PHASES}
        self.latency = Histogram(_LATENCY_BOUNDS)
        self.queue_time = Histogram(_LATENCY_BOUNDS)
        self.prefill_time = Histogram(_LATENCY_BOUNDS)
        self.decode_time = Histogram(_LATENCY_BOUNDS)
        self.inference_time = Histogram(_LATENCY_BOUNDS)
        self.time_to_first_token = Histogram(_FIRST_TOKEN_BOUNDS)
        self.inter_token_latency = Histogram(_INTER_TOKEN_BOUNDS)
        self.time_per_output_token = Histogram(_INTER_TOKEN_BOUNDS)
        self.prompt_tokens = Histogram(_TOKEN_BOUNDS)
        self.generation_tokens = Histogram(_TOKEN_BOUNDS)
        self.params_n = Histogram(_SEQUENCES_BOUNDS)
        self.params_max_tokens = Histogram(_TOKEN_BOUNDS)

    def count_params(self, sampling: SamplingParams) -> None:
        """Count the parameters of a generating request."""
        self.params_n.observe(sampling.n)
        if sampling.max_tokens is not None:
            self.params_max_tokens.observe(sampling.max_tokens)


logger = logging.getLogger(__name__)


class Cancellation:
    """The cancellation of one request, if there is one.

    Its client left, it was cancelled by DELETE, or its deadline passed.

    Args:
      request_id: as str() gives it.
      after_aborts: makes a call when the engine holds nothing of ended requests.
    """

    def __init__(
        self,
        request_id: object,
        counts: RequestCounts,
        after_aborts: Callable[[Callable[[], None]], None],
    ) -> None:
        self._request_id = request_id
        self._counts = counts
        self._after_aborts = after_aborts
        self._began: tuple[float, Phase] | None = None
        self._has_ended = False

    def begin(self, phase: Phase) -> None:
        """Note that the request is cancelled now, in a phase; only the first call counts."""
        if self._began is None:
            self._began = trio.current_time(), phase

    def note_end(self, phase: Phase) -> None:
        """Note that the request has ended before its time."""
        self.begin(phase)
        self.end()

    def end(self) -> None:
        """Note that the server is done with the request; only the first call counts.

        The time ends when the engine has let go of it, too.
        """
        if self._began is not None and not self._has_ended:
            self._has_ended = True
            self._after_aborts(self._observe)

    def _observe(self) -> None:
        assert self._began is not None, "what has ended has begun"
        began_at, phase = self._began
        seconds = trio.current_time() - began_at
        self._counts.cancel_to_free[phase].observe(seconds)
        logger.debug(
            "request %s: free %.3f ms after it was cancelled in %s",
            *(self._request_id, 1000 * seconds, phase),
        )
