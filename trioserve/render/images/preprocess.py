"""The model's own image processor, and a cache of its results.

The processor is transformers'. The results are exactly the tensors and the text that
`processor(text=..., images=[image])` passes to the model.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...config import MediaConfig, parse_bytes
from ...errors import UnsupportedModel
from ...types.tensors import TensorBytes

if TYPE_CHECKING:
    from PIL.Image import Image
    import torch
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

# Idefics 3 and InternVL count an image's tokens by these, and drop them inside __call__.
# SmolVLM's processor lists them in unused_input_names.
_LAYOUT_NAMES = ("rows", "cols", "num_patches")


class ImageTensors(dict[str, TensorBytes]):
    """An image's tensors by name.

    A class of its own, because weakref.finalize accepts no plain dict.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedImage:
    """One image, ready for the model.

    Args:
      replacement: the text that stands for it in the prompt.
      num_vectors: how often the token of vectors occurs in the replacement; the model's
        encoder makes as many vectors.
      tensors: inputs of the encoder by name.
      key: KEY_BYTES; images of equal bytes have equal keys.
    """

    replacement: str
    num_vectors: int
    tensors: ImageTensors
    key: bytes

    @property
    def num_bytes(self) -> int:
        """The size of its tensors."""
        return sum(len(tensor.data) for tensor in self.tensors.values())


class ImageCache:
    """A least-recently-used cache of processed images, by key.

    Only the event loop's thread uses it.

    Args:
      capacity: bytes of tensors; 0 keeps nothing.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, ProcessedImage] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> ProcessedImage | None:
        if (found := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, image: ProcessedImage) -> None:
        """Add an image that is not in the cache, unless it exceeds the capacity."""
        if image.num_bytes > self._capacity:
            return
        assert image.key not in self._entries, "images are prepared one at a time"
        self._entries[image.key] = image
        self.num_bytes += image.num_bytes
        while self.num_bytes > self._capacity:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes


class ImageProcessor:
    """The model's own processor, without its parts for text, video and sound.

    Args:
      tokenizer: has the image's token; nothing is tokenized with it.

    Attributes:
      processor: the processor of transformers.
      image_token: stands for an image in a rendered chat.
      vector_token: stands for each vector in an image's replacement; mostly the same.
      vector_token_id: its id.
      cache: earlier results; callers of process look there first.

    Raises:
      UnsupportedModel: the model has no such token.
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        tokenizer: PreTrainedTokenizerBase,
        config: MediaConfig,
    ) -> None:
        self.image_token = _read_image_token(processor)
        self.vector_token = getattr(tokenizer, "image_token", self.image_token)
        self.vector_token_id = _find_token_id(processor, tokenizer, self.vector_token)
        self.cache = ImageCache(_read_capacity(config))
        self.processor = processor
        self._settings: dict[str, Any] = processor._merge_kwargs(
            tokenizer_init_kwargs=tokenizer.init_kwargs, return_tensors="pt"
        )["images_kwargs"]
        self._left_out = {*processor.unused_input_names, *_LAYOUT_NAMES}

    def process(self, image: Image, key: bytes) -> ProcessedImage:
        """Prepare an image for the model. Blocking; one call at a time.

        Args:
          image: in mode RGB.
          key: the result's key.
        """
        inputs, (replacement,) = self.processor._process_images(
            [image], **self._settings
        )
        return ProcessedImage(
            replacement=replacement,
            num_vectors=replacement.count(self.vector_token),
            tensors=ImageTensors(
                (name, _to_bytes(tensor))
                for name, tensor in inputs.items()
                if name not in self._left_out
            ),
            key=key,
        )


def _read_image_token(processor: ProcessorMixin) -> str:
    name = type(processor).__name__
    token = getattr(processor, "image_token", None)
    if not isinstance(token, str):
        raise UnsupportedModel(name, "it has no token that stands for an image")
    return token


def _find_token_id(
    processor: ProcessorMixin, tokenizer: PreTrainedTokenizerBase, token: str
) -> int:
    if token not in tokenizer.get_vocab():
        raise UnsupportedModel(
            type(processor).__name__, f"its tokenizer has no token {token!r}"
        )
    token_id = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(token_id, int), "one token has one id"
    return token_id


def _read_capacity(config: MediaConfig) -> int:
    if config.processor_cache_memory in ("0", 0):
        return 0
    return parse_bytes("processor_cache_memory", config.processor_cache_memory)


def _to_bytes(tensor: torch.Tensor) -> TensorBytes:
    """Return a tensor's memory, without a copy if its elements are in order."""
    import torch

    # As bytes, because NumPy has no bfloat16. reshape, because view refuses tensors
    # without dimensions.
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return TensorBytes(
        data=flat.numpy().data,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
    )
