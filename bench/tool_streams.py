"""Does the event loop stall while many answers with tool calls are streamed at once?

Question
  64 clients ask at once, with 16 tools. Each answer has reasoning, a text and 4 calls, one of
  which writes a file. The server splits them while they are streamed. How long is the event
  loop away from its sockets, and how long does ``GET /health`` take?

      chat, responses, messages   the three APIs that have calls
      text                        the same answers to chats without tools, for comparison

      python bench/tool_streams.py
      python bench/tool_streams.py --streams 16 --rounds 1

Machine
  Any; the report names it. Run it alone. The server, this process, which reads the streams, and
  the prober share its cores.

How to read the answer
  s              seconds from the first byte to the last of all answers.
  start          the longest turn of the loop until every client has the first piece: the longest
                 time in which the loop looked at no socket (trioserve.observe.LoopStall). All
                 requests arrive in the same millisecond, and a turn reads all that have arrived.
  stream         the same from then on, until the last answer has ended. The target is 10 ms.
  cpu            processor time of the loop's thread in its longest turn while it streams. Other
                 programs, and other threads of the server, do not add to it.
  longest step   the longest step of a task between two waits while it streams, and the task.
  /health        one probe every 10 ms from a process of its own.

  Every figure is the median of the rounds; the worst round is beside it where it says so. The
  APIs take turns within a round, in reversed order every other round, on one server.

  Only the device is a fake (kit/chunk_server.py has the same): its steps take --step-seconds
  and no processor time. The engine is in the server's process, so its work is a part of the turns,
  as with --no-engine-process.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import sys
from tempfile import TemporaryDirectory
import time

from kit.loop_report import LoopReport, report_loop
from kit.options import read_output, read_positive
from kit.probe_process import open_prober
from kit.process import BENCH_FOLDER, Child, find_on_path, open_child, open_stdin, tell
from kit.raw import Request, check_status, open_request, write_request
from kit.rounds import alternate, find_medians
import msgspec
import trio

from trioserve.programs.bench.measuring.report import describe_machine, save, write_now
from trioserve.programs.bench.measuring.table import align, write_milliseconds

APIS = ("text", "chat", "responses", "messages")

# The end of a whole stream of each API.
ENDS = {
    "text": b"[DONE]",
    "chat": b"[DONE]",
    "responses": b"response.completed",
    "messages": b"message_stop",
}

NUM_TOOLS = 16
MAX_MODEL_LEN = 8192

# More than a run asks for. The server gives them in the order of the requests.
MAX_ANSWERS = 16_384


# ---- the answer and the requests ----------------------------------------------------


def write_answer(number: int) -> str:
    """Write an answer in the form of Hermes; successive ones have different lengths."""
    code = "".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(number % 16))
    calls = [
        {"name": "tool_0", "arguments": {"path": "a.py", "text": code}},
        *(
            {"name": f"tool_{i}", "arguments": {"path": f"{i}.py", "text": "short"}}
            for i in range(1, 4)
        ),
    ]
    parts = [
        "<think>\nI read the file first, and then I write it.\n</think>\n\nLet me see.",
        *(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls),
    ]
    return "\n".join(parts)


def write_stream(api: str, number: int) -> Request:
    """Write the request of one stream; each has a prompt of its own."""
    question = f"Number {number}: write the file."
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        "required": ["path", "text"],
    }
    functions = [
        {"name": f"tool_{i}", "description": "Write a file.", "parameters": schema}
        for i in range(NUM_TOOLS)
    ]
    messages = [{"role": "user", "content": question}]
    match api:
        case "text":
            return write_request("/v1/chat/completions", messages=messages, stream=True)
        case "chat":
            tools = [{"type": "function", "function": each} for each in functions]
            return write_request(
                "/v1/chat/completions", messages=messages, tools=tools, stream=True
            )
        case "responses":
            flat = [{"type": "function", **each} for each in functions]
            return write_request(
                "/v1/responses", input=question, tools=flat, stream=True
            )
    named = [
        {"name": each["name"], "input_schema": each["parameters"]} for each in functions
    ]
    return write_request(
        "/v1/messages",
        messages=messages,
        tools=named,
        max_tokens=MAX_MODEL_LEN,
        stream=True,
    )


# ---- the server ---------------------------------------------------------------------


class CpuTurns(trio.abc.Instrument):
    """Measures the processor time of the loop's thread in each turn.

    Attributes:
      longest_seconds: of the longest turn since the last reset.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self.longest_seconds = 0.0

    def reset(self) -> None:
        self.longest_seconds = 0.0

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        seconds = time.thread_time() - self._began
        self.longest_seconds = max(self.longest_seconds, seconds)


