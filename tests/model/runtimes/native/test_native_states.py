"""Models with states on the kernels: what is recognised, and the same bits in all steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.kernels.library import open_library
from trioserve.model.loading.load import load_model
from trioserve.model.runtimes.recognise import mamba2, state_formulas, states
from trioserve.model.self_check.steps import make_tables
from trioserve.model.stages.loading import load_stage
from trioserve.model.step.layout import lay_out
from trioserve.testing.models import save_tiny_model
from trioserve.types.ids import BlockId
from trioserve.types.plan import StepPlan, StepRow
from trioserve.types.stage_place import StagePlace

from ...families.tiny import make_tiny
from ...planning import make_prompt

pytestmark = pytest.mark.usefixtures("needs_kernels")

# Beyond the keys that two threads share, and beyond transformers' chunks of 64 tokens.
NUM_TOKENS = 600
CHANGES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        **{"q_lora_rank": None, "topk_method": "group_limited_greedy"},
        **{"n_group": 2, "num_experts_per_tok": 1, "rms_norm_eps": 1e-5},
    },
    "deepseek_v3": {"n_group": 2, "rms_norm_eps": 1e-5},
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "position_embedding_type": None,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.0,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        "moe_latent_size": 16,
        "moe_shared_expert_intermediate_size": 24,
    },
    "falcon_h1": {
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": True,
        "ssm_multipliers": [1.5, 0.5, 0.7, 1.2, 0.9],
        "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.8,
        "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 1.2,
        "key_multiplier": 0.6,
        "mlp_multipliers": [0.7, 1.4],
        "embedding_multiplier": 2.5,
        "lm_head_multiplier": 0.4,
    },
}


def save(model_type: str, folder: Path, **others: Any) -> Path:
    changes = {**CHANGES.get(model_type, {}), **others}
    config = make_tiny(
        CONFIG_MAPPING[model_type], **changes, max_position_embeddings=NUM_TOKENS
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, numbers in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or name.endswith(
                (".D", "expert_bias", "correction_bias")
            ):
                numbers.uniform_(0.5, 1.5)
            elif numbers.dim() > 1:
                numbers.normal_(std=0.2)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, **options: Any) -> Any:
    config = ModelConfig(device="cpu", kernels="native", **options)
    return load_model(folder, config, name="tiny")


class Steps:
    """Steps of two sequences with the same prompt, in slots 0 and 1."""

    def __init__(self, loaded: Any, kv_dtype: torch.dtype | None = None) -> None:
        prompts = [make_prompt(NUM_TOKENS)] * 2
        self._tables = make_tables(prompts, 16, torch.device("cpu"))
        num_blocks = self._tables.block_ids.numel()
        self._layers = loaded.native.open(
            self._tables, num_blocks=num_blocks, kv_dtype=kv_dtype
        )
        self._embed = loaded.model.get_input_embeddings()
        self._begun: set[int] = set()

    @torch.inference_mode()
    def run(
        self,
        *rows: tuple[int, int, int],
        held: tuple[int, ...] = (),
        wanted: Sequence[int] | None = None,
    ) -> Tensor:
        """Run rows of (slot, begin, end).

        Returns:
          the logits of the last tokens of the rows in `wanted`; of all tokens if it is None
        """
        planned = tuple(self._make_row(*row) for row in rows)
        self._tables.append_blocks(planned)
        plan = StepPlan(step_id=0, starts=(), rows=planned)
        inputs = lay_out(
            plan, self._tables, self._layers.order, torch.device("cpu"), held
        )
        vectors = self._embed(inputs.input_ids)[0]
        tokens: Sequence[int] = range(len(vectors))
        if wanted is not None:
            tokens = [inputs.last_tokens[row] for row in wanted]
        return self._layers.run(vectors, inputs, tokens, inputs.position_ids)

    def _make_row(self, slot: int, begin: int, end: int) -> StepRow:
        num_blocks = self._tables.block_ids.shape[1]
        block_ids = [BlockId(slot * num_blocks + i) for i in range(num_blocks)]
        is_new = slot not in self._begun
        self._begun.add(slot)
        return StepRow(
            slot=slot,
            start=begin,
            num_tokens=end - begin,
            new_block_ids=tuple(block_ids) if is_new else (),
            sample=True,
        )


# Each has capabilities of its own: products in another order, experts, sigmoids that choose
# them, factors, and no rotation; layers of one sublayer with experts behind a narrow product,
# and layers with attention beside a state; and latents, whose rotated pairs are complex
# numbers or neighbours, and experts in groups. Two threads spin where the machine is busy.
@pytest.mark.parametrize(
    ("model_type", "num_threads"),
    [("qwen3_5_text", 2), ("qwen3_next", 1), ("lfm2_moe", 1), ("granitemoehybrid", 1)]
    + [("nemotron_h", 1), ("falcon_h1", 1), ("deepseek_v2", 1), ("deepseek_v3", 2)],
)
def test_alone_in_chunks_beside_another_skipped_and_again(
    tmp_path: Path, model_type: str, num_threads: int
) -> None:
    loaded = load(save(model_type, tmp_path), num_threads=num_threads)
    outputs = []
    for kv_dtype in (torch.float32, torch.int8):
        steps = Steps(loaded, kv_dtype)
        expected = steps.run((0, 0, NUM_TOKENS))
        # The slot of another sequence, as after a preemption.
        parts = [steps.run((0, 0, 100)), steps.run((1, 0, 30), (0, 100, 117))[30:]]
        steps.run((0, 117, 118), held=(0,))
        for i in range(117, 125):
            parts.append(steps.run((0, i, i + 1), (1, i - 87, i - 86))[:1])
        parts.append(steps.run((0, 125, NUM_TOKENS)))
        assert torch.equal(torch.cat(parts), expected)
        # The other tokens do not go through the layers behind the last cache or state.
        assert not len(steps.run((0, 0, 100), (1, 0, 30), wanted=()))
        rows = (0, 100, NUM_TOKENS), (1, 30, 40)
        lasts = steps.run(*rows, wanted=(1, 0))
        assert torch.equal(lasts, expected[[39, NUM_TOKENS - 1]])
        outputs.append(expected)
    exact, rounded = outputs
    assert 0 < torch.dist(exact, rounded) < 0.1 * exact.norm()


def test_a_stage_with_kimi_delta_attention_alone(tmp_path: Path) -> None:
    """A load compares it with the modules; other layers of Kimi-Linear have latents."""
    folder = save_tiny_model("kimi_linear", tmp_path)
    config = ModelConfig(device="cpu", kernels="native")
    place = StagePlace(stage=0, num_stages=2)
    loaded = load_stage(folder, config, name="tiny", place=place)
    assert loaded.info.kernels == f"native {open_library().name}"


@pytest.mark.parametrize(
    "model_type", ["qwen3_5_text", "lfm2", "falcon_h1", "deepseek_v2"]
)
def test_bfloat16(tmp_path: Path, model_type: str) -> None:
    """A load compares it with the modules."""
    loaded = load(save(model_type, tmp_path), dtype="bfloat16")
    assert loaded.info.kernels == f"native {open_library().name}"


@pytest.mark.parametrize(
    ("model_type", "module"),
    [("qwen3_5_text", states), ("lfm2", states), ("granitemoehybrid", mamba2)],
)
def test_mistakes_in_states_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, module: Any
) -> None:
    """A convolution whose taps are in the wrong order reads the same tokens."""
    convolve = state_formulas.find_convolution

    def turn_round(convolution: object) -> Any:
        found = convolve(convolution)
        return type(found)(taps=found.taps.flip(1), bias=found.bias)

    monkeypatch.setattr(module, "find_convolution", turn_round)
    with pytest.raises(InvalidConfig, match="its output would differ"):
        load(save(model_type, tmp_path))
