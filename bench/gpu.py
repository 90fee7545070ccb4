"""How near does the engine come to what a GPU can do?

Question
  A decode reads all weights once, so the bandwidth of the memory bounds it; a long prompt
  or a large batch is bound by the rate of matrix products. Which share of these bounds does
  a step reach, with each kind of kernels and attention, and how does transformers' own
  generate() (the variant generate) compare in the same run?

      python bench/gpu.py --json gpu.json
      python bench/gpu.py --shapes 1B --minutes 4

Machine
  One GPU with nothing else on it, and for the shape 8B 40 GB of memory and 20 GB of disk in
  --folder. It needs no network, and trioserve need not be installed: PYTHONPATH may name a
  checkout. Without a GPU it measures a tiny model on the CPU, which tests this script and
  says nothing about trioserve.

How to read it
  Models have random weights, in bfloat16. First come the rates of the device itself: a copy
  in memory, and a product of two matrices of 8192 x 8192. Then, for each variant,

  decode N    time of one step of N sequences: answers of two lengths, subtracted
  prefill N   time to the first token of a prompt of N tokens
  share       the least time that the two rates allow, over the measured time

  The tests that need a GPU come last. A part that fails or exceeds its time says so, and the next one goes on. The JSON file is
  written after each part. Aims: decode 1 at 85 %, decode 256 and prefill at 60 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import json
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory
import time
from typing import Any

from kit.gpu_parts import SHAPES, run_part
from kit.options import make_parser, read_choice, read_output, read_positive
from kit.process import BENCH_FOLDER, find_on_path, tell
import torch

Figures = dict[str, Any]

# Name of a variant -> what differs from the default options.
VARIANTS: dict[str, Figures] = {
    "generate": {},
    "native": {},
    "native-no-graphs": {"cuda_graphs": False},
    "native-depth-1": {"async_scheduling": False},
    "triton": {"kernels": "torch", "attention_backend": "triton"},
    "varlen": {"kernels": "torch", "attention_backend": "varlen"},
    "gather": {"kernels": "torch", "attention_backend": "gather"},
}
CPU_VARIANTS = ("generate", "native", "gather")

# A decode or prefill -> the least share that is aimed at.
AIMS = {"decode 1": 0.85, "decode 256": 0.6, "prefill 2048": 0.6, "prefill 16384": 0.6}


class Run:
    """All results so far, written after each part.

    Args:
      path: of the JSON file; None writes none.
      ends_at: no part begins after it, by time.monotonic().
    """

    def __init__(self, path: Path | None, ends_at: float) -> None:
        self.results: Figures = {"parts": {}, "failures": {}}
        self._path = path
        self._ends_at = ends_at

    def part(
        self, title: str, name: str, shape: str, folder: Path, **fields: Any
    ) -> bool:
        """Run a part in a process of its own; return whether it has succeeded."""
        left = self._ends_at - time.monotonic()
        tell(f"{title} ...")
        command = [sys.executable, __file__, "--part", name, "--shapes", shape]
        command += ["--folder", str(folder), "--fields", json.dumps(fields)]
        try:
            done = subprocess.run(
                command,
                timeout=max(1.0, left),
                env=find_on_path(BENCH_FOLDER.parent),
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise ValueError(_find_last_line(done.stderr))
            self.results["parts"][title] = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            self.results["failures"][title] = "its time was over"
        except (ValueError, IndexError) as error:
            self.results["failures"][title] = str(error)
        if self._path is not None:
            self._path.write_text(json.dumps(self.results, indent=1))
        return title not in self.results["failures"]


def _find_last_line(text: str) -> str:
    return next(
        (line for line in reversed(text.splitlines()) if line.strip()), "no word"
    )


def measure(
    run: Run, shapes: Sequence[str], variants: Sequence[str], folder: Path
) -> None:
    run.part("rates", "rates", shapes[0], folder)
    for shape in shapes:
        model = folder / shape
        if not run.part(f"{shape}: model", "model", shape, model):
            continue
        for name in variants:
            part = "generate" if name == "generate" else "engine"
            run.part(f"{shape}: {name}", part, shape, model, **VARIANTS[name])
    if torch.cuda.is_available():
        run.part("tests", "tests", shapes[0], folder)


def list_rows(results: Figures) -> Iterator[tuple[str, str, float, float]]:
    """Yield a variant, a decode or prefill, its seconds, and its share of the bound."""
    parts = results["parts"]
    rates = parts.get("rates")
    for title, figures in parts.items():
        shape = title.partition(":")[0]
        if "decode" not in figures or rates is None:
            continue
        model = parts[f"{shape}: model"]
        for kind in ("decode", "prefill"):
            for count, seconds in figures[kind].items():
                bound = find_bound(kind, int(count), SHAPES[shape], model, rates)
                yield title, f"{kind} {count}", seconds, bound / seconds


def find_bound(
    kind: str, count: int, shape: dict[str, int], model: Figures, rates: Figures
) -> float:
    """Return the least seconds of a decode of `count` sequences, or a prompt of as many."""
    read = 2 * model["read_in_a_step"] / rates["bytes_per_second"]
    flops = 2.0 * count * model["read_in_a_step"]
    if kind == "prefill":
        # Only the last token has logits, and a token sees half of the others.
        hidden, vocabulary = shape["hidden_size"], shape["vocab_size"]
        flops -= 2.0 * (count - 1) * hidden * vocabulary
        flops += 2.0 * shape["num_hidden_layers"] * hidden * count**2
    return max(read, flops / rates["flops_per_second"])


def report(results: Figures) -> list[str]:
    lines = []
    if rates := results["parts"].get("rates"):
        lines.append(
            f"{rates['device']}, torch {rates['torch']}: "
            f"{rates['bytes_per_second'] / 1e9:.0f} GB/s, "
            f"{rates['flops_per_second'] / 1e12:.1f} TFLOP/s"
        )
    for title, work, seconds, share in list_rows(results):
        aim = AIMS.get(work) if title.endswith(": native") else None
        verdict = "" if aim is None else "  reached" if share >= aim else "  missed"
        lines.append(
            f"{title:30}{work:>15}{1e3 * seconds:10.3f} ms{share:8.1%}{verdict}"
        )
    if tests := results["parts"].get("tests"):
        lines.append(f"tests that need a GPU: {tests['summary']}")
    lines += [f"{title}: {reason}" for title, reason in results["failures"].items()]
    return lines


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--shapes",
        type=lambda text: read_choice(text, list(SHAPES)),
        default=("1B", "8B") if torch.cuda.is_available() else ("tiny",),
    )
    parser.add_argument(
        "--variants",
        type=lambda text: read_choice(text, list(VARIANTS)),
        default=tuple(VARIANTS) if torch.cuda.is_available() else CPU_VARIANTS,
    )
    parser.add_argument("--minutes", type=read_positive, default=8)
    parser.add_argument(
        "--folder", type=Path, help="of the models; by default temporary"
    )
    parser.add_argument("--json", type=read_output, metavar="FILE")
    # For the processes that this file starts itself.
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--fields", type=json.loads, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = build_parser().parse_args(arguments)
    if options.part is not None:
        run_part(options.part, options.shapes[0], options.folder, options.fields)
        return
    run = Run(options.json, time.monotonic() + 60 * options.minutes)
    with TemporaryDirectory(dir=options.folder) as folder:
        measure(run, options.shapes, options.variants, Path(folder))
    print("\n".join(report(run.results)))


if __name__ == "__main__":
    main()
