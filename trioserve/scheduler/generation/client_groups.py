"""Sequences grouped by their clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .sequence import Sequence


def group_by_client(sequences: Iterable[Sequence]) -> dict[str, list[Sequence]]:
    """Return the sequences of each client, by its name, in the given order.

    By name, because a client's weight may change between two requests.
    """
    groups: defaultdict[str, list[Sequence]] = defaultdict(list)
    for sequence in sequences:
        groups[sequence.flow.client.name].append(sequence)
    return dict(groups)
