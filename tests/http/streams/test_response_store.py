"""The store of responses: bounds of memory and age, shared turns, running responses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from trioserve.errors import ResponseNotFound, ResponseTooLarge
from trioserve.http.streams.event_log import EventLog
from trioserve.http.streams.response_store import (
    ResponseStore,
    StoredResponse,
    StoredTurn,
)

KB = 1000
# An ended response of make() with its turn, without content.
EMPTY_BYTES = 2048


@dataclass
class Running:
    """A running response that only notes that it was cancelled."""

    is_cancelled: bool = False

    def show(self) -> bytes:
        return b"{}"

    def cancel(self) -> None:
        self.is_cancelled = True

    async def wait_ended(self) -> None: ...


def make(response_id: str, num_bytes: int = 0, **fields: object) -> StoredResponse:
    turn = StoredTurn(input=b"x" * num_bytes, output=b"")
    return replace(
        StoredResponse(id=response_id, turn=turn, can_continue=True),
        **fields,  # type: ignore[arg-type]
    )


def has(store: ResponseStore, response_id: str, now: float = 0.0) -> bool:
    try:
        return store.find(response_id, now).id == response_id
    except ResponseNotFound:
        return False


def test_a_response_is_kept_for_its_age_and_not_longer() -> None:
    store = ResponseStore(max_bytes=KB**2, max_age=60.0)
    store.put(make("a"), 100.0)
    store.put(make("b"), 130.0)
    assert has(store, "a", 159.0)
    assert not has(store, "a", 160.0)
    assert has(store, "b", 160.0)
    store.drop_old(190.0)
    assert store.statistics().num_responses == store.statistics().num_bytes == 0
    assert store.dropped == {"age": 2, "memory": 0}


def test_the_oldest_are_dropped_for_the_memory_of_new_ones() -> None:
    store = ResponseStore(max_bytes=30 * KB, max_age=60.0)
    for number in range(10):
        store.put(make(str(number), 8 * KB), 0.0)
        assert store.statistics().num_bytes <= 30 * KB
    assert [str(n) for n in range(10) if has(store, str(n))] == ["8", "9"]
    assert store.dropped == {"age": 0, "memory": 8}


def test_a_response_that_is_too_large_is_refused_and_drives_out_no_other() -> None:
    store = ResponseStore(max_bytes=30 * KB, max_age=60.0)
    store.put(make("small"), 0.0)
    store.put(make("running", running=Running()), 0.0)
    with pytest.raises(ResponseTooLarge, match="at most 30000 bytes"):
        store.put(make("large", 40 * KB), 0.0)
    with pytest.raises(ResponseTooLarge):
        store.replace(make("running", 40 * KB), 0.0)
    with pytest.raises(ResponseTooLarge):
        store.check_size(make("large", 20 * KB), num_more_bytes=10 * KB)
    store.check_size(make("large", 20 * KB))
    assert has(store, "small")
    assert store.find("running", 0.0).is_running
    assert not has(store, "large")
    assert store.dropped["memory"] == 0


def test_turns_that_responses_share_count_once_until_the_last_one_goes() -> None:
    store = ResponseStore(max_bytes=KB**2, max_age=60.0)
    first = make("first", 100 * KB)
    store.put(first, 0.0)
    alone = store.statistics().num_bytes
    store.put(make("second", earlier=first.turns), 0.0)
    assert store.statistics().num_bytes == alone + EMPTY_BYTES + 8
    store.remove("first", 0.0)
    assert store.statistics().num_bytes > 100 * KB
    store.remove("second", 0.0)
    assert store.statistics().num_bytes == 0
    assert store.dropped == {"age": 0, "memory": 0}


def test_a_running_response_has_no_age_and_is_dropped_last() -> None:
    store = ResponseStore(max_bytes=30 * KB, max_age=60.0)
    running = Running()
    store.put(make("running", 8 * KB, running=running), 0.0)
    store.put(make("ended", 8 * KB), 1000.0)
    store.put(make("new", 8 * KB), 1000.0)
    assert has(store, "running", 1000.0)
    assert not has(store, "ended", 1000.0)
    assert not running.is_cancelled


def test_the_client_that_holds_most_loses_first() -> None:
    store = ResponseStore(max_bytes=50 * KB, max_age=60.0)
    running = Running()
    store.put(make("bob-0", 8 * KB, owner="bob"), 0.0)
    store.put(make("bob-1", 8 * KB, owner="bob", running=running), 0.0)
    for number in range(9):
        store.put(make(f"ann-{number}", 8 * KB, owner="ann"), 0.0)
    kept = [f"ann-{n}" for n in range(9) if has(store, f"ann-{n}")]
    assert kept == ["ann-7", "ann-8"]
    assert has(store, "bob-0")
    assert not running.is_cancelled
    # A large one of hers is hers to lose, too.
    store.put(make("ann-9", 40 * KB, owner="ann"), 0.0)
    assert [each for each in kept if has(store, each)] == []
    assert has(store, "bob-0")
    assert not running.is_cancelled
    for number in range(2, 9):
        store.put(make(f"bob-{number}", 8 * KB, owner="bob"), 0.0)
    assert not has(store, "bob-0")
    assert store.statistics().num_bytes <= 50 * KB


def test_a_turn_that_two_clients_hold_counts_for_both() -> None:
    """An administrator continues the conversation of another key."""
    store = ResponseStore(max_bytes=KB**2, max_age=60.0)
    first = make("first", 100 * KB, owner="ann")
    store.put(first, 0.0)
    alone = store.statistics().num_bytes
    store.put(make("second", earlier=first.turns, owner="root"), 0.0)
    assert store.statistics().num_bytes > alone + 100 * KB
    store.remove("first", 0.0)
    assert 100 * KB < store.statistics().num_bytes < alone + 2 * EMPTY_BYTES
    store.remove("second", 0.0)
    assert store.statistics().num_bytes == 0


def test_the_events_of_a_running_response_count_as_they_come() -> None:
    store = ResponseStore(max_bytes=30 * KB, max_age=60.0)
    log, running = EventLog(), Running()
    store.put(make("running", log=log, running=running), 0.0)
    store.put(make("other", 8 * KB), 0.0)
    log.append([b"x" * 8 * KB] * 2)
    store.count_events("running", 0.0)
    assert store.statistics().num_bytes == 24 * KB + 2 * EMPTY_BYTES
    log.append([b"x" * 8 * KB])
    store.count_events("running", 0.0)
    assert not has(store, "other")
    assert has(store, "running")
    log.append([b"x" * 8 * KB])
    store.count_events("running", 0.0)
    assert not has(store, "running")
    assert running.is_cancelled
    assert store.statistics().num_bytes == 0
    # It ends because of that, which has no effect any more.
    store.count_events("running", 0.0)
    store.replace(make("running"), 0.0)
    assert not has(store, "running")


def test_a_response_that_has_ended_takes_the_place_of_the_running_one() -> None:
    store = ResponseStore(max_bytes=KB**2, max_age=60.0)
    running = Running()
    store.put(make("a", running=running), 0.0)
    store.replace(make("a", content=b"{}"), 100.0)
    assert store.find("a", 159.0).content == b"{}"
    assert not has(store, "a", 160.0)
    assert not running.is_cancelled


def test_a_running_response_that_is_removed_is_cancelled() -> None:
    store = ResponseStore(max_bytes=KB**2, max_age=60.0)
    running = Running()
    store.put(make("a", running=running), 0.0)
    store.remove("a", 0.0)
    assert running.is_cancelled
    with pytest.raises(ResponseNotFound, match="'a' not found"):
        store.remove("a", 0.0)


def test_a_store_without_an_age_keeps_running_responses_alone() -> None:
    store = ResponseStore(max_bytes=KB**2, max_age=0.0)
    assert not store.keeps_responses
    store.put(make("a"), 0.0)
    assert not has(store, "a")
