"""The part of bench/gpu.py that loads a server over HTTP, with chats and documents at once."""

from __future__ import annotations

from pathlib import Path

from kit.gpu_parts import Figures, Load as GpuLoad
from kit.server import open_server, write_serve_command
import trio

from trioserve.programs.bench.generation.figures import Report
from trioserve.programs.bench.generation.load import Load
from trioserve.programs.bench.generation.measure import measure
from trioserve.programs.bench.measuring.measured_servers import read_servers
from trioserve.programs.bench.measuring.statistics import Spread


def measure_streams(folder: Path, load: GpuLoad, **options: str) -> Figures:
    """Measure `trioserve serve`: a quarter of the streams have long prompts.

    Args:
      options: of the server, beside those of the load.
    """
    return trio.run(_measure, folder, load, options)


async def _measure(folder: Path, load: GpuLoad, options: dict[str, str]) -> Figures:
    documents = max(1, load.streams // 4)
    kinds = {
        "chats": (load.streams - documents, load.chats),
        "documents": (documents, load.documents),
    }
    command = write_serve_command(
        str(folder), max_num_seqs=load.streams, no_prefix_caching=True, **options
    )
    figures: Figures = {"streams": {}}
    async with open_server(command) as server, trio.open_nursery() as nursery:

        async def run(name: str, clients: int, sizes: tuple[int, int]) -> None:
            words, tokens = sizes
            report = await measure(
                Load(
                    endpoint="completions",
                    concurrency=(clients,),
                    duration=load.seconds,
                    input_words=words,
                    output_tokens=tokens,
                ),
                read_servers([server.url]),
            )
            figures["streams"][name] = _describe(report, clients)

        for name, (clients, sizes) in kinds.items():
            nursery.start_soon(run, name, clients, sizes)
    return figures


def _describe(report: Report, clients: int) -> Figures:
    (level,) = report.servers[0].levels
    return {
        "clients": clients,
        "requests": level.clients.num_requests,
        "errors": level.clients.num_errors,
        "tokens_per_second": level.tokens_per_second,
        "first_token": _list(level.ttft),
        "between_tokens": _list(level.itl),
        "health": _list(level.health),
        "doubts": list(level.list_doubts()),
    }


def _list(spread: Spread | None) -> list[float] | None:
    """Return the median and the 99th percentile, in seconds."""
    return None if spread is None else [spread.median, spread.p99]
