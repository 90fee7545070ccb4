"""The models in trioserve's cache and in the hub's cache: lists and removes them.

A file that is removed stays on the disk until no process has it open or mapped. So a running
server goes on with a model that is removed; its next start fetches the model again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
import shutil
from typing import Literal

from filelock import FileLock, Timeout

from ..errors import StartupError, WeightsNotFound
from .cache import cache_folder

CachedKind = Literal["wheel", "gguf", "converted", "hub"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """One model of a cache.

    Args:
      name: MODEL for `serve`. Results of a .gguf file have a name for `rm`
        alone, because the file itself lies elsewhere.
      kind: a wheel, the description of a .gguf file, the tensors of one, or a hub's repository.
      folder: all of its files.
      cache: the cache that has the folder.
      size_bytes: on the disk.
      used_at: the last reading or writing of one of its files, in seconds since 1970. Some
        disks do not note readings.
    """

    name: str
    kind: CachedKind
    folder: Path
    cache: Path
    size_bytes: int
    used_at: float


def list_cached_models() -> list[CachedModel]:
    """Return the models of both caches, the last used first.

    Raises:
      StartupError: a file is in the place of the hub's cache.
    """
    models = [*_list_entries(), *_list_repositories()]
    return sorted(models, key=lambda model: -model.used_at)


def find_users(model: CachedModel) -> list[int]:
    """Return the processes, visible to this user, that map a file of a model."""
    folder = f" {model.folder.resolve()}/"
    users = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if folder in maps.read_text(errors="replace"):
                users.append(int(maps.parent.name))
    return sorted(users)


def remove_cached_model(model: CachedModel) -> None:
    """Remove a model of list_cached_models.

    Raises:
      WeightsNotFound: it is being built or fetched, a link leads to it, or it cannot be
        removed.
    """
    # Nothing outside of the caches is ever removed. A link to a whole cache is the user's way
    # to another disk; a link inside of a cache may lead anywhere.
    inside = model.folder.relative_to(model.cache)
    if model.folder.resolve() != model.cache.resolve() / inside:
        reason = f"{model.folder} is a link, which only you should remove"
        raise WeightsNotFound(model.name, reason)
    try:
        with ExitStack() as locks:
            for lock in _find_locks(model):
                locks.enter_context(FileLock(lock, timeout=0))
            shutil.rmtree(model.folder)
    except Timeout:
        reason = "another process is writing it; try again when it is done"
        raise WeightsNotFound(model.name, reason) from None
    except OSError as error:
        reason = f"it cannot be removed from {model.folder}: {error.strerror or error}"
        raise WeightsNotFound(model.name, reason) from error


def _find_locks(model: CachedModel) -> list[Path]:
    """Return the locks of the writers of a model."""
    if model.kind != "hub":
        return [model.folder.with_name(model.folder.name + ".lock")]
    # huggingface_hub has one for each file of a repository.
    return sorted((model.cache / ".locks" / model.folder.name).glob("*.lock"))


def _list_entries() -> Iterator[CachedModel]:
    cache = cache_folder()
    for folder in sorted(cache.glob("wheels/*/*")):
        name = f"pypi:{folder.parent.name}=={folder.name}"
        yield from _describe(name, "wheel", folder, cache)
    kinds: tuple[CachedKind, ...] = ("gguf", "converted")
    for kind in kinds:
        folders = sorted(cache.glob(f"{kind}/*"))
        starts = Counter(each.name[:8] for each in folders if _is_entry(each))
        for folder in folders:
            inside = next(iter(folder.iterdir()), folder) if folder.is_dir() else folder
            digest = folder.name
            if starts[digest[:8]] == 1:
                digest = digest[:8]
            yield from _describe(f"{kind}/{digest}/{inside.name}", kind, folder, cache)


def _describe(
    name: str, kind: CachedKind, folder: Path, cache: Path
) -> Iterator[CachedModel]:
    if not _is_entry(folder):
        return
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    yield CachedModel(
        name=name,
        kind=kind,
        folder=folder,
        cache=cache,
        size_bytes=sum(each.st_blocks * 512 for each in stats),
        used_at=max((max(each.st_atime, each.st_mtime) for each in stats), default=0.0),
    )


def _is_entry(folder: Path) -> bool:
    # Locks are files, and a scratch folder belongs to a build.
    return folder.is_dir() and not folder.name.endswith(".part")


def _list_repositories() -> Iterator[CachedModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    except ValueError as error:
        raise StartupError(
            "the cache of huggingface_hub is not a folder: set HF_HUB_CACHE to one"
        ) from error
    for each in repositories:
        if each.repo_type == "model":
            yield CachedModel(
                name=each.repo_id,
                kind="hub",
                folder=each.repo_path,
                # A repository is a folder of its cache.
                cache=each.repo_path.parent,
                size_bytes=each.size_on_disk,
                used_at=max(each.last_accessed, each.last_modified),
            )
