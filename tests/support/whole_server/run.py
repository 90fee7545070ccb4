"""Plays a history against a server, and checks it afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
import hashlib
import logging
import tempfile
from typing import TYPE_CHECKING

import trio

from trioserve.types.logits import LogitsProcessor, LogitsRow

from .answers import find_key
from .checks import Controlled, check_history
from .client import Client, send_control
from .history import History, make_history
from .model import SimulatedModel
from .order import run_virtually
from .plans import ControlPlan, KeyPlan
from .replies import Reply
from .server import SimulatedServer, open_simulated_server
from .text_requests import TextPlan

if TYPE_CHECKING:
    import torch

# A history that takes longer hangs. The slowest readers take some minutes.
_LONGEST_SECONDS = 3600.0

# Longer than each timeout of the server: behind it, all that is held is held for ever.
_SETTLING_SECONDS = 60.0


class Breaking(LogitsProcessor):
    """A plug-in that refuses its arguments, or fails."""

    name = "breaking"

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        if arguments["how"] == "refused":
            raise ValueError("these arguments are refused")
        raise RuntimeError("the plug-in is broken")

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        raise AssertionError("the device is a fake")


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of one history.

    Args:
      problems: empty if all was right.
      num_requests: requests that were sent.
      seconds: the virtual time that the history took.
      digest: the same if all replies, and their times, are the same.
    """

    seed: int
    problems: tuple[str, ...]
    num_requests: int
    seconds: float
    digest: str


def simulate(model: SimulatedModel, seed: int) -> Report:
    """Play the history of a seed, and check it."""
    model.texts.forget()
    history = make_history(seed)
    history = replace(
        history, limits=replace(history.limits, faults=_find_faults(model, history))
    )
    with _key_file(history.keys) as path:
        http = replace(history.limits.http, api_key_file=path)
        history = replace(history, limits=replace(history.limits, http=http))
        return run_virtually(_play, model, history, seed=seed)


@contextmanager
def _key_file(keys: Sequence[KeyPlan]) -> Iterator[str | None]:
    """Write the keys of a server into a file; None if there are none."""
    if not keys:
        yield None
        return
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(f"{each.line}\n" for each in keys))
        file.flush()
        yield file.name


def _find_faults(model: SimulatedModel, history: History) -> dict[int, int]:
    return {
        find_key(model, plan, 0): plan.fails_at
        for plan in history.requests
        if isinstance(plan, TextPlan) and plan.fault == "plugin"
    }


async def _play(model: SimulatedModel, history: History) -> Report:
    problems: list[str] = []
    replies: list[Reply] = []
    num_tasks = trio.lowlevel.current_statistics().tasks_living
    with _collect_errors(history, problems), trio.move_on_after(
        _LONGEST_SECONDS
    ) as all_:
        async with open_simulated_server(
            model,
            history.limits,
            processors=(Breaking,),
            seed=history.seed,
            pools=history.pools,
        ) as server:
            await _play_on(server, model, history, replies, problems)
    if all_.cancelled_caught:
        problems.append("it hangs")
    if trio.lowlevel.current_statistics().tasks_living != num_tasks:
        problems.append("tasks are left")
    return Report(
        seed=history.seed,
        problems=tuple(problems),
        num_requests=len(replies),
        seconds=trio.current_time(),
        digest=_digest(replies),
    )


async def _play_on(
    server: SimulatedServer,
    model: SimulatedModel,
    history: History,
    replies: list[Reply],
    problems: list[str],
) -> None:
    fresh = server.list_held()
    clients = [Client(server, plan) for plan in history.clients]
    controls: list[Controlled] = []
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.run)
        for plan in history.controls:
            nursery.start_soon(_control, server, plan, controls)
        if history.drains_at is not None:
            await trio.sleep(history.drains_at)
            server.state.lifecycle.begin_drain()
    replies += [reply for client in clients for reply in client.replies]
    uses = server.state.key_uses
    problems += check_history(model, history, replies, controls, uses)
    problems += _check_counts(server, history, replies)
    await trio.sleep(_SETTLING_SECONDS)
    problems += _compare(fresh, server.list_held(), has_ended=server.has_ended)


def _check_counts(
    server: SimulatedServer, history: History, replies: Sequence[Reply]
) -> list[str]:
    """Check that no request was answered twice, or got an answer that was not counted."""
    counted = sum(server.state.counts.answered.values())
    parts = [part for reply in replies for part in reply.parts]
    # Some errors come from the connection, in front of the app.
    least = sum(part.is_whole and part.status == 200 for part in parts)
    most = len(parts) + len(history.controls)
    if least <= counted <= most:
        return []
    return [f"{counted} answers were counted, of {least} to {most}"]


async def _control(
    server: SimulatedServer, plan: ControlPlan, controls: list[Controlled]
) -> None:
    await trio.sleep_until(plan.at)
    controls.append((plan, *await send_control(server, plan)))


def _compare(
    fresh: Mapping[str, object], now: Mapping[str, object], *, has_ended: bool
) -> list[str]:
    # An engine that was cancelled has steps that nobody will take in.
    names = [
        name
        for name in fresh
        if not has_ended or name.startswith(("trioserve_http_", "live", "connections"))
    ]
    return [
        f"{name} is {now.get(name)}, and {fresh[name]} in a fresh server"
        for name in names
        if now.get(name) != fresh[name]
    ]


@contextmanager
def _collect_errors(history: History, problems: list[str]) -> Iterator[None]:
    """Count errors in the log as problems, unless the history causes them.

    Nobody else gets the log: to write a traceback takes as long as a whole history.
    """
    root = logging.getLogger()
    handlers = root.handlers
    root.handlers = [_Collector(problems, _list_expected(history))]
    try:
        yield
    finally:
        root.handlers = handlers


def _list_expected(history: History) -> set[str]:
    """Return the errors that a history must log, without their arguments."""
    expected = set()
    if any(getattr(plan, "fault", None) == "raises" for plan in history.requests):
        expected.add("request %s failed")
    if history.limits.fail_at_steps:
        expected |= {"the engine failed", "the engine failed and starts again"}
    return expected


class _Collector(logging.Handler):
    def __init__(self, problems: list[str], expected: set[str]) -> None:
        super().__init__(logging.ERROR)
        self._problems = problems
        self._expected = expected

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg not in self._expected:
            self._problems.append(f"the log has: {self.format(record)}")


def _digest(replies: Sequence[Reply]) -> str:
    lines = [
        f"{reply.plan.id} {part.sent_at:.6f} {part.ended_at:.6f} {part.status} "
        f"{part.is_whole} {part.is_given_up} {len(part.body)}"
        for reply in replies
        for part in reply.parts
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
