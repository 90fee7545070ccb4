"""How many tokens a second does this machine allow, by our own kernels?

Question
  A step of a decoder cannot be faster than its matrix products and one read of the KV
  cache. How long do these take by trioserve's kernels, in each format of weights? How
  many output tokens a second would a server make of them if everything else were free:
  attention's arithmetic, norms, sampling, Python, HTTP?

      python bench/limit.py
      python bench/limit.py --formats float32,int8 --clients 1,16,64 --json limit.json
      python bench/limit.py --model FOLDER
      python bench/limit.py --instructions avx512_bf16    a machine with AMX, without tiles

Machine
  A CPU that the kernels run on, with g++; the report names it. Run it alone. The kernels
  are compiled with the flags of an installation. Weights are random; they take as much
  time as real ones.

How to read the answer
  MB, read ms    the packed weights, and the time in which all threads read them once.
  products ms    of all products of one step with so many rows, the head included.
  prompt ms      a token of a prompt: a 512th of the products of 512 rows without the
                 head, which only the last token of a prompt needs.
  attention ms   of all tokens of a prompt of 512 in all layers. It is no part of the
                 bound, and grows with the square of longer prompts.
  KV ms          reading the cache of one client once in the middle of its answer, at
                 the highest speed at which any of the weights were read.
  tokens/s       the bound. N clients send a prompt at once, and each gets all of its
                 tokens. That takes

                     N * prompt tokens * prompt ms
                     + output tokens * (products ms with N rows + N * KV ms)

                 A server that batches prompts of one client with tokens of others does
                 the same work, so the bound holds for it, too. It does not if prompts
                 share a prefix that is cached.
  Each time is the least of the rounds; the formats take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
import json
from pathlib import Path
import subprocess

from kit.options import make_parser, read_choice, read_output, read_positive
from kit.process import tell
from kit.products import FORMATS, Products, Shape, open_kernels, open_products
from kit.rounds import take_turns
from kit.runs import run_and_save
from kit.tables import write_markdown, write_number
import torch

from trioserve.kernels.library import NoKernels, find_instruction_sets
from trioserve.kernels.threads import count_threads
from trioserve.programs.bench.measuring.report import describe_machine, write_now
from trioserve.programs.bench.measuring.table import write_milliseconds

PROMPT_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests that the bounds are for; one field is one option.

    Attributes:
      prompt_tokens: 128 words and the template of SmolLM2.
    """

    clients: tuple[int, ...] = (1, 16, 64)
    prompt_tokens: int = 170
    output_tokens: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The times of one format in seconds, and the bounds in tokens per second.

    Attributes:
      products: number of rows -> seconds.
      attention: of the tokens of one prompt.
      kv: of one client.
      tokens_per_second: number of clients -> bound.
    """

    format: str
    num_bytes: int
    read: float
    products: dict[int, float]
    prompt_token: float
    attention: float
    kv: float
    tokens_per_second: dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    instructions: str
    num_threads: int
    shape: Shape
    load: Load
    num_rounds: int
    limits: tuple[Limit, ...]


def measure(
    load: Load,
    shape: Shape,
    formats: Sequence[str],
    num_threads: int,
    num_rounds: int,
    instructions: str | None = None,
) -> Report:
    """Measure all formats in turns.

    Args:
      instructions: as open_kernels.

    Raises:
      NoKernels, OSError, subprocess.CalledProcessError: the kernels cannot be compiled.
    """
    machine = describe_machine()
    tell("compiling the kernels")
    with open_kernels(instructions) as kernels:
        tell("packing weights")
        with open_products(kernels, num_threads, shape, formats) as products:
            times = take_turns(num_rounds, dict(list_calls(products, load)))
            sizes = {name: each.num_bytes for name, each in products.items()}
    least = {name: min(seconds) for name, seconds in times.items()}
    fastest = max(sizes[name] / least[f"{name} read"] for name in formats)
    return Report(
        created=write_now(),
        machine=machine,
        instructions=kernels.name,
        num_threads=num_threads,
        shape=shape,
        load=load,
        num_rounds=num_rounds,
        limits=tuple(
            find_limit(name, sizes[name], least, fastest, shape, load)
            for name in formats
        ),
    )


def list_calls(
    products: dict[str, Products], load: Load
) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yield (format and name of a time, the call that measures it)."""
    for name, each in products.items():
        yield f"{name} read", each.read
        yield f"{name} prompt", partial(each.multiply, PROMPT_ROWS, head=False)
        yield f"{name} attention", partial(each.attend, PROMPT_ROWS)
        for num_rows in list_rows(load):
            call = partial(each.multiply, num_rows, head=True)
            yield f"{name} {num_rows}", call


def list_rows(load: Load) -> list[int]:
    """List the numbers of rows whose products are shown."""
    return sorted({*load.clients, PROMPT_ROWS})


