"""What does keeping rendering off the event loop buy?

Question
  Requests that are expensive to read arrive in a burst. How long does ``GET /health``
  take meanwhile, how long is the event loop away from its sockets, and what do streams
  that have nothing to do with it feel, if the work is done

      inline     right on the loop: the renderer workers' calls are made where they are
                 awaited (a switch of this bench alone, the server has no such option)
      threads    by the renderer workers, as the server comes (--renderer-num-workers 1)
      processes  as threads, and chat templates in a process (--renderer-processes 1)?

  All clients of a burst begin at once, and it is over with the last answer:

      images     72 clients with a chat each about a JPEG image of one megapixel, as
                 data: URL; no two images are the same
      embeds     8 clients with completions of prompt_embeds of 2048 x 4096 bfloat16, and
                 one with 8192 x 4096, that is 16.8 and 67 MB that torch.save wrote, as
                 base64; three each, one after another
      templates  64 clients with chats of 100 messages and three tools, which the
                 template writes out to 24,000 characters; four each, one after another
      mixed      all of these, with 16 chats streamed to bystanders all the while

      python bench/loop_stall.py --json stall.json --plot stall.png
      python bench/loop_stall.py --small

Machine
  Whatever runs it; the report names it. On two cores the server's loop, its threads,
  this process, which sends the burst, and the prober share them: `generator cpu` tells
  how much of a core the sending took, and the bodies are encoded before.

How to read the answer
  req/s          requests over the time from the first byte to the last answer.
  /health        one probe every 10 ms from a process of its own. A probe that fell due
                 while the last one was unanswered counts as answered with that one, from
                 when it was due.
  loop gap       the longest turn of the loop: how long no socket was looked at
                 (trioserve.observe.LoopStall, which stays on in every server).
  longest step   of one task between two waits, and whose; "-" for less than 5 ms. Several
                 steps make a turn, so the gap may be long without a long step.
  ITL p99        between two events with text of a bystander's stream, seen by the
                 prober. The engine's own step is part of it in every mode.

  Every figure is the median of the rounds; the task is that of the worst round. Modes
  take turns within a round, in reversed order every other one, each with a new server,
  so that no image was seen before.

Caveats
  The model is tiny and random: a real one's steps last longer and leave the loop alone
  for longer. What the engine would compute is taken out as far as it goes: one token an
  answer, and prompts of tensors and of text are found in the prefix cache. What is left
  of it competes with the renderer's threads for the cores in `threads` and `processes`,
  and waits for the loop in `inline`, so req/s may go either way.
  LoopStall counts wall time: on busy cores a turn is long, too, where the system gave
  the core to somebody else. With other load on the machine only ratios mean anything.
  And it does not see a thread that takes the GIL while the loop waits for its sockets,
  though the loop comes back later for it: /health does.
  An inline server that runs all its tasks in one turn is what trio does with tasks that
  are ready at once; another loop would look at its sockets a little more often.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
import itertools
import math
import os
from pathlib import Path
import platform
import random
import statistics
import subprocess
import sys
from tempfile import TemporaryDirectory
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import trio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trioserve.http import ServingApp

T = TypeVar("T")

MODES = ("inline", "threads", "processes")
SCENARIOS = ("images", "embeds", "templates", "mixed")

HEALTH_INTERVAL_SECONDS = 0.01

# Far beyond what an inline server was seen to take; a server that hangs ends the run.
BURST_TIMEOUT_SECONDS = 300.0

# Between two bursts: what the last one left behind, such as closed sockets, is gone.
SETTLE_SECONDS = 0.3
POLL_SECONDS = 0.05

MODEL_NAME = "tiny"
HIDDEN_SIZE = 4096
IMAGE_SIZE = (1152, 864)

# More than the 8192 vectors and one token; the chats have 6300 tokens.
MAX_MODEL_LEN = 9216
MESSAGE_CHARACTERS = 200

LAST_MESSAGE_CHARACTERS = 40

# Words that the tiny tokenizer knows, so that a text has not many times the tokens that
# a real one would make of it.
WORDS = (
    "The quick brown fox jumps over the lazy dog sleeps on and Paris is the capital of "
    "France Rome Italy Once upon a time there was a little server that never waited for "
    "anyone Answer the following questions who wrote it when where why Weather reports "
    "expected heavy rain nobody brought umbrellas to town Structured concurrency means "
    "that every task belongs to some nursery"
).split()

# Written as the templates of today's models are: tools as JSON, contents as text or as
# parts, and a case for each role.
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call one or more functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for part in message.content %}
                {%- if part.type == 'image' %}
                    {{- '<image>' }}
                {%- elif part.type == 'text' %}
                    {{- part.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role != 'system' or not loop.first %}
        {{- raise_exception('unexpected role ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


# ---- what is asked ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything one burst has."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, ready to be sent."""

    path: str
    body: bytes

    @property
    def head(self) -> bytes:
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        ).encode()


