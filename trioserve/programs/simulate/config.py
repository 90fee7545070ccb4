"""The options of `trioserve simulate`: one field is one flag."""

from __future__ import annotations

from dataclasses import dataclass
import math

from ...config.checks import FilePath, check_at_least, check_seconds
from ...errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateConfig:
    """The pipeline, the load, and the files for the results.

    Args:
      pipeline_parallel_size: Stages of the pipeline.
      step_seconds: Time of a step of the whole model, however few tokens it has.
      token_seconds: Time of each token of a step, in addition.
      stage_weights: Share of each stage in these times, in any unit; by default all
        shares are equal.
      link_seconds: Time of hidden states from one stage to the next.
      return_seconds: Time of sampled tokens from the last stage to the first.
      host_seconds: Time of the engine to plan a step and hand it over.
      async_scheduling: Plan the next step before the oldest one in flight has ended.
      exchange_always: Let the first stage wait for the last one's answer to every step,
        as if every step sampled.
      kv_blocks: KV blocks of each stage.
      block_size: Tokens in one KV block.
      max_num_seqs: Sequences that run at once.
      max_num_batched_tokens: Most tokens that one step computes.
      max_step_seconds: Longest step that computes a prompt or that requests share; inf
        sets no limit. Its effect depends on attention, whose time is not simulated.
      trace: File with the requests; by default they are random. The file is CSV with a
        header, or JSON lines, with arrival_seconds, prompt_tokens and output_tokens.
      requests: Number of random requests.
      rate: Random requests that come in a second; inf lets all come at once.
      prompt_tokens: Shortest and longest random prompt.
      output_tokens: Shortest and longest random output.
      seed: Seed of the random requests.
      json: File for the figures.
      timeline: File for a picture of the stages' time, .png or .svg; needs
        trioserve[simulate].
      timeline_window: First and last second of that picture; by default from the first
        arrival to the last token.
    """

    pipeline_parallel_size: int = 4
    step_seconds: float = 0.016
    token_seconds: float = 0.0001
    stage_weights: tuple[float, ...] = ()
    link_seconds: float = 0.0002
    return_seconds: float = 0.0002
    host_seconds: float = 0.0004
    async_scheduling: bool = True
    exchange_always: bool = False
    kv_blocks: int = 8192
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    max_step_seconds: float = math.inf
    trace: FilePath | None = None
    requests: int = 64
    rate: float = 4.0
    prompt_tokens: tuple[int, int] = (256, 4096)
    output_tokens: tuple[int, int] = (16, 256)
    seed: int = 0
    json: FilePath | None = None
    timeline: FilePath | None = None
    timeline_window: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in (
            *("pipeline_parallel_size", "kv_blocks", "block_size", "max_num_seqs"),
            "requests",
        ):
            check_at_least(name, getattr(self, name), 1)
        for name in (
            *("step_seconds", "token_seconds"),
            *("link_seconds", "return_seconds", "host_seconds"),
        ):
            check_seconds(name, getattr(self, name), may_be_zero=True)
        _check("step_seconds", self.seconds_of(1) > 0, "a step takes some time")
        _check("rate", self.rate > 0, "must be greater than 0")
        _check("max_step_seconds", self.max_step_seconds > 0, "must be greater than 0")
        # Every running sequence must be able to decode in a step.
        _check(
            "max_num_batched_tokens",
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"must be at least --max-num-seqs, {self.max_num_seqs}",
        )
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            check_at_least(name, low, 1)
            _check(name, low <= high, "the shortest is longer than the longest")
        self._check_weights()
        self._check_timeline()

    @property
    def max_model_len(self) -> int:
        return self.kv_blocks * self.block_size

    @property
    def depth(self) -> int:
        """Steps in flight at most."""
        return self.pipeline_parallel_size + self.async_scheduling

    def seconds_of(self, num_tokens: int) -> float:
        """Return the time that the whole model takes for a step."""
        return self.step_seconds + self.token_seconds * num_tokens

    def _check_weights(self) -> None:
        weights = self.stage_weights
        _check(
            "stage_weights",
            not weights or len(weights) == self.pipeline_parallel_size,
            f"give one for each of {self.pipeline_parallel_size} stages",
        )
        _check(
            "stage_weights",
            all(0 < weight < math.inf for weight in weights),
            "each must be greater than 0",
        )

    def _check_timeline(self) -> None:
        if self.timeline is not None:
            _check(
                "timeline",
                self.timeline.lower().endswith((".png", ".svg")),
                "must end in .png or .svg",
            )
        if self.timeline_window is not None:
            _check("timeline_window", self.timeline is not None, "needs --timeline")
            begin, end = self.timeline_window
            _check(
                "timeline_window",
                0 <= begin < end < math.inf,
                "the first second must come before the last, and neither before 0",
            )


def _check(name: str, is_right: bool, reason: str) -> None:
    if not is_right:
        raise InvalidConfig(name, reason)
