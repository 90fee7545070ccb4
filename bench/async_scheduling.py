"""What does it bring to plan the next step while the device is at this one?

Question
  With one step in flight the device waits while the host takes in what a step gave,
  plans the next and hands tokens out. With two (--async-scheduling) the next lies ready.
  How long does the device wait for each step, and what is gained and lost by it?

Machine
  Any; run it alone.

How to read it
  device   an executor without a model, whose steps take as long as a GPU's. 128 streams
           are read by 128 tasks ("tokens"), which also turn them into text ("text").
           idle: what the device waited for each step, a mean, for it adds up. rate:
           tokens a second, of those that steps of this length could give at most.
           The loop, the readers and the device's clock share one thread.
  model    a real model on the CPU, opened twice, without HTTP: tokens a second, median
           milliseconds to the first token and between tokens.
  Both depths take turns; figures are medians of the rounds.

    python bench/async_scheduling.py [--rounds 5] [--clients 1 16 64] [--json out.json]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
import gc
import json
from pathlib import Path
import statistics
import sys
from tempfile import TemporaryDirectory

import trio

import trioserve
from trioserve.config import MediaConfig, RenderConfig
from trioserve.engine import Engine, LocalCore
from trioserve.frontend.text import TextEngine, TextParams
from trioserve.render import load_renderer
from trioserve.scheduler import Scheduler
from trioserve.testing.fake_device import FakeExecutor, make_info
from trioserve.testing.tokenizer import tiny_tokenizer
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

NUM_STREAMS = 128
STEP_SECONDS = (0.002, 0.005, 0.01, 0.02)
DEPTHS = (1, 2)
PROMPT_TOKENS = 16
_TOKEN = (65,)


@dataclass(frozen=True)
class DeviceFigures:
    """Of one round with an executor that has no model.

    Args:
      idle_ms: what the device waited for a step, on average.
      share: of the tokens that steps of this length could have given.
    """

    idle_ms: float
    share: float


@dataclass(frozen=True)
class ModelFigures:
    tokens_per_second: float
    first_ms: float
    between_ms: float


class Device:
    """Gives every row the same token: all that it costs is to say so."""

    def __init__(self) -> None:
        self.num_steps = 0

    def step(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        sampled = tuple(_TOKEN for row in plan.rows if row.sample)
        return StepResult(step_id=plan.step_id, sampled=sampled)


async def step_device(
    folder: Path, *, depth: int, step_seconds: float, reads_text: bool, num_tokens: int
) -> DeviceFigures:
    """Serve as many streams as a step takes, for so many tokens each."""
    info = make_info(num_tokens + PROMPT_TOKENS + 8)
    device = Device()
    executor = FakeExecutor(device.step, step_seconds=step_seconds, depth=depth)
    core = LocalCore(
        Scheduler(
            num_blocks=NUM_STREAMS * (info.max_model_len // 16 + 1),
            block_size=16,
            max_num_seqs=NUM_STREAMS,
            max_num_batched_tokens=NUM_STREAMS * PROMPT_TOKENS,
            max_model_len=info.max_model_len,
        ),
        executor,
        info=info,
    )
    engine = Engine(core, info=info, max_num_sequences=NUM_STREAMS)
    renderer = load_renderer(folder, RenderConfig(), info=info, media=MediaConfig())
    text_engine = TextEngine(engine, renderer)
    sampling = SamplingParams(max_tokens=num_tokens, seed=0)

    async def read(number: int) -> None:
        ids = tuple((number + i) % 200 + 1 for i in range(PROMPT_TOKENS))
        prompts = [Prompt(token_ids=ids)]
        if reads_text:
            async with text_engine.open_text(prompts, sampling, TextParams()) as texts:
                async for _ in texts:
                    pass
        else:
            async with engine.open_stream(prompts, sampling) as deltas:
                async for _ in deltas:
                    pass

    # As the server does: a collection of all that was imported would take 0.1 s.
    gc.collect()
    gc.freeze()
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        begin = trio.current_time()
        async with trio.open_nursery() as readers:
            for number in range(NUM_STREAMS):
                readers.start_soon(read, number)
        seconds = trio.current_time() - begin
        nursery.cancel_scope.cancel()
    return DeviceFigures(
        idle_ms=1000 * executor.idle_seconds / device.num_steps,
        share=num_tokens * step_seconds / seconds,
    )


async def load_model(
    engine: TextEngine, num_clients: int, num_tokens: int, name: str
) -> ModelFigures:
    """Let so many clients write at once; each prompt is new to the prefix cache."""
    firsts: list[float] = []
    gaps: list[float] = []

    async def write(number: int) -> None:
        begin = trio.current_time()
        last = None
        async with engine.open_completion(
            f"{name} {number}: " + "one two three four " * 16,
            max_tokens=num_tokens,
            temperature=0.0,
            ignore_eos=True,
        ) as deltas:
            async for delta in deltas:
                if not delta.token_ids:
                    continue
                now = trio.current_time()
                if last is None:
                    firsts.append(now - begin)
                else:
                    gaps.append((now - last) / len(delta.token_ids))
                last = now

    begin = trio.current_time()
    async with trio.open_nursery() as clients:
        for number in range(num_clients):
            clients.start_soon(write, number)
    seconds = trio.current_time() - begin
    return ModelFigures(
        tokens_per_second=num_clients * num_tokens / seconds,
        first_ms=1000 * statistics.median(firsts),
        between_ms=1000 * statistics.median(gaps),
    )


def take_medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def compare_device(
    folder: Path, rounds: int, show: Callable[[str], None]
) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    show(f"device: {NUM_STREAMS} sequences; idle ms a step / share of the highest rate")
    show("| step | readers | depth 1 | depth 2 |")
    show("| --- | --- | --- | --- |")
    for step_seconds in STEP_SECONDS:
        for reads_text in (False, True):
            figures: dict[int, list[dict[str, float]]] = {d: [] for d in DEPTHS}
            for _ in range(rounds):
                for depth in DEPTHS:
                    figures[depth].append(
                        asdict(
                            trio.run(
                                lambda: step_device(
                                    folder,
                                    depth=depth,
                                    step_seconds=step_seconds,
                                    reads_text=reads_text,
                                    num_tokens=max(100, int(2 / step_seconds)),
                                )
                            )
                        )
                    )
            medians = {depth: take_medians(figures[depth]) for depth in DEPTHS}
            cells = " | ".join(
                f"{medians[d]['idle_ms']:.3f} / {medians[d]['share']:.2f}"
                for d in DEPTHS
            )
            readers = "text" if reads_text else "tokens"
            show(f"| {1000 * step_seconds:g} ms | {readers} | {cells} |")
            found.append(
                {"step_seconds": step_seconds, "readers": readers, "by_depth": medians}
            )
    return found


async def compare_model(
    model: str,
    clients: list[int],
    rounds: int,
    num_tokens: int,
    show: Callable[[str], None],
) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    show("model: tokens/s, ms to the first token, ms between tokens")
    show("| clients | depth 1 | depth 2 | tokens/s, ratio |")
    show("| --- | --- | --- | --- |")
    async with AsyncExitStack() as stack:
        engines = {
            depth: await stack.enter_async_context(
                trioserve.open_engine(
                    model, async_scheduling=depth == 2, kv_cache_memory="1GiB"
                )
            )
            for depth in DEPTHS
        }
        for num_clients in clients:
            figures: dict[int, list[dict[str, float]]] = {d: [] for d in DEPTHS}
            # The first round warms up.
            for number in range(rounds + 1):
                for depth, engine in engines.items():
                    taken = await load_model(
                        engine, num_clients, num_tokens, f"Round {number}"
                    )
                    if number:
                        figures[depth].append(asdict(taken))
            medians = {depth: take_medians(figures[depth]) for depth in DEPTHS}
            cells = " | ".join(
                f"{medians[d]['tokens_per_second']:.1f}, {medians[d]['first_ms']:.0f}, "
                f"{medians[d]['between_ms']:.1f}"
                for d in DEPTHS
            )
            ratio = medians[2]["tokens_per_second"] / medians[1]["tokens_per_second"]
            show(f"| {num_clients} | {cells} | {ratio:.3f} |")
            found.append({"clients": num_clients, "by_depth": medians})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=trioserve.config.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--skip", choices=("device", "model"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, object] = {}
    # As the server has it.
    sys.setswitchinterval(0.0005)

    def show(line: str) -> None:
        print(line, flush=True)

    if options.skip != "device":
        with TemporaryDirectory() as folder:
            tokenizer = tiny_tokenizer(Path(folder))
            results["device"] = compare_device(tokenizer, options.rounds, show)
    if options.skip != "model":
        results["model"] = trio.run(
            compare_model,
            options.model,
            options.clients,
            options.rounds,
            options.tokens,
            show,
        )
    if options.json:
        options.json.write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
