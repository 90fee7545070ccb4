"""Bursts of requests that are expensive to read, encoded before the measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
import itertools
import time

from kit.raw import Request, ask, write_request
from kit.rendering.payloads import (
    encode_tensor,
    write_image_message,
    write_long_messages,
    write_tool,
)
import msgspec
import trio

from trioserve.programs.http.client import FAILURES, describe

# Far longer than an inline server took. A server that hangs ends the run.
BURST_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of one burst."""

    num_images: int = 72
    num_embeds: int = 8
    embeds_rows: int = 2048
    long_embeds_rows: int = 8192
    embeds_turns: int = 3
    num_chats: int = 64
    num_messages: int = 100
    chat_turns: int = 4
    num_bystanders: int = 16


SMALL = Size(
    num_images=6,
    num_embeds=2,
    embeds_rows=512,
    long_embeds_rows=2048,
    embeds_turns=1,
    num_chats=6,
    chat_turns=1,
    num_bystanders=3,
)

# The requests of one client, which it sends one after another.
Turns = tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """All requests of a run.

    Attributes:
      warm_up: one request of each kind. It does the work that is slow the first time,
        and caches the prefix that all requests of its kind share.
      clients: scenario -> its clients.
    """

    warm_up: Turns
    clients: dict[str, tuple[Turns, ...]]


def build_bursts(size: Size) -> Bursts:
    """Draw and encode all requests; equal sizes give equal requests."""
    # The same tensors are sent again and again. They are rendered anew each time, and
    # the model finds them in its cache.
    short, long = (
        write_embeds(rows) for rows in (size.embeds_rows, size.long_embeds_rows)
    )
    embeds = [
        (request,) * size.embeds_turns for request in (*[short] * size.num_embeds, long)
    ]
    # All other requests are different, so each server gets them only once.
    seeds = itertools.count()
    images = [(write_image_chat(next(seeds)),) for _ in range(2 * size.num_images)]
    chats = [
        tuple(
            write_long_chat(size.num_messages, next(seeds))
            for _ in range(size.chat_turns)
        )
        for _ in range(2 * size.num_chats)
    ]
    return Bursts(
        warm_up=(
            write_image_chat(next(seeds)),
            *(short, long),
            write_long_chat(size.num_messages, next(seeds)),
        ),
        clients={
            "images": tuple(images[: size.num_images]),
            "embeds": tuple(embeds),
            "templates": tuple(chats[: size.num_chats]),
            "mixed": (
                *images[size.num_images :],
                *embeds,
                *chats[size.num_chats :],
            ),
        },
    )


def write_image_chat(seed: int) -> Request:
    """Write a chat about an image that no other seed has."""
    return write_chat([write_image_message(seed)])


def write_embeds(num_rows: int) -> Request:
    """Write a completion of so many random vectors."""
    return write_one_token("/v1/completions", prompt_embeds=encode_tensor(num_rows))


def write_long_chat(num_messages: int, seed: int) -> Request:
    """Write a long chat with three tools."""
    messages = write_long_messages(num_messages, seed)
    return write_chat(messages, tools=[write_tool(number) for number in range(3)])


def write_chat(messages: list[dict[str, object]], **fields: object) -> Request:
    return write_one_token("/v1/chat/completions", messages=messages, **fields)


def write_one_token(path: str, **fields: object) -> Request:
    """Write a request for one token, the likeliest."""
    return write_request(path, max_tokens=1, temperature=0.0, **fields)


@dataclass(slots=True, kw_only=True)
class Burst:
    """The outcome of one burst.

    Attributes:
      generator_cpu: share of one core that sending the burst took.
    """

    num_answers: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    generator_cpu: float = 0.0


async def send_burst(port: int, clients: Iterable[Turns]) -> Burst:
    """Start all clients at once, and wait for the last answer."""
    burst = Burst()
    began, cpu_began = trio.current_time(), time.process_time()
    with trio.fail_after(BURST_TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            for turns in clients:
                nursery.start_soon(run_client, port, turns, burst)
    burst.seconds = trio.current_time() - began
    burst.generator_cpu = (time.process_time() - cpu_began) / burst.seconds
    return burst


async def run_client(port: int, turns: Turns, burst: Burst) -> None:
    for request in turns:
        try:
            await ask(port, request)
        except FAILURES as error:
            burst.failures[describe(error)] += 1
        else:
            burst.num_answers += 1


async def warm_up(port: int, requests: Iterable[Request]) -> None:
    """Send the requests, and check that each answer has its one token."""
    for request in requests:
        answer = msgspec.json.decode(await ask(port, request))
        if answer["usage"]["completion_tokens"] != 1:
            raise SystemExit(f"{request.path} was not answered: {answer}")
