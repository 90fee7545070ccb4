"""The tokens of texts that wait, and forecasts from them."""

from __future__ import annotations

from trioserve.engine.pooling.backlog import PoolingBacklog
from trioserve.engine.pooling.core import JobId
from trioserve.scheduler.step_cost import StepRates
from trioserve.types.client import Client

RATES = StepRates(num_steps=100, fixed=1.0, token=0.01)
ANN, BOB = Client(name="ann"), Client(name="bob", weight=2.0)


def predict(backlog: PoolingBacklog, num_tokens: int, client: Client) -> float:
    forecast = backlog.predict(RATES, num_tokens, client)
    assert forecast is not None
    assert forecast.alone == 1.0 + 0.01 * num_tokens
    return round(forecast.total - forecast.alone, 6)


def test_nothing_is_forecast_for_the_first_request() -> None:
    backlog = PoolingBacklog()
    assert backlog.predict(RATES, 100, ANN) is None
    with backlog.hold(BOB, 1):
        assert backlog.predict(StepRates(num_steps=7), 100, ANN) is None
        assert backlog.predict(RATES, 100, ANN) is not None


def test_requests_take_turns_and_clients_too() -> None:
    backlog = PoolingBacklog()
    with backlog.hold(ANN, 2):
        backlog.add(JobId(1), 1000, ANN)
        backlog.add(JobId(2), 500, ANN)
        # The other request reads as many tokens as this one, or all that it has.
        assert predict(backlog, 100, ANN) == 1.0
        assert predict(backlog, 5000, ANN) == 15.0
        # Bob has twice the share.
        assert predict(backlog, 100, BOB) == 0.5
        with backlog.hold(BOB, 1):
            backlog.add(JobId(3), 300, BOB)
            assert predict(backlog, 100, ANN) == 1.0 + 3.0
            backlog.drop(JobId(2))
            assert backlog.queued_tokens.total == 1300
            backlog.clear()
    assert backlog.queued_tokens.total == 0
    assert backlog.predict(RATES, 100, ANN) is None
