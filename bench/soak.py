"""Does anything grow while a server answers a hundred thousand mixed requests?

Question
  Two servers, one that generates from texts and images and one that embeds, get a mixture of
  requests: chats whole and streamed, completions, JSON by a schema, images, embeddings,
  wrong requests, clients that leave, and clients that read slowly. What happens to memory,
  descriptors, threads and tasks?

      python bench/soak.py --plot soak.png
      python bench/soak.py --requests 2000 --clients 8

Machine
  Linux; run it beside nothing that takes all memory. The models are tiny and random, because
  only the server is of interest, not the model.

How to read the answer
  idle before   after --warm-up requests and three seconds of rest.
  most          the largest of all samples under load.
  idle after    when all requests have ended, after three seconds of rest.
  growth        of the memory under load, from the second quarter of the run to the last one
                (means), in MB, and in bytes for each request. Caches whose bounds are known
                may fill: prefixes and images of the first quarter.
  memory        of the server's processes, pages that they share divided among them (PSS).
  leaks         trioserve_leaks_total: things that outlived their request.

  Below the table: the requests of each kind, and those whose outcome was unexpected, with the
  first reason.
"""

from __future__ import annotations

import argparse
import base64
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
import io
import os
from pathlib import Path
import random
import statistics
import subprocess
import sys
from tempfile import TemporaryDirectory

from kit.metrics import fetch_metrics
from kit.options import add_outputs, make_parser, read_positive
from kit.process import ProcessEnded, stopping_at_sigterm, tell
from kit.runs import run_or_explain
from kit.server import RunningServer, open_server, write_serve_command
from kit.tables import write_number
from kit.usage import list_processes, read_memory
import msgspec
import trio

from trioserve.programs.bench.measuring.plot import (
    BLUE,
    VERMILION,
    add_legend,
    dress,
    open_figure,
    write_title,
)
from trioserve.programs.bench.measuring.report import describe_machine, save, write_now
from trioserve.programs.bench.measuring.table import align
from trioserve.programs.http.client import (
    FAILURES,
    Connection,
    RequestFailed,
    RequestRefused,
    describe,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAMPLE_SECONDS = 2.0
REST_SECONDS = 3.0
# A client that reads slowly takes its stream in so many parts a second.
SLOW_READS_PER_SECOND = 5

FIGURES = ("memory_mb", "descriptors", "threads", "tasks")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "ok"],
    "additionalProperties": False,
}

# Writes the two models. It imports torch, which the bench itself does without.
WRITE_MODELS = """
import sys
from pathlib import Path
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.models import save_tiny_vision_model
from trioserve.testing.processors import save_tiny_processor
from trioserve.testing.tokenizer import tiny_tokenizer

vision, encoder = map(Path, sys.argv[1:])
save_tiny_vision_model("idefics3", save_tiny_processor("smolvlm", vision))
tiny_tokenizer(save_tiny_encoder("bert", encoder))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One server at one moment.

    Attributes:
      at: seconds since the beginning of the load.
      num_requests: those that had ended.
    """

    at: float
    num_requests: int
    memory_mb: float
    descriptors: int
    threads: int
    tasks: int