class ServerReport(msgspec.Struct, kw_only=True):
    """The server's figures since the last reset."""

    loop: LoopReport
    cpu_seconds: float


async def serve(num_streams: int, step_seconds: float) -> None:
    """Serve; print the port, then answer lines of input."""
    from trioserve.config import RenderConfig
    from trioserve.processes.interpreter import settle_interpreter
    from trioserve.testing.server import open_fake_server
    from trioserve.testing.tokenizer import IM_END, tiny_tokenizer

    with TemporaryDirectory() as folder:
        async with open_fake_server(
            tiny_tokenizer(Path(folder)),
            render=RenderConfig(reasoning_parser="qwen3", tool_call_parser="hermes"),
            answer=[write_answer(number) for number in range(MAX_ANSWERS)],
            eos_token=IM_END,
            max_num_seqs=num_streams,
            max_model_len=MAX_MODEL_LEN,
            step_seconds=step_seconds,
        ) as server:
            turns = CpuTurns()
            trio.lowlevel.add_instrument(turns)
            trio.lowlevel.add_instrument(server.state.loop_stall)
            await settle_interpreter()
            # The fake device keeps all plans, which a real one does not.
            server.device.plans = deque(maxlen=1)
            print(server.port, flush=True)
            lines = open_stdin()
            # Each line asks for the figures since the line before.
            while await lines.read() is not None:
                report = ServerReport(
                    loop=report_loop(server.state), cpu_seconds=turns.longest_seconds
                )
                print(msgspec.json.encode(report).decode(), flush=True)
                server.state.loop_stall.reset()
                turns.reset()


# ---- the measurement ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one API in one round."""

    seconds: float
    start_gap_seconds: float
    gap_seconds: float
    cpu_seconds: float
    longest_step_seconds: float
    longest_step_task: str
    health_median: float
    health_p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    num_streams: int
    step_seconds: float
    rounds: dict[str, list[Figures]]


async def measure(num_streams: int, step_seconds: float, num_rounds: int) -> Results:
    """Measure all APIs on one server, in turns. The first round warms up."""
    machine = describe_machine()
    command = [sys.executable, __file__, "--serve", "--streams", str(num_streams)]
    command += ["--step-seconds", str(step_seconds)]
    rounds: dict[str, list[Figures]] = {api: [] for api in APIS}
    async with open_child(command, environment=find_on_path(BENCH_FOLDER)) as child:
        port = int(await child.read())
        for number in range(num_rounds + 1):
            for api in alternate(APIS, number):
                tell(f"round {number} of {num_rounds}: {api}")
                figures = await measure_api(child, port, api, num_streams)
                if number:
                    rounds[api].append(figures)
    return Results(
        created=write_now(),
        machine=machine,
        num_streams=num_streams,
        step_seconds=step_seconds,
        rounds=rounds,
    )


