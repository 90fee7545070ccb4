"""Plays many histories, in several processes.

They find their function by its module, which __main__ cannot be.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
import gc
from multiprocessing import get_context
from pathlib import Path
import tempfile

from trioserve.testing.tokenizer import tiny_tokenizer

from .model import SimulatedModel
from .run import Report, simulate

# Histories leave cycles of objects behind: some megabytes after so many.
_COLLECT_EVERY = 100


def play_all(seeds: range, num_jobs: int) -> list[Report]:
    """Play the histories of some seeds, and print the failed ones."""
    if num_jobs <= 1:
        return _play(seeds)
    # Each process takes every n-th seed.
    parts = [seeds[index::num_jobs] for index in range(num_jobs)]
    with ProcessPoolExecutor(num_jobs, mp_context=get_context("fork")) as pool:
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
