"""How near does the engine come to what a GPU can do?

Question
  A decode reads all weights once, so the bandwidth of the memory bounds it; a long prompt
  or a large batch is bound by the rate of matrix products. Which share of these bounds does
  a step reach, with each kind of kernels and attention? How do transformers' own generate()
  and its continuous batching compare in the same run? How does a server do with 128 streams
  over HTTP, and how long is the device idle meanwhile?

      python bench/gpu.py --json gpu.json --plot gpu.png
      python bench/gpu.py --shapes 1B --minutes 4
      python bench/gpu.py --shapes Qwen3.5-0.8B,Qwen3.5-9B --minutes 10
      python bench/gpu.py --shapes 8B --variants native-long --kv-cache-dtype int8
      python bench/gpu.py --shapes 8B --variants native,native-int8,native-fp8,native-int4
      python bench/gpu.py --shapes 2B-A0.4B,15B-A2B --minutes 8

Machine
  One GPU with nothing else on it, and for the shapes 8B and Qwen3.5-9B 40 GB of memory and
  20 GB of disk in --folder each; for 15B-A2B, which is half of Qwen3-30B-A3B's layers, 60 and
  35 GB. It needs no network, and trioserve need not be installed: PYTHONPATH may name a
  checkout. Without a GPU it measures a tiny model on the CPU, which tests this script and
  says nothing about trioserve.

How to read it
  Models have random weights, in bfloat16. First come the rates of the device itself: a copy
  in memory, and a product of two matrices of 8192 x 8192. Then, for each variant,

  decode N    time of one step of N sequences: answers of two lengths, subtracted; of
              transformers' continuous batching, the times of its tokens
  prefill N   time to the first token of a prompt of N tokens, the least of three
  share       the least time that the two rates allow, over the measured time. A decode reads
              the weights, of experts those that tokens choose by chance, and reads and writes
              the states of each sequence
  long N      the same as decode N behind long prompts, if native-long is asked for; it reads
              the keys and values of each sequence, too
  drawn       the same with temperature and top-p
  int8, fp8, int4
              the same with weights in fewer bits, if they are asked for; the share is that of
              the bound of bfloat16, so it may be above 100 %
  sampling    time of the choice of tokens alone, by the kernels and by torch, of peaked and of
              flat logits; a line says where tokens differ from a CPU's tokens
  idle        share of the time in which the device does nothing, with 128 streams in the
              engine's process, by torch's profiler
  streams     chats and documents at once over HTTP: tokens a second, and medians and 99th
              percentiles of the times to the first token and between tokens

  The tests that need a GPU come last. Each part has its own time (SECONDS), and all together
  have --minutes. A part that fails says so; one whose time is over says so, and its figures
  until then count. The JSON file is written after each part. Aims: decode 1 at 85 %, decode
  256 and prefill at 60 %, idle below 3 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
import json
import math
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory
import time
from typing import Any

from kit.gpu_parts import SHAPES, count_attention, find_load, run_part
from kit.options import add_outputs, make_parser, read_choice, read_positive
from kit.process import BENCH_FOLDER, find_on_path, tell
import torch

Figures = dict[str, Any]

# Name of a variant -> the part that measures it, and its fields. Engines differ from the
# default options.
VARIANTS: dict[str, tuple[str, Figures]] = {
    "native": ("engine", {"idle": True}),
    "streams": ("streams", {}),
    "batching": ("transformers", {"batching": True}),
    "generate": ("transformers", {"batching": False}),
    "native-drawn": (
        "engine",
        # At this temperature, random weights give a nucleus of some ten tokens.
        {"sampling": {"temperature": 0.3, "top_p": 0.95}},
    ),
    "sampling": ("sampling", {}),
    "native-long": ("engine", {"is_long": True}),
    "native-int8": ("engine", {"quantization": "int8"}),
    "native-fp8": ("engine", {"quantization": "fp8"}),
    "native-int4": ("engine", {"int4": True}),
    "native-no-graphs": ("engine", {"cuda_graphs": False}),
    "native-depth-1": ("engine", {"async_scheduling": False}),
    "triton": ("engine", {"kernels": "torch", "attention_backend": "triton"}),
    "varlen": (
        "engine",
        {"kernels": "torch", "attention_backend": "varlen"},
    ),
    "gather": (
        "engine",
        {"kernels": "torch", "attention_backend": "gather", "idle": True},
    ),
}
# They run if --variants names them.
ASKED = {"native-long", "native-int8", "native-fp8", "native-int4"}
# Of this project, so that --kv-cache-dtype is for them.
OURS = {"engine", "streams"}

# The seconds of each part: on an H100, most took three quarters of them or less. The aims are
# about the large model, so it comes first; the small one shows what the host costs.
SECONDS: dict[str, dict[str, int]] = {
    "8B": {
        "model": 35,
        "native": 50,
        # Not measured yet.
        "native-long": 150,
        "native-int8": 60,
        "native-fp8": 60,
        "native-int4": 90,
        "native-drawn": 40,
        "sampling": 25,
        "streams": 45,
        "batching": 45,
        "generate": 40,
    },
    "1B": {
        "model": 15,
        "native": 28,
        "native-long": 60,
        "native-no-graphs": 25,
        "native-depth-1": 25,
        "triton": 22,
        "varlen": 22,
        "gather": 25,
    },
    # Not measured yet. transformers' continuous batching knows no states.
    "Qwen3.5-0.8B": {
        "model": 15,
        "native": 40,
        "native-no-graphs": 25,
        "native-depth-1": 25,
        "streams": 45,
        "generate": 60,
        "gather": 60,
    },
    "Qwen3.5-9B": {
        "model": 40,
        "native": 60,
        "streams": 45,
        "generate": 60,
    },
    # Not measured yet, with experts.
    "2B-A0.4B": {
        "model": 20,
        "native": 40,
        "native-no-graphs": 30,
        "streams": 45,
        "generate": 60,
        "triton": 40,
    },
    "15B-A2B": {
        "model": 60,
        "native": 80,
        "streams": 60,
        "generate": 80,
    },
    "tiny-experts": {"model": 60, "native": 60},
    "tiny-hybrid": {"model": 60, "native": 60},
    "tiny": {
        "model": 60,
        "native": 60,
        "native-long": 60,
        "native-int8": 60,
        "native-int4": 60,
        "native-drawn": 60,
        "sampling": 60,
        "streams": 60,
        "batching": 60,
        "generate": 60,
        "gather": 60,
    },
}
# The tests have at least so many of the default nine minutes.
RATES_SECONDS, TESTS_SECONDS = 10, 70

# A decode or prefill -> the least share that is aimed at; and the largest idle share.
AIMS = {"decode 1": 0.85, "decode 256": 0.6, "prefill 2048": 0.6, "prefill 16384": 0.6}
IDLE_AIM = 0.03

# Measures a part within so many seconds: the figures, and why there are no more of them.
Measure = Callable[[str, str, Path, Figures, float], tuple[Figures | None, str | None]]


def measure_apart(
    name: str, shape: str, folder: Path, fields: Figures, seconds: float
) -> tuple[Figures | None, str | None]:
    """Measure a part in a process of its own."""
    command = [sys.executable, __file__, "--part", name, "--shapes", shape]
    command += ["--folder", str(folder), "--fields", json.dumps(fields)]
    environment = find_on_path(BENCH_FOLDER.parent)
    try:
        done = subprocess.run(
            command, timeout=seconds, env=environment, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired as error:
        # These are bytes, whatever `text` says.
        output = (error.stdout or b"").decode(errors="replace")
        return read_figures(output), f"its {seconds:.0f} seconds were over"
    reason = _find_last_line(done.stderr) if done.returncode else None
    return read_figures(done.stdout), reason


def read_figures(output: str) -> Figures | None:
    """Return the last figures that a part has printed; a last line may be cut."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                figures: Figures = json.loads(line)
            except ValueError:
                continue
            return figures
    return None


