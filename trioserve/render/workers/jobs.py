"""Many texts of one request, divided into jobs: one call in a worker each."""

from __future__ import annotations

from collections.abc import Sequence

# Long enough that its thread is worth it, and short enough (15 ms) that the texts of other
# requests do not wait long for the worker.
_JOB_TEXTS = 32
_JOB_CHARACTERS = 65536

# What a job has room for where a text's length is not known.
UNKNOWN_SIZE = _JOB_CHARACTERS // _JOB_TEXTS


def cut_jobs(sizes: Sequence[int]) -> list[range]:
    """Divide texts into jobs: a bounded number of texts and characters each.

    A text is not divided.

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
