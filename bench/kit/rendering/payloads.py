"""Parts of requests that are expensive to read: images, tensors, long chats."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from trioserve.programs.bench.measuring.texts import write_text

if TYPE_CHECKING:
    from PIL.Image import Image

HIDDEN_SIZE = 4096
IMAGE_SIZE = (1152, 864)

MESSAGE_CHARACTERS = 200
LAST_MESSAGE_CHARACTERS = 40


def draw_photo(seed: int) -> Image:
    """Draw an image of a megapixel that takes as many bytes as a photo does."""
    from PIL import Image
    import numpy as np

    drawn = np.random.default_rng(seed)
    width, height = IMAGE_SIZE
    image = Image.new("RGB", IMAGE_SIZE, (128, 128, 128))
    # Shapes of all sizes, the small ones faint.
    for cell, alpha in ((128, 0.7), (32, 0.35), (8, 0.2), (2, 0.16)):
        noise = drawn.integers(0, 256, (height // cell, width // cell, 3), np.uint8)
        shapes = Image.fromarray(noise).resize(IMAGE_SIZE, Image.Resampling.BICUBIC)
        image = Image.blend(image, shapes, alpha)
    return image


def encode_image(image: Image, kind: str) -> bytes:
    """Encode an image as "JPEG" or "PNG"."""
    file = io.BytesIO()
    image.save(file, kind, quality=90)
    return file.getvalue()


def write_image_message(seed: int) -> dict[str, object]:
    """Write a message about an image that no other seed has."""
    encoded = base64.b64encode(encode_image(draw_photo(seed), "JPEG")).decode()
    url = {"url": f"data:image/jpeg;base64,{encoded}"}
    parts = [
        {"type": "image_url", "image_url": url},
        {"type": "text", "text": "What is this?"},
    ]
    return {"role": "user", "content": parts}


def encode_tensor(num_rows: int) -> str:
    """Encode random vectors of HIDDEN_SIZE bfloat16 numbers, as torch.save writes them.

    Equal numbers of rows give equal vectors.
    """
    import torch

    drawn = torch.Generator().manual_seed(num_rows)
    vectors = torch.randn(num_rows, HIDDEN_SIZE, generator=drawn).to(torch.bfloat16)
    file = io.BytesIO()
    torch.save(vectors, file)
    return base64.b64encode(file.getbuffer()).decode()


def write_long_messages(num_messages: int, seed: int) -> list[dict[str, object]]:
    """Write a chat; chats of different seeds differ only in the last message."""
    messages: list[dict[str, object]] = [
        {
            "role": ("user", "assistant")[number % 2],
            "content": write_text(MESSAGE_CHARACTERS, "chat", number),
        }
        for number in range(num_messages - 1)
    ]
    last = write_text(LAST_MESSAGE_CHARACTERS, "last", seed)
    return [*messages, {"role": "user", "content": last}]


def write_tool(number: int) -> dict[str, object]:
    """Describe a function in the form of OpenAI's API."""
    properties = {
        f"parameter_{name}": {"type": "string", "description": write_text(40, name)}
        for name in ("a", "b", "c")
    }
    function = {
        "name": f"function_{number}",
        "description": write_text(80, "function", number),
        "parameters": {"type": "object", "properties": properties},
    }
    return {"type": "function", "function": function}
