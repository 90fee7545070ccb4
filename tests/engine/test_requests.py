"""The end of an engine, and how often it starts again."""

from __future__ import annotations

import pytest
import trio

from trioserve.engine.requests import FAREWELL_SECONDS, OpenRequests, Restarts
from trioserve.errors import (
    EngineDied,
    EngineProcessDied,
    EngineRestarting,
    ShuttingDown,
)


class Request:
    """An open request that records its errors."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


async def fail() -> None:
    raise RuntimeError("the device is broken")


async def test_a_cancellation_does_not_hide_why_an_engine_failed(
    autojump_clock: object,
) -> None:
    requests, request = OpenRequests(), Request()
    began = trio.current_time()
    with trio.CancelScope() as scope, requests.hold(request):
        scope.cancel()
        with pytest.raises(RuntimeError, match="the device is broken"):
            await requests.serve(fail)
    assert [type(error) for error in request.errors] == [EngineDied]
    # The request stayed open, so the engine waited for the full time.
    assert trio.current_time() - began == FAREWELL_SECONDS


async def test_an_engine_that_failed_ends_with_its_last_request(
    autojump_clock: object,
) -> None:
    requests = OpenRequests()
    began = trio.current_time()

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        with requests.hold(Request()):
            task_status.started()
            await trio.sleep(FAREWELL_SECONDS / 4)

    async with trio.open_nursery() as nursery:
        await nursery.start(hold)
        with pytest.raises(RuntimeError):
            await requests.serve(fail)
        assert trio.current_time() - began == FAREWELL_SECONDS / 4
    with pytest.raises(EngineDied):
        requests.check_alive()


async def test_all_requests_get_the_first_error_of_an_engine() -> None:
    requests, request = OpenRequests(), Request()
    first = EngineDied()
    with requests.hold(request):
        requests.close(first)
        requests.close(ShuttingDown())
    assert request.errors == [first]
    assert not requests.is_alive
    with pytest.raises(EngineDied):
        requests.check_alive()


async def test_a_pause_ends_open_requests_and_lets_new_ones_in_afterwards() -> None:
    requests, request = OpenRequests(), Request()
    error = EngineDied()
    with requests.hold(request):
        requests.pause(error)
        assert request.errors == [error]
        assert not requests.is_alive
        requests.resume()
    assert requests.is_alive
    requests.check_alive()


async def test_an_engine_starts_again_three_times_in_ten_minutes(
    autojump_clock: object,
) -> None:
    restarts = Restarts()
    assert [restarts.take() for _ in range(4)] == [True, True, True, False]
    await trio.sleep(599)
    assert not restarts.take()
    await trio.sleep(1)
    assert [restarts.take() for _ in range(4)] == [True, True, True, False]


async def test_an_order_that_the_end_of_the_process_cuts_off_gets_the_error_of_requests(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    requests = OpenRequests()

    async def give_order() -> None:
        async with requests.tell_end():
            raise EngineProcessDied("it was killed")

    async def restart() -> None:
        # The end of the process is known here a little later than to the order.
        await trio.sleep(FAREWELL_SECONDS / 4)
        requests.pause(EngineRestarting())

    nursery.start_soon(restart)
    with pytest.raises(EngineRestarting):
        await give_order()
    requests.resume()
    with pytest.raises(EngineDied):
        await give_order()
