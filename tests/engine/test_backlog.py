"""The work of open requests: prompts that are cached, and clients that share the device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trioserve.engine.backlog import ClientWork, list_parts
from trioserve.engine.generation.backlog import Backlog
from trioserve.engine.generation.cached_prompts import CachedPrompts
from trioserve.types.client import Client
from trioserve.types.ids import SequenceId
from trioserve.types.output import TokenDelta

ANN, BOB = Client(name="ann"), Client(name="bob")


def test_as_much_of_a_prompt_is_cached_as_of_the_last_ones() -> None:
    cached = CachedPrompts()
    for _ in range(50):
        cached.note("ann", 1000, 800)
        cached.note("bob", 1000, 0)
    assert cached.estimate("ann", 1000) == pytest.approx(800, abs=1)
    # The rest of a longer one is new, and a shorter one may begin in another way.
    assert cached.estimate("ann", 5000) == pytest.approx(800, abs=1)
    assert cached.estimate("ann", 100) == pytest.approx(80, abs=1)
    assert cached.estimate("bob", 1000) == 0
    assert cached.estimate_usual(1000) == pytest.approx(400, abs=10)


def test_nothing_is_taken_to_be_cached_before_enough_is_known() -> None:
    cached = CachedPrompts()
    for _ in range(3):
        cached.note("ann", 1000, 800)
    assert cached.estimate("ann", 1000) == cached.estimate("eve", 1000) == 0
    cached.note("ann", 1000, 800)
    assert cached.estimate("ann", 1000) > 0


def test_cached_tokens_are_no_work_and_the_cache_is_lost_with_the_device() -> None:
    backlog = Backlog()
    for number in range(10):
        ids = [SequenceId(2 * number), SequenceId(2 * number + 1)]
        backlog.add(ids, [1000], ANN)
        # The second sequence finds the blocks of the first one, which tells nothing.
        for index, num_cached in enumerate((800, 999)):
            backlog.note(
                TokenDelta(
                    sequence_id=ids[index], token_ids=(5,), num_cached_tokens=num_cached
                )
            )
        backlog.drop(ids)
    backlog.add([SequenceId(100)], [1000], ANN)
    assert backlog.count_before(ANN, 0.0)[1] == pytest.approx(200, abs=1)
    # The bound on tokens counts all of them.
    assert backlog.queued_tokens.total == 1000
    backlog.clear()
    assert backlog.statistics() == Backlog().statistics()
    backlog.add([SequenceId(101)], [1000], ANN)
    assert backlog.count_before(ANN, 0.0)[1] == 1000


def test_a_client_with_long_prompts_has_fewer_requests_before_those_of_others() -> None:
    """It pays for its blocks in the cache, too."""
    backlog = Backlog()
    backlog.add([SequenceId(0)], [6000], ANN)
    backlog.add([SequenceId(1)], [60], BOB)
    short = backlog.measure_work(60, 1, 60)
    long = backlog.measure_work(6000, 1, 6000)
    assert backlog.count_before(ANN, long) == (2.0, 6060.0)
    num_requests, num_tokens = backlog.count_before(BOB, short)
    assert 1.0 < num_requests < 1.1
    assert 60 < num_tokens < 300


def test_clients_share_slots_by_their_weights_as_far_as_they_have_sequences() -> None:
    backlog = Backlog()
    heavy = Client(name="eve", weight=2.0)
    assert backlog.measure_share(ANN, 8) == 8
    backlog.add([SequenceId(each) for each in range(20)], [5], BOB)
    assert backlog.measure_share(BOB, 8) == 8
    assert backlog.measure_share(ANN, 8) == 4
    assert backlog.measure_share(heavy, 9) == 6
    # One that has a single sequence leaves seven slots to the others.
    backlog.add([SequenceId(20)], [5], heavy)
    assert backlog.measure_share(ANN, 8) == 3.5
    backlog.drop([SequenceId(20)])
    assert backlog.measure_share(ANN, 8) == 4


def make_peer(offset: int, client: Client, *lengths: int) -> Backlog:
    """Return the backlog of an engine with requests of one prompt each."""
    backlog = Backlog()
    for number, length in enumerate(lengths, offset):
        backlog.add([SequenceId(number)], [length], client)
    return backlog


def test_the_work_of_a_peer_counts_like_own_work_until_it_ends() -> None:
    own, fresh = make_peer(0, ANN, 100, 50), make_peer(0, ANN, 100, 50)
    alone = make_peer(0, ANN, 100, 50, 30)
    alone.add([SequenceId(9)], [70], BOB)
    peer = make_peer(5, ANN, 30)
    own.set_peer(1, peer.describe_own(0.0))
    peer.add([SequenceId(9)], [70], BOB)
    # The second report takes the place of the first one.
    own.set_peer(1, peer.describe_own(0.0))
    assert own.statistics() == alone.statistics()
    assert own.count_before(ANN, 1.0) == alone.count_before(ANN, 1.0)
    assert own.measure_share(BOB, 8) == alone.measure_share(BOB, 8)
    assert own.describe_own(0.0) == fresh.describe_own(0.0)
    own.drop([SequenceId(0), SequenceId(1)])
    assert own.describe_own(0.0) == Backlog().describe_own(0.0)
    own.set_peer(1, None)
    assert own.statistics() == Backlog().statistics()


def test_running_work_of_a_peer_counts_as_running() -> None:
    own, peer = make_peer(0, ANN, 100), make_peer(5, BOB, 30)
    peer.note(TokenDelta(sequence_id=SequenceId(5), index=0, token_ids=(7,)))
    own.set_peer(1, peer.describe_own(0.0))
    assert (own.num_running, own.num_context_tokens, own.num_output_tokens) == (
        1,
        31,
        1,
    )
    assert (own.num_queued_requests, own.queued_tokens.total) == (1, 100)


# Name, weight, work.
WORK = (("bob", 2.0, 300), ("cleo", 1.0, 5000), ("dan", 0.5, 5000), ("ann", 1.0, 40))


def make_work(weight: float, work: float) -> ClientWork:
    return ClientWork(weight=weight, work=work)


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
