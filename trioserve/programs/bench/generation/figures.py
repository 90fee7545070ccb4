"""The figures of servers under levels of load, as they are saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import math
import statistics
from typing import Literal

from ..measuring.clients import ClientReport, Round, report_clients
from ..measuring.report import join_distinct, number_labels
from ..measuring.statistics import Spread, spread
from .answers import BenchAnswer
from .load import Load

Counting = Literal["usage", "events", "usage and events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """One server at one level; the samples of all rounds are pooled.

    Attributes:
      concurrency: 0 in an open loop.
      rate: requests that fell due in a second; None in a closed loop.
      late: delays of the load generator, which every time of an open loop includes.
      goodput: answers a second within the bounds of the load; None without bounds.
      num_repeating: answers that the server ended because they repeated themselves.
    """

    concurrency: int
    clients: ClientReport
    output_tokens: int
    tokens_per_request: float
    tokens_per_event: float
    tokens_per_second: float
    tokens_per_second_by_round: tuple[float, ...]
    counted_by: Counting
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    latency: Spread | None
    rate: float | None = None
    late: Spread | None = None
    requests_per_second: float = 0.0
    goodput: float | None = None
    num_repeating: int = 0

    @property
    def level(self) -> float:
        """The rate of an open loop, or the clients of a closed one."""
        return self.concurrency if self.rate is None else self.rate

    @property
    def health(self) -> Spread | None:
        return self.clients.health

    def list_doubts(self) -> Iterator[str]:
        """Write a line for each reason to doubt the figures."""
        if self.counted_by != "usage":
            yield f"tokens counted by {self.counted_by}"
        if self.clients.num_requests and abs(self.tokens_per_event - 1) > 0.05:
            yield (
                f"{self.tokens_per_event:.2f} tokens in an event: "
                "compare TPOT, not ITL"
            )
        if self.num_repeating:
            yield f"{self.num_repeating} answers ended early: they repeated themselves"
        yield from self.clients.list_doubts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """One server at all levels."""

    label: str
    url: str
    model: str
    has_ignore_eos: bool
    levels: tuple[LevelReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run, or several side by side; --json writes it and --compare reads it."""

    created: str
    machine: str
    load: Load
    is_cut: bool
    servers: tuple[ServerReport, ...]

    def list_levels(self) -> list[float]:
        """List the levels at which at least one server was measured."""
        return sorted({lv.level for each in self.servers for lv in each.levels})

    def by_level(self) -> Iterator[tuple[ServerReport, LevelReport]]:
        """Yield (server, result), ordered by level."""
        for wanted in self.list_levels():
            for server in self.servers:
                for level in server.levels:
                    if level.level == wanted:
                        yield server, level

    def list_failed(self) -> list[str]:
        """List the servers that answered no measured request."""
        if not self.servers:
            return ["all servers"]
        return [
            server.label
            for server in self.servers
            if not any(level.clients.num_requests for level in server.levels)
        ]


def report_level(
    level: float, rounds: Sequence[Round[BenchAnswer]], load: Load | None = None
) -> LevelReport:
    """Summarise one server's rounds at one level.

    Args:
      load: None for a closed loop without bounds.
    """
    is_open = load is not None and load.is_open
    seconds = sum(seen.wall_seconds for seen in rounds)
    answers = [answer for seen in rounds for answer in seen.answers]
    speeds = tuple(find_speed(seen) for seen in rounds)
    output_tokens = sum(answer.num_tokens for answer in answers)
    num_events = sum(len(answer.texts) for answer in answers)
    return LevelReport(
        concurrency=0 if is_open else int(level),
        rate=level if is_open else None,
        late=spread(late for seen in rounds for late in seen.late),
        requests_per_second=len(answers) / seconds if seconds else 0.0,
        goodput=find_goodput(answers, seconds, load),
        clients=report_clients(rounds),
        output_tokens=output_tokens,
        tokens_per_request=output_tokens / max(1, len(answers)),
        tokens_per_event=output_tokens / max(1, num_events),
        tokens_per_second=statistics.median(speeds),
        tokens_per_second_by_round=speeds,
        counted_by=find_counting(answers),
        ttft=spread(each.texts[0] - each.sent for each in answers if each.texts),
        itl=spread(gap for each in answers for gap in each.list_gaps()),
        tpot=spread(pace for each in answers for pace in each.list_paces()),
        latency=spread(each.ended - each.sent for each in answers),
        num_repeating=sum(each.repeats for each in answers),
    )


def find_goodput(
    answers: Sequence[BenchAnswer], seconds: float, load: Load | None
) -> float | None:
    """Return the answers a second within the bounds; None without bounds."""
    if load is None or (load.slo_ttft is None and load.slo_tpot is None) or not seconds:
        return None
    ttft = math.inf if load.slo_ttft is None else load.slo_ttft
    tpot = math.inf if load.slo_tpot is None else load.slo_tpot
    good = sum(
        bool(each.texts)
        and each.texts[0] - each.sent <= ttft
        and all(pace <= tpot for pace in each.list_paces())
        for each in answers
    )
    return good / seconds


def find_speed(seen: Round[BenchAnswer]) -> float:
    """Divide the output tokens of all clients by the time that they took."""
    return sum(answer.num_tokens for answer in seen.answers) / seen.wall_seconds


def find_counting(answers: Sequence[BenchAnswer]) -> Counting:
    """Return how the tokens were counted."""
    from_usage = [answer.usage_tokens is not None for answer in answers]
    if all(from_usage):
        return "usage"
    return "usage and events" if any(from_usage) else "events"


def merge_reports(reports: Sequence[Report]) -> Report:
    """Put the servers of several reports side by side; each has a label of its own."""
    names = number_labels([[each.label for each in one.servers] for one in reports])
    return replace(
        reports[0],
        created=join_distinct(report.created for report in reports),
        machine=join_distinct(report.machine for report in reports),
        is_cut=any(report.is_cut for report in reports),
        servers=tuple(
            replace(server, label=labels[server.label])
            for report, labels in zip(reports, names)
            for server in report.servers
        ),
    )
