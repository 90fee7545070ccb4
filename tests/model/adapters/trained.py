"""Adapters by peft with random numbers, and peft's own output with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
import json
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
import pytest
from safetensors.torch import save_file
import torch
from transformers import AutoModelForCausalLM

from trioserve.model.runner import ModelRunner
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.types.adapter import AdapterFacts, AdapterSource

from ..conftest import Oracle
from ..planning import PlannedSequence, Planner

# peft asks transformers in a way that transformers will drop, and advises against some settings.
IGNORED = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]

IGNORED_EXPERTS = [
    *IGNORED,
    # It applies patterns to parameters all the same.
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning"),
]

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

GATE_UP, DOWN = "experts.gate_up_proj", "experts.down_proj"

# Settings of adapters of experts, by their numbers: of both weights, of one, and of a router.
EXPERTS: dict[int, dict[str, Any]] = {
    1: {"r": 4, "lora_alpha": 8, "target_parameters": [GATE_UP, DOWN]},
    2: {
        **{"target_modules": [], "target_parameters": [DOWN], "use_rslora": True},
        "alpha_pattern": {"experts.down_proj": 20},
    },
    3: {
        **{"r": 2, "target_modules": []},
        "target_parameters": [
            *(GATE_UP, DOWN, "q_proj.weight"),
            *("mlp.gate.weight", "mlp.router.weight"),
        ],
        "rank_pattern": {r"layers\.1\..*gate_up_proj": 5, "q_proj.weight": 3},
    },
}


def train(base: Path, folder: Path, *, seed: int = 0, **settings: Any) -> Path:
    """Save an adapter of random numbers.

    Args:
      base: the folder of its model.
      settings: of LoraConfig.
    """
    torch.manual_seed(seed)
    config = LoraConfig(
        init_lora_weights=False, **{"target_modules": ATTENTION} | settings
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "magnitude" in name:
            parameter.data *= torch.rand_like(parameter) + 0.5
    # A head would be saved whole, too.
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def write_modules(
    base: Path,
    folder: Path,
    names: dict[str, tuple[str, int, int]],
    num_experts: int = 4,
    **fields: Any,
) -> Path:
    """Write an adapter of a time when each expert was a module of its own.

    Args:
      names: the homes and the numbers of outputs and inputs of products of experts, and of a
        router, by their names.
    """
    chance = torch.Generator().manual_seed(7)
    rank = fields.get("r", 4)
    tensors = {}

    def add(module: str, num_outputs: int, num_inputs: int) -> None:
        key = f"base_model.model.model.layers.{module}"
        a = torch.randn(rank, num_inputs, generator=chance) / 4
        tensors[f"{key}.lora_A.weight"] = a
        b = torch.randn(num_outputs, rank, generator=chance) / 2
        tensors[f"{key}.lora_B.weight"] = b

    for layer, (name, (home, *shape)) in product((0, 1), names.items()):
        if name == "gate":
            add(f"{layer}.{home}.{name}", *shape)
            continue
        for expert in range(num_experts):
            add(f"{layer}.{home}.{expert}.{name}", *shape)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, **fields}
    config |= {"base_model_name_or_path": str(base), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@dataclass
class Adapted:
    """A model with adapters, here and in peft.

    Args:
      base: the folder of the model.
      adapters: folders, by the adapters' numbers.
    """

    base: Path
    adapters: dict[int, Path] = field(default_factory=dict)
    _oracles: dict[int, Oracle] = field(default_factory=dict)

    def load(self, runner: ModelRunner, number: int) -> AdapterFacts:
        """Let a runner load an adapter."""
        source = AdapterSource(
            number=number, name=f"adapter{number}", path=str(self.adapters[number])
        )
        facts, weights = runner.read_adapter(source)
        runner.add_adapter(number, weights)
        return facts

    def write(
        self, model: LoadedModel, prompts: list[list[int]], adapters: Sequence[int]
    ) -> dict[int, list[int]]:
        """Return what a whole model writes here, after it was compared with peft."""
        planner = Planner(model)
        for number in self.adapters:
            self.load(planner.runner, number)
        sequences = [
            planner.begin(prompt, slot=slot, adapter=adapters[slot % len(adapters)])
            for slot, prompt in enumerate(prompts)
        ]
        planner.run(*sequences, num_tokens=6)
        self.check(*sequences)
        return {each.slot: each.outputs for each in sequences}

    def check(self, *sequences: PlannedSequence) -> None:
        """Assert that sequences have the greedy outputs of peft."""
        for sequence in sequences:
            oracle = self._get_oracle(sequence.adapter)
            oracle.check(sequence.outputs, input_ids=torch.tensor([sequence.prompt]))

    def _get_oracle(self, number: int) -> Oracle:
        if number not in self._oracles:
            model: Any = AutoModelForCausalLM.from_pretrained(self.base)
            if number:
                model = PeftModel.from_pretrained(model, self.adapters[number])
            self._oracles[number] = Oracle(model.eval())
        return self._oracles[number]