def find_limit(
    format: str,
    num_bytes: int,
    least: dict[str, float],
    bytes_per_second: float,
    shape: Shape,
    load: Load,
) -> Limit:
    """Compute the bounds of one format from its times."""
    products = {rows: least[f"{format} {rows}"] for rows in list_rows(load)}
    prompt_token = least[f"{format} prompt"] / PROMPT_ROWS
    # In the middle of an answer, its cache holds the prompt and half of the answer.
    context = load.prompt_tokens + load.output_tokens / 2
    kv_bytes = context * shape.kv_numbers * FORMATS[format][0].itemsize
    kv = kv_bytes / bytes_per_second
    return Limit(
        format=format,
        num_bytes=num_bytes,
        read=least[f"{format} read"],
        products=products,
        prompt_token=prompt_token,
        attention=least[f"{format} attention"],
        kv=kv,
        tokens_per_second={
            clients: find_bound(
                clients, products[clients] + clients * kv, load, prompt_token
            )
            for clients in load.clients
        },
    )


def find_bound(clients: int, step: float, load: Load, prompt_token: float) -> float:
    """Divide the tokens of one request of each client by the time of their steps."""
    prompts = clients * load.prompt_tokens * prompt_token
    return clients * load.output_tokens / (prompts + load.output_tokens * step)


# ---- the table ----------------------------------------------------------------------


def render(report: Report) -> str:
    """Write the report as Markdown: the table, and notes."""
    return "\n".join([*write_markdown(build_table(report)), "", *write_notes(report)])


def build_table(report: Report) -> Iterator[list[str]]:
    """Lay out a row for each format."""
    rows, clients = list_rows(report.load), report.load.clients
    yield [
        *("format", "MB", "read ms", "GB/s"),
        f"products ms: {' / '.join(map(str, rows))} rows",
        *("prompt ms", "attention ms", "KV ms"),
        f"tokens/s: {' / '.join(map(str, clients))} clients",
    ]
    for limit in report.limits:
        speeds = (limit.tokens_per_second[each] for each in clients)
        yield [
            limit.format,
            f"{limit.num_bytes / 1e6:.0f}",
            write_milliseconds(limit.read),
            write_number(limit.num_bytes / limit.read / 1e9),
            " / ".join(write_milliseconds(limit.products[each]) for each in rows),
            write_milliseconds(limit.prompt_token),
            write_milliseconds(limit.attention),
            write_milliseconds(limit.kv),
            " / ".join(map(write_number, speeds)),
        ]


def write_notes(report: Report) -> Iterator[str]:
    """Describe the run."""
    load = report.load
    yield f"{report.machine}; {report.instructions}; {report.created}"
    yield (
        f"{report.num_threads} threads, the least of {report.num_rounds} rounds; "
        f"{load.prompt_tokens} tokens in, {load.output_tokens} out"
    )


# ---- the command line ---------------------------------------------------------------


def read_shape(folder: Path) -> Shape:
    """Read the sizes of a decoder from its folder.

    Raises:
      OSError, ValueError: the folder has no config.json of a decoder.
    """
    config = json.loads((folder / "config.json").read_text())
    try:
        num_heads = config["num_attention_heads"]
        return Shape(
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
            vocab_size=config["vocab_size"],
        )
    except KeyError as error:
        raise ValueError(f"{folder} is not a decoder: it has no {error}") from error


def read_clients(text: str) -> tuple[int, ...]:
    """Read 1,16,64."""
    return tuple(map(read_positive, text.split(",")))


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    load = Load()
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--model", type=Path, help="a folder with config.json; default: SmolLM2-135M")
    known = tuple(FORMATS)
    add("--formats", type=partial(read_choice, known=known), default=known)
    add(
        "--instructions",
        choices=find_instruction_sets(),
        help="the set that the kernels use; default: the best of this machine",
    )
    add("--clients", type=read_clients, default=load.clients, metavar="1,16,64")
    add("--prompt-tokens", type=read_positive, default=load.prompt_tokens)
    add("--output-tokens", type=read_positive, default=load.output_tokens)
    add("--threads", type=read_positive, default=count_threads())
    add("--rounds", type=read_positive, default=10)
    add("--quick", action="store_true", help="two rounds, to check that it works")
    add("--json", type=read_output, metavar="FILE", help="save the result")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Report:
    """Run the bench as the options say.

    Raises:
      OSError, ValueError, NoKernels, subprocess.CalledProcessError: it cannot be run.
    """
    load = Load(
        clients=options.clients,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
    )
    shape = read_shape(options.model) if options.model else Shape()
    # Torch only draws the weights here.
    torch.set_num_threads(options.threads)
    rounds = 2 if options.quick else options.rounds
    return measure(
        load, shape, options.formats, options.threads, rounds, options.instructions
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse_arguments(arguments)
    expected = (OSError, ValueError, NoKernels, subprocess.CalledProcessError)
    return run_and_save(partial(run, options), render, expected, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
