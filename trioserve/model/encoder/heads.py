"""Classifiers: the model's own head, run on states that were computed elsewhere.

Each architecture has its own code for the head, within the forward pass of the whole
model. So the whole model is kept, and a module that returns given states replaces its
encoder. The head then gets texts of a single token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from ...errors import UnsupportedModel, WeightsBroken, shorten_message
from ...types.pooling import PoolingInput, PoolingTask
from ...types.sentence import PoolingMode
from ..self_check.compare import agree
from .encoder import Activation
from .task import name_architecture
from .tokens import TokenRules, lay_rectangle

# Names that sentence-transformers gives to classes of PyTorch, by their last part.
_ACTIVATIONS: dict[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid"}

# The states of a text that the head of a text classifier may read.
_ROWS: dict[PoolingMode, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
    "mean": lambda states: states.mean(0),
}


class Head:
    """The head of a classifier: (n, hidden_size) -> (n, num_labels).

    Args:
      model: the classifier; it loses its encoder, which the caller holds.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._given = _GivenStates(model.base_model)
        setattr(model, model.base_model_prefix, self._given)
        text_config = model.config.get_text_config()
        if text_config.pad_token_id is None:
            # Heads of decoders refuse batches without a padding token. They read the last
            # token that is not padding: if there is a single token, they read it.
            text_config.pad_token_id = 0

    @torch.inference_mode()
    def __call__(self, states: Tensor) -> Tensor:
        self._given.states = states
        tokens = torch.zeros((len(states), 1), dtype=torch.int64, device=states.device)
        logits: Tensor = self._model(input_ids=tokens)[0]
        self._given.states = None
        return logits.reshape(len(states), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedHead:
    """A head, and the outputs that the whole model had for some texts.

    Args:
      logits: the outputs for each text, (1, num_labels) or (1, num_tokens, num_labels)
    """

    head: Head
    logits: tuple[Tensor, ...]

    def check(
        self, task: PoolingTask, states: Sequence[Tensor], architecture: str
    ) -> PoolingMode | None:
        """Return the state of a text that the head reads; None if it reads all states.

        Args:
          states: of the same texts, (num_tokens, hidden_size)

        Raises:
          UnsupportedModel: the head reads something else.
        """
        if task == "token_classify":
            if self._agrees(torch.cat(list(states))):
                return None
            raise UnsupportedModel(architecture, "its head reads tokens together")
        for mode, choose in _ROWS.items():
            if self._agrees(torch.stack([choose(text) for text in states])):
                return mode
        raise UnsupportedModel(
            architecture,
            "its head reads neither the first, nor the last, nor the mean token",
        )

    def _agrees(self, rows: Tensor) -> bool:
        expected = torch.cat([text.flatten(0, -2) for text in self.logits])
        return agree(expected, self.head(rows))


@torch.inference_mode()
def part_head(
    model: PreTrainedModel, probes: Sequence[PoolingInput], rules: TokenRules
) -> PartedHead:
    """Separate a classifier's head, and keep the outputs for some texts to compare with."""
    whole: Any = model
    logits = tuple(whole(**lay_rectangle([probe], rules)[0])[0] for probe in probes)
    return PartedHead(head=Head(model), logits=logits)


def name_labels(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the labels in the order of the outputs."""
    labels: Any = config.id2label
    return tuple(str(labels[index]) for index in sorted(labels))


def find_activation(config: PreTrainedConfig, folder: Path) -> Activation:
    """Return the function that turns logits into scores.

    It is taken from sentence_transformers.CrossEncoder for a single label, and from
    transformers' text-classification pipelines for several labels.
    """
    named = _read_activation(config, folder)
    if config.num_labels == 1:
        if named not in (None, *_ACTIVATIONS):
            raise UnsupportedModel(
                name_architecture(config),
                f"its activation function {named} is not supported",
            )
        return _ACTIVATIONS.get(named or "", "sigmoid")
    is_independent = config.problem_type == "multi_label_classification"
    return "sigmoid" if is_independent or named == "Sigmoid" else "softmax"


def _read_activation(config: PreTrainedConfig, folder: Path) -> str | None:
    """Return the name of the activation class in sentence-transformers' files."""
    path = folder / "config_sentence_transformers.json"
    try:
        described = json.loads(path.read_text()) if path.exists() else {}
        name = (
            described.get("activation_fn")
            or (getattr(config, "sentence_transformers", None) or {}).get(
                "activation_fn"
            )
            or getattr(config, "sbert_ce_default_activation_function", None)
        )
    except (OSError, ValueError, AttributeError) as error:
        raise WeightsBroken(
            str(folder), f"{path.name}: {shorten_message(error)}"
        ) from None
    return str(name).rpartition(".")[2] if name else None


class _GivenStates(nn.Module):
    """Replaces the encoder of a classifier: returns given states, and pools them."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._pooler = getattr(encoder, "pooler", None)
        # ALBERT's pooler has two modules; the first one gets the first token.
        self._activation = getattr(encoder, "pooler_activation", None)
        self.states: Tensor | None = None

    def forward(
        self, *_: object, **__: object
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        assert self.states is not None
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=self.states[:, None],
            pooler_output=self._pool(self.states),
        )

    def _pool(self, states: Tensor) -> Any:
        if self._pooler is None:
            return None
        if self._activation is not None:
            return self._activation(self._pooler(states))
        return self._pooler(states[:, None])