@dataclass(slots=True, kw_only=True)
class Course:
    """One server during the run."""

    before: Sample
    samples: list[Sample] = field(default_factory=list)
    after: Sample | None = None
    num_leaks: int = 0

    def find_growth(self) -> tuple[float, float]:
        """Return the growth under load: MB, and bytes for each request."""
        quarter = max(1, len(self.samples) // 4)
        early, late = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        if not early:
            return 0.0, 0.0
        grown = _mean(late, "memory_mb") - _mean(early, "memory_mb")
        num_requests = _mean(late, "num_requests") - _mean(early, "num_requests")
        return grown, 1e6 * grown / max(1.0, num_requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    seconds: float
    num_clients: int
    counts: dict[str, int]
    unexpected: dict[str, int]
    reasons: dict[str, str]
    courses: dict[str, Course]


class Load:
    """Sends requests of all kinds, chosen by chance.

    Attributes:
      counts: the requests that have ended, by kind.
      unexpected, reasons: those with another outcome than theirs, and the first reason.
    """

    def __init__(self, servers: dict[str, RunningServer], seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.unexpected: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self._servers = servers
        self._chance = random.Random(seed)
        self._images = [_write_image(number) for number in range(40)]
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "chat": (20, self._chat),
            "stream": (20, self._stream),
            "completion, n = 2": (10, self._complete),
            "schema": (10, self._fill_schema),
            "image": (5, self._show_image),
            "embedding": (15, self._embed),
            "wrong request": (10, self._err),
            "client leaves": (8, self._leave),
            "slow reader": (2, self._read_slowly),
        }

    async def send(self, number: int) -> None:
        """Send so many requests, one after the other."""
        names = list(self._kinds)
        weights = [weight for weight, _ in self._kinds.values()]
        for _ in range(number):
            [name] = self._chance.choices(names, weights)
            try:
                await self._kinds[name][1]()
            except FAILURES as error:
                self.unexpected[name] += 1
                self.reasons.setdefault(name, describe(error))
            self.counts[name] += 1

    def _write_words(self, most: int = 10) -> str:
        number = self._chance.randint(1, most)
        return " ".join(f"w{self._chance.randrange(10_000)}" for _ in range(number))

    async def _post(self, server: str, path: str, **fields: object) -> bytes:
        async with Connection(self._servers[server].url) as connection:
            return await connection.fetch("POST", path, msgspec.json.encode(fields))

    def _write_chat(self, **fields: object) -> dict[str, object]:
        return {
            "messages": [{"role": "user", "content": self._write_words()}],
            "max_tokens": self._chance.randint(1, 24),
            **fields,
        }

    async def _chat(self) -> None:
        await self._post("generate", CHAT, **self._write_chat())

    async def _stream(self) -> None:
        events = await self._post("generate", CHAT, **self._write_chat(stream=True))
        if not events.endswith(b"data: [DONE]\n\n"):
            raise RequestFailed(f"the stream ended with {events[-80:]!r}")

    async def _complete(self) -> None:
        await self._post(
            *("generate", COMPLETIONS),
            prompt=self._write_words(),
            max_tokens=8,
            n=2,
            logprobs=2,
        )

    async def _fill_schema(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        await self._post(
            "generate", CHAT, **self._write_chat(response_format=form, max_tokens=40)
        )

    async def _show_image(self) -> None:
        image = {
            "type": "image_url",
            "image_url": {"url": self._chance.choice(self._images)},
        }
        text = {"type": "text", "text": self._write_words(4)}
        await self._post(
            *("generate", CHAT),
            messages=[{"role": "user", "content": [image, text]}],
            max_tokens=4,
        )

    async def _embed(self) -> None:
        texts = [self._write_words() for _ in range(self._chance.randint(1, 4))]
        await self._post("embed", "/v1/embeddings", input=texts)

    async def _err(self) -> None:
        body, status = self._chance.choice(
            [
                (b"{", 400),
                (b'{"messages": [], "max_tokens": 0}', 400),
                (b'{"prompt": "a", "temperature": -1}', 400),
                (b'{"model": "none", "prompt": "a"}', 404),
            ]
        )
        async with Connection(self._servers["generate"].url) as connection:
            try:
                await connection.fetch("POST", COMPLETIONS, body)
            except RequestRefused as error:
                if error.status != status:
                    raise
            else:
                raise RequestFailed(f"{body!r} was answered 200")

    async def _leave(self) -> None:
        seconds = self._chance.expovariate(50)
        body = msgspec.json.encode(self._write_chat(stream=True, max_tokens=100))
        async with Connection(self._servers["generate"].url) as connection:
            with trio.move_on_after(seconds):
                await connection.send("POST", CHAT, body)
                await connection.read_all()

    async def _read_slowly(self) -> None:
        body = msgspec.json.encode(self._write_chat(stream=True))
        async with Connection(self._servers["generate"].url) as connection:
            await connection.send("POST", CHAT, body)
            while await connection.read():  # noqa: ASYNC110
                await trio.sleep(1 / SLOW_READS_PER_SECOND)


def _write_image(number: int) -> str:
    """Return a small picture as a data URL."""
    from PIL import Image

    picture = Image.new("RGB", (32, 32), (number, 2 * number, 255 - number))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# ---- the run ------------------------------------------------------------------------


async def take_sample(server: RunningServer, began: float, num_requests: int) -> Sample:
    """Look at a server's processes."""
    metrics = await fetch_metrics(server.url)
    pids = list_processes(server.pid)
    return Sample(
        at=trio.current_time() - began,
        num_requests=num_requests,
        memory_mb=read_memory(server.pid),
        descriptors=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        threads=sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        tasks=metrics.read_count("trioserve_tasks"),
    )


async def run_load(load: Load, num_requests: int, num_clients: int) -> None:
    """Let clients send requests, so many in all."""
    async with trio.open_nursery() as nursery:
        for index in range(num_clients):
            share = len(range(index, num_requests, num_clients))
            nursery.start_soon(load.send, share)


async def measure(options: argparse.Namespace, folder: Path) -> Report:
    """Start the servers and run the load."""
    machine = describe_machine()
    vision, encoder = folder / "vision", folder / "encoder"
    command = [sys.executable, "-c", WRITE_MODELS, str(vision), str(encoder)]
    await trio.run_process(command, stderr=subprocess.DEVNULL)
    async with stopping_at_sigterm(), AsyncExitStack() as stack:
        servers = {
            "generate": await stack.enter_async_context(
                open_server(write_serve_command(str(vision), num_threads=1))
            ),
            "embed": await stack.enter_async_context(
                open_server(write_serve_command(str(encoder), num_threads=1))
            ),
        }
        load = Load(servers, seed=0)
        await run_load(load, options.warm_up, options.clients)
        await trio.sleep(REST_SECONDS)
        began = trio.current_time()
        courses = {
            name: Course(before=await take_sample(server, began, 0))
            for name, server in servers.items()
        }
        load = Load(servers, seed=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sample_forever, servers, courses, load, began)
            await run_load(load, options.requests, options.clients)
            nursery.cancel_scope.cancel()
        seconds = trio.current_time() - began
        await trio.sleep(REST_SECONDS)
        for name, server in servers.items():
            course = courses[name]
            course.after = await take_sample(server, began, load.counts.total())
            leaks = (await fetch_metrics(server.url)).read_by_label(
                "trioserve_leaks_total", "kind"
            )
            course.num_leaks = sum(leaks.values())
    return Report(
        created=write_now(),
        machine=machine,
        seconds=seconds,
        num_clients=options.clients,
        counts=dict(load.counts),
        unexpected=dict(load.unexpected),
        reasons=load.reasons,
        courses=courses,
    )


async def sample_forever(
    servers: dict[str, RunningServer],
    courses: dict[str, Course],
    load: Load,
    began: float,
) -> None:
    while True:
        await trio.sleep(SAMPLE_SECONDS)
        number = load.counts.total()
        tell(f"{trio.current_time() - began:.0f} s, {number} requests")
        for name, server in servers.items():
            courses[name].samples.append(await take_sample(server, began, number))


# ---- the table ----------------------------------------------------------------------


def render(report: Report) -> str:
    """Write the tables and the machine."""
    total = sum(report.counts.values())
    rows = [["server", "figure", "idle before", "most", "idle after", "growth"]]
    for name, course in report.courses.items():
        rows += list_rows(name, course)
    kinds = [["kind", "requests", "unexpected", "first reason"]]
    for name, number in sorted(report.counts.items()):
        failed = report.unexpected.get(name, 0)
        kinds.append([name, str(number), str(failed), report.reasons.get(name, "")])
    return "\n".join(
        [
            align(rows, left=(0, 1)),
            "",
            align(kinds, left=(0, 3)),
            "",
            f"{report.machine}; {report.created}",
            f"{total} requests by {report.num_clients} clients in {report.seconds:.0f} s, "
            f"{total / report.seconds:.0f} a second",
        ]
    )


def list_rows(name: str, course: Course) -> Iterator[list[str]]:
    assert course.after is not None, "the run has ended"
    grown, for_each = course.find_growth()
    for figure in FIGURES:
        values = [
            getattr(course.before, figure),
            max((getattr(each, figure) for each in course.samples), default=0),
            getattr(course.after, figure),
        ]
        if figure == "memory_mb":
            written = [
                *map(write_number, values),
                f"{grown:+.1f} MB, {for_each:+.0f} B",
            ]
        else:
            written = [*map(str, values), ""]
        yield [name, figure.removesuffix("_mb"), *written]
    yield [name, "leaks", "", "", str(course.num_leaks), ""]


def _mean(samples: Sequence[Sample], figure: str) -> float:
    return statistics.fmean(getattr(each, figure) for each in samples)


def save_plot(report: Report, path: Path) -> None:
    """Draw each figure over the time, a line for each server."""
    colors = dict(zip(report.courses, (BLUE, VERMILION)))
    with open_figure(path, (9, 5)) as figure:
        panels = figure.subplots(2, 2, sharex=True)
        for axes, name in zip(panels.flat, FIGURES):
            dress(axes, name.replace("_mb", ", MB"))
            for server, course in report.courses.items():
                axes.plot(
                    [each.at / 60 for each in course.samples],
                    [getattr(each, name) for each in course.samples],
                    color=colors[server],
                    linewidth=1,
                    label=server,
                )
            axes.set_ylim(bottom=0)
        for axes in panels[1]:
            axes.set_xlabel("minutes")
        write_title(figure, f"{sum(report.counts.values()):,} mixed requests")
        add_legend(figure)


# ---- the command line ---------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--requests", type=read_positive, default=100_000)
    add("--warm-up", type=read_positive, default=2_000, help="requests before that")
    add("--clients", type=read_positive, default=16)
    add_outputs(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse_arguments(arguments)
    with TemporaryDirectory() as folder:
        report = run_or_explain(
            partial(trio.run, measure, options, Path(folder)),
            (*FAILURES, ProcessEnded, subprocess.CalledProcessError),
        )
    if report is None:
        return 2
    print(render(report))
    if options.plot is not None:
        save_plot(report, options.plot)
    save(options.json, report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
