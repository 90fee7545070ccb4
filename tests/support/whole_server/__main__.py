"""Plays random histories against a whole server, and prints the seeds that fail.

python -m whole_server --count 10000 --jobs 2
python -m whole_server --seed 7
"""

from __future__ import annotations

import argparse
import sys
import time

from .play import play_all
from .run import Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m whole_server")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--count", type=int, default=1, help="the number of seeds, one after the other"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    began = time.perf_counter()
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    reports = play_all(seeds, arguments.jobs)
    _show_summary(reports, time.perf_counter() - began)
    return 1 if any(report.problems for report in reports) else 0


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
        print(f"play one again: python -m whole_server --seed {failed[0]}")


if __name__ == "__main__":
    sys.exit(main())
