"""Decoding an image gives the pixels of transformers, or a 400."""

from __future__ import annotations

from collections.abc import Iterator
import io
import random
import struct
import zlib

from PIL import Image, ImageOps
from examples import examples
from mutation import mutate
import numpy as np
import pytest
from transformers.image_transforms import convert_to_rgb

from trioserve.errors import InvalidParameter
from trioserve.render.images.decode import decode_image

MAX_PIXELS = 2**22


def decode(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    return decode_image(data, max_pixels=max_pixels, param="messages[0]")


def refuse(data: bytes, *, max_pixels: int = MAX_PIXELS) -> str:
    with pytest.raises(InvalidParameter) as refused:
        decode(data, max_pixels=max_pixels)
    assert refused.value.param == "messages[0]"
    return str(refused.value)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def draw(mode: str = "RGB", size: tuple[int, int] = (23, 17)) -> Image.Image:
    """Return an image of noise in all bands; all of its rows differ."""
    num_bands = len(Image.new(mode, (1, 1)).getbands())
    noise = np.random.default_rng(7).bytes(size[0] * size[1] * num_bands)
    if mode in ("P", "1", "I;16"):
        grey = Image.frombytes("L", size, noise[: size[0] * size[1]])
        return grey.convert("I").convert(mode) if mode == "I;16" else grey.convert(mode)
    return Image.frombytes(mode, size, noise)


def look(data: bytes) -> np.ndarray:
    """Return the pixels that transformers gives to a model."""
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    return convert_to_rgb(upright, return_numpy=True)


FILES: dict[str, bytes] = {
    **{
        f"png-{mode}": encode(draw(mode), "PNG")
        for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")
    },
    "png-colour-key": encode(draw("RGB"), "PNG", transparency=(1, 2, 3)),
    "png-palette-alpha": encode(draw("P"), "PNG", transparency=bytes(range(256))),
    "png-grey-key": encode(draw("L"), "PNG", transparency=20),
    **{f"jpeg-{mode}": encode(draw(mode), "JPEG") for mode in ("RGB", "L", "CMYK")},
    "jpeg-progressive": encode(draw(), "JPEG", progressive=True),
    "webp": encode(draw(), "WEBP"),
    "webp-alpha": encode(draw("RGBA"), "WEBP", lossless=True),
    "gif": encode(draw("P"), "GIF"),
    "gif-alpha": encode(draw("P"), "GIF", transparency=3),
    **{f"bmp-{mode}": encode(draw(mode), "BMP") for mode in ("RGB", "L", "P", "1")},
}


def test_a_file_gives_the_pixels_that_transformers_shows() -> None:
    for name, data in FILES.items():
        image = decode(data)
        assert image.mode == "RGB", name
        assert np.array_equal(np.asarray(image), look(data)), name


def test_alpha_is_laid_on_white_band_by_band() -> None:
    """2500 x 1000 pixels are ten bands: nine of 104 rows and one of 64."""
    data = encode(draw("RGBA", (500_000, 1)).resize((2500, 1000)), "PNG")
    assert np.array_equal(np.asarray(decode(data)), look(data))


def exif(orientation: int, *, order: str = "<", kind: int = 3) -> bytes:
    """Return an EXIF block with the resolution unit and the orientation."""
    value = struct.pack(order + {3: "H", 4: "I"}[kind], orientation)
    return b"".join(
        (
            {"<": b"II*\0", ">": b"MM\0*"}[order],
            struct.pack(order + "IH", 8, 2),
            struct.pack(order + "HHIHH", 0x0128, 3, 1, 2, 0),
            struct.pack(order + "HHI4s", 0x0112, kind, 1, value),
            bytes(4),
        )
    )


def test_an_image_is_turned_upright() -> None:
    for kind in ("JPEG", "PNG", "WEBP"):
        for orientation in range(0, 10):
            data = encode(draw(), kind, exif=b"Exif\0\0" + exif(orientation))
            image = decode(data)
            assert image.size == ((17, 23) if 5 <= orientation <= 8 else (23, 17)), kind
            assert np.array_equal(np.asarray(image), look(data)), (orientation, kind)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_orientation_is_read_in_either_byte_order_and_width(
    order: str, kind: int
) -> None:
    data = encode(draw(), "JPEG", exif=b"Exif\0\0" + exif(6, order=order, kind=kind))
    assert np.array_equal(np.asarray(decode(data)), look(data))


@pytest.mark.parametrize("text", ['tiff:Orientation="6"', "<tiff:Orientation>6</"])
def test_orientation_is_found_in_xmp(text: str) -> None:
    data = encode(draw(), "JPEG", xmp=text.encode())
    assert decode(data).size == (17, 23)
    assert np.array_equal(np.asarray(decode(data)), look(data))


def png_chunk(kind: bytes, body: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + body))
    return struct.pack(">I", len(body)) + kind + body + check


def add_to_png(chunks: bytes, *, data: bytes | None = None) -> bytes:
    """Put chunks behind the header, which is 8 + 25 bytes long."""
    data = FILES["png-RGB"] if data is None else data
    return data[:33] + chunks + data[33:]


def test_orientation_is_found_where_imagemagick_puts_it() -> None:
    block = b"Exif\0\0" + exif(6)
    profile = f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()
    data = add_to_png(png_chunk(b"tEXt", b"Raw profile type exif\0" + profile))
    assert decode(data).size == (17, 23)
    assert np.array_equal(np.asarray(decode(data)), look(data))


