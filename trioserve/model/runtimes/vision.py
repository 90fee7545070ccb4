"""The kinds of models that take images, and their encoders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
import inspect
import logging
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...types.model_info import SEES_NO_IMAGES
from ...types.prompt import EmbeddedInput
from ..attention.probe import LayerSpec
from ..device.tensors import read_tensor
from ..device.torch_threads import torch_threads

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionKind:
    """A kind of model that takes images.

    Args:
      vision_type: model_type of its image model.
      text_type: model_type of its text model; None if it may be any that is served.
      has_grid_positions: its rotary embeddings place the vectors of an image in a plane.
      has_deepstack: its encoder also has vectors for the layers behind the first
        (deepstack.py).
      joins: the layers in which the tokens of an image see each other: none, all, or the
        layers with a window.
      unread: names of its modules that no image needs, such as the encoder of sound.
    """

    vision_type: str
    text_type: str | None = None
    has_grid_positions: bool = False
    has_deepstack: bool = False
    joins: Literal["none", "all", "windows"] = "none"
    unread: tuple[str, ...] = ()

    def mark(self, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
        """Return a model's layers, with those marked that join images."""
        return tuple(
            replace(layer, joins_images=True) if self._joins_in(layer) else layer
            for layer in layers
        )

    def _joins_in(self, layer: LayerSpec) -> bool:
        if self.joins == "windows":
            return layer.window is not None
        return self.joins == "all"


# By model_type. All of them are compared with transformers, token for token. Others would
# often run and give wrong results.
VISION_KINDS: dict[str, VisionKind] = {
    "gemma3": VisionKind(
        text_type="gemma3_text", vision_type="siglip_vision_model", joins="all"
    ),
    # If use_bidirectional_attention is "vision": the small ones join no images.
    "gemma4": VisionKind(
        text_type="gemma4_text",
        vision_type="gemma4_vision",
        joins="windows",
        unread=("model.audio_tower", "model.embed_audio"),
    ),
    "glm46v": VisionKind(
        text_type="glm4v_text", vision_type="glm4v_vision", has_grid_positions=True
    ),
    "glm4v": VisionKind(
        text_type="glm4v_text", vision_type="glm4v_vision", has_grid_positions=True
    ),
    "glm4v_moe": VisionKind(
        text_type="glm4v_moe_text",
        vision_type="glm4v_moe_vision",
        has_grid_positions=True,
    ),
    "idefics3": VisionKind(text_type="llama", vision_type="idefics3_vision"),
    "internvl": VisionKind(vision_type="internvl_vision"),
    "llava": VisionKind(vision_type="clip_vision_model"),
    "llava_next": VisionKind(vision_type="clip_vision_model"),
    "mistral3": VisionKind(vision_type="pixtral"),
    "qwen2_5_vl": VisionKind(
        text_type="qwen2_5_vl_text",
        vision_type="qwen2_5_vl_vision",
        has_grid_positions=True,
    ),
    "qwen2_vl": VisionKind(
        text_type="qwen2_vl_text",
        vision_type="qwen2_vl_vision",
        has_grid_positions=True,
    ),
    "qwen3_5": VisionKind(
        text_type="qwen3_5_text", vision_type="qwen3_5_vision", has_grid_positions=True
    ),
    "qwen3_5_moe": VisionKind(
        text_type="qwen3_5_moe_text",
        vision_type="qwen3_5_moe_vision",
        has_grid_positions=True,
    ),
    "qwen3_vl": VisionKind(
        text_type="qwen3_vl_text",
        vision_type="qwen3_vl_vision",
        has_grid_positions=True,
        has_deepstack=True,
    ),
    "qwen3_vl_moe": VisionKind(
        text_type="qwen3_vl_moe_text",
        vision_type="qwen3_vl_moe_vision",
        has_grid_positions=True,
        has_deepstack=True,
    ),
    "smolvlm": VisionKind(text_type="llama", vision_type="smolvlm_vision"),
    "vipllava": VisionKind(text_type="llama", vision_type="clip_vision_model"),
}


