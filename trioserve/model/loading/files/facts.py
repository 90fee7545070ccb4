"""The facts about a model that are known before its weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from ....config import ModelConfig
from ...attention.registered import IMPLEMENTATION
from ...device.choose import resolve_device, set_threads
from ...runtimes.vision import VisionKind, find_vision_kind
from ..dequantise.quantisation import forget_quantisation
from .architecture import check_architecture
from .config_file import find_weight_formats, read_config
from .generation_config import read_default_sampling
from .positions import resolve_max_model_len


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts about a model in its small files and in the configuration.

    Args:
      config: the model's own.
      max_model_len: tokens of one sequence at most.
      default_sampling: names and values of the author's choice.
      vision: as in LoadedModel.
    """

    config: PreTrainedConfig
    device: torch.device
    architecture: str
    max_model_len: int
    default_sampling: tuple[tuple[str, float], ...]
    vision: VisionKind | None

    @property
    def attention(self) -> str | dict[str, str]:
        """The attention implementation, as transformers names it."""
        if self.vision is None:
            return IMPLEMENTATION
        # The patches of an image attend to each other within one call, without a cache.
        return {"text_config": IMPLEMENTATION, "vision_config": "sdpa"}


def read_facts(folder: Path, config: ModelConfig) -> ModelFacts:
    """Read the small files of a model.

    Raises:
      UnsupportedModel: its architecture cannot be served.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option does not fit the model or the machine.
      UnsupportedQuantization: its weights cannot be read, or need --dequantize.
    """
    device = resolve_device(config.device)
    set_threads(config)
    model_config = read_config(folder)
    if find_weight_formats(folder, config) is not None:
        forget_quantisation(model_config, None)
    return ModelFacts(
        config=model_config,
        device=device,
        architecture=check_architecture(model_config),
        max_model_len=resolve_max_model_len(model_config, config.max_model_len),
        default_sampling=read_default_sampling(folder, config),
        vision=find_vision_kind(model_config),
    )


def takes_images(folder: Path) -> bool:
    """Return whether a model takes images, by its config.json."""
    return find_vision_kind(read_config(folder)) is not None
