"""Pictures for questions."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The limit of `trioserve serve`, --max-image-bytes.
_MAX_BYTES: Final = 32 * 2**20

# First bytes -> MIME type.
_SIGNATURES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}


class ImageRefused(Exception):
    """Raised when a file is not a picture; the message is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture.

    Args:
      name: of its file.
      url: a data URL with its content.
    """

    name: str
    url: str


def read_image(path: str) -> Image:
    """Read a picture.

    Raises:
      ImageRefused
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ImageRefused(f"{path} has more than {_MAX_BYTES >> 20} MiB")
        content = file.read_bytes()
    except OSError as error:
        raise ImageRefused(f"cannot read {path}: {error.strerror}") from None
    # Such as the name of a file with a zero in it.
    except ValueError as error:
        raise ImageRefused(f"cannot read {path!r}: {error}") from None
    kind = _find_type(content)
    if kind is None:
        raise ImageRefused(f"{path} is not a PNG, JPEG, GIF, WebP or BMP picture")
    text = base64.b64encode(content).decode()
    return Image(name=file.name, url=f"data:{kind};base64,{text}")


def _find_type(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for signature, kind in _SIGNATURES.items():
        if content.startswith(signature):
            return kind
    return None
