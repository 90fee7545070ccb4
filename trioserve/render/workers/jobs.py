"""Divides the texts of one request into jobs: each is one call in a worker."""

from __future__ import annotations

from collections.abc import Sequence

# A job of this size takes 15 ms: much longer than the switch to a thread, and short
# enough that other requests do not wait long for the worker.
_JOB_TEXTS = 32
_JOB_CHARACTERS = 65536

# Assumed for a text of unknown length, so that a job takes _JOB_TEXTS of them.
UNKNOWN_SIZE = _JOB_CHARACTERS // _JOB_TEXTS


def cut_jobs(sizes: Sequence[int]) -> list[range]:
    """Divide texts into jobs of a bounded number of texts and characters.

    A long text is a job of its own.

    Args:
      sizes: characters of each text.
    """
    jobs: list[range] = []
    begin = num_characters = 0
    for index, size in enumerate(sizes):
        is_full = index - begin == _JOB_TEXTS
        if index > begin and (is_full or num_characters + size > _JOB_CHARACTERS):
            jobs.append(range(begin, index))
            begin, num_characters = index, 0
        num_characters += size
    if sizes:
        jobs.append(range(begin, len(sizes)))
    return jobs