def _find_last_line(text: str) -> str:
    return next(
        (line for line in reversed(text.splitlines()) if line.strip()), "no word"
    )


class Run:
    """All results so far, written after each part.

    Args:
      path: of the JSON file; None writes none.
      ends_at: no part goes on after it, by time.monotonic().
    """

    def __init__(
        self, path: Path | None, ends_at: float, measure: Measure = measure_apart
    ) -> None:
        self.results: Figures = {"parts": {}, "failures": {}, "seconds": {}}
        self._path = path
        self._ends_at = ends_at
        self._measure = measure

    def part(
        self,
        title: str,
        name: str,
        shape: str,
        folder: Path,
        seconds: float,
        fields: Figures,
    ) -> bool:
        """Run a part; return whether it has all its figures.

        Args:
          seconds: its time.
        """
        began = time.monotonic()
        left = self._ends_at - began
        figures: Figures | None = None
        failure: str | None = "no time was left"
        if left > 1:
            tell(f"{title} ...")
            figures, failure = self._measure(
                name, shape, folder, fields, min(seconds, left)
            )
            self.results["seconds"][title] = time.monotonic() - began
        if figures is None and failure is None:
            failure = "it has no figures"
        if figures is not None:
            self.results["parts"][title] = figures
        if failure is not None:
            self.results["failures"][title] = failure
        if self._path is not None:
            self._path.write_text(json.dumps(self.results, indent=1))
        return failure is None


