"""How many tokens per second does a machine make of a thousand prompts that nobody waits for?

Question
  1,000 prompts are there at once. Prompts and answers are as long as those of ShareGPT, with
  which other engines are measured. How many tokens per second come, until the last answer has
  ended,

      process    by `trioserve.open_engine` in this process, text in and text out, and
      run-batch  by the command `trioserve run-batch` with a file?

      python bench/offline.py
      python bench/offline.py --model meta-llama/Llama-3.1-8B-Instruct --device cuda \\
          --option dtype=bfloat16 --option max_num_seqs=256
      python bench/offline.py --number 40 --ways process

Machine
  Any; the report names it. Run it alone. A CPU needs a smaller --number.

How to read the answer
  tokens in      of all prompts, by the model's own tokenizer. A word is about one token.
  tokens out     of all answers. Each ends at its length, whatever the model writes.
  s              from the first prompt to the end of the last answer; the load of the model is no
                 part of it, but the tail is, in which few answers are left.
  output tokens/s, all tokens/s
                 tokens over these seconds, and the median of the rounds. Others report either
                 of them, so compare the right one.

  The words are random, and no prefix is cached. A --seed gives the same prompts and lengths on
  every machine.

Source of the lengths
  The histograms of 2,104 requests in SGLang's documentation (docs/references/
  production_metrics.md, November 2024). It does not name the load. Its shares agree with those
  of SGLang's run with ShareGPT in its pull request 1853 (24 % of prompts up to 20 tokens, 83 and
  84 % up to 500), and its means, 238 and 202 tokens, with the totals by vLLM's benchmark for
  1,000 prompts of ShareGPT, 215,196 and 198,343. Within a bucket, lengths are spread evenly by
  their logarithm, which gives means of 237 and 208. Lengths of a prompt and its answer are
  drawn independently.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
import itertools
import math
from pathlib import Path
import re
import statistics
import sys
from tempfile import TemporaryDirectory
from typing import Any, Final

from kit.options import (
    make_parser,
    read_choice,
    read_option,
    read_output,
    read_positive,
)
from kit.process import ProcessEnded, stopping_at_sigterm, tell
from kit.runs import run_and_save
from kit.tables import write_markdown
import msgspec
import trio

import trioserve
from trioserve.config import DEFAULT_MODEL, EngineConfig, build_config
from trioserve.errors import StartupError
from trioserve.programs.bench.measuring.report import describe_machine, write_now
from trioserve.programs.bench.measuring.texts import open_chance, write_words

# (tokens, requests of at most so many); see the source above.
Histogram = tuple[tuple[int, int], ...]
PROMPTS: Final[Histogram] = (
    *((2, 0), (5, 22), (10, 191), (20, 511), (50, 825), (100, 997)),
    *((200, 1182), (500, 1748), (1000, 2102), (2000, 2104)),
)
ANSWERS: Final[Histogram] = (
    *((2, 0), (5, 49), (10, 202), (20, 448), (50, 814), (100, 979)),
    *((200, 1266), (500, 1883), (1000, 2095), (2000, 2104)),
)

# The engine runs one half, and the next ones are rendered meanwhile, as in run-batch.
AHEAD = 2

# The last line of run-batch.
CLOSING = re.compile(rb"(\d+) lines, (\d+) of them failed; \d+ in ([\d.]+) s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and the tokens of its answer."""

    prompt: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The prompts and the engine; one field is one option.

    Attributes:
      option: of the engine, by their names in Python.
    """

    model: str = DEFAULT_MODEL
    number: int = 1000
    device: str | None = None
    engine_process: bool = False
    option: dict[str, Any]
    rounds: int = 1
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The options of the engine."""
        # Random words have no prefix in common; a second round would find those of the first.
        options = {"prefix_caching": False, **self.option}
        if self.device is not None:
            options["device"] = self.device
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The tokens of all prompts and answers, and the time that they took."""

    num_in: int
    num_out: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    load: Load
    rounds: dict[str, list[Round]]


# ---- the prompts --------------------------------------------------------------------


def find_length(histogram: Histogram, part: float) -> int:
    """Return the length below which a part of the requests is, from 0 to less than 1."""
    number = part * histogram[-1][1]
    for (low, before), (high, upto) in itertools.pairwise(histogram):
        if number < upto:
            return math.ceil(
                low * (high / low) ** ((number - before) / (upto - before))
            )
    raise ValueError(f"{part} is not less than 1")


def write_requests(number: int, seed: int) -> Iterator[Request]:
    """Write so many requests; the first ones of a seed are the same for each number."""
    chance = open_chance("offline", seed)
    for index in range(number):
        num_words = find_length(PROMPTS, chance.random())
        yield Request(
            prompt=write_words(num_words, "offline", seed, index),
            num_tokens=find_length(ANSWERS, chance.random()),
        )


# ---- in this process ----------------------------------------------------------------


async def run_in_process(load: Load, requests: Sequence[Request]) -> list[Round]:
    """Load the model, and answer all requests in each round.

    Raises:
      StartupError: the model cannot run.
    """
    config = build_config(EngineConfig, {"model": load.model, **load.options})
    num_slots = config.scheduler.max_num_seqs
    async with trioserve.open_engine(config, process=load.engine_process) as engine:
        await answer_all(engine, [Request(prompt="Hello", num_tokens=2)], 1)
        return [
            await answer_all(engine, requests, AHEAD * num_slots)
            for _ in range(load.rounds)
        ]


async def answer_all(
    engine: trioserve.TextEngine, requests: Sequence[Request], num_clients: int
) -> Round:
    """Answer all requests, so many at once."""
    pending = iter(requests)
    num_in = num_out = 0

    async def work() -> None:
        nonlocal num_in, num_out
        for request in pending:
            async with engine.open_completion(
                request.prompt,
                max_tokens=request.num_tokens,
                temperature=0.0,
                ignore_eos=True,
            ) as stream:
                num_in += len(stream.prompts[0].token_ids)
                async for delta in stream:
                    num_out += len(delta.token_ids)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(num_clients):
            nursery.start_soon(work)
    return Round(num_in=num_in, num_out=num_out, seconds=trio.current_time() - began)


# ---- by run-batch -------------------------------------------------------------------


async def run_batches(load: Load, requests: Sequence[Request]) -> list[Round]:
    """Let the command answer a file of the requests in each round.

    Raises:
      ProcessEnded: it has failed.
    """
    with TemporaryDirectory() as folder:
        given = Path(folder, "requests.jsonl")
        given.write_bytes(b"".join(map(write_line, itertools.count(), requests)))
        return [
            await run_batch(load, given, Path(folder, f"answers-{number}.jsonl"))
            for number in range(load.rounds)
        ]


def write_line(number: int, request: Request) -> bytes:
    """Write a request as a line of a batch."""
    body = {
        "prompt": request.prompt,
        "max_tokens": request.num_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    line = {
        "custom_id": str(number),
        "method": "POST",
        "url": "/v1/completions",
        "body": body,
    }
    return msgspec.json.encode(line) + b"\n"


def write_batch_command(load: Load, given: Path, answers: Path) -> list[str]:
    """Write the command that answers a file."""
    command = [sys.executable, "-m", "trioserve", "run-batch", load.model]
    command += ["-i", str(given), "-o", str(answers)]
    options = {**load.options, "engine_process": load.engine_process}
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", str(value)]
    return command


async def run_batch(load: Load, given: Path, answers: Path) -> Round:
    """Let the command answer a file."""
    done = await trio.run_process(
        write_batch_command(load, given, answers),
        capture_stderr=True,
        check=False,
    )
    found = CLOSING.search(done.stderr)
    if done.returncode or found is None or int(found[2]):
        log = done.stderr[-2000:].decode(errors="replace")
        raise ProcessEnded(f"run-batch has failed:\n{log}")
    usages = [read_usage(line) for line in answers.read_bytes().splitlines()]
    return Round(
        num_in=sum(num_in for num_in, _ in usages),
        num_out=sum(num_out for _, num_out in usages),
        seconds=float(found[3]),
    )


def read_usage(line: bytes) -> tuple[int, int]:
    """Return the tokens of an answer's prompt, and its own."""
    usage = msgspec.json.decode(line)["response"]["body"]["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


# ---- a whole run --------------------------------------------------------------------

WAYS: Final[dict[str, Callable[[Load, Sequence[Request]], Awaitable[list[Round]]]]] = {
    "process": run_in_process,
    "run-batch": run_batches,
}


async def measure(load: Load, ways: Sequence[str]) -> Report:
    """Answer the same requests in each way.

    Raises:
      StartupError, ProcessEnded
    """
    machine = describe_machine()
    requests = list(write_requests(load.number, load.seed))
    rounds: dict[str, list[Round]] = {}
    async with stopping_at_sigterm():
        for way in ways:
            tell(f"{way}: {load.number} prompts")
            rounds[way] = await WAYS[way](load, requests)
    return Report(created=write_now(), machine=machine, load=load, rounds=rounds)


def render(report: Report) -> str:
    """Write the report as Markdown: the table, and the run."""
    load = report.load
    plural = "" if load.rounds == 1 else "s"
    options = " ".join(f"{name}={value}" for name, value in load.options.items())
    notes = f"{load.model}, {options}, seed {load.seed}; {load.rounds} round{plural}"
    rows = write_markdown(build_table(report))
    return "\n".join([*rows, "", f"{report.machine}; {report.created}", notes])


def build_table(report: Report) -> Iterator[list[str]]:
    yield [
        *("way", "prompts", "tokens in", "tokens out", "s"),
        *("output tokens/s", "all tokens/s"),
    ]
    for way, rounds in report.rounds.items():
        median = statistics.median(each.seconds for each in rounds)
        first = rounds[0]
        yield [
            *(way, str(report.load.number), str(first.num_in), str(first.num_out)),
            f"{median:.1f}",
            f"{first.num_out / median:.0f}",
            f"{(first.num_in + first.num_out) / median:.0f}",
        ]


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as of trioserve serve")
    parser.add_argument(
        "--number", type=read_positive, default=1000, help="prompts; 1000 by default"
    )
    parser.add_argument(
        "--device", help="as of trioserve serve: cpu, cuda, cuda:1, ..."
    )
    parser.add_argument(
        "--engine-process",
        action="store_true",
        help="run the engine in a process of its own, as trioserve serve does",
    )
    parser.add_argument(
        "--option",
        type=read_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the engine, with underscores: max_num_seqs=256",
    )
    parser.add_argument(
        "--ways",
        type=partial(read_choice, known=tuple(WAYS)),
        default=tuple(WAYS),
        help=",".join(WAYS),
    )
    parser.add_argument("--rounds", type=read_positive, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of prompts and lengths")
    parser.add_argument(
        "--json", type=read_output, metavar="FILE", help="save the result"
    )
    return parser


def main() -> int:
    values = vars(build_parser().parse_args())
    ways, path = values.pop("ways"), values.pop("json")
    load = Load(**{**values, "option": dict(values["option"])})
    return run_and_save(
        lambda: trio.run(measure, load, ways),
        render,
        (StartupError, ProcessEnded),
        path,
    )


if __name__ == "__main__":
    sys.exit(main())
