"""How much more text fits into the KV cache if layers with windows give back their blocks?

Question
  Layers with windows keep the last tokens of each sequence alone, in blocks of their own. How many
  tokens fit into the same memory, and how many chats of 4,096 tokens can run at once?

Machine
  Any; models are built without weights, from the sizes in their configurations.

How to read it
  before      tokens and chats if all layers have the same blocks.
  now         the same with window blocks. A chat holds its window in them.
  alone       the longest sequence that --max-model-len could ask for, before and now.

    python bench/windows.py
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trioserve.model.attention.cache_division import CacheDivision
from trioserve.model.attention.cache_memory import count_kv_bytes
from trioserve.model.attention.registered import IMPLEMENTATION
from trioserve.model.attention.windows import find_windows
from trioserve.model.loading.watching import watch_model

# The sizes in config.json that decide keys and values, and the longest sequence.
MODELS: dict[str, dict[str, Any]] = {
    "Gemma 3 27B": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "max_position_embeddings": 131_072,
    },
    "Gemma 4 26B-A4B": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 30,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        "hidden_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "sliding_window": 1024,
        "max_position_embeddings": 262_144,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "sliding_window": 128,
        "max_position_embeddings": 131_072,
    },
}
BLOCK_SIZE = 16
MAX_NUM_SEQS = 128
MAX_CHUNK = 512
CHAT_TOKENS = 4096
GIB = 2**30


def make_divisions(fields: dict[str, Any]) -> tuple[CacheDivision, CacheDivision]:
    """Return the division of a model's memory without window blocks, and with them."""
    fields = dict(fields)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=IMPLEMENTATION, dtype=torch.bfloat16
        )
    layers = watch_model(model.eval()).layers
    before, now = (
        CacheDivision(
            count_kv_bytes(layers, torch.bfloat16),
            BLOCK_SIZE,
            windows=windows,
            max_chunk=MAX_CHUNK,
            max_model_len=config.max_position_embeddings,
        )
        for windows in (None, find_windows(layers, torch.bfloat16))
    )
    return before, now


def main() -> None:
    for name, fields in MODELS.items():
        before, now = make_divisions(fields)
        held = -(-fields["sliding_window"] // BLOCK_SIZE) + 3
        for size in (4, 16, 64):
            memory, enough = size * GIB, MAX_NUM_SEQS * before.longest
            old, new = before.divide(memory, enough), now.divide(memory, enough)
            assert new.num_window_blocks is not None
            chats = CHAT_TOKENS // BLOCK_SIZE
            room = new.num_window_blocks - MAX_CHUNK // BLOCK_SIZE
            both = min(new.num_blocks // chats, room // held)
            longest = [
                BLOCK_SIZE * min(each.longest, each.count_longest(memory))
                for each in (before, now)
            ]
            print(
                f"{name}, {size} GiB: {old.num_blocks * BLOCK_SIZE:,} tokens and "
                f"{old.num_blocks // chats} chats before, "
                f"{new.num_blocks * BLOCK_SIZE:,} tokens and {both} chats now; "
                f"alone {longest[0]:,} and {longest[1]:,} tokens"
            )


if __name__ == "__main__":
    main()