def measure(
    run: Run,
    shapes: Sequence[str],
    variants: Sequence[str],
    folder: Path,
    kv_cache_dtype: str = "auto",
) -> None:
    run.part("rates", "rates", shapes[0], folder, RATES_SECONDS, {})
    for shape in shapes:
        model, seconds = folder / shape, SECONDS[shape]
        title = f"{shape}: model"
        if not run.part(title, "model", shape, model, seconds["model"], {}):
            continue
        for name in variants:
            if name in seconds:
                part, fields = VARIANTS[name]
                title = f"{shape}: {name}"
                if part in OURS and kv_cache_dtype != "auto":
                    fields = {**fields, "kv_cache_dtype": kv_cache_dtype}
                    title += f" ({kv_cache_dtype})"
                run.part(title, part, shape, model, seconds[name], fields)
    if torch.cuda.is_available():
        # They are last, so they have all the time that is left.
        run.part("tests", "tests", shapes[0], folder, math.inf, {})


def list_rows(results: Figures) -> Iterator[tuple[str, str, float, float]]:
    """Yield a variant, a decode or prefill, its seconds, and its share of the bound."""
    parts = results["parts"]
    rates = parts.get("rates")
    for title, figures in parts.items():
        shape = title.partition(":")[0]
        if rates is None:
            continue
        for kind in ("decode", "prefill", "long"):
            for count, seconds in figures.get(kind, {}).items():
                model = parts[f"{shape}: model"]
                kv_bytes = 0
                if kind == "long":
                    context = find_load(shape).contexts[int(count)]
                    kv_bytes = context * figures["kv_bytes"]
                bound = find_bound(kind, int(count), shape, model, rates, kv_bytes)
                yield title, f"{kind} {count}", seconds, bound / seconds


def find_bound(
    kind: str,
    count: int,
    shape: str,
    model: Figures,
    rates: Figures,
    kv_bytes: int = 0,
) -> float:
    """Return the least seconds of a decode of `count` sequences, or a prompt of as many.

    Args:
      kv_bytes: of keys and values that each sequence of a decode reads, if they are many.
    """
    fields, experts = SHAPES[shape], model["experts"]
    used = fields["num_experts_per_tok"] / fields["num_experts"] if experts else 1.0
    # Experts that no token chooses are not read, if all are chosen equally often.
    num_bytes = 2 * (model["read_in_a_step"] - experts * (1 - used) ** count)
    if kind != "prefill":
        num_bytes += count * (2 * model["state_bytes"] + kv_bytes)
    read = num_bytes / rates["bytes_per_second"]
    flops = 2.0 * count * (model["read_in_a_step"] - experts * (1 - used))
    if kind == "prefill":
        # Only the last token has logits, and a token sees half of the others.
        flops -= 2.0 * (count - 1) * fields["hidden_size"] * fields["vocab_size"]
        width = fields["num_attention_heads"] * fields.get(
            "head_dim", fields["hidden_size"] // fields["num_attention_heads"]
        )
        flops += 2.0 * count_attention(shape) * width * count**2
    return max(read, flops / rates["flops_per_second"])


