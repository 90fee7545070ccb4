"""Clients share the device by their weights, however many requests they send."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import pytest
from scheduling import Loop, make_scheduler, make_sequence

from trioserve.scheduler import client_shares
from trioserve.scheduler.client_shares import ClientShares
from trioserve.scheduler.pooling.flow_queue import PoolingFlow
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.testing.fake_device import FakePoolingDevice
from trioserve.types.client import Client
from trioserve.types.plan import StepPlan
from trioserve.types.pooling import PoolingInput, PoolingParams, PoolingRow

device = FakePoolingDevice()

ANN, BOB = Client(name="ann"), Client(name="bob")


def make_row(num_tokens: int) -> PoolingRow:
    ids = array("i", range(num_tokens))
    return PoolingRow(
        input=PoolingInput(token_ids=ids), params=PoolingParams(task="embed")
    )


class Bench(Loop):
    """A scheduler whose clients send requests, each of one sequence.

    Attributes:
      tokens: computed so far, by client.
    """

    def __init__(self, *, checks: bool = False, **changes: Any) -> None:
        options = {
            "num_blocks": 1024,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": 512,
        }
        scheduler = make_scheduler(**(options | changes))
        super().__init__(scheduler, checks=checks, seconds=1.0)
        self.tokens: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    def ask(self, client: Client, *, num_prompt: int = 4, num_output: int = 8) -> None:
        number = len(self.sequences)
        self.waiting[client.name] += 1
        self.add(
            make_sequence(number, num_prompt, client=client, max_tokens=num_output)
        )

    def fill(self) -> list[StepPlan]:
        plans = super().fill()
        slots = {each.slot: each.flow.client.name for each in self.sequences}
        for plan in plans:
            for row in plan.rows:
                self.tokens[slots[row.slot]] += row.num_tokens
            self.waiting.subtract(slots[start.slot] for start in plan.starts)
        return plans

    def run_steps(self, number: int, **shapes: tuple[Client, dict[str, int]]) -> None:
        """Run steps while clients always have requests that wait.

        Args:
          shapes: the client, and the shape of its requests.
        """
        for _ in range(number):
            for client, shape in shapes.values():
                while self.waiting[client.name] < 20:
                    self.ask(client, **shape)
            self.step()


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        # One has short prompts and long answers, the other the reverse.
        ({"num_prompt": 2, "num_output": 24}, {"num_prompt": 24, "num_output": 2}),
    ],
)
def test_tokens_are_shared_by_weight(
    weight: float, one: dict[str, int], other: dict[str, int]
) -> None:
    bench = Bench()
    ann = Client(name="ann", weight=weight)
    bench.run_steps(200, ann=(ann, one), bob=(BOB, other))
    ratio = bench.tokens["ann"] / bench.tokens["bob"]
    assert ratio == pytest.approx(weight, rel=0.2)
    bench.run()
    assert bench.scheduler.statistics().num_waiting == 0


def test_a_new_client_does_not_wait_behind_the_requests_of_another() -> None:
    bench = Bench()
    for _ in range(400):
        bench.ask(ANN)
    for _ in range(20):
        bench.step()
    bench.ask(BOB, num_output=1)
    num_steps = 0
    while bench.waiting["bob"]:
        bench.step()
        num_steps += 1
    # All slots are taken; one becomes free after eight steps at most.
    assert num_steps <= 9


def test_time_without_work_is_not_saved_up() -> None:
    bench = Bench()
    bench.run_steps(200, ann=(ANN, {}))
    before = bench.tokens["ann"]
    bench.run_steps(200, ann=(ANN, {}), bob=(BOB, {}))
    gained = bench.tokens["ann"] - before
    assert gained == pytest.approx(bench.tokens["bob"], rel=0.2)


def test_a_client_that_pauses_for_a_moment_still_owes() -> None:
    bench = Bench()
    # Bob always has work; Ann's long prompts run ahead of her share.
    for _ in range(30):
        bench.run_steps(8, bob=(BOB, {}))
        if not bench.waiting["ann"]:
            bench.ask(ANN, num_prompt=64, num_output=1)
    assert bench.tokens["ann"] <= 1.4 * bench.tokens["bob"]


@pytest.mark.parametrize("is_full", [True, False])
def test_a_client_that_always_has_a_little_work_saves_nothing_up(is_full: bool) -> None:
    """Bob's requests fill the device and wait, or all of them find a slot at once."""
    bench = Bench()
    for number in range(300):
        if number % 20 == 0:
            bench.ask(ANN, num_output=30)
        if is_full:
            bench.run_steps(1, bob=(BOB, {}))
        else:
            bench.ask(BOB, num_output=4)
            bench.step()
    before = bench.tokens.copy()
    assert before["bob"] > 3 * before["ann"]
    bench.run_steps(100, ann=(ANN, {}), bob=(BOB, {}))
    gained = bench.tokens - before
    assert gained["ann"] == pytest.approx(gained["bob"], rel=0.2)


def test_a_new_client_begins_where_the_last_one_waited() -> None:
    """Carl's stream runs all the time; Ann's requests follow each other beside it."""
    bench = Bench()
    carl = Client(name="carl")
    bench.ask(carl, num_output=500)
    for _ in range(100):
        bench.ask(ANN)
        bench.step()
    before = bench.tokens.copy()
    # Bob is new. He does not go before Ann because Carl has used little.
    bench.run_steps(100, bob=(BOB, {}), ann=(ANN, {}))
    gained = bench.tokens - before
    assert gained["ann"] == pytest.approx(gained["bob"], rel=0.2)


