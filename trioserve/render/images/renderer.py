"""Turns images of requests from URLs into inputs of the model's encoder.

    url -> bytes and digest -> in the cache? -> pixels -> tensors and text
           loader.py           here             loader.py preprocess.py

The key of an image is the digest of its bytes. A chat sends its images again with every
turn; an image in the cache is not even decoded again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
import logging
from typing import TYPE_CHECKING
import weakref

import trio

from ...config import MediaConfig, parse_bytes
from ...errors import InvalidParameter, MemoryFull, escape
from ...types.admission import Pace
from ..text.chat import Base64Image
from ..workers.threads import RendererStatistics, RendererWorkers
from .loader import EncodedImage, ImageLoader, Url
from .mixed import ImageToken
from .preprocess import ImageProcessor, ProcessedImage
from .processors import load_image_processor

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "ImageProcessor",
    "ImageRenderer",
    "ImageStatistics",
    "ProcessedImage",
    "load_image_processor",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStatistics:
    """The present state of the cache and of the threads.

    Args:
      entries: prepared images in the cache.
      num_bytes: the size of their tensors.
      media: the threads that load and decode.
      processing: the thread that prepares.
    """

    entries: int
    num_bytes: int
    media: RendererStatistics
    processing: RendererStatistics


class ImageRenderer:
    """Prepares the images of requests, each new one once.

    Args:
      loader: None to make one from `config`.

    Attributes:
      loader: fetches and decodes images.
      token: stands for an image, and for each of its vectors.
      max_images: the limit of images in one request.
      num_hits: requested images that were found in the cache, perhaps after another
        request had prepared them.
      num_misses: images that had to be decoded and prepared.
    """

    def __init__(
        self,
        processor: ImageProcessor,
        config: MediaConfig,
        *,
        loader: ImageLoader | None = None,
    ) -> None:
        self.token = ImageToken(
            text=processor.image_token, vector_id=processor.vector_token_id
        )
        self.max_images = config.max_images
        self._processor = processor
        self.loader = ImageLoader(config) if loader is None else loader
        # One thread, because transformers' processors are not safe in several.
        self._workers = RendererWorkers(1)
        # Images that are being prepared, by their keys.
        self._pending: dict[bytes, trio.Event] = {}
        self.num_hits = 0
        self.num_misses = 0
        self._max_held_bytes = parse_bytes(
            "max_images_memory", config.max_images_memory
        )
        self._num_held_bytes = 0
        self._pace = Pace()
        # Sizes of freed images; any thread may append one.
        self._freed: deque[int] = deque()

    async def render(self, url: Url | Base64Image, *, param: str) -> ProcessedImage:
        """Load an image and prepare it for the model, or find it in the cache.

        Args:
          url: a data, http, https or file URL, or a file in base64.
          param: its field in the request, for errors.

        Raises:
          InvalidParameter: there is no image, or this model cannot read it.
          RendererStuck: too many images exceeded their time limit and still run.
          MemoryFull: prepared images take all the memory that is reserved for them.
        """
        encoded = await self.loader.load(url, param=param)
        # Several requests with the same image wait until one of them has prepared it.
        while (pending := self._pending.get(encoded.digest)) is not None:
            await pending.wait()
        if (found := self._processor.cache.get(encoded.digest)) is not None:
            self.num_hits += 1
            return found
        self.num_misses += 1
        return await self._prepare(encoded, param)

    def list_workers(self) -> Iterator[tuple[str, RendererWorkers]]:
        """Yield all threads, by groups with the name of one."""
        yield "media thread", self.loader.workers
        yield "image processor", self._workers

    @property
    def num_held_bytes(self) -> int:
        """The size of all prepared images: in the cache, prompts and steps."""
        while self._freed:
            self._num_held_bytes -= self._freed.popleft()
        return self._num_held_bytes

    def statistics(self) -> ImageStatistics:
        cache = self._processor.cache
        return ImageStatistics(
            entries=len(cache),
            num_bytes=cache.num_bytes,
            media=self.loader.workers.statistics(),
            processing=self._workers.statistics(),
        )

    async def _prepare(self, encoded: EncodedImage, param: str) -> ProcessedImage:
        key = encoded.digest
        self._pending[key] = trio.Event()
        try:
            # Refused without a wait. Requests that each held some images and waited for
            # memory for the rest would wait for each other.
            if self.num_held_bytes >= self._max_held_bytes:
                raise MemoryFull("images", retry_after_seconds=self._estimate_wait())
            image = await self.loader.decode(encoded, param=param)
            processed = await self._workers.run(
                partial(self._process, image, key, param)
            )
            self._hold(processed)
            self._processor.cache.put(processed)
            return processed
        finally:
            # After a failure, too. Then each waiting request tries for itself.
            self._pending.pop(key).set()

    def _hold(self, image: ProcessedImage) -> None:
        """Count an image's bytes until its tensors are freed."""
        self._note_held()
        self._num_held_bytes += image.num_bytes
        self._note_held()
        weakref.finalize(image.tensors, self._freed.append, image.num_bytes).atexit = (
            False
        )

    def _note_held(self) -> None:
        self._pace.observe(trio.current_time(), self.num_held_bytes)

    def _estimate_wait(self) -> int:
        self._note_held()
        return self._pace.estimate_seconds(trio.current_time(), self.num_held_bytes)

    def _process(self, image: Image, key: bytes, param: str) -> ProcessedImage:
        try:
            return self._processor.process(image, key)
        except MemoryError:
            raise
        # The processor worked at start-up, so it does not accept this image.
        # Qwen2-VL's, for example, refuses an image with one side 200 times as long as
        # the other.
        except Exception as error:
            logger.info("the image processor refuses an image: %s", escape(repr(error)))
            width, height = image.size
            raise InvalidParameter(
                param,
                f"is an image of {width} x {height} pixels that the model's image "
                "processor does not accept",
            ) from error
