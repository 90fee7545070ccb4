"""Does a decode at a long context take less time with latents than with keys and values?

    python bench/latent.py

A random model of DeepSeek-V2-Lite's attention, with two dense layers, decodes one token behind
8,000 others: by transformers' modules with what they would expand, by modules with latents, and
by the native kernels. Runs alternate, and the processor's time counts, in milliseconds a step;
the lowest of five is printed, with the bytes of the KV cache that a token takes.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
import time
from unittest import mock

from kit.written import write_caches
import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config

from trioserve.config import ModelConfig
from trioserve.model.attention.gather import GatherAttention
from trioserve.model.loading import load
from trioserve.model.runtimes.layers import KernelLayers
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.runtimes.modules.layers import ModuleLayers
from trioserve.model.self_check.steps import make_tables
from trioserve.model.step.layout import lay_out
from trioserve.types.ids import BlockId
from trioserve.types.plan import StepPlan, StepRow

NUM_TOKENS, BLOCK_SIZE, NUM_RUNS = 8000, 16, 5
CPU = torch.device("cpu")
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


class Decode:
    """A step of one token behind others."""

    def __init__(self, model: LoadedModel) -> None:
        self.kv_bytes = model.info.kv_bytes_per_token
        tables = make_tables([[5] * (NUM_TOKENS + 1)], BLOCK_SIZE, CPU)
        num_blocks = tables.block_ids.numel()
        if model.native is None:
            layers = ModuleLayers(model, tables, num_blocks, GatherAttention)
        else:
            opened = model.native.open(tables, num_blocks=num_blocks)
            layers = KernelLayers(model, opened)
        blocks = tuple(BlockId(i) for i in range(num_blocks))
        row = StepRow(
            slot=0, start=NUM_TOKENS, num_tokens=1, new_block_ids=blocks, sample=True
        )
        tables.append_blocks([row])
        plan = StepPlan(step_id=0, starts=(), rows=(row,))
        self._inputs = lay_out(plan, tables, layers.order, CPU)
        self._layers = layers

    @torch.inference_mode()
    def time(self) -> float:
        """Return the processor's milliseconds of a step."""
        arguments = {
            "input_ids": self._inputs.input_ids,
            "position_ids": self._inputs.position_ids,
        }
        begin = time.process_time()
        self._layers.begin(self._inputs).compute(arguments, [0])
        return 1000 * (time.process_time() - begin)


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, write_caches():
        AutoModelForCausalLM.from_config(CONFIG).save_pretrained(folder)

        def open_decode(kernels: str) -> Decode:
            config = ModelConfig(device="cpu", kernels=kernels, num_threads=1)
            return Decode(load.load_model(Path(folder), config, name="latent"))

        with mock.patch.object(load, "keep_latents"):
            decodes = {"modules, expanded": open_decode("torch")}
        decodes["modules, latents"] = open_decode("torch")
        decodes["kernels, latents"] = open_decode("native")
    times = {
        name: min(runs)
        for name, runs in zip(
            decodes,
            zip(*([each.time() for each in decodes.values()] for _ in range(NUM_RUNS))),
        )
    }
    for name, decode in decodes.items():
        print(f"{name}: {times[name]:.1f} ms, {decode.kv_bytes} bytes a token")


if __name__ == "__main__":
    main()