# What one client asks, one request after another.
Turns = tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Everything that a server is asked for.

    Attributes:
      warm_up: one request of each kind, for what is slow once, and for the prefixes
        that all others of the kind share.
      bursts: the clients, by scenario.
    """

    warm_up: Turns
    bursts: dict[str, tuple[Turns, ...]]


def build_load(size: Size) -> Load:
    """Draw and encode all requests; equal sizes give equal ones."""
    # The same tensors over and over: they are rendered anew each time, and the model
    # finds them in its cache.
    short, long = (
        write_embeds(rows) for rows in (size.embeds_rows, size.long_embeds_rows)
    )
    embeds = [
        (request,) * size.embeds_turns for request in (*[short] * size.num_embeds, long)
    ]
    # Everything else is asked once, and no server is asked twice.
    seeds = itertools.count()
    images = [(write_image_chat(next(seeds)),) for _ in range(2 * size.num_images)]
    chats = [
        tuple(
            write_long_chat(size.num_messages, next(seeds))
            for _ in range(size.chat_turns)
        )
        for _ in range(2 * size.num_chats)
    ]
    return Load(
        warm_up=(
            write_image_chat(next(seeds)),
            *(short, long),
            write_long_chat(size.num_messages, next(seeds)),
        ),
        bursts={
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
    import pybase64

    encoded = pybase64.b64encode(draw_photo(seed)).decode()
    url = {"url": f"data:image/jpeg;base64,{encoded}"}
    parts = [
        {"type": "image_url", "image_url": url},
        {"type": "text", "text": "What is this?"},
    ]
    return write_chat([{"role": "user", "content": parts}])


def draw_photo(seed: int) -> bytes:
    """Draw a JPEG image of a megapixel that takes as many bytes as a photo does."""
    import io

    from PIL import Image
    import numpy as np

    drawn = np.random.default_rng(seed)
    width, height = IMAGE_SIZE
    image = Image.new("RGB", IMAGE_SIZE, (128, 128, 128))
    # Shapes of all sizes, the small ones faint.
    for cell, alpha in ((128, 0.7), (32, 0.35), (8, 0.2), (2, 0.16)):
        noise = drawn.integers(0, 256, (height // cell, width // cell, 3), np.uint8)
        shapes = Image.fromarray(noise).resize(IMAGE_SIZE, Image.Resampling.BICUBIC)
        image = Image.blend(image, shapes, alpha)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def write_embeds(num_rows: int) -> Request:
    """Write a completion of so many random vectors."""
    import io

    import pybase64
    import torch

    drawn = torch.Generator().manual_seed(num_rows)
    vectors = torch.randn(num_rows, HIDDEN_SIZE, generator=drawn).to(torch.bfloat16)
    file = io.BytesIO()
    torch.save(vectors, file)
    encoded = pybase64.b64encode(file.getbuffer()).decode()
    return write_request("/v1/completions", prompt_embeds=encoded)


def write_long_chat(num_messages: int, seed: int) -> Request:
    """Write a chat that differs from those of other seeds in its last message alone."""
    messages: list[dict[str, object]] = [
        {
            "role": ("user", "assistant")[number % 2],
            "content": write_text(MESSAGE_CHARACTERS, "chat", number),
        }
        for number in range(num_messages - 1)
    ]
    last = write_text(LAST_MESSAGE_CHARACTERS, "last", seed)
    messages.append({"role": "user", "content": last})
    return write_chat(messages, tools=[write_tool(number) for number in range(3)])


def write_tool(number: int) -> dict[str, object]:
    """Describe a function as OpenAI's API has it."""
    properties = {
        f"parameter_{name}": {"type": "string", "description": write_text(40, name)}
        for name in ("a", "b", "c")
    }
    function = {
        "name": f"function_{number}",
        "description": write_text(80, "function", number),
        "parameters": {"type": "object", "properties": properties},
    }
    return {"type": "function", "function": function}


