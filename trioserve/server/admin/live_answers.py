"""The running requests of this process, for its clients and for other HTTP processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from ...http.keys.key_file import name_key
from ...http.keys.siblings import (
    DescribeRequests,
    Details,
    ListRequests,
    Question,
    ReadMetrics,
)
from ...http.live.live_requests import LiveRequest
from ...http.live.request_details import describe_request
from ...http.state import ServerState
from ..metrics import list_samples

# Each has a tree of tasks, of some kilobytes.
_MAX_DETAILED: Final = 16


async def answer_sibling(state: ServerState, question: bytes) -> bytes:
    """Answer a question of another HTTP process."""
    answer: object
    match msgspec.msgpack.decode(question, type=Question):
        case ListRequests() as listing:
            found = select_requests(state, listing)
            answer = [each.describe() for each in found]
            if listing.cancels:
                cancel_requests(found)
        case DescribeRequests() as describing:
            answer = await describe_requests(state, describing)
        case ReadMetrics():
            answer = list_samples(state)
    return msgspec.msgpack.encode(answer)


def select_requests(
    state: ServerState, question: ListRequests, asker: LiveRequest | None = None
) -> list[LiveRequest]:
    """Return the requests of this process that a question asks for, the oldest first.

    Args:
      asker: the request that asks, which is not shown; None if it is in another process.
    """
    return [
        each
        for each in state.live.list_for(question.asker)
        if each is not asker
        and question.wanted in (None, name_key(each.key))
        and question.request_id in (None, each.id)
    ]


def cancel_requests(found: Iterable[LiveRequest]) -> None:
    for each in found:
        each.cancel()


async def describe_requests(
    state: ServerState, question: DescribeRequests, asker: LiveRequest | None = None
) -> Details:
    """Describe the requests of this process with an id."""
    listing = ListRequests(asker=question.asker, request_id=question.request_id)
    found = select_requests(state, listing, asker)
    shown = [
        await describe_request(each, state.engine) for each in found[:_MAX_DETAILED]
    ]
    return Details(shown=shown, num_left_out=len(found) - len(shown))
