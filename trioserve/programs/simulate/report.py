"""The figures of a simulation, and the table that is printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...errors import InvalidConfig
from ...scheduler.generation.counts import SchedulerCounters
from .config import SimulateConfig
from .record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """The outcome of a request; times are seconds of the simulation."""

    number: int
    arrived_at: float
    first_token_at: float
    ended_at: float
    num_prompt_tokens: int
    token_ids: tuple[int, ...]

    @property
    def first_token_seconds(self) -> float:
        return self.first_token_at - self.arrived_at

    @property
    def token_seconds(self) -> float | None:
        """Time per output token after the first one; None if there is only one."""
        if len(self.token_ids) < 2:
            return None
        return (self.ended_at - self.first_token_at) / (len(self.token_ids) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of times, in seconds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a simulation.

    Args:
      first_arrival: time of the first request, in seconds of the simulation.
      seconds: from the first arrival to the last token.
      prefill_tokens_per_second, decode_tokens_per_second: tokens of prompts and of outputs,
        divided by all these seconds.
      time_per_output_token: of requests with more than one output token.
      utilization: the part of the seconds in which each stage worked.
      num_steps: steps that computed anything.
      num_exchanges: steps whose tokens went back to the first stage.
      num_exchanges_skipped: steps after which nothing went back.
    """

    num_requests: int
    first_arrival: float
    num_prompt_tokens: int
    num_output_tokens: int
    seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    time_to_first_token: Percentiles
    time_per_output_token: Percentiles | None
    utilization: tuple[float, ...]
    num_steps: int
    num_exchanges: int
    num_exchanges_skipped: int
    num_preemptions: int

    @property
    def window(self) -> tuple[float, float]:
        """The first and the last second that the figures cover."""
        return self.first_arrival, self.first_arrival + self.seconds

    def format(self) -> str:
        """Return a short table for a terminal."""
        rows = [
            ("requests", f"{self.num_requests} in {self.seconds:.1f} s"),
            ("prefill", f"{self.prefill_tokens_per_second:.0f} tokens/s"),
            ("decode", f"{self.decode_tokens_per_second:.0f} tokens/s"),
            ("time to first token", _format(self.time_to_first_token)),
            ("time per output token", _format(self.time_per_output_token)),
            ("stages at work", " ".join(f"{u:.0%}" for u in self.utilization)),
            (
                "steps",
                f"{self.num_steps}, {self.num_exchanges} sent tokens back, "
                f"{self.num_exchanges_skipped} had none to send",
            ),
            ("preemptions", f"{self.num_preemptions}"),
        ]
        return "".join(f"{name:<23}{value}\n" for name, value in rows)

    def write(self, path: Path) -> None:
        """Write all figures as JSON.

        Raises:
          InvalidConfig: the file cannot be written.
        """
        text = msgspec.json.format(msgspec.json.encode(self), indent=2)
        try:
            path.write_bytes(text + b"\n")
        except OSError as error:
            raise InvalidConfig.of_file("json", "write", path, error) from error


def _format(percentiles: Percentiles | None) -> str:
    if percentiles is None:
        return "-"
    p50, p99 = 1000 * percentiles.p50, 1000 * percentiles.p99
    return f"{p50:.1f} ms (p50), {p99:.1f} ms (p99)"


def make_report(
    requests: Sequence[RequestRecord],
    record: Record,
    counters: SchedulerCounters,
    config: SimulateConfig,
) -> Report:
    """Compute the figures.

    Args:
      requests: at least one.
    """
    begin = min(request.arrived_at for request in requests)
    seconds = max(request.ended_at for request in requests) - begin
    num_prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    num_output_tokens = sum(len(request.token_ids) for request in requests)
    num_stages = config.pipeline_parallel_size
    num_exchanges = sum(transfer.what == "sampled" for transfer in record.sent)
    return Report(
        num_requests=len(requests),
        first_arrival=begin,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        seconds=seconds,
        prefill_tokens_per_second=num_prompt_tokens / seconds,
        decode_tokens_per_second=num_output_tokens / seconds,
        time_to_first_token=_summarize(r.first_token_seconds for r in requests),
        time_per_output_token=_summarize_known(r.token_seconds for r in requests),
        utilization=record.measure_utilization(num_stages, begin, begin + seconds),
        num_steps=record.num_steps,
        num_exchanges=num_exchanges,
        # A single stage sends nothing.
        num_exchanges_skipped=record.num_steps - num_exchanges if num_stages > 1 else 0,
        num_preemptions=counters.num_preemptions,
    )


def _summarize_known(values: Iterable[float | None]) -> Percentiles | None:
    known = [value for value in values if value is not None]
    return _summarize(known) if known else None


def _summarize(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    return Percentiles(p50=_pick(ordered, 0.5), p99=_pick(ordered, 0.99))


def _pick(ordered: Sequence[float], share: float) -> float:
    """Interpolate between the two neighbours, as NumPy does."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])
