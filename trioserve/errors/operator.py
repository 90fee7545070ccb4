"""Errors that the operator can mend, before anything is served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self

from .base import TrioserveError
from .foreign_text import shorten_message


class StartupError(TrioserveError):
    """Raised before serving; the command line prints it and exits with 2."""


class WeightsNotFound(StartupError):
    """Raised when MODEL names nothing that can be found or downloaded."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"cannot find the model {source!r}: {reason}")
        self.reason = reason


class WeightsBroken(StartupError):
    """Raised when a model's files are there but cannot be read."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"cannot read the model {source!r}: {reason}")
        self.reason = reason


class UnsupportedModel(StartupError):
    """Raised when the model's architecture cannot run on paged attention."""

    def __init__(self, architecture: str, reason: str) -> None:
        super().__init__(f"the architecture {architecture} is not supported: {reason}")


class UnsupportedQuantization(StartupError):
    """Raised when a model's weights have an unsupported quantisation.

    Args:
      method: its name in the checkpoint.
      detail: the unsupported part, if the method alone does not identify it; or the reason
        why weights that can be dequantised are not computed with as they are.
      can_dequantize: whether they can be dequantised, and the user has not said so.
    """

    def __init__(
        self, method: str, detail: str = "", *, can_dequantize: bool = False
    ) -> None:
        form = f" ({detail})" if detail else ""
        if can_dequantize:
            super().__init__(
                f"weights that are quantised by {method} are not computed with{form}: "
                "--dequantize makes plain numbers of them, which take the memory of the "
                "unquantised model; or take a GGUF file of the model"
            )
            return
        super().__init__(
            f"weights that are quantised by {method}{form} are not supported: take the "
            "unquantised model, or a GGUF file of it"
        )


class NotEnoughMemory(StartupError):
    """Raised when a model does not fit the memory of this process.

    Args:
      reason: the message of the library that asked for memory, in one line.
      limit_bytes: the limit of the process's address space; None if there is none.
    """

    def __init__(self, reason: str, *, limit_bytes: int | None = None) -> None:
        limit = ""
        if limit_bytes is not None:
            limit = f" (this process has {limit_bytes / 2**30:.1f} GiB by ulimit -v)"
        super().__init__(
            f"there is not enough memory to load the model{limit}: {reason}"
        )


class InvalidConfig(StartupError):
    """Raised when an option is unknown, or its value or a pair of options is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"--{field.replace('_', '-')}: {reason}")
        self.field = field

    @classmethod
    def of_file(
        cls,
        field: str,
        verb: Literal["read", "write"],
        path: str | Path,
        error: Exception,
    ) -> Self:
        """Return the refusal of a file that an option names.

        Args:
          error: the message leaves out the number and the path of an OSError.
        """
        reason = error.strerror if isinstance(error, OSError) else None
        return cls(field, f"cannot {verb} {path}: {reason or error}")


class ForeignOption(StartupError):
    """Raised when an option is another server's.

    Args:
      explanation: the advice of config.foreign.explain_foreign.
    """

    def __init__(self, explanation: str) -> None:
        super().__init__(explanation)


class MissingExtra(StartupError):
    """Raised when a package is missing that an optional extra of trioserve installs.

    Args:
      extra: its name in setup.cfg.
      needed_by: the user's wish: a command such as "trioserve chat", or a flag.
      error: the import that failed.
    """

    def __init__(self, extra: str, needed_by: str, error: ImportError) -> None:
        missing = f"{error.name}, which is not installed"
        if not isinstance(error, ModuleNotFoundError):
            # The package is there, and another version than ours, or damaged.
            missing = f"a package that cannot be imported ({shorten_message(error)})"
        super().__init__(
            f"{needed_by} needs {missing}: run pip install 'trioserve[{extra}]'"
        )
        self.extra = extra


@contextmanager
def needing_extra(extra: str, needed_by: str) -> Iterator[None]:
    """Explain imports that fail because an extra is not installed.

    The imports belong into the block, and nothing else.

    Raises:
      MissingExtra: a package of the extra is missing or broken.
    """
    try:
        yield
    except ImportError as error:
        # A missing module of this project is a defect, which no installation mends.
        if (error.name or "").partition(".")[0] == __package__.partition(".")[0]:
            raise
        raise MissingExtra(extra, needed_by, error) from error


class PluginBroken(StartupError):
    """Raised when an entry point of an installed distribution is not a plug-in.

    Args:
      distribution: its name.
      entry_point: module:Class.
      reason: continues a sentence that begins with the entry point.
    """

    def __init__(self, distribution: str, entry_point: str, reason: str) -> None:
        super().__init__(f"{entry_point} of {distribution} {reason}")


class StagesNotMet(StartupError):
    """Raised when the stages that torchrun has started cannot work together."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the stages of the pipeline cannot work together: {reason}")
