"""The part of bench/gpu.py that measures this engine, without HTTP, in its own process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
import random
import time
from typing import Any

from kit.gpu_bits import save_int4
from kit.gpu_parts import PROMPT_TOKENS, Figures, Load, subtract
import torch
from torch.profiler import ProfilerActivity, profile
import trio

from trioserve import open_engine
from trioserve.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

_MODEL_FIELDS = (
    *("cuda_graphs", "attention_backend", "kernels", "dtype", "kv_cache_dtype"),
    *("quantization", "dequantize"),
)

# Answers of streams whose idle time is measured; none of them ends before.
_LONG_ANSWER = 8000


def measure_engine(
    folder: Path, load: Load, fields: Figures, emit: Callable[[Figures], None]
) -> None:
    """Measure decodes, prompts, and the idle time of the device.

    Args:
      fields: options that differ from the default; `idle` measures the idle time, `is_long`
        decodes behind long prompts alone, `sampling` has parameters of the requests, which are
        greedy without it, and `int4` takes weights of four bits, dequantised on a CPU.
    """
    fields = dict(fields)
    if fields.pop("int4", False):
        folder = save_int4(folder)
        fields["dequantize"] = not torch.cuda.is_available()
    wants_idle = fields.pop("idle", False)
    is_long = fields.pop("is_long", False)
    sampling = fields.pop("sampling", {"temperature": 0.0})
    model = {name: value for name, value in fields.items() if name in _MODEL_FIELDS}
    scheduler = {name: value for name, value in fields.items() if name not in model}
    config = EngineConfig(
        model=ModelConfig(model=str(folder), **model),
        cache=CacheConfig(prefix_caching=False),
        scheduler=SchedulerConfig(
            max_num_seqs=max(*load.batches, load.streams), **scheduler
        ),
    )
    if is_long:
        trio.run(_measure_long, config, load, sampling, emit)
    else:
        trio.run(_measure, config, load, sampling, wants_idle, emit)


async def _measure(
    config: EngineConfig,
    load: Load,
    sampling: Figures,
    wants_idle: bool,
    emit: Callable[[Figures], None],
) -> None:
    async with open_engine(config) as engine:
        streams = _Streams(engine, sampling)
        await streams.run(1, PROMPT_TOKENS, 4)
        figures: Figures = {"kernels": engine.info.kernels, "decode": {}, "prefill": {}}
        for count in load.batches:
            await streams.run(count, PROMPT_TOKENS, 2)
            times = [
                await streams.run(count, PROMPT_TOKENS, steps) for steps in load.steps
            ]
            figures["decode"][count] = subtract(times, load)
            emit(figures)
        for length in load.prompts:
            # At first, kernels are compiled, and the scheduler takes a part of the prompt in
            # a step, because it has no measurements of as many tokens.
            times = [await streams.run(1, length, 1) for _ in range(4)]
            figures["prefill"][length] = min(times[1:])
            emit(figures)
        if wants_idle:
            figures["idle"] = find_idle(await streams.watch(load))
            emit(figures)


async def _measure_long(
    config: EngineConfig,
    load: Load,
    sampling: Figures,
    emit: Callable[[Figures], None],
) -> None:
    async with open_engine(config) as engine:
        streams = _Streams(engine, sampling)
        info = engine.info
        figures: Figures = {
            "kernels": info.kernels,
            "kv_bytes": info.kv_bytes_per_token,
            "long": {},
        }
        for count, prompt in load.contexts.items():
            await streams.run(1, prompt, 2)
            times = [await streams.run(count, prompt, steps) for steps in load.steps]
            figures["long"][count] = subtract(times, load)
            emit(figures)


class _Streams:
    """Streams of random prompts, which end by their length alone."""

    def __init__(self, engine: Any, sampling: Figures) -> None:
        self._engine = engine
        self._sampling = sampling

    async def run(self, count: int, prompt: int, steps: int) -> float:
        """Run streams to their end; returns the seconds that they take."""
        prompts = [self._draw(prompt) for _ in range(count)]
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for each in prompts:
                nursery.start_soon(self._read, each, steps, lambda: None)
        return time.perf_counter() - began

    async def watch(self, load: Load) -> list[tuple[int, int]]:
        """Run streams for a while.

        Returns:
          begins and ends, in nanoseconds, of what the device does; on a CPU, of torch's
          operators
        """
        on_gpu = torch.cuda.is_available()
        activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
        device = (
            torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
        )
        # The threads of the engine launch the work, and this one starts the profiler.
        settings = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        waiting = load.streams
        have_begun = trio.Event()

        def note() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                have_begun.set()

        async with trio.open_nursery() as nursery:
            for _ in range(load.streams):
                prompt = self._draw(PROMPT_TOKENS)
                nursery.start_soon(self._read, prompt, _LONG_ANSWER, note)
            await have_begun.wait()
            with profile(activities=[activity], experimental_config=settings) as seen:
                await trio.sleep(load.seconds / 5)
            nursery.cancel_scope.cancel()
        results = seen.profiler.kineto_results
        return [
            (event.start_ns(), event.end_ns())
            for event in results.events()
            if event.device_type() == device
        ]

    def _draw(self, length: int) -> Prompt:
        tokens = range(2, self._engine.info.vocab_size)
        return Prompt(token_ids=tuple(random.choices(tokens, k=length)))

    async def _read(
        self, prompt: Prompt, steps: int, note_first: Callable[[], None]
    ) -> None:
        sampling = SamplingParams(max_tokens=steps, ignore_eos=True, **self._sampling)
        is_first = True
        async with self._engine.engine.open_stream([prompt], sampling) as deltas:
            async for _ in deltas:
                if is_first:
                    note_first()
                    is_first = False


def find_idle(spans: Sequence[tuple[int, int]]) -> float:
    """Return the share of time, from the first span to the last, that no span covers.

    Raises:
      ValueError: there are none.
    """
    if not spans:
        raise ValueError("the profiler saw no work of the device")
    ordered = sorted(spans)
    begin = reached = ordered[0][0]
    busy = 0
    for start, end in ordered:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return 1 - busy / max(1, reached - begin)
