"""Does a decode at a long context take less time with latents than with keys and values?

    python bench/latent.py

A random model of DeepSeek-V2-Lite's attention, with two dense layers, decodes one token behind
8,000 others: by transformers' modules with what they would expand, by modules with latents, and
by the native kernels, also with latents in eight bits. Runs alternate, and the processor's time counts, in milliseconds a step;
the lowest of five is printed, with the bytes of the KV cache that a token takes.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from kit.long_step import LongStep, time_in_turns
from kit.written import write_caches
import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config

from trioserve.config import ModelConfig
from trioserve.model.loading import load

NUM_TOKENS = 8000
CONFIG = DeepseekV2Config(
    vocab_size=1000,
    hidden_size=2048,
    intermediate_size=2048,
    num_hidden_layers=2,
    first_k_dense_replace=2,
    num_attention_heads=16,
    num_key_value_heads=16,
    q_lora_rank=None,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    max_position_embeddings=NUM_TOKENS + 1,
)


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, write_caches():
        AutoModelForCausalLM.from_config(CONFIG).save_pretrained(folder)

        def open_decode(kernels: Any, **options: Any) -> LongStep:
            config = ModelConfig(
                device="cpu", kernels=kernels, num_threads=1, **options
            )
            model = load.load_model(Path(folder), config, name="latent")
            return LongStep(model, NUM_TOKENS)

        with mock.patch.object(load, "keep_latents"):
            decodes = {"modules, expanded": open_decode("torch")}
        decodes["modules, latents"] = open_decode("torch")
        decodes["kernels, latents"] = open_decode("native")
        decodes["kernels, int8"] = open_decode("native", kv_cache_dtype="int8")
    for name, time in time_in_turns(decodes).items():
        print(f"{name}: {time:.1f} ms, {decodes[name].kv_bytes} bytes a token")


if __name__ == "__main__":
    main()
