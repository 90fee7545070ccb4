"""Plays random histories against a whole server, and prints the seeds that fail.

python -m trioserve.testing.simulate --count 10000 --jobs 2
python -m trioserve.testing.simulate --seed 7
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
import gc
from multiprocessing import get_context
from pathlib import Path
import sys
import tempfile
import time

from ..tokenizer import tiny_tokenizer
from .run import Report, simulate
from .server import SimulatedModel

# Histories leave cycles of objects behind: some megabytes after so many.
_COLLECT_EVERY = 100


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trioserve.testing.simulate")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--count", type=int, default=1, help="the number of seeds, one after the other"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    began = time.perf_counter()
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    reports = _play_all(seeds, arguments.jobs)
    _show_summary(reports, time.perf_counter() - began)
    return 1 if any(report.problems for report in reports) else 0


def _play_all(seeds: range, num_jobs: int) -> list[Report]:
    if num_jobs <= 1:
        return _play(seeds)
    # Each process takes every n-th seed.
    parts = [seeds[index::num_jobs] for index in range(num_jobs)]
    with ProcessPoolExecutor(num_jobs, mp_context=get_context("spawn")) as pool:
        return [report for reports in pool.map(_play, parts) for report in reports]


def _play(seeds: range) -> list[Report]:
    with tempfile.TemporaryDirectory() as folder:
        model = SimulatedModel(tiny_tokenizer(Path(folder)))
    gc.collect()
    gc.freeze()
    reports = []
    for number, seed in enumerate(seeds):
        report = simulate(model, seed)
        for problem in report.problems:
            print(f"seed {seed}: {problem}", flush=True)
        reports.append(report)
        if number % _COLLECT_EVERY == 0:
            gc.collect()
    return reports


def _show_summary(reports: list[Report], seconds: float) -> None:
    failed = [report.seed for report in reports if report.problems]
    num_requests = sum(report.num_requests for report in reports)
    virtual = sum(report.seconds for report in reports)
    print(
        f"{len(reports)} histories with {num_requests} requests in {seconds:.1f} s "
        f"({virtual:.0f} s of virtual time): {len(failed)} failed"
    )
    if len(reports) == 1:
        print(f"digest {reports[0].digest}")
    if failed:
        print(
            f"play one again: python -m trioserve.testing.simulate --seed {failed[0]}"
        )


if __name__ == "__main__":
    sys.exit(main())
