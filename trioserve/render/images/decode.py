"""Decodes image files of untrusted clients to pixels, with Pillow.

Blocking: runs in threads. Pillow's decoders release the GIL. Files that would take far
more time than their size suggests are refused before they are decoded. Image.open is
not used: it warns process-wide about large images, and reads some JPEG files as several
pictures.

The result has the pixels that transformers gives to a model: upright by the orientation
in the file, and on white instead of transparent. An animation gives its first frame.
"""

from __future__ import annotations

from collections.abc import Callable
import io
import logging
import re

from PIL import Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ...errors import InvalidParameter, escape
from .orientation import read_orientation

logger = logging.getLogger(__name__)

# Some processors, such as CLIP's, scale the short side to a fixed length, and would
# make gigapixels of longer strips. Qwen2-VL's processor has the same limit.
_MAX_ASPECT_RATIO = 200

# Pillow reads a header piece by piece in Python, with a few reads for each, and joins
# the EXIF pieces of a JPEG file in quadratic time. Photographs have dozens of pieces.
_MAX_HEADER_READS = 4096

# Behind the header a piece is a chunk of a PNG file, or 64 KiB of other files. Even
# encoders with tiny chunks put a few hundred bytes in each.
_BYTES_PER_READ = 64

# A progressive JPEG file may process all its pixels again for every few bytes. This
# limit is 64 scans of the largest image that is allowed by default: three seconds.
# Encoders write about ten scans; the rest is for bytes of the metadata that look like a
# scan.
_MAX_SCANNED_PIXELS = 2**32

_SCAN_MARKER = b"\xff\xda"
_PIECE_BYTES = 2**20

# Less than a millisecond of Image.alpha_composite.
_BAND_PIXELS = 2**18

# The operation that turns an image upright, by the value of its tag. Source: EXIF 2.32,
# 4.6.4.
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: bytes, *, max_pixels: int, param: str) -> Image.Image:
    """Decode a PNG, JPEG, WebP, GIF or BMP file.

    Args:
      max_pixels: the limit of width times height.
      param: the image's field in the request, for errors.

    Returns:
      An image in mode RGB.

    Raises:
      InvalidParameter: it is not such a file, broken, or too large.
    """
    try:
        image = _open(data, param)
        _check_size(image.size, max_pixels, param)
        return _turn_upright(_flatten(_load(image, data)), image)
    except (InvalidParameter, MemoryError):
        raise
    # Pillow's parsers raise errors of many classes: OSError, SyntaxError, ValueError,
    # struct.error, zlib.error, KeyError ... Their texts may contain addresses of
    # objects.
    except Exception as error:
        logger.debug("an image cannot be decoded: %s", escape(repr(error)))
        raise InvalidParameter(param, "is not an image that can be decoded") from error


class _BoundedReads(io.BytesIO):
    """A file in memory that refuses to be read in too many pieces."""

    reads_left = _MAX_HEADER_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise OSError("the file is in too many pieces")
        return super().read(size)


class _JpegImageFile(JpegImageFile):
    def getexif(self) -> Image.Exif:
        # Pillow calls this while it opens the file, for the resolution in dots per
        # inch. Its own method warns of each broken tag.
        return Image.Exif()


def _open_jpeg(file: io.BytesIO) -> ImageFile.ImageFile:
    image = _JpegImageFile(file)
    if image.info.get("progressive"):
        num_pixels = image.width * image.height
        if _count_scans(file.getvalue()) * num_pixels > _MAX_SCANNED_PIXELS:
            raise OSError("the file has too many scans")
    return image


def _open_bmp(file: io.BytesIO) -> ImageFile.ImageFile:
    image = BmpImageFile(file)
    # Pillow decodes these in Python, byte by byte. Hardly any program writes them.
    if any(tile.codec_name == "bmp_rle" for tile in image.tile):
        raise OSError("run-length encoded bitmaps are not supported")
    return image


_OPENERS: dict[re.Pattern[bytes], Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    re.compile(rb"\x89PNG\r\n\x1a\n"): PngImageFile,
    re.compile(rb"\xff\xd8\xff"): _open_jpeg,
    re.compile(rb"RIFF....WEBP", re.DOTALL): WebPImageFile,
    re.compile(rb"GIF8[79]a"): GifImageFile,
    re.compile(rb"BM"): _open_bmp,
}


def _open(data: bytes, param: str) -> ImageFile.ImageFile:
    for pattern, opener in _OPENERS.items():
        if pattern.match(data):
            # The file shares the bytes' memory.
            return opener(_BoundedReads(data))
    raise InvalidParameter(param, "is not a PNG, JPEG, WebP, GIF or BMP image")


def _count_scans(data: bytes) -> int:
    # In pieces, because bytes.count holds the GIL. A marker on a border is not counted.
    pieces = range(0, len(data), _PIECE_BYTES)
    return sum(data.count(_SCAN_MARKER, at, at + _PIECE_BYTES) for at in pieces)


def _check_size(size: tuple[int, int], max_pixels: int, param: str) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise InvalidParameter(param, "is an image without pixels")
    if width * height > max_pixels:
        raise InvalidParameter(
            param,
            f"is an image of {width} x {height} pixels, more than {max_pixels} in all",
        )
    if max(size) > _MAX_ASPECT_RATIO * min(size):
        raise InvalidParameter(
            param,
            f"is an image of {width} x {height} pixels; one side may be "
            f"{_MAX_ASPECT_RATIO} times the other at most",
        )


def _load(image: ImageFile.ImageFile, data: bytes) -> ImageFile.ImageFile:
    if isinstance(image.fp, _BoundedReads):
        image.fp.reads_left = _MAX_HEADER_READS + len(data) // _BYTES_PER_READ
    image.load()
    return image


def _flatten(image: Image.Image) -> Image.Image:
    """Convert to RGB as transformers.image_transforms.convert_to_rgb does."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return _lay_on_white(image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _lay_on_white(image: Image.Image) -> Image.Image:
    # In bands, because Image.alpha_composite holds the GIL.
    width, height = image.size
    rows = max(1, _BAND_PIXELS // width)
    flat = Image.new("RGB", image.size)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        white = Image.new("RGBA", band.size, (255, 255, 255, 255))
        flat.paste(Image.alpha_composite(white, band).convert("RGB"), (0, top))
    return flat


def _turn_upright(image: Image.Image, source: ImageFile.ImageFile) -> Image.Image:
    method = _TRANSPOSE.get(read_orientation(source.info))
    return image if method is None else image.transpose(method)
