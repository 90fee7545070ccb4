"""The work of other clients that goes before new work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trioserve.engine.client_work import ClientWork, count_before
from trioserve.types.client import Client

# Name, weight, tokens.
WORK = (("bob", 2.0, 300), ("cleo", 1.0, 5000), ("dan", 0.5, 5000), ("ann", 1.0, 40))


def make_work(weight: float, num_tokens: int) -> ClientWork:
    work = ClientWork()
    work.weight, work.num_tokens = weight, num_tokens
    return work


@pytest.mark.parametrize("order", [WORK, WORK[::-1]])
def test_others_go_before_by_their_weights_in_any_order(
    order: Sequence[tuple[str, float, int]],
) -> None:
    """Each as far as it has work, however much the others have."""
    clients = {name: make_work(weight, tokens) for name, weight, tokens in order}
    ann = Client(name="ann", weight=2.0)
    before = count_before(clients, ann, lambda each: each.num_tokens, own=40, new=360)
    # 400 tokens of ann, 300 of bob's 400, 200 of cleo and 100 of dan.
    assert before == 40 + 300 + 200 + 100
