"""How fast is the device free when a client leaves?

Question
  Clients stream answers without end. Another client leaves in each phase of its request.
  How long does it take until the blocks of its request are free, and until the request is
  gone from the server?

      python bench/cancel.py
      python bench/cancel.py --cancels 100 --clients 15 --json cancel.json

Machine
  Linux; run it alone.

How to read the answer
  phase    where the request was when its client left, as the server saw it:
               queue    all slots belonged to the other clients
               prefill  a prompt of --prompt-words was being computed
               decode   tokens were being streamed
           `decode, DELETE` is cancelled by DELETE /v1/requests/ID instead.
  freed    milliseconds from the moment at which the server noticed until the engine process
           had freed the blocks: its log says so, at level debug.
  gone     milliseconds from the client's close (or DELETE) until GET /v1/requests/ID answered
           404. It includes the way of both, and up to one poll of a millisecond or two.
  Both times are taken over all cancels of a phase; the phases take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
import itertools
import re

from kit.options import make_parser, read_output, read_positive
from kit.process import ProcessEnded, stopping_at_sigterm, tell
from kit.runs import run_and_save
from kit.server import open_server, write_serve_command
from kit.tables import write_markdown
import msgspec
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.generation.load import Load
from trioserve.programs.bench.measuring.report import describe_machine, write_now
from trioserve.programs.bench.measuring.statistics import spread
from trioserve.programs.bench.measuring.table import write_spread
from trioserve.programs.http.client import FAILURES, Connection, RequestRefused
from trioserve.programs.http.events import EventReader

PATH = "/v1/chat/completions"

PHASES = ("queue", "prefill", "decode", "decode, DELETE")

# The lines of http/record/cancellation.py.
FREED = re.compile(rb"request (\S+): free ([\d.]+) ms after it was cancelled in (\w+)")

# A request that is not gone after so long never will be.
GONE_SECONDS = 30.0

COLUMNS = ("median", "p95", "p99", "maximum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """One cancel, in seconds.

    Attributes:
      phase: the phase in which the server saw it, and the way.
    """

    phase: str
    freed: float
    gone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    model: str
    num_clients: int
    prompt_words: int
    cancels: tuple[Cancel, ...]


@dataclass(slots=True, kw_only=True)
class Log:
    """The times that the server's log has told, by the request's id."""

    freed: dict[str, tuple[float, str]] = field(default_factory=dict)

    def read(self, line: bytes) -> None:
        if found := FREED.search(line):
            seconds = float(found[2]) / 1000
            self.freed[found[1].decode()] = seconds, found[3].decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Cancels requests of one server.

    Attributes:
      load: its prompts are long.
    """

    url: str
    model: str
    load: Load
    log: Log

    def encode(self, phase: str, number: int, *, request_id: str) -> bytes:
        """Write a request that is cancelled in a phase."""
        load = self.load if phase == "prefill" else Load(input_words=16)
        prompt = load.write_prompt(phase, number)
        return self._encode(prompt, request_id=request_id)

    def _encode(self, text: str, **fields: object) -> bytes:
        return msgspec.json.encode(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 512,
                "ignore_eos": True,
                "stream": True,
                **fields,
            }
        )

    async def stream_forever(
        self, number: int, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Stream one answer after the other; started when the first has a token."""
        has_started = False
        async with Connection(self.url) as connection:
            for index in itertools.count():
                body = self._encode(f"client {number}, answer {index}")
                await connection.send("POST", PATH, body)
                while await connection.read():
                    if not has_started:
                        task_status.started()
                        has_started = True

    async def cancel(self, wanted: str, number: int) -> Cancel:
        """Cancel one request when it is in a phase, or just behind it."""
        async with AsyncExitStack() as stack:
            if wanted == "queue":
                # It takes the last slot.
                holder = await stack.enter_async_context(Connection(self.url))
                body = self.encode("holder", number, request_id=f"holder-{number}")
                await holder.send("POST", PATH, body)
                await read_texts(holder, 1)
            return await self._cancel(wanted, number)

    async def _cancel(self, wanted: str, number: int) -> Cancel:
        phase, _, by_delete = wanted.partition(", ")
        request_id = f"{phase}{by_delete}-{number}"
        path = f"/v1/requests/{request_id}"
        async with Connection(self.url) as watcher, Connection(self.url) as client:
            body = self.encode(wanted, number, request_id=request_id)
            await client.send("POST", PATH, body)
            if phase == "decode":
                await read_texts(client, 3)
            else:
                await wait_phase(watcher, path, phase)
            began = trio.current_time()
            if by_delete:
                await watcher.fetch("DELETE", path)
            else:
                await client.aclose()
            await wait_gone(watcher, path)
            gone = trio.current_time() - began
        with trio.fail_after(GONE_SECONDS):
            while request_id not in self.log.freed:  # noqa: ASYNC110
                await trio.sleep(0.001)
        freed, seen = self.log.freed.pop(request_id)
        return Cancel(
            phase=f"{seen}, DELETE" if by_delete else seen, freed=freed, gone=gone
        )


async def wait_phase(watcher: Connection, path: str, phase: str) -> None:
    """Ask for a request until it is in a phase, or behind it."""
    order = ["body", "render", "queue", "prefill", "decode", "write"]
    while True:
        answer = msgspec.json.decode(await watcher.fetch("GET", path))
        if order.index(answer["data"][0]["phase"]) >= order.index(phase):
            return


async def read_texts(connection: Connection, count: int) -> None:
    """Read a stream until it has had so many events with text."""
    events = EventReader()
    while count > 0:
        for event in events.feed(await connection.read()):
            count -= any(choice.has_text() for choice in event.choices)


async def wait_gone(watcher: Connection, path: str) -> None:
    """Ask for a request until the server has it no more."""
    with trio.fail_after(GONE_SECONDS):
        while True:
            try:
                await watcher.fetch("GET", path)
            except RequestRefused as error:
                if error.status != 404:
                    raise
                return


async def measure(options: argparse.Namespace) -> list[Cancel]:
    """Start a server, and cancel requests of it, the phases in turns."""
    command = write_serve_command(
        options.model, log_level="debug", max_num_seqs=options.clients + 1
    )
    log = Log()
    load = Load(input_words=options.prompt_words)
    cancels: list[Cancel] = []
    async with stopping_at_sigterm(), open_server(command, log.read) as running:
        async with Connection(running.url) as connection:
            models = msgspec.json.decode(await connection.fetch("GET", "/v1/models"))
        bench = Bench(
            url=running.url, model=models["data"][0]["id"], load=load, log=log
        )
        async with trio.open_nursery() as nursery:
            for number in range(options.clients):
                await nursery.start(bench.stream_forever, number)
            for number in range(options.cancels):
                if number % 10 == 0:
                    tell(f"cancel {number + 1} of {options.cancels}")
                for wanted in PHASES:
                    cancels.append(await bench.cancel(wanted, number))
            nursery.cancel_scope.cancel()
    return cancels


# ---- the table ----------------------------------------------------------------------


def render(report: Report) -> str:
    """Write the report as Markdown: the table, and a note."""
    note = (
        f"{report.machine}; {report.created}\n"
        f"{report.model}, {report.num_clients} other clients, prompts of "
        f"{report.prompt_words} words"
    )
    return "\n".join([*write_markdown(build_table(report)), "", note])


def build_table(report: Report) -> Iterator[list[str]]:
    """Lay out a row for each phase."""
    names = ("p50", "p95", "p99", "longest")
    times = ("freed ms", "gone ms")
    yield ["phase", "cancels", *(f"{time}: {' / '.join(names)}" for time in times)]
    for phase in PHASES:
        cancels = [each for each in report.cancels if each.phase == phase]
        if cancels:
            yield [
                *(phase, str(len(cancels))),
                describe_times([each.freed for each in cancels]),
                describe_times([each.gone for each in cancels]),
            ]


def describe_times(seconds: Sequence[float]) -> str:
    return " / ".join(write_spread(spread(seconds), COLUMNS))


# ---- the command line ---------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL)
    add("--clients", type=read_positive, default=7, help="other clients, all the time")
    add("--cancels", type=read_positive, default=50, help="of each phase")
    add("--prompt-words", type=read_positive, default=512)
    add("--json", type=read_output, metavar="FILE", help="save the result")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Report:
    """Run the bench as the options say.

    Raises:
      OSError, ProcessEnded, RequestFailed, trio.TooSlowError: it cannot be run.
    """
    machine = describe_machine()
    cancels = trio.run(measure, options)
    return Report(
        created=write_now(),
        machine=machine,
        model=options.model,
        num_clients=options.clients,
        prompt_words=options.prompt_words,
        cancels=tuple(cancels),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse_arguments(arguments)
    expected = (*FAILURES, ProcessEnded, trio.TooSlowError)
    return run_and_save(partial(run, options), render, expected, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
