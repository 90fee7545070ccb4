"""The figures of systems that embed, as they are saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import statistics

from kit.embedding.cases import Case, Load
from kit.embedding.server import Timed, list_doubts
from kit.rounds import list_ratios

from trioserve.programs.bench.measuring.clients import (
    ClientReport,
    Round,
    report_clients,
)
from trioserve.programs.bench.measuring.report import join_distinct, number_labels
from trioserve.programs.bench.measuring.statistics import Spread, spread

REFERENCE_LABEL = "sentence-transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """One system's figures of one case; the samples of all rounds are pooled.

    Figures per second, and the ratio to sentence-transformers, are medians of the
    rounds.
    """

    case: str
    clients: ClientReport
    requests_per_second: float
    requests_per_second_by_round: tuple[float, ...]
    texts_per_second: float
    tokens_per_second: float
    ratio: float
    ratio_by_round: tuple[float, ...]
    latency: Spread | None
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """One system in all cases.

    Attributes:
      largest_difference: the largest difference between its vectors' numbers and the numbers
        of sentence-transformers; None for sentence-transformers itself.
    """

    label: str
    about: str
    largest_difference: float | None
    cases: tuple[CaseReport, ...]

    @property
    def is_reference(self) -> bool:
        return self.largest_difference is None

    def find(self, case: str) -> CaseReport | None:
        return next((each for each in self.cases if each.case == case), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run, or several side by side; --json writes it and --compare reads it."""

    created: str
    machine: str
    load: Load
    is_cut: bool
    systems: tuple[SystemReport, ...]

    def by_case(self) -> Iterator[tuple[Case, SystemReport, CaseReport]]:
        """Yield (case, system, its figures of the case), ordered by case."""
        for case in self.load.cases:
            for system in self.systems:
                if (seen := system.find(case.name)) is not None:
                    yield case, system, seen

    def list_failed(self) -> list[str]:
        """List the systems that answered no measured request."""
        return [
            system.label
            for system in self.systems
            if not any(seen.clients.num_requests for seen in system.cases)
        ]


def find_speed(seen: Round[Timed]) -> float:
    """Return the requests per second of one round."""
    return len(seen.answers) / seen.wall_seconds


def report_case(
    case: Case, rounds: Sequence[Round[Timed]], base: Sequence[Round[Timed]]
) -> CaseReport:
    """Summarise one system's rounds; `base` has the same rounds of the reference."""
    answers = [each for seen in rounds for each in seen.answers]
    clients = report_clients(rounds)
    speeds = tuple(find_speed(seen) for seen in rounds)
    speed = statistics.median(speeds)
    ratios = tuple(list_ratios(speeds, map(find_speed, base)))
    return CaseReport(
        case=case.name,
        clients=clients,
        requests_per_second=speed,
        requests_per_second_by_round=speeds,
        texts_per_second=speed * case.num_texts,
        tokens_per_second=speed * case.num_tokens,
        ratio=statistics.median(ratios),
        ratio_by_round=ratios,
        latency=spread(each.seconds for each in answers),
        doubts=(*list_doubts(case, answers), *clients.list_doubts()),
    )


def merge_reports(reports: Sequence[Report]) -> Report:
    """Put several reports' systems side by side, with the ratios of their own runs."""
    names = number_labels([[each.label for each in one.systems] for one in reports])
    cases = {case.name: case for report in reports for case in report.load.cases}
    return replace(
        reports[0],
        created=join_distinct(report.created for report in reports),
        machine=join_distinct(report.machine for report in reports),
        load=replace(reports[0].load, cases=tuple(cases.values())),
        is_cut=any(report.is_cut for report in reports),
        systems=tuple(
            replace(system, label=labels[system.label])
            for report, labels in zip(reports, names)
            for system in report.systems
        ),
    )
