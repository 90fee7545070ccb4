"""Adapters by peft with random numbers, and peft's own output with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
import pytest
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

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


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
