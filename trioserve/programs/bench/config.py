"""The options of `trioserve bench serve`: one field is one flag."""

from __future__ import annotations

from dataclasses import dataclass, field
import os
from pathlib import Path

from ...config import RemoteConfig
from ...config.checks import FilePath
from ...errors import InvalidConfig
from .generation.load import Load

# A picture takes about 100 kB, and other results less.
_ROOM_BYTES = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersConfig:
    """The servers.

    Args:
      url: Servers that are measured, as URL or LABEL=URL; several take turns.
      label: Name of the server in the report, if there is one.
      model: Model that is asked; by default the first that a server lists.
      api_key: Key that the servers want. Other users of this machine can read it in the
        list of processes.
      api_key_file: File with that key, and nothing else.
    """

    url: tuple[str, ...] = ()
    label: str | None = None
    model: str | None = None
    api_key: str | None = None
    api_key_file: FilePath | None = None

    def read_key(self) -> str | None:
        """Return the key that the servers want; None if none was given.

        Raises:
          InvalidConfig: there are two, or the file cannot be read or has something else.
        """
        options = RemoteConfig(api_key=self.api_key, api_key_file=self.api_key_file)
        return options.read_key()

    def __post_init__(self) -> None:
        if self.label is not None and len(self.url) != 1:
            raise InvalidConfig(
                "label", "is for one --url; write LABEL=URL for several"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsConfig:
    """The results.

    Args:
      json: File for the results.
      plot: File for a picture of the results, as PNG. It needs
        pip install 'trioserve[plot]'.
      compare: Files of earlier results to show beside; without --url nothing is measured.
    """

    json: FilePath | None = None
    plot: FilePath | None = None
    compare: tuple[FilePath, ...] = ()

    def __post_init__(self) -> None:
        # A wrong path is refused before the run.
        for name in ("json", "plot"):
            path = getattr(self, name)
            if path is not None and Path(path).is_dir():
                raise InvalidConfig(name, f"{path} is a folder; name a file")
            if path is not None and not Path(path).parent.is_dir():
                raise InvalidConfig(name, f"{Path(path).parent} is not a folder")

    def check_writable(self) -> None:
        """Check that the files can be written, and that their disk has room.

        Raises:
          InvalidConfig
        """
        for name in ("json", "plot"):
            path = getattr(self, name)
            try:
                if path is not None:
                    _try_to_write(Path(path))
            except OSError as error:
                raise InvalidConfig.of_file(name, "write", path, error) from error


def _try_to_write(path: Path) -> None:
    """Take some room at the end of a file, and give it back; a new file is removed again.

    Raises:
      OSError
    """
    is_new = not path.exists()
    # To open a pipe and close it again would end its reader.
    if not is_new and not path.is_file():
        return
    with path.open("ab") as file:
        size = file.tell()
        try:
            os.posix_fallocate(file.fileno(), size, _ROOM_BYTES)
        finally:
            file.truncate(size)
            if is_new:
                path.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServeConfig:
    """The servers, their load, and the results."""

    servers: ServersConfig = field(default_factory=ServersConfig)
    load: Load = field(default_factory=Load)
    results: ResultsConfig = field(default_factory=ResultsConfig)
