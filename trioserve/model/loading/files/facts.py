"""The facts about a model that are known before its weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from ....config import ModelConfig
from ....errors import InvalidConfig
from ...attention.probe import LayerSpec
from ...attention.registered import IMPLEMENTATION
from ...device.choose import resolve_device, set_threads
from ...runtimes.vision import VisionKind, explain_refusal, find_vision_kind, has_vision
from ..dequantise.quantisation import forget_quantisation
from .architecture import check_architecture
from .config_file import are_kept, find_weight_formats, read_config
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
      is_text_part: it is the text part of a model that also reads images.
      keeps_weights: its weights are quantised, and may stay as they are on this device.
    """

    config: PreTrainedConfig
    device: torch.device
    architecture: str
    max_model_len: int
    default_sampling: tuple[tuple[str, float], ...]
    vision: VisionKind | None
    is_text_part: bool
    keeps_weights: bool = False

    @property
    def is_of_text(self) -> bool:
        """True if the model never read images."""
        return self.vision is None and not self.is_text_part

    @property
    def num_deepstack_layers(self) -> int:
        """The number of layers behind which vectors of images are added."""
        if self.vision is None or not self.vision.has_deepstack:
            return 0
        return len(self.config.vision_config.deepstack_visual_indexes)

    def mark(self, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
        """Return the model's layers, with those marked that join images."""
        return layers if self.vision is None else self.vision.mark(layers)

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
    if config.quantization == "fp8" and device.type == "cpu":
        reason = "fp8 is for GPUs, and the device is cpu; int8 runs there"
        raise InvalidConfig("quantization", reason)
    set_threads(config)
    model_config = read_config(folder)
    keeps = are_kept(folder, config, device)
    if find_weight_formats(folder, config, keeps=keeps) is not None:
        forget_quantisation(model_config, None)
    refusal = explain_refusal(model_config, text_only=config.text_only)
    return ModelFacts(
        config=model_config,
        device=device,
        architecture=check_architecture(model_config),
        max_model_len=resolve_max_model_len(model_config, config.max_model_len),
        default_sampling=read_default_sampling(folder, config),
        vision=find_vision_kind(model_config) if refusal is None else None,
        is_text_part=has_vision(model_config) and refusal is not None,
        keeps_weights=keeps,
    )


def find_image_refusal(folder: Path, config: ModelConfig) -> str | None:
    """Return the reason why a model takes no images, by its config.json.

    Returns:
      None if it takes them
    """
    return explain_refusal(read_config(folder), text_only=config.text_only)
