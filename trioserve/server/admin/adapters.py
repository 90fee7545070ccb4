"""POST /v1/load_lora_adapter and POST /v1/unload_lora_adapter, with vLLM's fields and answers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
import logging
from os.path import commonpath, exists, join, realpath
from typing import Annotated, Final

from msgspec import Meta
from quart import Response

from ...api.decode.body import read_request
from ...api.decode.decoder import BodyDecoder
from ...api.decode.fields import ModelRequest, Name
from ...errors import AdapterNotFound, AdapterRefused, EndpointOff
from ...frontend import TextEngine
from ...http.keys.keys import check_admin
from ...http.keys.siblings import AwaitAdapters, ask_siblings
from ...http.scope import ScopedRequest
from ...http.state import ServerState

logger = logging.getLogger(__name__)

# Linux's PATH_MAX.
_Path = Annotated[str, Meta(min_length=1, max_length=4096)]


class LoadAdapterRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /v1/load_lora_adapter.

    Args:
      model: the model that gets the adapter; by default the one that is served.
      lora_name: the name for requests.
      lora_path: a folder in peft's format, or a GGUF file, in a folder of --adapter-folder.
        A relative path begins there.
      load_inplace: replace an adapter with the same name, if there is one.
    """

    lora_name: Name | None = None
    lora_path: _Path | None = None
    load_inplace: bool | None = None

    def __post_init__(self) -> None:
        for field in ("lora_name", "lora_path"):
            if getattr(self, field) is None:
                raise AdapterRefused(field, "is required")


class UnloadAdapterRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /v1/unload_lora_adapter.

    Args:
      model: as in LoadAdapterRequest.
    """

    lora_name: Name | None = None

    def __post_init__(self) -> None:
        if self.lora_name is None:
            raise AdapterRefused("lora_name", "is required")


LOAD_BODY: Final = BodyDecoder(LoadAdapterRequest)
UNLOAD_BODY: Final = BodyDecoder(
    UnloadAdapterRequest, ignored=frozenset({"lora_int_id"})
)


async def answer_load_adapter(state: ServerState, request: ScopedRequest) -> Response:
    """Load an adapter beside the running requests."""
    _check(state, request)
    body, engine = await read_request(state, request, LOAD_BODY, state.require_text)
    assert (
        body.lora_name is not None and body.lora_path is not None
    ), "both are required"
    find = partial(find_path, state.config.adapter_folder, body.lora_path)
    with _claim_name(state, engine, body.lora_name):
        # Folders may be far away.
        path = await engine.renderer.workers.run(find)
        await engine.load_adapter(
            body.lora_name, path, load_inplace=bool(body.load_inplace)
        )
    return await _confirm(state, engine, body.lora_name, "added")


async def answer_unload_adapter(state: ServerState, request: ScopedRequest) -> Response:
    """Take no further requests for an adapter."""
    _check(state, request)
    body, engine = await read_request(state, request, UNLOAD_BODY, state.require_text)
    assert body.lora_name is not None, "it is required"
    await engine.unload_adapter(body.lora_name)
    return await _confirm(state, engine, body.lora_name, "removed")


def _check(state: ServerState, request: ScopedRequest) -> None:
    """Refuse clients that may not change what is served.

    Raises:
      EndpointOff, AdminKeyNeeded
    """
    if not state.config.adapter_folder:
        raise EndpointOff("--adapter-folder FOLDER")
    check_admin(request.live.key)


def _claim_name(
    state: ServerState, engine: TextEngine, name: str
) -> AbstractContextManager[None]:
    """Refuse a name that chooses another model already, or soon."""
    if state.models is None:
        return nullcontext()
    return state.models.claim_name(engine, name)


async def _confirm(
    state: ServerState, engine: TextEngine, name: str, verb: str
) -> Response:
    """Answer when all HTTP processes know of the change."""
    known = AwaitAdapters(revision=engine.engine.adapters_revision)
    await ask_siblings(state.siblings, known, bool)
    text = f"Success: LoRA adapter '{name}' {verb} successfully."
    return Response(text, content_type="text/plain; charset=utf-8")


def find_path(folders: Iterable[str], path: str) -> str:
    """Return the place of an adapter, without symbolic links.

    Args:
      folders: those in which adapters may lie.
      path: as a client wrote it; a relative one begins in one of the folders.

    Raises:
      AdapterRefused: it leads out of the folders.
      AdapterNotFound: nothing is there.
    """
    if "\0" in path:
        raise AdapterRefused("lora_path", "has a null character")
    inside = []
    for root in map(realpath, folders):
        place = realpath(join(root, path))
        if commonpath([root, place]) == root:
            inside.append(place)
    if not inside:
        raise AdapterRefused("lora_path", "lies in no folder of --adapter-folder")
    for place in inside:
        if exists(place):
            return place
    raise AdapterNotFound(path, param="lora_path")
