"""Which way up an image is, by what its file states.

Pillow's own reader of such metadata warns, for the whole process, of whatever else it
finds there; this one looks for a single tag.
"""

from __future__ import annotations

from collections.abc import Mapping
import re
import struct

_ORIENTATION_TAG = 0x0112

# TIFF 6.0, section 2: SHORT and LONG, the kinds that are taken for the orientation.
_INTEGERS = {3: "H", 4: "I"}

_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def read_orientation(info: Mapping[str | tuple[int, int], object]) -> int:
    """Find the orientation where PIL.ImageOps.exif_transpose finds it.

    Args:
      info: of an image that Pillow has loaded.

    Returns:
      The value of the EXIF tag; 1, upright, where the file states nothing.
    """
    exif = info.get("exif")
    if exif is None:
        exif = _read_raw_profile(info.get("Raw profile type exif"))
    orientation = _read_exif_orientation(exif) if isinstance(exif, bytes) else None
    if orientation is None:
        xmp = info.get("XML:com.adobe.xmp") or info.get("xmp")
        orientation = _read_xmp_orientation(xmp)
    return orientation or 1


def _read_raw_profile(profile: object) -> bytes | None:
    """Metadata as ImageMagick puts it into PNG files: a length, and hexadecimal digits."""
    if not isinstance(profile, str):
        return None
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    except ValueError:
        return None


def _read_exif_orientation(exif: bytes) -> int | None:
    # TIFF 6.0, section 2: a header of the byte order, 42 and the first directory's
    # offset; a directory is a count of entries of tag, kind, number and value.
    tiff = exif.removeprefix(b"Exif\x00\x00")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return None
    try:
        (begin,) = struct.unpack_from(f"{order}I", tiff, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", tiff, begin)
        for at in range(begin + 2, begin + 2 + 12 * num_entries, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, at)
            if tag == _ORIENTATION_TAG and kind in _INTEGERS:
                (value,) = struct.unpack_from(order + _INTEGERS[kind], tiff, at + 8)
                return int(value)
    except struct.error:
        pass
    return None


def _read_xmp_orientation(xmp: object) -> int | None:
    if isinstance(xmp, str):
        xmp = xmp.encode(errors="replace")
    if not isinstance(xmp, bytes):
        return None
    found = _XMP_ORIENTATION.search(xmp)
    return None if found is None else int(found[1])
