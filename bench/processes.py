"""How much do many streams gain from an engine process?

Question
  With --no-engine-process the server and its engine share a process, and so the GIL:
  the code that writes to many clients and the code that plans and launches steps take
  turns. With --engine-process, the default, they share only a socket. How long does a
  step take, how many tokens come each second, and how long do /health and a turn of the
  event loop take,

      inside     with the engine in the server's process
      outside    with the engine in a process of its own,

  while 1, 32 and 128 clients each read a stream? There are four devices:

      model      a real model on the CPU, with `trioserve serve --num-threads 1`
      2 ms       a thread that sleeps for 2 ms in each step, like a thread that waits
                 for a GPU: it takes no CPU time, and needs the GIL once a step
      5 ms       the same with 5 ms
      2 ms / 20  2 ms in 20 sleeps, so the thread needs the GIL 20 times a step. torch
                 releases it in every operation. So a step that launches its kernels one
                 by one needs it hundreds of times, and a step that replays a CUDA graph
                 a few times

  And how much do several processes gain that serve HTTP? Sleeping devices also have

      2 HTTP     `--api-processes 2`: two of them, and the engine in a third one
      4 HTTP     four of them

  if --modes names them. One process that serves HTTP is `outside`.

  Around the sleeping devices everything is real: sockets, HTTP, text, scheduler, loop.
  bench/start.py measures the memory and the start of an engine process.

      python bench/processes.py --rounds 5 --json processes.json --plot processes.png
      python bench/processes.py --quick
      python bench/processes.py --devices '2 ms' --streams 128 512 \\
          --modes 'outside,2 HTTP,4 HTTP'

Machine
  Any; the report names it. The server, its engine, the device's threads, the reader of
  all streams (this process) and the prober of /health (another process) share its
  cores. If they take all cores, the reader takes time from the others. Then `outside`
  looks worse than it is, because it needs a core of its own. On two cores, the model's
  one thread leaves a core free.

How to read the answer
  ms a step      the time divided by the number of steps, from /metrics. It contains the
                 time that the device sleeps or computes, and its wait for the host.
  tokens/s       of all streams, from /metrics; every token is sent and read.
  events/s       of all streams. A server that is late sends the tokens of several steps in
                 one event.
  ratio          of the median tokens/s to the median of the first mode.
  first token    from sending a request to its first event, if all clients send at once;
                 median of the clients. Their prompts have about 30 tokens.
  /health        one probe every 10 ms from a process of its own, on a connection that
                 stays open. A probe that falls due before the last one is answered
                 counts, too, from its due time.
  turn p99       a turn of the server's loop is the time between two looks at its
                 sockets. The p99 is read from /metrics, linear between the bounds of
                 its bucket. With the engine inside, the loop plans steps, too. Reading
                 /metrics is itself a turn of 1 to 2 ms.
  cpu            cores that the server with its HTTP processes, its engine process and this
                 reader took.

  All servers of a device run at once and take turns within a round, in reversed order
  every other round; an idle server costs only memory. Each turn has new streams, and is
  timed when all of them have begun. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kit.bars import save_bars
from kit.engines.device import DEVICES, Device
from kit.engines.server import HTTP_MODES, MODES, write_command
from kit.engines.turn import Figures, measure_turn
from kit.options import add_outputs, read_choice, read_positive, read_seconds
from kit.process import stopping_at_sigterm, tell
from kit.rounds import alternate, find_medians
from kit.server import RunningServer, open_server
from kit.tables import write_markdown, write_number
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.measuring.plot import BLUE, GREEN, GREY, VERMILION
from trioserve.programs.bench.measuring.report import describe_machine, save, write_now
from trioserve.testing.supervisor_process import make_folder

# ---- a whole run --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The devices, streams and times of a run; one field is one option."""

    devices: tuple[str, ...] = tuple(DEVICES)
    modes: tuple[str, ...] = MODES
    streams: tuple[int, ...] = (1, 32, 128)
    rounds: int = 5
    seconds: float = 8.0
    # The model's steps with 128 sequences take 0.4 s, so few of them are counted.
    model_seconds: float = 20.0
    model: str = DEFAULT_MODEL

    def find_seconds(self, device: Device) -> float:
        return self.model_seconds if device.step_seconds is None else self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All rounds of one mode with so many streams."""

    device: str
    num_streams: int
    mode: str
    median: Figures
    rounds: tuple[Figures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    load: Load
    results: tuple[Result, ...]


async def measure(load: Load) -> Results:
    """Measure both servers of every device under all loads, in turns."""
    machine = describe_machine()
    results: list[Result] = []
    async with stopping_at_sigterm():
        for name in load.devices:
            results += await measure_device(DEVICES[name], load)
    return Results(
        created=write_now(), machine=machine, load=load, results=tuple(results)
    )


async def measure_device(device: Device, load: Load) -> list[Result]:
    async with AsyncExitStack() as stack:
        folder = make_folder(Path(stack.enter_context(TemporaryDirectory())))
        servers: dict[str, RunningServer] = {}
        for mode in load.modes:
            tell(f"{device.name}: starting a server with its engine {mode}")
            command = write_command(device, mode, load.model, folder)
            server = await stack.enter_async_context(open_server(command))
            servers[mode] = server
            # Some work is slow the first time.
            seeds = (device.name, "warm", mode)
            await measure_turn(server, device.max_tokens, 1, 0.5, *seeds)
        return await take_turns(device, load, servers)


async def take_turns(
    device: Device, load: Load, servers: dict[str, RunningServer]
) -> list[Result]:
    seen: dict[tuple[int, str], list[Figures]] = {}
    for number in range(load.rounds):
        for num_streams in load.streams:
            for mode in alternate(load.modes, number):
                tell(f"{device.name}, round {number + 1}: {num_streams} {mode}")
                figures = await measure_turn(
                    servers[mode],
                    device.max_tokens,
                    num_streams,
                    load.find_seconds(device),
                    *(number, num_streams),
                )
                seen.setdefault((num_streams, mode), []).append(figures)
    return [
        Result(
            device=device.name,
            num_streams=num_streams,
            mode=mode,
            median=find_medians(rounds),
            rounds=tuple(rounds),
        )
        for (num_streams, mode), rounds in sorted(
            seen.items(), key=lambda item: (item[0][0], load.modes.index(item[0][1]))
        )
    ]


# ---- the table and the plot ---------------------------------------------------------


def render_results(results: Results) -> str:
    """Write the results as Markdown: the table, and notes."""
    table = write_markdown(build_table(results))
    return "\n".join([*table, "", *write_notes(results)])


def build_table(results: Results) -> Iterator[list[str]]:
    """Lay out a row for each device, number of streams and mode."""
    headings = [
        "device",
        "streams",
        "mode",
        "ms a step",
        "tokens/s",
        "ratio",
        "events/s",
    ]
    headings += ["first token, ms", "/health p50 / p99 ms", "turn p99 ms"]
    yield [*headings, "cpu: server / engine / reader"]
    for result in results.results:
        seen = result.median
        cpu = (seen.server_cpu, seen.engine_cpu, seen.reader_cpu)
        health = (seen.health_p50, seen.health_p99)
        yield [
            *(result.device, str(result.num_streams), result.mode),
            write_number(1000 * seen.step),
            write_number(seen.tokens_per_second),
            find_ratio(results, result),
            write_number(seen.events_per_second),
            write_number(1000 * seen.first_token),
            " / ".join(write_number(1000 * seconds) for seconds in health),
            write_number(1000 * seen.turn_p99),
            " / ".join(f"{cores:.2f}" for cores in cpu),
        ]


def find_ratio(results: Results, result: Result) -> str:
    """Divide tokens/s by the first mode's; empty for itself."""
    first = (result.device, result.num_streams, results.load.modes[0])
    if result.mode == first[2]:
        return ""
    for other in results.results:
        if (other.device, other.num_streams, other.mode) == first:
            ratio = result.median.tokens_per_second / other.median.tokens_per_second
            return f"{ratio:.2f}"
    return ""


