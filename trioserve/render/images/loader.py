"""Loads images that requests name: as bytes, and then as pixels.

    data:image/png;base64,...     decoded; also without its head, as a Base64Image
    http://..., https://...       fetched from allowed hosts (fetch.py)
    file:///...                   read below one allowed folder

All blocking work runs in threads under one limiter. Fetches have another limiter.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
import io
import os
from pathlib import Path
import re
import stat
from typing import TYPE_CHECKING
from urllib.parse import unquote

from PIL import Image
import pybase64
import trio

from ...config import MediaConfig, parse_bytes
from ...errors import InvalidConfig, InvalidParameter
from ...types.prompt import KEY_BYTES
from ..text.chat import Base64Image
from ..workers.threads import RendererWorkers, TookTooLong, hold_token
from .address import IPAddress, is_public
from .decode import decode_image

if TYPE_CHECKING:
    from .fetch import ImageFetcher

# Long enough for every scheme, and for the part of a data URL before its bytes.
_HEAD_CHARACTERS = 256

# A call of pybase64 holds the GIL, for a fraction of a millisecond with so many
# characters. Four characters are three bytes, so each piece ends between two groups.
_BASE64_PIECE = 2**20

# RFC 2397. Parameters of the media type are ignored.
_DATA_HEAD = re.compile(r"data:image/[\w.+-]+(?:;[\w.+-]+=[\w.+-]*)*;base64,", re.I)

_FILE_URL = re.compile(r"file:(?://(?:localhost)?)?(/[^?#]*)", re.I)

# The same text for all errors, because it must not reveal which files exist.
_NO_FILE = "is not a file that this server reads"

Url = str | bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImage:
    """The bytes of an image file.

    Args:
      digest: KEY_BYTES; it depends on `data` alone.
    """

    data: bytes
    digest: bytes


class ImageLoader:
    """Loads and decodes images in a bounded number of threads and connections.

    Args:
      is_allowed_address: whether images may be fetched from an address.

    Attributes:
      workers: the threads.
      connections: limits the images that are fetched at once.

    Raises:
      InvalidConfig: an allowed domain is not the name of a host, or the allowed path is
        not a folder.
    """

    def __init__(
        self,
        config: MediaConfig,
        *,
        is_allowed_address: Callable[[IPAddress], bool] = is_public,
    ) -> None:
        self.workers = RendererWorkers(config.media_num_workers)
        # A limiter of its own, so that a slow host does not delay images that have
        # arrived.
        self.connections = trio.CapacityLimiter(config.media_num_connections)
        self._max_bytes = parse_bytes("max_image_bytes", config.max_image_bytes)
        self._max_pixels = config.max_image_pixels
        self._seconds = config.media_timeout
        self._folder = _resolve_folder(config.allowed_local_media_path)
        self._fetcher = _make_fetcher(config, is_allowed_address)

    async def load(self, url: Url | Base64Image, *, param: str) -> EncodedImage:
        """Load the bytes of an image.

        Args:
          url: a data, http, https or file URL, or a file in base64.
          param: its field in the request, for errors.

        Raises:
          InvalidParameter: the URL is wrong or not allowed, or nothing can be loaded.
        """
        if isinstance(url, Base64Image):
            return await self._run(partial(self._decode_data, url.data, 0, param))
        head = _read_head(url)
        scheme = head.partition(":")[0].lower()
        if scheme == "data":
            return await self._run(partial(self._decode_data_url, url, head, param))
        if scheme == "file":
            text = _read_text(url, param)
            return await self._run(partial(self._read_file, text, param))
        if scheme not in ("http", "https"):
            raise InvalidParameter(param, "must be a data, http, https or file URL")
        return await self._fetch(_read_text(url, param), param)

    async def decode(self, encoded: EncodedImage, *, param: str) -> Image.Image:
        """Decode the bytes of an image to pixels.

        Returns:
          An upright image in mode RGB.

        Raises:
          InvalidParameter: they are not an image, or the image is too large.
          RendererStuck: too many images exceeded their time limit and still run.
        """
        work = partial(
            decode_image, encoded.data, max_pixels=self._max_pixels, param=param
        )
        try:
            return await self.workers.run_limited(work, self._seconds)
        except TookTooLong:
            raise InvalidParameter(
                param, f"takes longer than {self._seconds:g} s to decode"
            ) from None

    async def _run(self, read: Callable[[], bytes]) -> EncodedImage:
        return await self.workers.run(lambda: _digest(read()))

    async def _fetch(self, url: str, param: str) -> EncodedImage:
        if self._fetcher is None:
            raise InvalidParameter(param, "this server fetches no images from the web")
        async with hold_token(self.connections):
            data = await self._fetcher.fetch(url, param=param)
        return await self.workers.run(partial(_digest, data))

    # The rest runs in worker threads.

    def _decode_data_url(self, url: Url, head: str, param: str) -> bytes:
        found = _DATA_HEAD.match(head)
        if found is None:
            raise InvalidParameter(
                param, "is not a data URL of the form data:image/png;base64,..."
            )
        return self._decode_data(url, found.end(), param)

    def _decode_data(self, url: Url, begin: int, param: str) -> bytes:
        if (len(url) - begin) // 4 * 3 > self._max_bytes + 2:
            raise self._too_large(param)
        try:
            data = _decode_base64(url, begin)
        except ValueError:
            raise InvalidParameter(param, "is not valid base64") from None
        if len(data) > self._max_bytes:
            raise self._too_large(param)
        return data

    def _read_file(self, url: str, param: str) -> bytes:
        if self._folder is None:
            raise InvalidParameter(param, "this server reads no image files")
        try:
            data = _read_regular_file(_find_file(url, self._folder), self._max_bytes)
        except (OSError, ValueError):
            raise InvalidParameter(param, _NO_FILE) from None
        if len(data) > self._max_bytes:
            raise self._too_large(param)
        return data

    def _too_large(self, param: str) -> InvalidParameter:
        return InvalidParameter(
            param, f"is an image of more than {self._max_bytes} bytes"
        )


def _make_fetcher(
    config: MediaConfig, is_allowed_address: Callable[[IPAddress], bool]
) -> ImageFetcher | None:
    if not config.allowed_media_domains:
        return None
    # Imported here, because few servers fetch, and the import takes time at every
    # start.
    from .fetch import ImageFetcher

    return ImageFetcher(config, is_allowed_address=is_allowed_address)


def _resolve_folder(path: str | None) -> Path | None:
    if path is None:
        return None
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise InvalidConfig("allowed_local_media_path", f"{path!r} is not a folder")
    return folder


def _read_head(url: Url) -> str:
    head = url[:_HEAD_CHARACTERS]
    # Other characters become U+FFFD, which no scheme contains.
    return head if isinstance(head, str) else str(head, "ascii", "replace")


def _read_text(url: Url, param: str) -> str:
    if isinstance(url, str):
        return url
    try:
        return str(url, "utf-8")
    except UnicodeDecodeError:
        raise InvalidParameter(param, "is not a URL") from None


def _digest(data: bytes) -> EncodedImage:
    # blake2b releases the GIL for all but tiny images.
    return EncodedImage(data=data, digest=blake2b(data, digest_size=KEY_BYTES).digest())


def _decode_base64(url: Url, begin: int) -> bytes:
    """Decode the base64 behind `begin`, piece by piece.

    Raises:
      ValueError: it has other characters, or its padding is missing.
    """
    decoded = io.BytesIO()
    for at in range(begin, len(url), _BASE64_PIECE):
        piece = pybase64.b64decode(url[at : at + _BASE64_PIECE], validate=True)
        is_last = at + _BASE64_PIECE >= len(url)
        if not is_last and len(piece) != _BASE64_PIECE // 4 * 3:
            raise binascii.Error("padding in the middle")
        decoded.write(piece)
    # Makes no copy, because nothing else holds the buffer.
    return decoded.getvalue()


def _find_file(url: str, folder: Path) -> Path:
    """Resolve a file URL, including links, to a path below the folder.

    Raises:
      ValueError: it is not a file URL, or leads out of the folder.
      OSError: there is no such file.
    """
    found = _FILE_URL.fullmatch(url)
    if found is None:
        raise ValueError("not a file URL of this host")
    path = Path(os.path.realpath(unquote(found[1], errors="strict"), strict=True))
    if not path.is_relative_to(folder):
        raise ValueError("outside of the folder")
    return path


def _read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Read a file; of a file that is too long, one byte more than allowed."""
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        return file.read(min(status.st_size, max_bytes) + 1)
