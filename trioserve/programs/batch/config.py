"""The options of `trioserve run-batch`: one field is one flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...config import EngineConfig, ProcessConfig, RemoteConfig
from ...config.checks import FilePath, check_at_least
from ...errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig:
    """The batch.

    Args:
      input_file: File with a request in each line, also -i; - reads standard input. A
        file whose name ends with .gz is decompressed.
      output_file: File for the answers, also -o; - writes to standard output. If the file
        is there, the batch goes on where it was interrupted.
      max_concurrency: Most requests at once; by default twice --max-num-seqs, and 128
        with --url. While the server refuses requests, there are fewer.
      log_level: Least severe level that is logged to stderr.
    """

    input_file: FilePath | None = None
    output_file: FilePath | None = None
    max_concurrency: int | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "warning"

    def __post_init__(self) -> None:
        check_at_least("max_concurrency", self.max_concurrency, 1)
        if (self.output_file or "").endswith(".gz"):
            raise InvalidConfig(
                "output_file", "is written without compression: leave .gz out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """The files, and the server or the engine that answers."""

    files: FilesConfig = field(default_factory=FilesConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