def test_blocks_are_taken_from_the_client_that_holds_most() -> None:
    """Of twenty blocks each sequence of Ann takes ten in the end."""
    bench = Bench(num_blocks=20, max_model_len=80)
    bench.ask(ANN, num_prompt=8, num_output=32)
    bench.ask(ANN, num_prompt=8, num_output=32)
    bench.step()
    bench.ask(BOB, num_prompt=4, num_output=32)
    while bench.waiting["bob"] == 1 or bench.sequences[2].slot is not None:
        assert bench.step()
    # It was never preempted, although it came last.
    assert bench.sequences[2].is_ended
    assert bench.scheduler.counters().num_preemptions > 0
    bench.run()
    assert all(each.is_ended for each in bench.sequences)


def test_a_client_stays_one_when_its_weight_changes() -> None:
    """Each sequence of Ann holds fewer blocks than Bob's; both together hold more."""
    bench = Bench(num_blocks=20, max_model_len=80)
    bench.ask(ANN, num_prompt=8, num_output=24)
    bench.ask(Client(name="ann", weight=1.1), num_prompt=8, num_output=24)
    bench.ask(BOB, num_prompt=16, num_output=32)
    bench.step()
    bob = bench.sequences[2]
    while bob.slot is not None:
        assert bench.step()
    # It was never preempted.
    assert bob.is_ended
    assert bench.scheduler.counters().num_preemptions > 0
    bench.run()


def test_requests_wait_in_one_line_when_the_weight_changes() -> None:
    bench = Bench(max_num_seqs=1, checks=True)
    for number in range(6):
        bench.ask(Client(name="ann", weight=1.0 + number % 2))
    # Each step checks the queue.
    bench.run()
    assert all(each.is_ended for each in bench.sequences)


def test_idle_clients_are_forgotten() -> None:
    shares = ClientShares[list[int]](list)
    for name in map(str, range(1000)):
        shares.enter(Client(name=name))
        shares.start_waiting(Client(name=name))
        shares.end_waiting(Client(name=name))
        shares.charge(Client(name=name), 5.0)
        shares.leave(Client(name=name))
    assert not list(shares)
    shares.enter(ANN)
    shares.enter(BOB)
    shares.charge(BOB, 5.0)
    shares.leave(BOB)
    # It has used more than Ann.
    assert len(list(shares)) == 2
    shares.charge(ANN, 9.0)
    shares.enter(Client(name="carl"))
    shares.leave(Client(name="carl"))
    assert len(list(shares)) == 1


def test_only_clients_whose_work_waits_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = list[object]()
    get_standing = client_shares._get_standing

    def note(share: client_shares._Share[object]) -> tuple[float, float]:
        compared.append(share)
        return get_standing(share)

    monkeypatch.setattr(client_shares, "_get_standing", note)
    bench = Bench()
    for number in range(20):
        bench.ask(Client(name=str(number)))
    queue = bench.scheduler._waiting
    for sequence in bench.sequences[2:]:
        queue.pop(sequence)
    assert queue.peek() is bench.sequences[0]
    assert len(compared) == 2


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_texts_are_shared_by_weight(weight: float) -> None:
    """Ann sends one request of many long texts, and Bob many of one short text."""
    scheduler = PoolingScheduler(max_num_seqs=16, max_num_batched_tokens=256)
    library = PoolingFlow(0, client=Client(name="ann", weight=weight))
    for _ in range(1000):
        scheduler.add(make_row(100), library)
        scheduler.add(make_row(20), PoolingFlow(0, client=BOB))
        scheduler.add(make_row(20), PoolingFlow(0, client=BOB))
    tokens: Counter[int] = Counter()
    for _ in range(120):
        plan = scheduler.schedule()
        assert plan is not None
        for row in plan.rows:
            tokens[row.input.num_tokens] += row.input.num_tokens
        list(scheduler.update(plan, device.step(plan)))
    assert tokens[100] / tokens[20] == pytest.approx(weight, rel=0.1)


def test_a_text_in_each_step_saves_nothing_up() -> None:
    """Two steps are in flight, so Ann always has a text that has not been read."""
    scheduler = PoolingScheduler(max_num_seqs=16, max_num_batched_tokens=256)
    tokens: Counter[int] = Counter()
    plans = []
    for number in range(300):
        for _ in range(1 if number < 200 else 30):
            scheduler.add(make_row(10), PoolingFlow(0, client=ANN))
        for _ in range(30):
            scheduler.add(make_row(20), PoolingFlow(0, client=BOB))
        plan = scheduler.schedule()
        assert plan is not None
        plans.append(plan)
        for row in plan.rows if number >= 200 else ():
            tokens[row.input.num_tokens] += row.input.num_tokens
        if len(plans) > 1:
            list(scheduler.update(first := plans.pop(0), device.step(first)))
    assert tokens[10] == pytest.approx(tokens[20], rel=0.1)


def test_texts_of_a_client_that_leaves_are_forgotten() -> None:
    scheduler = PoolingScheduler(max_num_seqs=16, max_num_batched_tokens=256)
    jobs = [
        scheduler.add(make_row(10), PoolingFlow(0, client=Client(name=str(number))))
        for number in range(200)
    ]
    scheduler.abort(jobs[:190])
    plan = scheduler.schedule()
    assert plan is not None
    assert len(plan.rows) == 10
    list(scheduler.update(plan, device.step(plan)))
    assert scheduler.schedule() is None
    assert not list(scheduler._shares)