def write_notes(results: Results) -> Iterator[str]:
    """Describe the run, and give the delay of the prober's timers."""
    load = results.load
    yield f"{results.machine}; {results.created}; medians of {load.rounds} rounds"
    yield f"{load.seconds:g} s a turn, {load.model_seconds:g} s with {load.model}"
    lag = max(each.median.prober_lag_p99 for each in results.results)
    yield f"the prober's timers were up to {1000 * lag:.1f} ms late (p99)"


COLORS = dict(zip((*MODES, *HTTP_MODES), (VERMILION, BLUE, GREEN, GREY)))

PANELS: dict[str, Callable[[Figures], float]] = {
    "Engine step, ms": lambda seen: 1000 * seen.step,
    "GET /health, p99, ms": lambda seen: 1000 * seen.health_p99,
    "Tokens per second": lambda seen: seen.tokens_per_second,
}


def save_plot(results: Results, path: Path) -> None:
    """Draw three panels of bars, a group for each device and load, into a PNG file."""
    groups = dict.fromkeys((each.device, each.num_streams) for each in results.results)
    panels = {
        title: {
            mode: [read(each.median) for each in results.results if each.mode == mode]
            for mode in results.load.modes
        }
        for title, read in PANELS.items()
    }
    save_bars(
        path,
        "The engine in the server's process or outside, by device and streams",
        panels,
        [f"{device}\n{num_streams}" for device, num_streams in groups],
        COLORS,
        size=(11, 8),
        num_columns=1,
    )


# ---- the command line ---------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    load = Load()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=read_positive, default=load.rounds)
    add("--streams", type=int, nargs="+", default=load.streams)
    known = tuple(DEVICES)
    add("--devices", type=partial(read_choice, known=known), default=known)
    all_modes = (*MODES, *HTTP_MODES)
    add("--modes", type=partial(read_choice, known=all_modes), default=load.modes)
    add("--seconds", type=read_seconds, default=load.seconds)
    add("--model-seconds", type=read_seconds, default=load.model_seconds)
    add("--model", default=load.model)
    add("--quick", action="store_true", help="short turns, to check that it works")
    add_outputs(parser)
    parsed = parser.parse_args(arguments)
    most = min(DEVICES[each].max_streams for each in parsed.devices)
    if max(parsed.streams) > most or min(parsed.streams) < 1:
        parser.error(f"--streams are 1 to {most} with these devices")
    if "model" in parsed.devices and {*HTTP_MODES} & {*parsed.modes}:
        parser.error("several HTTP processes are for --devices that sleep")
    return parsed


def read_load(options: argparse.Namespace) -> Load:
    load = Load(
        devices=options.devices,
        modes=options.modes,
        streams=tuple(options.streams),
        rounds=options.rounds,
        seconds=options.seconds,
        model_seconds=options.model_seconds,
        model=options.model,
    )
    if not options.quick:
        return load
    return replace(load, streams=(1, 32), rounds=1, seconds=1.0, model_seconds=2.0)


def main() -> None:
    options = parse_arguments()
    results = trio.run(measure, read_load(options))
    print(render_results(results))
    save(options.json, results)
    if options.plot is not None:
        save_plot(results, options.plot)


if __name__ == "__main__":
    main()
