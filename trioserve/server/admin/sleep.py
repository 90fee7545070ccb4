"""The endpoints by which operators let the engine sleep; with the names and answers of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from quart import Response

from ...errors import InvalidParameter, join_names
from ...frontend import PoolingEngine, TextEngine
from ...http.keys.keys import check_admin
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import PlainAnswer, make_json
from ...types.sleep import SleepLevel
from .probes import Probe

_LEVELS: Final[Mapping[str, SleepLevel]] = {"1": 1, "2": 2}

# Whether running requests end at once, by the mode.
_MODES: Final = {"abort": True, "wait": False}

# As the empty answer of FastAPI.
_DONE: Final = PlainAnswer(content=b"", content_type="text/plain; charset=utf-8")


class IsSleeping(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /is_sleeping."""

    is_sleeping: bool


@Probe
def answer_is_sleeping(state: ServerState) -> PlainAnswer:
    """Say whether the engine has given memory back."""
    asleep = [each.is_asleep for each in state.engines]
    return make_json(IsSleeping(is_sleeping=bool(asleep) and all(asleep)))


async def answer_sleep(state: ServerState, request: ScopedRequest) -> Response:
    """Let the engine sleep until POST /wake_up, and answer when it sleeps."""
    check_admin(request.live.key)
    query = _read_query(request, level="1", mode="abort", model="")
    if (level := _LEVELS.get(query["level"])) is None:
        raise InvalidParameter(
            "level", "must be 1 (without the KV cache) or 2 (without the model)"
        )
    if query["mode"] == "keep":
        raise InvalidParameter(
            "mode", "keep is not possible: a sleep gives back the KV blocks of requests"
        )
    if (ends_requests := _MODES.get(query["mode"])) is None:
        raise InvalidParameter("mode", "must be abort or wait")
    engine = await _find_engine(state, request, query["model"])
    await engine.sleep(level, ends_requests=ends_requests)
    return _DONE.to_response()


async def answer_wake_up(state: ServerState, request: ScopedRequest) -> Response:
    """Wake the engine, and answer when the model can run."""
    check_admin(request.live.key)
    if "tags" in request.args:
        raise InvalidParameter(
            "tags", "is not taken: the engine takes all of its memory again"
        )
    query = _read_query(request, model="")
    await _find_engine(state, request, query["model"])
    # Others may have its memory, and have to leave first.
    request.model.purpose = "wake"
    engine = await state.require_engine(request.model, query["model"])
    await engine.wake()
    return _DONE.to_response()


async def _find_engine(
    state: ServerState, request: ScopedRequest, model: str
) -> TextEngine | PoolingEngine:
    """Return the engine of a model; of several models, it must be loaded.

    Raises:
      InvalidParameter: it is not loaded.
      ModelNotFound
    """
    if state.models is None:
        return await state.require_engine(request.model, model)
    # Without a visit, which would wait for the memory of one that sleeps.
    engine = state.models.find_loaded(model)
    if engine is None:
        raise InvalidParameter(
            "model", "is not loaded, so it can neither sleep nor wake"
        )
    return engine


def _read_query(request: ScopedRequest, **defaults: str) -> dict[str, str]:
    """Return the values of a query.

    Raises:
      InvalidParameter: it names something else, or one name twice.
    """
    values = dict(defaults)
    for name, given in request.args.lists():
        if name not in defaults:
            known = f"only {join_names([*defaults])}" if defaults else "nothing"
            raise InvalidParameter(name[:64], f"is not known; {known} can be given")
        if len(given) > 1:
            raise InvalidParameter(name, "may be given once")
        values[name] = given[0]
    return values
