"""`trioserve bench serve` and `trioserve bench throughput`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from ...errors import InvalidConfig
from ..command import Command, importing, name_model, write_output

if TYPE_CHECKING:
    from ...config.flags import CommandLine

_SERVE_DESCRIPTION = """\
Measure running servers with OpenAI's API under a load of streamed answers: a closed
loop of clients, or requests that arrive at a rate. For example:

  trioserve bench serve --url http://127.0.0.1:8000 --concurrency 1 16 64
  trioserve bench serve --url http://127.0.0.1:8000 --request-rate 1 2 4 --plot load.png
  trioserve bench serve --url a=http://127.0.0.1:8000 b=http://127.0.0.1:8001 --rounds 3
  trioserve bench serve --compare monday.json tuesday.json

"""

_THROUGHPUT_DESCRIPTION = """\
Load MODEL, give it requests directly, without HTTP, and count requests and tokens a
second. For example:

  trioserve bench throughput
  trioserve bench throughput Qwen/Qwen3-0.6B --requests 256 --output-tokens 128

"""


def _run_serve(line: CommandLine) -> int:
    from ...config import build_config
    from ..bench.command import run_bench_serve
    from ..bench.config import BenchServeConfig

    if {"concurrency", "request_rate"} <= line.values.keys():
        reason = "and --request-rate exclude each other: clients, or a rate"
        raise InvalidConfig("concurrency", reason)
    return run_bench_serve(build_config(BenchServeConfig, line.values), write_output)


def _run_throughput(line: CommandLine) -> int:
    from ...config import build_config
    from ...startup.log_lines import set_up_logging
    from ..bench.throughput import ThroughputConfig, measure_throughput

    config = build_config(ThroughputConfig, line.values | name_model(line))
    set_up_logging("WARNING")
    import trio

    from ...processes.interpreter import prepare_interpreter

    prepare_interpreter()
    return write_output(trio.run(measure_throughput, config).describe())


BENCH_SERVE: Final = Command(
    name="bench serve",
    synopsis="--url URL [options]",
    usage="--url URL",
    summary="measure running servers under load",
    description=_SERVE_DESCRIPTION,
    load_config=importing("..bench.config", "BenchServeConfig"),
    run=_run_serve,
)

BENCH_THROUGHPUT: Final = Command(
    name="bench throughput",
    synopsis="[MODEL] [options]",
    usage="[MODEL]",
    summary="measure an engine without HTTP",
    description=_THROUGHPUT_DESCRIPTION,
    load_config=importing("..bench.throughput", "ThroughputConfig"),
    run=_run_throughput,
    # name_model names all words if there are several.
    max_words=sys.maxsize,
)
