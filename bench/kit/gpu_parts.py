"""The parts of bench/gpu.py. Each runs in a process of its own and prints one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import random
import subprocess
import sys
import time
from typing import Any

from kit.process import BENCH_FOLDER
import torch
import trio

from trioserve.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig

Figures = dict[str, Any]

# Fields of LlamaConfig. The large ones are those of Llama 3.2 1B and Llama 3.1 8B.
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is measured of a model.

    Args:
      batches: sequences that decode at once.
      prompts: tokens of a prompt that is read alone.
      steps: decodes of the shorter and of the longer answers, whose times are subtracted.
    """

    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    steps: tuple[int, int]


LARGE = Load(batches=(1, 16, 64, 256), prompts=(2048, 16_384), steps=(32, 160))
TINY = Load(batches=(1, 4), prompts=(64,), steps=(2, 6))
PROMPT_TOKENS = 32


def find_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def save_model(shape: str, folder: Path) -> Figures:
    """Save a Llama with random weights, made on the device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from trioserve.testing.tokenizer import tiny_tokenizer

    is_tiny = shape == "tiny"
    config = LlamaConfig(
        **SHAPES[shape],
        max_position_embeddings=20_000,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
    )
    with find_device():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if is_tiny:
        # Two of them are enough for the test of this bench.
        model = model.float()
    model.save_pretrained(folder, max_shard_size="50GB")
    tiny_tokenizer(folder)
    weights = sum(parameter.numel() for parameter in model.parameters())
    embeddings = model.get_input_embeddings().weight.numel()
    return {"parameters": weights, "read_in_a_step": weights - embeddings}


def measure_rates() -> Figures:
    """Measure what the device can do at most: a copy and a product of large matrices."""
    device = find_device()
    is_gpu = device.type == "cuda"
    count = 2**31 if is_gpu else 2**24
    source = torch.empty(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # A copy reads and writes each byte.
    copy = _time(lambda: target.copy_(source))
    size = 8192 if is_gpu else 256
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    product = _time(lambda: one @ one)
    return {
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "torch": torch.__version__,
        "bytes_per_second": 2 * count / copy,
        "flops_per_second": 2 * size**3 / product,
    }


def measure_generate(folder: Path, load: Load) -> Figures:
    """Measure transformers' own generate(), with its fastest attention and static batches."""
    from transformers import AutoModelForCausalLM

    device = find_device()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device).eval()
    size = model.config.vocab_size

    @torch.inference_mode()
    def run(count: int, prompt: int, steps: int) -> float:
        tokens = torch.randint(2, size, (count, prompt), device=device)
        return _time_once(
            lambda: model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                min_new_tokens=steps,
                max_new_tokens=steps,
                do_sample=False,
                pad_token_id=0,
            )
        )

    run(1, PROMPT_TOKENS, 2)
    return _measure(run, load)


def measure_engine(folder: Path, load: Load, fields: Figures) -> Figures:
    """Measure this engine, in this process.

    Args:
      fields: cuda_graphs, attention_backend, kernels or async_scheduling.
    """
    model = {name: value for name, value in fields.items() if name in _MODEL_FIELDS}
    scheduler = {name: value for name, value in fields.items() if name not in model}
    config = EngineConfig(
        model=ModelConfig(model=str(folder), **model),
        cache=CacheConfig(prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=max(load.batches), **scheduler),
    )
    return trio.run(_measure_engine, config, load)


_MODEL_FIELDS = ("cuda_graphs", "attention_backend", "kernels", "dtype")


async def _measure_engine(config: EngineConfig, load: Load) -> Figures:
    from trioserve import open_engine
    from trioserve.types.prompt import Prompt
    from trioserve.types.sampling import SamplingParams

    async with open_engine(config) as engine:
        size = engine.info.vocab_size

        async def generate(prompt: Prompt, sampling: SamplingParams) -> None:
            async with engine.engine.open_stream([prompt], sampling) as deltas:
                async for _ in deltas:
                    pass

        async def run(count: int, prompt: int, steps: int) -> float:
            sampling = SamplingParams(
                max_tokens=steps, temperature=0.0, ignore_eos=True
            )
            prompts = [
                Prompt(token_ids=tuple(random.choices(range(2, size), k=prompt)))
                for _ in range(count)
            ]
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for each in prompts:
                    nursery.start_soon(generate, each, sampling)
            return time.perf_counter() - began

        await run(1, PROMPT_TOKENS, 4)
        figures: Figures = {"kernels": engine.info.kernels, "decode": {}, "prefill": {}}
        for count in load.batches:
            await run(count, PROMPT_TOKENS, 2)
            times = [await run(count, PROMPT_TOKENS, steps) for steps in load.steps]
            figures["decode"][count] = _subtract(times, load)
        for length in load.prompts:
            await run(1, length, 1)
            figures["prefill"][length] = await run(1, length, 1)
        return figures


def run_tests() -> Figures:
    """Run the tests that need a GPU; return pytest's last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--numprocesses=0"]
    tests = BENCH_FOLDER.parent / "tests"
    done = subprocess.run([*command, tests], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if " in " in line]
    return {"summary": lines[-1] if lines else done.stdout[-200:] + done.stderr[-200:]}


def _measure(run: Callable[[int, int, int], float], load: Load) -> Figures:
    figures: Figures = {"kernels": "transformers", "decode": {}, "prefill": {}}
    for count in load.batches:
        times = [run(count, PROMPT_TOKENS, steps) for steps in load.steps]
        figures["decode"][count] = _subtract(times, load)
    for length in load.prompts:
        run(1, length, 1)
        figures["prefill"][length] = run(1, length, 1)
    return figures


def _subtract(times: Sequence[float], load: Load) -> float:
    """Return the seconds of one step, without those of the prompts."""
    short, long = load.steps
    return (times[1] - times[0]) / (long - short)


def _time(work: Callable[[], object]) -> float:
    """Return the seconds of one call, the least of three groups of five."""
    work()
    return min(_time_once(lambda: [work() for _ in range(5)]) / 5 for _ in range(3))


def _time_once(work: Callable[[], object]) -> float:
    _wait()
    began = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_part(name: str, shape: str, folder: Path, fields: Figures) -> None:
    """Run one part and print its figures as the last line of standard output."""
    load = TINY if shape == "tiny" else LARGE
    match name:
        case "rates":
            figures = measure_rates()
        case "model":
            figures = save_model(shape, folder)
        case "tests":
            figures = run_tests()
        case "generate":
            figures = measure_generate(folder, load)
        case _:
            figures = measure_engine(folder, load, fields)
    print(json.dumps(figures), flush=True)
