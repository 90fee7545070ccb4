"""The processor of Pixtral and Mistral 3, for machines without torchvision.

transformers' own PixtralProcessor cannot be imported without that package, though it needs
nothing of it. The tokens of an image are its rows of vectors, each with a token behind it:

    [IMG] [IMG] [IMG] [IMG_BREAK]
    [IMG] [IMG] [IMG] [IMG_END]

Source: transformers 5.24, models/pixtral/processing_pixtral.py.
"""

from __future__ import annotations

from typing import Any

from transformers import ProcessorMixin


class PixtralImages(ProcessorMixin):
    """PixtralProcessor, as far as images need it.

    Args:
      patch_size: of the encoder, in pixels.
      spatial_merge_size: patches along each side that become one vector.
    """

    images_kwargs = {"return_tensors": "pt"}

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: Any = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
        **others: Any,
    ) -> None:
        # transformers has no types for it.
        start: Any = super().__init__
        start(image_processor, tokenizer, chat_template=chat_template)
        self._side = patch_size * spatial_merge_size
        self.image_token = image_token
        self._break_token = image_break_token
        self._end_token = image_end_token

    def _process_images(self, images: Any, **settings: Any) -> Any:
        settings["patch_size"] = self._side
        return super()._process_images(images, **settings)

    def replace_image_token(
        self, image_inputs: Any, image_idx: int, **others: Any
    ) -> str:
        """Return the tokens of an image."""
        sizes: list[int] = list(map(int, image_inputs["image_sizes"][image_idx]))
        height, width = (size // self._side for size in sizes)
        rows = [self.image_token * width] * height
        return self._break_token.join(rows) + self._end_token
