"""How long does a device wait for each step, with one step in flight and with two?

Question
  With one step in flight, the device waits while the host reads the step's tokens,
  plans the next step and delivers tokens. With two (--async-scheduling), the next step
  is planned earlier. How long does the device wait for each step?

Machine
  Any; run it alone. There is no model: the device is an executor whose steps take as
  long as a GPU's.

How to read the answer
  128 tasks read 128 streams, as token ids ("tokens") or as text ("text"). The loop, the
  readers and the device's clock share one thread.
  idle     the mean time that the device waits for a step.
  share    the tokens, divided by the most that steps of this length can give.
  Both depths take turns; figures are medians of the rounds.
  bench/async_scheduling_model.py measures the same with a real model.

    python bench/async_scheduling.py [--rounds 5] [--json out.json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
import gc
from pathlib import Path
import sys
from tempfile import TemporaryDirectory

from kit.engines.device import FixedToken
from kit.options import read_output, read_positive
from kit.rounds import take_medians
import trio

from trioserve.config import MediaConfig, RenderConfig
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.frontend import TextEngine, TextParams
from trioserve.programs.bench.measuring.report import save
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeExecutor, make_info
from trioserve.testing.renderers import load_renderer
from trioserve.testing.tokenizer import tiny_tokenizer
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

NUM_STREAMS = 128
STEP_SECONDS = (0.002, 0.005, 0.01, 0.02)
DEPTHS = (1, 2)
PROMPT_TOKENS = 16

# A round has at least so many tokens for each stream, however long its steps are.
MIN_TOKENS = 100
ROUND_SECONDS = 2.0


@dataclass(frozen=True)
class DeviceFigures:
    """Figures of one round with an executor that has no model.

    Attributes:
      idle_ms: the mean time that the device waited for a step.
      share: the tokens, divided by the most that steps of this length can give.
    """

    idle_ms: float
    share: float


async def step_device(
    folder: Path, *, depth: int, step_seconds: float, reads_text: bool, num_tokens: int
) -> DeviceFigures:
    """Serve NUM_STREAMS streams of so many tokens each."""
    info = make_info(num_tokens + PROMPT_TOKENS + 8)
    device = FixedToken()
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
    engine = TokenEngine(core, info=info, max_num_sequences=NUM_STREAMS)
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

    # The server does the same: a collection of all imported objects would take 0.1 s.
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


def measure(
    folder: Path, step_seconds: float, reads_text: bool, num_rounds: int
) -> dict[int, dict[str, float]]:
    """Return the medians of each depth."""
    rounds: dict[int, list[dict[str, float]]] = {depth: [] for depth in DEPTHS}
    for _ in range(num_rounds):
        for depth in DEPTHS:
            figures = trio.run(
                lambda: step_device(
                    folder,
                    depth=depth,
                    step_seconds=step_seconds,
                    reads_text=reads_text,
                    num_tokens=max(MIN_TOKENS, int(ROUND_SECONDS / step_seconds)),
                )
            )
            rounds[depth].append(asdict(figures))
    return {depth: take_medians(rounds[depth]) for depth in DEPTHS}


def compare(
    folder: Path, step_seconds: Sequence[float], num_rounds: int
) -> Iterator[dict[str, object]]:
    """Print a row for each step length and kind of reader, and yield its figures."""
    print(f"{NUM_STREAMS} sequences; idle ms a step / share of the highest rate")
    print("| step | readers | depth 1 | depth 2 |")
    print("| --- | --- | --- | --- |", flush=True)
    for seconds in step_seconds:
        for readers in ("tokens", "text"):
            medians = measure(folder, seconds, readers == "text", num_rounds)
            cells = " | ".join(
                f"{each['idle_ms']:.3f} / {each['share']:.2f}"
                for each in medians.values()
            )
            print(f"| {1000 * seconds:g} ms | {readers} | {cells} |", flush=True)
            yield {"step_seconds": seconds, "readers": readers, "by_depth": medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=read_positive, default=5)
    parser.add_argument("--json", type=read_output)
    options = parser.parse_args()
    # The server's switch interval. prepare_interpreter would also stop the collector.
    sys.setswitchinterval(0.0005)
    with TemporaryDirectory() as folder:
        tokenizer = tiny_tokenizer(Path(folder))
        found = list(compare(tokenizer, STEP_SECONDS, options.rounds))
    save(options.json, found)


if __name__ == "__main__":
    main()
