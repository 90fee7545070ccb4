"""Forecasts for clients that share the slots of a device."""

from __future__ import annotations

from trioserve.engine.backlog import Forecast
from trioserve.engine.generation.backlog import Backlog
from trioserve.engine.generation.forecast import Demand, Forecaster, OfferedPrompts
from trioserve.scheduler.step_cost import StepRates
from trioserve.types.client import Client
from trioserve.types.ids import SequenceId
from trioserve.types.output import TokenDelta

NUM_SLOTS = 8
NUM_PROMPT = 8
NUM_OUTPUT = 400
# A step of eight sequences takes 15 ms, so an answer takes six seconds.
RATES = StepRates(
    num_steps=100,
    num_chunk_tokens=256,
    fixed=0.005,
    row=0.0005,
    token=0.0001,
    context=1.5e-6,
)


class Server:
    """The open requests of a server, without the server."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.forecaster = Forecaster(self.backlog, NUM_SLOTS)
        self._num_added = 0

    def add(self, name: str, number: int, num_begun: int, weight: float = 1.0) -> None:
        """Let a client have sequences; those that have begun have all their tokens."""
        for index in range(number):
            sequence_id = SequenceId(self._num_added)
            self._num_added += 1
            client = Client(name=name, weight=weight)
            self.backlog.add([sequence_id], [NUM_PROMPT], client)
            if index < num_begun:
                delta = TokenDelta(sequence_id=sequence_id, token_ids=(5,) * NUM_OUTPUT)
                self.backlog.note(delta)

    def forecast(
        self, name: str, weight: float = 1.0, *, num_sequences: int = 1
    ) -> Forecast:
        demand = Demand(
            num_prompt_tokens=NUM_PROMPT,
            num_sequences=num_sequences,
            client=Client(name=name, weight=weight),
        )
        forecast = self.forecaster.predict(0.0, RATES, demand)
        assert forecast is not None
        return forecast


def test_a_client_below_its_share_of_the_slots_waits_for_none() -> None:
    server = Server()
    server.add("ann", 12, 8)
    assert server.forecast("ann").queue > 2.0
    assert server.forecast("bob").queue < 0.1
    # Its share is four slots, and the other sequences wait until it has more.
    assert server.forecast("bob", num_sequences=4).total < 9.0
    assert server.forecast("bob", num_sequences=8).total > 9.0


def test_a_client_at_its_share_waits_for_its_own_sequences() -> None:
    server = Server()
    # Four sequences of ann's were preempted.
    server.add("ann", 12, 8)
    server.add("bob", 4, 4)
    assert server.forecast("bob").queue > 2.0
    assert server.forecast("cleo").queue < 0.1
    # With this weight, its share is six slots.
    server.add("bob", 1, 0, weight=3.0)
    assert server.forecast("bob", weight=3.0).queue < 0.1


def test_with_more_clients_than_slots_a_request_waits_for_a_turn() -> None:
    """Its other turns come later, so its answer takes as long as other answers."""
    server = Server()
    for number in range(40):
        server.add(f"client {number}", 1, 1)
    forecast = server.forecast("ann")
    assert 0.1 < forecast.queue < 1.5
    assert 4 * forecast.alone < forecast.total


def test_preempted_sequences_do_not_slow_the_steps_down() -> None:
    few, many = Server(), Server()
    few.add("ann", 8, 8)
    many.add("ann", 16, 16)
    assert many.forecast("bob").first < 1.1 * few.forecast("bob").first


def test_refused_requests_make_only_the_forecasts_of_their_client_later() -> None:
    offered = OfferedPrompts()
    offered.note_taken(0.0, 1.0)
    before = offered.find_share(10.0, "bob")
    for _ in range(10):
        offered.note_refused(10.0, 1.0, "ann")
    assert offered.find_share(10.0, "bob") == before > 0
    assert offered.find_share(10.0, "ann") > 10 * before
    # Old ones count less.
    assert offered.find_share(40.0, "ann") < offered.find_share(10.0, "ann") / 8


def test_clients_whose_refused_requests_are_long_ago_are_forgotten() -> None:
    offered = OfferedPrompts()
    for number in range(1000):
        offered.note_refused(float(number), 1.0, f"client {number}")
    assert len(offered._refused) < 100
    assert offered.find_share(1000.0, "client 999") > 0
