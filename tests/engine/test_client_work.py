"""The work of other clients that goes before new work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trioserve.engine.client_work import ClientWork, list_parts
from trioserve.types.client import Client

# Name, weight, work.
WORK = (("bob", 2.0, 300), ("cleo", 1.0, 5000), ("dan", 0.5, 5000), ("ann", 1.0, 40))


def make_work(weight: float, work: float) -> ClientWork:
    client = ClientWork()
    client.weight, client.work = weight, work
    return client


@pytest.mark.parametrize("order", [WORK, WORK[::-1]])
def test_others_go_before_by_their_weights_in_any_order(
    order: Sequence[tuple[str, float, int]],
) -> None:
    """Each as far as it has work, however much the others have."""
    clients = {name: make_work(weight, work) for name, weight, work in order}
    ann = Client(name="ann", weight=2.0)
    parts = list_parts(clients, ann, 400.0)
    before = {each.weight: part * each.work for each, part in parts}
    # 300 of the 400 that bob might have, 200 of cleo and 100 of dan.
    assert before == pytest.approx({2.0: 300, 1.0: 200, 0.5: 100})