def write_text(num_characters: int, *seeds: object) -> str:
    """Draw a text of exactly so many characters; equal seeds give equal texts."""
    drawn = random.Random("/".join(map(str, seeds)))
    words = " ".join(drawn.choices(WORDS, k=num_characters // 4))
    return words[:num_characters].ljust(num_characters, ".")


def write_chat(messages: Sequence[dict[str, object]], **fields: object) -> Request:
    return write_request("/v1/chat/completions", messages=messages, **fields)


def write_request(path: str, **fields: object) -> Request:
    """Encode a request for one token, the likeliest, unless the fields say otherwise."""
    body = {"model": MODEL_NAME, "max_tokens": 1, "temperature": 0.0, **fields}
    return Request(path=path, body=msgspec.json.encode(body))


# ---- the model ----------------------------------------------------------------------


def save_model(folder: Path) -> None:
    """Save a model that sees and reads wide vectors, and computes next to nothing.

    Its images are prepared as a real model's are: SmolVLM cuts one of a megapixel into
    3 x 4 parts of 364 x 364 pixels and adds the whole. The tower makes no more than the
    four patches of a part that the processor counts on.
    """
    from trioserve.testing.models import save_tiny_vision_model
    from trioserve.testing.processors import save_tiny_processor

    save_tiny_processor(
        "smolvlm",
        folder,
        max_image_size={"longest_edge": 364},
        size={"longest_edge": 4 * 364},
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    save_tiny_vision_model(
        "smolvlm",
        folder,
        text_config={
            "hidden_size": HIDDEN_SIZE,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "max_position_embeddings": 32768,
        },
        vision_config={"image_size": 364, "patch_size": 182, "num_hidden_layers": 1},
        scale_factor=1,
    )


# ---- the server, a process of its own -----------------------------------------------


class Report(msgspec.Struct, kw_only=True):
    """What a server says of its loop since it was last told to forget."""

    loop_gap_seconds: float
    longest_step_seconds: float
    longest_step_task: str
    num_streams: int
    offenders: list[str]


async def serve(mode: str, folder: Path) -> None:
    """Serve, print the port, and obey lines until their end."""
    import hypercorn.trio

    from trioserve.asgi import create_app
    from trioserve.http import install_guard, make_config

    if mode == "inline":
        render_inline()
    app = create_app(
        str(folder),
        served_model_name=MODEL_NAME,
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
        kv_cache_memory="64MiB",
        enable_prompt_embeds=True,
        max_body_size="256MiB",
        renderer_num_workers=1,
        renderer_processes=1 if mode == "processes" else 0,
    )
    install_guard()
    config = make_config(bind=["127.0.0.1:0"])
    async with trio.open_nursery() as nursery:
        binds = await nursery.start(hypercorn.trio.serve, app, config)
        print(binds[0].rpartition(":")[2], flush=True)
        await obey(app)
        nursery.cancel_scope.cancel()


def render_inline() -> None:
    """Take the off-load away: calls are made where they are awaited."""
    from trioserve.render import RendererWorkers

    async def run(
        self: RendererWorkers, work: Callable[[], T], *, expected_seconds: float = 0.0
    ) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    async def run_limited(
        self: RendererWorkers,
        work: Callable[[], T],
        seconds: float,
        *,
        expected_seconds: float = 0.0,
    ) -> T:
        return await run(self, work)

    setattr(RendererWorkers, "run", run)
    setattr(RendererWorkers, "run_limited", run_limited)


async def obey(app: ServingApp) -> None:
    """Answer "reset" and "report", a line each, until there are no more lines."""
    lines = LineReader(trio.lowlevel.FdStream(os.dup(0)))
    while (line := await lines.read()) is not None:
        if line == b"reset":
            app.state.loop_stall.reset()
            print("done", flush=True)
        else:
            print(msgspec.json.encode(report_loop(app)).decode(), flush=True)


def report_loop(app: ServingApp) -> Report:
    seen = app.state.loop_stall.statistics()
    assert app.state.engine is not None, "hypercorn serves once it is loaded"
    return Report(
        loop_gap_seconds=seen.turns.longest_seconds,
        longest_step_seconds=seen.steps.longest_seconds,
        longest_step_task=seen.offenders[0].name if seen.offenders else "-",
        num_streams=app.state.engine.engine.statistics().num_streams,
        offenders=[
            f"{each.name}: {each.num_steps} steps, longest "
            f"{1000 * each.longest_seconds:.1f} ms"
            for each in seen.offenders
        ],
    )


class LineReader:
    """Cuts what a stream carries into lines."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._rest = b""

    async def read(self) -> bytes | None:
        """Read a line, without its end; None after the last."""
        while not self._lines:
            data = bytes(await self._stream.receive_some())
            if not data:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()


# ---- the prober, a process of its own -----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a set of durations is spread; seconds."""

    p50: float
    p95: float
    p99: float
    longest: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What the prober saw during one burst.

    Attributes:
      lag: how late its own timers were, which is not counted as the server's.
      inter_token: of all bystanders; None where there are none.
      num_failures: connections that the server closed in the middle.
    """

    health: Spread
    lag: Spread
    inter_token: Spread | None
    num_failures: int


class Prober:
    """Asks for /health at a steady pace, and reads streams beside."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._health: list[float] = []
        self._lag: list[float] = []
        self._gaps: list[float] = []
        self._num_failures = 0
        # Bystanders whose first text has not come.
        self._silent: set[int] = set()
        self._all_streaming = trio.Event()
        self._began = self._end = math.inf

    async def run(self, num_bystanders: int) -> None:
        """Say "ready", measure from the line "go" to "stop", and print what was seen."""
        lines = LineReader(trio.lowlevel.FdStream(os.dup(0)))
        async with trio.open_nursery() as nursery:
            self._silent.update(range(num_bystanders))
            for number in range(num_bystanders):
                nursery.start_soon(self._stream_forever, number)
            if num_bystanders:
                await self._all_streaming.wait()
            connection = HealthConnection(self._port)
            await connection.ask()
            print("ready", flush=True)
            assert await lines.read() == b"go", "the burst begins"
            print("going", flush=True)
            self._began = trio.current_time()
            async with trio.open_nursery() as probing:
                probing.start_soon(self._probe, connection)
                assert await lines.read() == b"stop", "the burst is over"
                self._end = trio.current_time()
            nursery.cancel_scope.cancel()
        print(msgspec.json.encode(self._report()).decode(), flush=True)

    def _report(self) -> Probes:
        return Probes(
            health=spread(self._health),
            lag=spread(self._lag),
            inter_token=spread(self._gaps) if self._gaps else None,
            num_failures=self._num_failures,
        )

    async def _probe(self, connection: HealthConnection) -> None:
        """Probe at a steady pace, which does not wait for the server.

        What falls due while an answer is late is not sent: it is counted as answered
        with it, at best, from when it was due. Otherwise a server that hangs for a
        second would be charged with one slow probe where its users would have met a
        hundred (Tene, "How not to measure latency", 2013: coordinated omission).
        """
        due = self._began
        while due < self._end:
            await trio.sleep_until(due)
            # How late this process is to wake up is its own fault.
            asked = trio.current_time()
            self._lag.append(asked - due)
            await self._probe_once(connection)
            waits = list_waits(due, asked, trio.current_time())
            self._health += waits
            due += len(waits) * HEALTH_INTERVAL_SECONDS

    async def _probe_once(self, connection: HealthConnection) -> None:
        while True:
            try:
                return await connection.ask()
            except (OSError, trio.BrokenResourceError):
                # The time runs on: its user would have to connect again, too.
                self._num_failures += 1
                await connection.aclose()

    async def _stream_forever(self, number: int) -> None:
        """Hold one stream open; the next begins when it ends."""
        request = write_bystander(number)
        while True:
            try:
                await self._stream(number, request)
            except (OSError, trio.BrokenResourceError):
                self._num_failures += 1

    async def _stream(self, number: int, request: Request) -> None:
        """Read one stream and note the gaps between its texts."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with stream:
            await stream.send_all(request.head + request.body)
            lines = LineReader(stream)
            status = await lines.read()
            if status is None or not status.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"a bystander's stream is {status!r}")
            last = math.inf
            while (line := await lines.read()) is not None:
                if has_text(line):
                    now = trio.current_time()
                    self._note_text(number, last, now)
                    last = now

    def _note_text(self, number: int, last: float, now: float) -> None:
        """Note the gap before a text, or what of it lies within the measured time."""
        self._silent.discard(number)
        if not self._silent:
            self._all_streaming.set()
        begin = max(last, self._began)
        if begin < now:
            self._gaps.append(now - begin)


def list_waits(due: float, asked: float, answered: float) -> list[float]:
    """List how long a probe took, and all that fell due before it was answered."""
    num_missed = max(0, math.ceil((answered - due) / HEALTH_INTERVAL_SECONDS) - 1)
    return [answered - asked] + [
        answered - due - (index + 1) * HEALTH_INTERVAL_SECONDS
        for index in range(num_missed)
    ]


def write_bystander(number: int) -> Request:
    """Write a chat whose answer goes on for a while."""
    messages: list[dict[str, object]] = [
        {"role": "user", "content": write_text(40, "bystander", number)}
    ]
    return write_chat(
        messages,
        stream=True,
        max_tokens=4000,
        ignore_eos=True,
        # Sampled, because the likeliest token of a random model may be one without text.
        temperature=1.0,
        seed=number,
    )


def has_text(line: bytes) -> bool:
    """Say whether a line of a stream of chat events shows something."""
    is_event = line.startswith(b"data: {") and b'"content":"' in line
    return is_event and b'"content":""' not in line


class HealthConnection:
    """A keep-alive connection that is asked for /health and nothing else."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: trio.SocketStream | None = None

    async def ask(self) -> None:
        """Ask once and read the whole answer.

        Raises:
          OSError, trio.BrokenResourceError: the connection was closed.
        """
        if self._stream is None:
            self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        await self._stream.send_all(b"GET /health HTTP/1.1\r\nHost: bench\r\n\r\n")
        data = b""
        while not is_whole(data):
            received = await self._stream.receive_some()
            if not received:
                raise ConnectionResetError("closed before the answer")
            data += received
        if not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"/health is {data[:200]!r}")
        # As hypercorn does after a thousand requests.
        if b"connection: close" in data.lower():
            await self.aclose()

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


def is_whole(data: bytes) -> bool:
    """Say whether this is all of an answer that tells its length."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return False
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)


def spread(samples: Iterable[float]) -> Spread:
    """Summarise durations; at least one."""
    values = sorted(samples)
    return Spread(
        p50=percentile(values, 50),
        p95=percentile(values, 95),
        p99=percentile(values, 99),
        longest=values[-1],
        count=len(values),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Read a percentile off sorted values, between two of them where it falls there.

    Source: Hyndman and Fan 1996, definition 7, which is also numpy's default.
    """
    position = (len(values) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


# ---- one burst ----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Burst:
    """What became of the requests of one burst."""

    num_answers: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    generator_cpu: float = 0.0


async def send_burst(port: int, clients: Iterable[Turns]) -> Burst:
    """Let all clients begin at once, and wait for the last answer."""
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
        except (OSError, trio.BrokenResourceError, RequestFailed) as error:
            burst.failures[str(error) or type(error).__name__] += 1
        else:
            burst.num_answers += 1


class RequestFailed(Exception):
    """Raised when a server answered with anything but 200."""


async def ask(port: int, request: Request) -> bytes:
    """Send a request and return the body of its answer.

    Raises:
      RequestFailed: its status is not 200.
      OSError, trio.BrokenResourceError: the connection was closed.
    """
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request.head)
        await stream.send_all(request.body)
        answer = b"".join([data async for data in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RequestFailed((head[:40] + b" " + body[:200]).decode(errors="replace"))
    return body


async def warm_up(port: int, requests: Iterable[Request]) -> None:
    """Ask for one of each kind, and see that text comes back."""
    for request in requests:
        answer = msgspec.json.decode(await ask(port, request))
        if answer["usage"]["completion_tokens"] != 1:
            raise SystemExit(f"{request.path} was not answered: {answer}")


# ---- a whole run --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One mode's figures of one scenario, of one round or the medians of several.

    Attributes:
      inter_token: of the bystanders; None where there were none.
      generator_cpu: share of one core that sending the burst took.
    """

    requests_per_second: float
    health: Spread
    loop_gap_seconds: float
    longest_step_seconds: float
    longest_step_task: str
    inter_token: Spread | None
    num_failures: int
    failures: dict[str, int]
    generator_cpu: float
    prober_lag_p99: float
    offenders: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All rounds of one mode in one scenario."""

    scenario: str
    mode: str
    median: Figures
    rounds: tuple[Figures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What --json writes."""

    created: str
    machine: str
    num_rounds: int
    size: Size
    results: tuple[Result, ...]


class Child:
    """This script in another process, which answers lines with lines."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin = process.stdin
        self._lines = LineReader(process.stdout)

    async def read(self) -> bytes:
        """Read the next line.

        Raises:
          EOFError: the process has ended.
        """
        line = await self._lines.read()
        if line is None:
            raise EOFError("a process of this bench has ended")
        return line

    async def ask(self, line: str) -> bytes:
        await self._stdin.send_all(line.encode() + b"\n")
        return await self.read()

    async def aclose(self) -> None:
        """Tell the process to end: it has no more lines to obey."""
        await self._stdin.aclose()


@asynccontextmanager
async def open_child(*arguments: object) -> AsyncIterator[Child]:
    """Run this script with other arguments until the block is left."""
    command = [sys.executable, __file__, *map(str, arguments)]
    start = partial(
        trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    async with trio.open_nursery() as nursery:
        child = Child(await nursery.start(start))
        yield child
        await child.aclose()


async def measure(
    size: Size, scenarios: Sequence[str], modes: Sequence[str], num_rounds: int
) -> Results:
    """Measure every mode in every scenario, `num_rounds` times."""
    seen: dict[tuple[str, str], list[Figures]] = {}
    with TemporaryDirectory() as folder:
        tell("encoding the requests")
        load = build_load(size)
        save_model(Path(folder))
        for number in range(num_rounds):
            for mode in alternate(modes, number):
                tell(f"round {number + 1} of {num_rounds}: {mode}")
                figures = await measure_server(
                    mode, Path(folder), load, scenarios, size.num_bystanders
                )
                for scenario in scenarios:
                    seen.setdefault((scenario, mode), []).append(figures[scenario])
    return Results(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=f"{platform.platform()}, {os.cpu_count()} cores",
        num_rounds=num_rounds,
        size=size,
        results=tuple(summarise(seen, scenarios, modes)),
    )


def tell(text: str) -> None:
    # Not to stdout, which is for the answer.
    print(text, file=sys.stderr, flush=True)


def alternate(names: Sequence[str], number: int) -> Sequence[str]:
    return names[::-1] if number % 2 else names


async def measure_server(
    mode: str,
    folder: Path,
    load: Load,
    scenarios: Sequence[str],
    num_bystanders: int,
) -> dict[str, Figures]:
    """Start a server of one mode and put it through the scenarios."""
    figures = {}
    async with open_child("--serve", mode, "--folder", folder) as server:
        port = int(await server.read())
        await warm_up(port, load.warm_up)
        for scenario in scenarios:
            num_streams = num_bystanders if scenario == "mixed" else 0
            figures[scenario] = await measure_burst(
                server, port, load.bursts[scenario], num_streams
            )
    return figures


async def measure_burst(
    server: Child, port: int, clients: Iterable[Turns], num_bystanders: int
) -> Figures:
    """Put a server through one burst, from idle to idle."""
    await wait_idle(server)
    async with open_child("--probe", port, "--bystanders", num_bystanders) as prober:
        # It is ready once the bystanders' streams flow.
        await prober.read()
        await server.ask("reset")
        await prober.ask("go")
        burst = await send_burst(port, clients)
        probes = msgspec.json.decode(await prober.ask("stop"), type=Probes)
        report = await ask_report(server)
    return Figures(
        requests_per_second=burst.num_answers / burst.seconds,
        health=probes.health,
        loop_gap_seconds=report.loop_gap_seconds,
        longest_step_seconds=report.longest_step_seconds,
        longest_step_task=report.longest_step_task,
        inter_token=probes.inter_token,
        num_failures=burst.failures.total() + probes.num_failures,
        failures=dict(burst.failures),
        generator_cpu=burst.generator_cpu,
        prober_lag_p99=probes.lag.p99,
        offenders=report.offenders,
    )


async def wait_idle(server: Child) -> None:
    """Wait until the engine has nothing to do, and a moment longer."""
    report = await ask_report(server)
    while report.num_streams:
        await trio.sleep(POLL_SECONDS)
        report = await ask_report(server)
    await trio.sleep(SETTLE_SECONDS)


async def ask_report(server: Child) -> Report:
    return msgspec.json.decode(await server.ask("report"), type=Report)


def summarise(
    seen: dict[tuple[str, str], list[Figures]],
    scenarios: Sequence[str],
    modes: Sequence[str],
) -> Iterator[Result]:
    """Give the medians of all rounds: every mode of a scenario, then the next one."""
    for scenario in scenarios:
        for mode in modes:
            rounds = seen[scenario, mode]
            yield Result(
                scenario=scenario,
                mode=mode,
                median=take_medians(rounds),
                rounds=tuple(rounds),
            )


def take_medians(rounds: Sequence[Figures]) -> Figures:
    """Take each figure's median; failures add up, and the worst round names the task."""
    worst = max(rounds, key=lambda figures: figures.longest_step_seconds)
    between = [each.inter_token for each in rounds if each.inter_token is not None]

    def median(read: Callable[[Figures], float]) -> float:
        return statistics.median(map(read, rounds))

    return Figures(
        requests_per_second=median(lambda each: each.requests_per_second),
        health=take_median_spread([each.health for each in rounds]),
        loop_gap_seconds=median(lambda each: each.loop_gap_seconds),
        longest_step_seconds=median(lambda each: each.longest_step_seconds),
        longest_step_task=worst.longest_step_task,
        inter_token=take_median_spread(between) if between else None,
        num_failures=sum(each.num_failures for each in rounds),
        failures=dict(sum((Counter(each.failures) for each in rounds), Counter())),
        generator_cpu=median(lambda each: each.generator_cpu),
        prober_lag_p99=median(lambda each: each.prober_lag_p99),
        offenders=worst.offenders,
    )


def take_median_spread(spreads: Sequence[Spread]) -> Spread:
    columns = {
        name: statistics.median(getattr(each, name) for each in spreads)
        for name in ("p50", "p95", "p99", "longest")
    }
    return Spread(**columns, count=sum(each.count for each in spreads))


# ---- the table ----------------------------------------------------------------------


def render_results(results: Results) -> str:
    """Write the results as text: the table, ratios to threads, and notes."""
    parts = [align(build_table(results)), align(build_ratios(results))]
    parts.append("\n".join(write_notes(results)))
    return "\n\n".join(part for part in parts if part)


def build_table(results: Results) -> list[list[str]]:
    """Lay out all figures: two rows of headings, then one row a scenario and mode."""
    rows = [
        ["", "", "", "/health ms", "", "", "loop gap", "longest step", "ITL p99"],
        ["scenario", "mode", "req/s", "p50", "p95", "p99", "ms", "ms", "ms"],
    ]
    for result in results.results:
        seen = result.median
        rows.append(
            [
                result.scenario,
                result.mode,
                f"{seen.requests_per_second:.1f}",
                *map(write_milliseconds, list_durations(seen)),
            ]
        )
    # The names are as long as they like, so they stand last.
    tasks = ["", "of the task"]
    tasks += [shorten(each.median.longest_step_task) for each in results.results]
    return [[*row, f"  {task}"] for row, task in zip(rows, tasks)]


def list_durations(seen: Figures) -> list[float | None]:
    """List the table's durations in seconds; None for what was not measured."""
    return [
        seen.health.p50,
        seen.health.p95,
        seen.health.p99,
        seen.loop_gap_seconds,
        seen.longest_step_seconds,
        seen.inter_token.p99 if seen.inter_token is not None else None,
    ]


def write_milliseconds(seconds: float | None) -> str:
    """Write a duration with as many digits as a reader can use."""
    if seconds is None:
        return "-"
    milliseconds = 1000 * seconds
    digits = 2 if milliseconds < 10 else 1 if milliseconds < 100 else 0
    return f"{milliseconds:.{digits}f}"


def shorten(name: str) -> str:
    """Leave the module out of a task's name, as long as it still says something."""
    return ".".join(name.split(".")[-2:]).replace("<locals>.", "")


def build_ratios(results: Results) -> list[list[str]]:
    """Divide the medians of other modes by those of threads; empty without them."""
    base = {each.scenario: each.median for each in results.results if is_base(each)}
    others = [each for each in results.results if not is_base(each)]
    if not (base and others):
        return []
    headings = ["p50", "p95", "p99", "loop gap", "longest step", "ITL p99"]
    rows = [["ratio of medians", "scenario", "req/s", *headings]]
    for result in others:
        seen, under = result.median, base[result.scenario]
        rows.append(
            [
                f"{result.mode} / threads",
                result.scenario,
                write_ratio(seen.requests_per_second, under.requests_per_second),
                *map(write_ratio, list_durations(seen), list_durations(under)),
            ]
        )
    return rows


def is_base(result: Result) -> bool:
    return result.mode == "threads"


def write_ratio(over: float | None, under: float | None) -> str:
    """Write over / under; a dash where there is nothing to divide."""
    if over is None or not under:
        return "-"
    ratio = over / under
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Write rows as columns: texts to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            (
                cell.ljust(width)
                if index < 2 or cell.startswith(" ")
                else cell.rjust(width)
            )
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


def write_notes(results: Results) -> Iterator[str]:
    """Say what the table cannot: what was measured, and what to doubt."""
    yield f"{results.machine}; {results.created}; median of {results.num_rounds} rounds"
    yield ", ".join(f"{name} {value}" for name, value in asdict(results.size).items())
    busiest = max(each.median.generator_cpu for each in results.results)
    lag = max(each.median.prober_lag_p99 for each in results.results)
    yield (
        f"generator cpu: up to {100 * busiest:.0f} % of a core; "
        f"the prober's timers were up to {1000 * lag:.1f} ms late (p99)"
    )
    for result in results.results:
        if result.median.num_failures:
            failures = result.median.failures or "closed connections"
            yield (
                f"{result.scenario}, {result.mode}: {result.median.num_failures} "
                f"failures: {failures}"
            )


# ---- the plot -----------------------------------------------------------------------

# Okabe and Ito's palette, which the colour-blind can tell apart.
COLORS = {"inline": "#D55E00", "threads": "#0072B2", "processes": "#009E73"}

INK = "#333333"

PANELS: tuple[tuple[str, Callable[[Figures], float]], ...] = (
    ("GET /health, median", lambda seen: seen.health.p50),
    ("GET /health, p99", lambda seen: seen.health.p99),
    ("Longest gap of the loop", lambda seen: seen.loop_gap_seconds),
)


def save_plot(results: Results, path: Path) -> None:
    """Draw the results as three panels of bars, into a PNG file."""
    # Half a second of import, and not needed by those who read the table.
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": "#999999",
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(style):
        # A Figure of its own draws with Agg and leaves nothing in pyplot's list.
        figure = Figure(figsize=(12.5, 4.4), dpi=150)
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (title, read) in zip(panels, PANELS):
            axes.set_title(title, loc="left", fontweight="bold")
            draw_groups(axes, *list_groups(results, read), COLORS)
        panels[0].set_ylabel("milliseconds")
        finish_figure(
            figure,
            "A burst of requests that are expensive to read, by where that is done",
            path,
        )


def list_groups(
    results: Results, read: Callable[[Figures], float]
) -> tuple[list[str], dict[str, list[float]]]:
    """Return the scenarios, and each mode's milliseconds in them."""
    bars: dict[str, list[float]] = {}
    for each in results.results:
        bars.setdefault(each.mode, []).append(1000 * read(each.median))
    return list(dict.fromkeys(each.scenario for each in results.results)), bars


def draw_groups(
    axes: Axes,
    labels: Sequence[str],
    bars: Mapping[str, Sequence[float]],
    colors: Mapping[str, str],
) -> None:
    """Draw groups of bars on a log scale, each with one of each mode."""
    width = 0.8 / len(bars)
    for index, (mode, values) in enumerate(bars.items()):
        shift = (index - (len(bars) - 1) / 2) * width
        drawn = axes.bar(
            [number + shift for number in range(len(labels))],
            values,
            width=0.92 * width,
            color=colors[mode],
            label=mode,
        )
        axes.bar_label(drawn, fmt=write_label, fontsize=7, padding=1)
    axes.set_yscale("log")
    # The bars have their numbers.
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)


def finish_figure(figure: Figure, title: str, path: Path) -> None:
    """Give panels of groups one legend and a title, and write a PNG file."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, format="png")


def write_label(value: float) -> str:
    """Write two digits that mean something, and 2500 as such."""
    return f"{float(f'{value:.2g}'):g}"


# ---- the command line ---------------------------------------------------------------


def read_choice(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read names with commas between them.

    Raises:
      argparse.ArgumentTypeError: one of them is unknown.
    """
    names = tuple(text.split(","))
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {known}")
    return names


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int)
    for name, known in (("scenarios", SCENARIOS), ("modes", MODES)):
        parser.add_argument(
            f"--{name}",
            type=partial(read_choice, known=known),
            default=known,
            help=",".join(known),
        )
    parser.add_argument(
        "--small", action="store_true", help="few requests: does it still work?"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a PNG file")
    # For the processes that this file starts itself.
    parser.add_argument("--serve", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bystanders", type=int, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    for path in (parsed.json, parsed.plot):
        if path is not None and not path.parent.is_dir():
            parser.error(f"{path.parent} is not a folder")
    if parsed.rounds is None:
        parsed.rounds = 1 if parsed.small else 3
    if parsed.rounds < 1:
        parser.error("--rounds must be at least 1")
    return parsed


def main() -> None:
    arguments = parse_arguments()
    if arguments.serve is not None:
        trio.run(serve, arguments.serve, arguments.folder)
        return
    if arguments.probe is not None:
        trio.run(Prober(arguments.probe).run, arguments.bystanders)
        return
    results = trio.run(
        measure,
        SMALL if arguments.small else Size(),
        arguments.scenarios,
        arguments.modes,
        arguments.rounds,
    )
    print(render_results(results))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode(results))
    if arguments.plot is not None:
        save_plot(results, arguments.plot)


if __name__ == "__main__":
    main()