@pytest.mark.parametrize(
    "block",
    [b"", b"II*\0", b"no tiff", exif(6)[:12], b"II*\0\xff\xff\xff\xff", exif(6)[:-9]],
)
def test_broken_metadata_leaves_an_image_as_it_is(block: bytes) -> None:
    """Pillow would warn, but warnings are for the whole process; there must be none."""
    data = encode(draw(), "JPEG", exif=b"Exif\0\0" + block)
    assert decode(data).size == (23, 17)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_shows_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], duration=9)
    red, green, blue = decode(data).getpixel((4, 4))
    assert red > 200 and green < 50 and blue < 50


def test_other_files_are_refused_by_their_first_bytes() -> None:
    for data in (
        b"",
        b"hello",
        b"\x89PNG",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        encode(draw(), "TIFF"),
        encode(draw(), "PPM"),
        encode(draw(), "ICO"),
        b"RIFF\x04\0\0\0WAVE",
    ):
        assert "not a PNG, JPEG, WebP, GIF or BMP" in refuse(data)


def test_half_of_a_file_is_refused() -> None:
    for name, data in FILES.items():
        assert refuse(data[: len(data) // 2]), name


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    bomb = encode(Image.new("1", (6000, 6000)), "PNG")
    assert len(bomb) < 100_000
    assert "6000 x 6000" in refuse(bomb)
    assert decode(encode(draw(size=(8, 8)), "PNG"), max_pixels=64).size == (8, 8)
    assert "9 x 8" in refuse(encode(draw(size=(9, 8)), "PNG"), max_pixels=64)


def test_a_size_that_the_header_alone_claims_is_refused() -> None:
    data = FILES["gif"]
    huge = data[:6] + struct.pack("<HH", 65535, 65535) + data[10:]
    assert "65535 x 65535" in refuse(huge)


@pytest.mark.parametrize("size", [(201, 1), (1, 201), (4020, 20)])
def test_strips_are_refused(size: tuple[int, int]) -> None:
    """A processor that scales up the short side would make gigapixels of a strip."""
    assert "200 times" in refuse(encode(draw(size=size), "PNG"))
    assert decode(encode(draw(size=(200, 1)), "PNG")).size == (200, 1)


def test_a_header_in_too_many_pieces_is_refused() -> None:
    """Pillow would join a million pieces of EXIF in quadratic time."""
    jpeg = FILES["jpeg-RGB"]
    piece = b"\xff\xe1" + struct.pack(">H", 18) + b"Exif\0\0" + bytes(10)
    assert decode(jpeg[:2] + piece * 500 + jpeg[2:]).size == (23, 17)
    refuse(jpeg[:2] + piece * 1_000_000 + jpeg[2:])
    refuse(add_to_png(png_chunk(b"prVt", b"") * 100_000))


def test_a_body_in_too_many_pieces_is_refused() -> None:
    data = FILES["png-RGB"]
    refuse(data[:-12] + png_chunk(b"prVt", b"") * 100_000 + data[-12:])


def test_a_progressive_file_with_too_many_scans_is_refused() -> None:
    """A scan that changes nothing takes a few bytes, whatever the image's size."""
    data = encode(Image.new("L", (2048, 2048)), "JPEG", progressive=True)
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    assert decode(data[:-2] + last_scan * 10 + data[-2:]).size == (2048, 2048)
    refuse(data[:-2] + last_scan * 1024 + data[-2:])


def test_run_length_encoded_bitmaps_are_refused() -> None:
    palette = bytes(1024)
    pixels = b"\x08\x00\x00\x00" * 8 + b"\x00\x01"
    header = struct.pack(
        "<IiiHHIIiiII", 40, 8, 8, 1, 8, 1, len(pixels), 2835, 2835, 256, 0
    )
    begin = 14 + len(header) + len(palette)
    data = b"BM" + struct.pack("<IHHI", begin + len(pixels), 0, 0, begin)
    assert Image.open(io.BytesIO(data + header + palette + pixels)).size == (8, 8)
    refuse(data + header + palette + pixels)


def test_an_error_reveals_nothing_of_the_process() -> None:
    """Pillow's texts may hold addresses of objects."""
    assert refuse(FILES["webp"][:-40]) == (
        "messages[0]: is not an image that can be decoded"
    )


def mutants(num_each: int) -> Iterator[tuple[str, bytes]]:
    chance = random.Random(20_260)
    files = {
        **FILES,
        "jpeg-exif": encode(draw(), "JPEG", exif=b"Exif\0\0" + exif(6)),
        "gif-animation": encode(
            draw("P"), "GIF", save_all=True, append_images=[draw("P")]
        ),
    }
    for name, data in files.items():
        for _ in range(num_each):
            yield name, mutate(data, chance)


@pytest.mark.slow
def test_hostile_bytes_give_an_image_or_a_refusal_and_never_a_warning() -> None:
    num_decoded = num_refused = 0
    num_each = examples(500)
    for name, data in mutants(num_each):
        try:
            image = decode(data)
        except InvalidParameter as error:
            # Warnings are errors here, because they would fill a server's log. One is
            # allowed: for a GIF frame larger than its screen and than 89 megapixels.
            if not isinstance(error.__cause__, Image.DecompressionBombWarning):
                assert not isinstance(error.__cause__, Warning), (name, error.__cause__)
            num_refused += 1
        else:
            assert image.mode == "RGB"
            assert image.size[0] * image.size[1] <= MAX_PIXELS
            num_decoded += 1
    assert min(num_decoded, num_refused) > 2 * num_each