# Further types whose texts are compared with transformers, but whose images are not served.
TEXT_PARTS = frozenset(
    {
        *("aria", "aya_vision", "cohere2_vision", "exaone4_5"),
        *("gemma4_unified", "glm_ocr", "idefics2"),
        *("hyperclovax_vision_v2", "kimi_k25", "lfm2_vl", "lighton_ocr"),
        *("llava_next_video", "llava_onevision", "ovis2", "paddleocr_vl"),
        *("qianfan_ocr", "video_llama_3"),
    }
)


def has_vision(config: PreTrainedConfig) -> bool:
    """Return whether a model of a known type also reads images."""
    model_type = type(config).model_type
    return model_type in VISION_KINDS or model_type in TEXT_PARTS


def find_vision_kind(config: PreTrainedConfig) -> VisionKind | None:
    """Return the kind of a configuration's model; None if its images are not served."""
    # The attribute of the class, because files have other names for some of the types.
    kind = VISION_KINDS.get(type(config).model_type)
    if kind is None:
        return None
    text_type = type(config.text_config).model_type
    is_known = kind.text_type in (None, text_type)
    # Some are without the part that reads images.
    vision_type = getattr(type(config.vision_config), "model_type", None)
    is_known &= vision_type == kind.vision_type
    if not is_known:
        return None
    if kind.joins == "windows":
        direction = getattr(config.text_config, "use_bidirectional_attention", None)
        if direction != "vision":
            return replace(kind, joins="none")
    return kind


def explain_refusal(config: PreTrainedConfig, *, text_only: bool) -> str | None:
    """Return the reason why images are refused, for clients; None if they are taken.

    Args:
      text_only: the user wants the text part alone.
    """
    if not has_vision(config):
        return SEES_NO_IMAGES
    if text_only:
        return "the server was started with --text-only, so it takes no images"
    if find_vision_kind(config) is None:
        return (
            f"only the text part of {type(config).model_type} models is served, so this "
            "server takes no images"
        )
    if config.image_token_id >= config.get_text_config(decoder=True).vocab_size:
        return (
            "this model takes no images, because the token that stands for them lies "
            "outside of its vocabulary"
        )
    return None


class ImageEncoder:
    """Calls the model's own encoder, one image at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        # The type PreTrainedModel has no encoder.
        self._model: Any = model
        encode: Any = model.get_image_features
        self._takes = frozenset(inspect.signature(encode).parameters)
        self._num_threads = torch.get_num_threads()

    def encode(self, image: EmbeddedInput) -> Tensor:
        """Return the vectors of an image, (num_vectors, width) on the device.

        Behind the hidden_size numbers for the first layer, a vector has as many for each
        layer behind which the model adds some.

        Args:
          image: has the tensors of the image processor; the encoder gets only those that
            it takes.
        """
        tensors = {
            name: self._send(read_tensor(tensor))
            for name, tensor in image.tensors.items()
            if name in self._takes
        }
        with torch_threads(self._num_threads):
            output = self._model.get_image_features(**tensors, return_dict=True)
        levels = (
            output.pooler_output,
            *(getattr(output, "deepstack_features", ()) or ()),
        )
        vectors = torch.cat(list(map(_join, levels)), dim=-1)  # (num_vectors, width)
        return _fit(vectors, image.num_vectors)

    def _send(self, tensor: Tensor) -> Tensor:
        model = self._model
        dtype = model.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(model.device, dtype)


def _join(parts: Tensor | Iterable[Tensor]) -> Tensor:
    """Join the tensors of an image's parts, (num_vectors, hidden_size)."""
    # Transformers 5.17 has joined some already.
    parts = [parts] if isinstance(parts, Tensor) else parts
    return torch.cat([part.flatten(0, -2) for part in parts])


def _fit(vectors: Tensor, num_vectors: int) -> Tensor:
    """Cut or fill up the vectors of an image if their number is wrong.

    A wrong number means that the folder's image processor does not fit its model. Answers
    about this image will be wrong, but other requests go on.
    """
    if len(vectors) == num_vectors:
        return vectors
    logger.error(
        "an image gave %d vectors for %d positions of its prompt; the model's image "
        "processor does not fit its encoder",
        len(vectors),
        num_vectors,
    )
    return pad(vectors, (0, 0, 0, num_vectors - len(vectors)))
