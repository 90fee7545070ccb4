"""How many tokens a second does an engine make while its clients use adapters?

Question
  A step whose rows have adapters (LoRA) reads these adapters beside the model. How many
  tokens a second are left of those of the model as it is? How long does it take until an
  adapter is loaded?

      python bench/adapters.py
      python bench/adapters.py --quantization int8 --targets q_proj,v_proj
      python bench/adapters.py --kernels torch --rounds 3
      python bench/adapters.py --device cuda --clients 64 --output-tokens 256

Machine
  Any. Both kinds of rounds take turns in one engine, in reversed order every other time, so
  that a slow minute affects both.

How to read the answer
  load s       until an adapter is loaded, from its files: the median of all. MB are those of
               its file, which is float32.
  tokens/s     output tokens of all clients, over the time of a round: the median.
  CPU ms       CPU time of the process for an output token: the median. Other programs
               matter less to it. On a GPU it is the host's part of the work alone.
  ratio        adapters over the model as it is: the median of the rounds' ratios, of tokens
               a second and of CPU time. Each client keeps its adapter; its prompts are fresh.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
from pathlib import Path
import statistics
from tempfile import TemporaryDirectory
import time
from typing import Any, NamedTuple

from kit.options import read_positive
from kit.process import tell
from kit.rounds import alternate, describe_ratios, list_ratios
from kit.tables import write_markdown
from safetensors.torch import save_file
import torch
import trio

import trioserve
from trioserve import SamplingParams
from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.measuring.texts import open_chance
from trioserve.types.prompt import Prompt
from trioserve.weights import resolve_description

MODEL, ADAPTERS = "no adapter", "adapters"


class Cost(NamedTuple):
    """Output tokens a second, and CPU milliseconds a token."""

    speed: float
    cpu: float


def list_shapes(folder: Path, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of the products of a Llama that adapters change, by name."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    size, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or size // config["num_attention_heads"]
    queries, keys = (
        config[name] * head for name in ("num_attention_heads", "num_key_value_heads")
    )
    shapes = {
        "self_attn.q_proj": (queries, size),
        "self_attn.k_proj": (keys, size),
        "self_attn.v_proj": (keys, size),
        "self_attn.o_proj": (size, queries),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
        "mlp.down_proj": (size, inner),
    }
    return {
        f"model.layers.{layer}.{name}": shape
        for layer in range(config["num_hidden_layers"])
        for name, shape in shapes.items()
        if not targets or name.partition(".")[2] in targets
    }


def write_adapter(
    folder: Path, shapes: dict[str, tuple[int, int]], rank: int, seed: int
) -> None:
    """Write an adapter of random numbers in peft's format."""
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (num_outputs, num_inputs) in shapes.items():
        place = f"base_model.model.{name}"
        a = torch.randn(rank, num_inputs, generator=chance) / num_inputs**0.5
        b = torch.randn(num_outputs, rank, generator=chance) * 0.01
        tensors |= {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    config["target_modules"] = sorted({name.rpartition(".")[2] for name in shapes})
    (folder / "adapter_config.json").write_text(json.dumps(config))


async def measure_round(
    engine: Any, options: argparse.Namespace, names: Sequence[str], seed: int
) -> Cost:
    """Let all clients ask once, each with its adapter, and wait for all answers."""
    chance = open_chance(seed)
    vocabulary = range(1000, engine.info.vocab_size)
    sampling = SamplingParams(
        temperature=0.0, max_tokens=options.output_tokens, ignore_eos=True
    )

    async def ask(client: int) -> None:
        token_ids = chance.choices(vocabulary, k=options.prompt_tokens)
        prompt = Prompt(token_ids=tuple(token_ids))
        async with engine.open_stream(
            [prompt], sampling, adapter=names[client % len(names)]
        ) as deltas:
            async for _ in deltas:
                pass

    began, cpu = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for client in range(options.clients):
            nursery.start_soon(ask, client)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    num_tokens = options.clients * options.output_tokens
    return Cost(num_tokens / seconds, 1000 * cpu / num_tokens)


async def measure(options: argparse.Namespace, folder: Path) -> None:
    """Load adapters, let both kinds of rounds take turns, and print the answer."""
    found = resolve_description(options.model).folder
    shapes = list_shapes(found, options.targets)
    names = [f"adapter-{number}" for number in range(options.adapters)]
    for number, name in enumerate(names):
        write_adapter(folder / name, shapes, options.rank, number)
    async with trioserve.open_engine(
        options.model,
        device=options.device,
        kernels=options.kernels,
        dtype=options.dtype,
        quantization=options.quantization,
        max_num_seqs=max(options.clients, 16),
        max_adapters=options.adapters,
    ) as opened:
        tell(f"kernels: {opened.info.kernels}, {opened.info.dtype}")
        seconds, num_bytes = [], 0
        for name in names:
            began = time.perf_counter()
            await opened.load_adapter(name, folder / name)
            seconds.append(time.perf_counter() - began)
            num_bytes = (folder / name / "adapter_model.safetensors").stat().st_size
        tell(f"loads: {', '.join(f'{each:.2f}' for each in seconds)} s")
        kinds = {MODEL: [""], ADAPTERS: names}
        costs: dict[str, list[Cost]] = {kind: [] for kind in kinds}
        # The first round warms up.
        for number in range(options.rounds + 1):
            for kind in alternate(list(kinds), number):
                cost = await measure_round(opened.engine, options, kinds[kind], number)
                tell(
                    f"{kind}: {cost.speed:.1f} tokens/s, {cost.cpu:.2f} CPU ms a token"
                )
                if number:
                    costs[kind].append(cost)
    print("\n".join(write_markdown(build_table(costs))))
    load = statistics.median(seconds)
    print(f"\nload of {num_bytes / 1e6:.1f} MB: {load:.2f} s")
    for i, what in enumerate(("tokens/s", "CPU time")):
        over, under = ([each[i] for each in costs[kind]] for kind in (ADAPTERS, MODEL))
        print(f"{what}, ratio: {describe_ratios(list_ratios(over, under))}")


def build_table(costs: dict[str, list[Cost]]) -> list[list[str]]:
    """Lay out a row for each kind of rounds."""
    rows = [["", "tokens/s", "CPU ms"]]
    for kind, found in costs.items():
        speed, cpu = (statistics.median(each) for each in zip(*found))
        rows.append([kind, f"{speed:.0f}", f"{cpu:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a Llama")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--clients", type=read_positive, default=16)
    parser.add_argument("--adapters", type=read_positive, default=8)
    parser.add_argument("--rank", type=read_positive, default=16)
    parser.add_argument(
        "--targets",
        type=lambda text: text.split(","),
        default=[],
        help="names of products, such as q_proj,v_proj; by default all of a layer's",
    )
    parser.add_argument("--prompt-tokens", type=read_positive, default=120)
    parser.add_argument("--output-tokens", type=read_positive, default=64)
    parser.add_argument("--rounds", type=read_positive, default=5)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        trio.run(measure, options, Path(folder))


if __name__ == "__main__":
    main()
