"""How fast is a model with states beside one that has attention alone?

Question
  Three of four layers of Qwen3.5 keep a state in place of keys and values. How many tokens a
  second do the native kernels write with the shapes of Qwen3.5-0.8B, for one client and for
  several, in short and long contexts? How many with attention in all layers, and how many
  does transformers' generate() write for one client?

      python bench/hybrid.py
      python bench/hybrid.py --clients 1,4 --contexts 512,4000 --dtype float32
      python bench/hybrid.py --contexts 16000 --rounds 7 --no-generate

Machine
  A CPU that the kernels run on, with 8 GB of free memory and 4 GB of disk. Run it alone.
  Weights are random; they take as much time as real ones.

How to read the answer
  tokens/s       of all clients together: steps of one token for each client behind a
                 context of so many tokens, by the median of the rounds. No prompt is
                 computed, because a step reads the same memory whatever numbers it holds.
                 But all of it is written before: memory that nobody has written is one page
                 of zeros, which stays in the cache of the processor.
  generate()     one client, behind a prompt of the shortest context: the time of its last
                 tokens. A prompt of many thousand tokens takes it minutes; --no-generate
                 leaves it out.
  A line is left out if its keys and values need more than half of the free memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
import os
from pathlib import Path
import statistics
from tempfile import TemporaryDirectory
import time
from typing import Any

from kit.options import make_parser, read_positive
from kit.process import tell
from kit.rounds import take_turns
from kit.written import write_caches
import torch

from trioserve.config import ModelConfig
from trioserve.model.loading.load import load_model
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.step.layout import lay_out
from trioserve.model.step.slots import SlotTables
from trioserve.types.plan import StepPlan, StepRow

BLOCK_SIZE = 16
NUM_LAYERS = 24
NUM_GENERATED = 8
HYBRID = (["linear_attention"] * 3 + ["full_attention"]) * (NUM_LAYERS // 4)
MODELS = {"hybrid": HYBRID, "attention": ["full_attention"] * NUM_LAYERS}


def save_model(folder: Path, layer_types: list[str], dtype: str) -> None:
    """Save a model with the shapes of Qwen3.5-0.8B and random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3_5_text",
        vocab_size=248_320,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        layer_types=layer_types,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)


def make_step(model: LoadedModel, clients: int, context: int) -> Callable[[], float]:
    """Return a function that runs one step, and returns its seconds."""
    assert model.native is not None, "the model runs on the kernels"
    cpu = torch.device("cpu")
    tables = SlotTables(
        max_num_seqs=clients,
        max_model_len=context + 1,
        block_size=BLOCK_SIZE,
        device=cpu,
    )
    num_blocks = tables.block_ids.numel()
    tables.block_ids.copy_(torch.arange(num_blocks).view_as(tables.block_ids))
    tables.token_ids.zero_()
    with write_caches():
        layers = model.native.open(tables, num_blocks=num_blocks)
    rows = tuple(
        StepRow(slot=slot, start=context, num_tokens=1, new_block_ids=(), sample=True)
        for slot in range(clients)
    )
    plan = StepPlan(step_id=0, starts=(), rows=rows)
    inputs = lay_out(plan, tables, layers.order, cpu)
    embed = model.model.get_input_embeddings()

    @torch.inference_mode()
    def run() -> float:
        begin = time.perf_counter()
        vectors = embed(inputs.input_ids)[0]
        layers.run(vectors, inputs, range(clients), inputs.position_ids)
        return time.perf_counter() - begin

    return run


def list_cases(
    model: LoadedModel, clients: Sequence[int], contexts: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the numbers of clients and the contexts whose keys and values fit."""
    for context in contexts:
        for count in clients:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if count * context * model.info.kv_bytes_per_token < free / 2:
                yield count, context


def time_generate(folder: Path, context: int, dtype: str) -> float:
    """Return the seconds of a token of transformers' generate()."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype)
    )
    prompt = torch.ones(1, context, dtype=torch.int64)

    def run(num_tokens: int) -> float:
        begin = time.perf_counter()
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            pad_token_id=0,
        )
        return time.perf_counter() - begin

    run(1)
    return (run(1 + NUM_GENERATED) - run(1)) / NUM_GENERATED


def measure(folder: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Measure one model on the kernels; yields a line for each case."""
    config = ModelConfig(device="cpu", kernels="native", dtype=arguments.dtype)
    model = load_model(folder, config, name=folder.name)
    for clients, context in list_cases(model, arguments.clients, arguments.contexts):
        step = make_step(model, clients, context)
        step()
        seconds = take_turns(arguments.rounds, {"step": step})["step"]
        speed = clients / statistics.median(seconds)
        yield f"{folder.name}: {clients} clients, {context} tokens: {speed:.1f} tokens/s"


def read_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(read_positive, text.split(",")))


def main() -> None:
    parser = make_parser(__doc__)
    add = partial(parser.add_argument, type=read_numbers)
    add("--clients", default=(1, 16), metavar="N,N")
    add("--contexts", default=(512, 4_000, 16_000), metavar="N,N")
    parser.add_argument("--no-generate", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--rounds", type=read_positive, default=15)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        for name, layer_types in MODELS.items():
            path = Path(folder) / name
            tell(f"making a model: {name}")
            save_model(path, layer_types, arguments.dtype)
            for line in measure(path, arguments):
                print(line, flush=True)
        if arguments.no_generate:
            return
        context = min(arguments.contexts)
        seconds = time_generate(Path(folder) / "hybrid", context, arguments.dtype)
        print(f"generate(): 1 client, {context} tokens: {1 / seconds:.1f} tokens/s")


if __name__ == "__main__":
    main()
