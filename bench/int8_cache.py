"""Is a step at a long context slower with a KV cache of eight bits?

    python bench/int8_cache.py

A random Llama of eight layers in bfloat16 and float32, with four heads of 128 numbers for keys, and
one or four heads of queries for each, decodes one token behind 8,000 others, and computes 128
tokens behind 4,000, by the native kernels of each instruction set that the processor has. Its
products are small, so attention takes most of the time. Runs alternate, and the processor's time
counts, in milliseconds a step on one thread; the lowest of five is printed, with the bytes of the
KV cache that a token takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from kit.long_step import LongStep, time_in_turns
from kit.written import write_caches
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from trioserve.config import ModelConfig
from trioserve.kernels import library
from trioserve.model.loading.load import load_model

NUM_KV_HEADS = 4


def save(folder: str, dtype: torch.dtype, group_size: int) -> None:
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=256,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=NUM_KV_HEADS * group_size,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=128,
        max_position_embeddings=8192,
    )
    model = AutoModelForCausalLM.from_config(config)
    torch.nn.Module.to(model, dtype).save_pretrained(folder)


def measure(folder: str, start: int, num_tokens: int) -> Iterator[str]:
    """Yield a figure of each type of the cache."""
    steps = {}
    for kv_cache_dtype in ("auto", "int8"):
        config = ModelConfig(
            device="cpu",
            kernels="native",
            num_threads=1,
            kv_cache_dtype=kv_cache_dtype,  # type: ignore[arg-type]
        )
        model = load_model(Path(folder), config, name="tiny")
        steps[kv_cache_dtype] = LongStep(model, start, num_tokens)
    for name, time in time_in_turns(steps).items():
        yield f"{name} {time:.1f} ms, {steps[name].kv_bytes} bytes a token"


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, write_caches():
        for name in library.find_instruction_sets():
            library.open_library.cache_clear()
            chosen = mock.patch.object(library, "find_instruction_sets", lambda: [name])
            for dtype in (torch.bfloat16, torch.float32):
                for group_size in (1, 4):
                    save(folder, dtype, group_size)
                    for start, num_tokens in ((8000, 1), (4000, 128)):
                        with chosen:
                            figures = "; ".join(measure(folder, start, num_tokens))
                        print(
                            f"{name}, {dtype}, {group_size} queries a key, {num_tokens} "
                            f"tokens behind {start}: {figures}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
