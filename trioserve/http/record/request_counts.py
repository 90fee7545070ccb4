"""Counts and histograms of requests."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from ...observe import Histogram
from ...types.output import FinishReason
from ...types.sampling import SamplingParams
from .progress import PHASES

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
