"""Finds work of an engine that outlives its request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..observe import EngineAudit, Leak, LeakKind, Owner
from .core import CoreHoldings


def audit_core(
    holdings: CoreHoldings, known: Mapping[int, Owner | None]
) -> EngineAudit:
    """Compare the holdings of a core with the open requests.

    Args:
      known: the owners of all work of open requests, by its id in the core, from before the
        core was asked.
    """
    leaks = (*_find_leaked_work(holdings, known), *_find_lost(holdings))
    return EngineAudit(leaks=leaks, process=holdings.process)


def _find_leaked_work(
    holdings: CoreHoldings, known: Mapping[int, Owner | None]
) -> Iterator[Leak]:
    held = {each.id for each in holdings.work}
    for number, owner in known.items():
        if owner is not None and owner.has_ended and number not in held:
            text = f"work {number}, which the core does not have"
            yield _make_leak("slots", number, str(owner.id), text)
    for each in holdings.work:
        owner = known.get(each.id)
        if each.id in known and (owner is None or not owner.has_ended):
            continue
        yield _make_leak("slots", each.id, each.request_id, f"work {each.id}")
        if each.num_blocks:
            text = f"{each.num_blocks} KV blocks of work {each.id}"
            yield _make_leak("blocks", each.id, each.request_id, text)


def _make_leak(kind: LeakKind, number: int, request_id: str, text: str) -> Leak:
    return Leak(
        kind=kind, key=("work", number), request_id=request_id or None, text=text
    )


def _find_lost(holdings: CoreHoldings) -> Iterator[Leak]:
    lost: tuple[tuple[LeakKind, int, str], ...] = (
        ("blocks", holdings.num_lost_blocks, "KV blocks"),
        ("slots", holdings.num_lost_slots, "slots"),
        ("memory", holdings.num_lost_results, "kept results"),
    )
    for kind, number, name in lost:
        if number:
            text = f"{number} {name} that nobody holds"
            yield Leak(kind=kind, key="lost", request_id=None, text=text, number=number)