def report(results: Figures) -> list[str]:
    lines = []
    if rates := results["parts"].get("rates"):
        lines.append(describe_rates(rates))
    for title, work, seconds, share in list_rows(results):
        aim = AIMS.get(work) if title.endswith(": native") else None
        verdict = "" if aim is None else "  reached" if share >= aim else "  missed"
        lines.append(
            f"{title:30}{work:>15}{1e3 * seconds:10.3f} ms{share:8.1%}{verdict}"
        )
    for title, figures in results["parts"].items():
        if "idle" in figures:
            idle = figures["idle"]
            verdict = "reached" if idle < IDLE_AIM else "missed"
            verdict = f"  {verdict}" if title.endswith(": native") else ""
            lines.append(f"{title:30}{'idle':>15}{idle:21.1%}{verdict}")
        for kind, level in figures.get("streams", {}).items():
            lines.append(f"{title:30}{kind:>15}  {describe_streams(level)}")
        lines += [f"{title}: {line}" for line in describe_sampling(figures)]
    if tests := results["parts"].get("tests"):
        lines.append(f"tests that need a GPU: {tests['summary']}")
        lines += [f"    {name}" for name in tests["failed"]]
    lines += [f"{title}: {reason}" for title, reason in results["failures"].items()]
    return lines


def describe_rates(rates: Figures) -> str:
    return (
        f"{rates['device']}, torch {rates['torch']}: "
        f"{rates['bytes_per_second'] / 1e9:.0f} GB/s, "
        f"{rates['flops_per_second'] / 1e12:.1f} TFLOP/s"
    )


def describe_streams(level: Figures) -> str:
    """Describe the streams of one kind in one line; times are median / 99th percentile."""
    times = [
        f"{name.replace('_', ' ')} "
        + (
            "-"
            if level[name] is None
            else "{:.0f} / {:.0f} ms".format(*(1e3 * each for each in level[name]))
        )
        for name in ("first_token", "between_tokens", "health")
    ]
    failed = f", {level['errors']} failed" if level["errors"] else ""
    return (
        f"{level['clients']} streams: {level['tokens_per_second']:.0f} tokens/s, "
        + ", ".join(times)
        + failed
    )


def describe_sampling(figures: Figures) -> Iterator[str]:
    """Yield a line for each sampling and number of rows; none for other parts."""
    for kind, tables in figures.get("sampling", {}).items():
        for name, rows in tables.items():
            for rival, (wrong, all_rows) in figures["different"][kind][name].items():
                if wrong:
                    yield f"{rival}, {kind}, {name}: {wrong} of {all_rows} differ"
            for count, times in rows.items():
                each = (
                    f"{rival} {1e3 * whole:.3f}"
                    + ("" if own is None else f" ({1e3 * own:.3f} on the device)")
                    for rival, (whole, own) in times.items()
                )
                yield f"{kind}, {name}, {count} rows, ms: {', '.join(each)}"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    on_gpu = torch.cuda.is_available()
    parser.add_argument(
        "--shapes",
        type=lambda text: read_choice(text, list(SHAPES)),
        default=("8B", "1B") if on_gpu else ("tiny",),
    )
    parser.add_argument(
        "--variants",
        type=lambda text: read_choice(text, list(VARIANTS)),
        default=tuple(name for name in VARIANTS if name not in ASKED),
        help="of those that a shape has (SECONDS); by default all but "
        + ", ".join(ASKED),
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "int8"),
        default="auto",
        help="type of keys and values of our engine",
    )
    parser.add_argument("--minutes", type=read_positive, default=9)
    parser.add_argument(
        "--folder", type=Path, help="of the models; by default temporary"
    )
    add_outputs(parser)
    # For the processes that this file starts itself.
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--fields", type=json.loads, help=argparse.SUPPRESS)
    return parser


def print_figures(figures: Figures) -> None:
    print(json.dumps(figures), flush=True)


def main(
    arguments: Sequence[str] | None = None, measure_part: Measure = measure_apart
) -> None:
    options = build_parser().parse_args(arguments)
    if options.part is not None:
        run_part(
            *(options.part, options.shapes[0], options.folder, options.fields),
            print_figures,
        )
        return
    run = Run(options.json, time.monotonic() + 60 * options.minutes, measure_part)
    with TemporaryDirectory(dir=options.folder) as folder:
        measure(
            *(run, options.shapes, options.variants, Path(folder)),
            options.kv_cache_dtype,
        )
    print("\n".join(report(run.results)))
    if options.plot is not None:
        from kit.gpu_plot import save_plot

        save_plot(run.results, list(list_rows(run.results)), {**AIMS}, options.plot)


if __name__ == "__main__":
    main()