async def measure_api(child: Child, port: int, api: str, num_streams: int) -> Figures:
    """Read all streams of an API, which begin at once."""
    requests = [write_stream(api, number) for number in range(num_streams)]
    async with open_prober(port) as prober:
        await ask_server(child)
        await prober.start()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            firsts = [trio.Event() for _ in requests]
            for request, first in zip(requests, firsts):
                nursery.start_soon(read_stream, port, api, request, first)
            for first in firsts:
                await first.wait()
            start = await ask_server(child)
        seconds = trio.current_time() - began
        stream = await ask_server(child)
        probes = await prober.stop()
    return Figures(
        seconds=seconds,
        start_gap_seconds=start.loop.loop_gap_seconds,
        gap_seconds=stream.loop.loop_gap_seconds,
        cpu_seconds=stream.cpu_seconds,
        longest_step_seconds=stream.loop.longest_step_seconds,
        longest_step_task=stream.loop.longest_step_task,
        health_median=probes.health.median,
        health_p99=probes.health.p99,
    )


async def ask_server(child: Child) -> ServerReport:
    """Return the server's figures since it was asked before."""
    return msgspec.json.decode(await child.ask("report"), type=ServerReport)


async def read_stream(port: int, api: str, request: Request, first: trio.Event) -> None:
    """Read a whole stream, and check it.

    Args:
      first: set when the first piece of the answer has come.
    """
    answer = bytearray()
    async with open_request(port, request) as stream:
        async for data in stream:
            answer += data
            if not first.is_set() and b"delta" in answer:
                first.set()
    head, _, body = answer.partition(b"\r\n\r\n")
    check_status(bytes(head), bytes(body))
    if ENDS[api] not in answer:
        raise SystemExit(f"a stream of {api} ended early: {answer[-200:]!r}")
    if api != "text" and b"tool_3" not in answer:
        raise SystemExit(f"a stream of {api} has not all calls")


# ---- the table ----------------------------------------------------------------------


def render(results: Results) -> str:
    """Write the table and the machine."""
    rows = [
        [
            "",
            "",
            "start",
            "stream",
            "",
            "cpu",
            "",
            "longest step",
            "",
            "/health ms",
            "",
        ],
        [
            *("api", "s", "ms", "ms", "worst", "ms", "worst"),
            *("ms", "task", "p50", "p99"),
        ],
        *build_rows(results),
    ]
    return "\n".join(
        [
            align(rows, left=(0, 8)),
            "",
            f"{results.machine}; {results.created}",
            f"{results.num_streams} streams of 380 to 700 tokens, steps of "
            f"{1000 * results.step_seconds:g} ms; medians of "
            f"{len(results.rounds['chat'])} rounds",
        ]
    )


def build_rows(results: Results) -> Iterator[list[str]]:
    for api, rounds in results.rounds.items():
        seen = find_medians(
            rounds,
            longest_step_task=max(
                rounds, key=lambda each: each.longest_step_seconds
            ).longest_step_task,
        )
        yield [
            api,
            f"{seen.seconds:.1f}",
            write_milliseconds(seen.start_gap_seconds),
            write_milliseconds(seen.gap_seconds),
            write_milliseconds(max(each.gap_seconds for each in rounds)),
            write_milliseconds(seen.cpu_seconds),
            write_milliseconds(max(each.cpu_seconds for each in rounds)),
            write_milliseconds(seen.longest_step_seconds),
            seen.longest_step_task.rpartition(".")[2],
            write_milliseconds(seen.health_median),
            write_milliseconds(seen.health_p99),
        ]


# ---- the command line ---------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=read_positive, default=64)
    parser.add_argument("--rounds", type=read_positive, default=3)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    # For the server that this file starts itself.
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--json", type=read_output, metavar="FILE", help="save the result"
    )
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_arguments()
    if options.serve:
        from trioserve.processes.interpreter import prepare_interpreter

        prepare_interpreter()
        trio.run(serve, options.streams, options.step_seconds)
        return
    results = trio.run(measure, options.streams, options.step_seconds, options.rounds)
    print(render(results))
    save(options.json, results)


if __name__ == "__main__":
    main()
