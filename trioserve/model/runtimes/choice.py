"""The choice between native kernels and transformers' modules."""

from __future__ import annotations

from collections.abc import Callable
import logging
from pathlib import Path
import traceback
from typing import TypeVar

from ...config import ModelConfig
from ...errors import InvalidConfig
from ...kernels.library import NoKernels
from .on_kernels import OnKernels

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[2]


class NotRecognised(Exception):
    """Raised when a model cannot run on the native kernels; its message says why."""

    @classmethod
    def hide(cls, error: Exception) -> NotRecognised:
        """Return this error in place of one of a library, which goes to the log.

        Models differ in more ways than anybody can list, and their modules still run. So
        the message of the library would tell a user nothing. The function names the part.
        """
        logger.debug("the parts of the model cannot be found", exc_info=error)
        frames = traceback.extract_tb(error.__traceback__)
        ours = [each.name for each in frames if _PACKAGE in Path(each.filename).parents]
        place = f" in {ours[-1]}" if ours else ""
        return cls(
            "the model is built in a way that they do not know "
            f"({type(error).__name__}{place})"
        )


class OutputDiffers(Exception):
    """Raised when the kernels compute something else than the modules; those are gone."""


OnKernelsT = TypeVar("OnKernelsT", bound=OnKernels)


def try_kernels(
    make: Callable[[], OnKernelsT], config: ModelConfig
) -> OnKernelsT | None:
    """Put a model's layers on the native kernels, if they can run there; log the choice.

    Args:
      make: packs the weights, and compares the result with the modules. It may raise
        NoKernels, NotRecognised or OutputDiffers.

    Returns:
      None if the model runs by its modules

    Raises:
      InvalidConfig: the configuration wants native kernels, and they cannot run it.
      OutputDiffers: the model must be loaded again to run by its modules.
    """
    if not config.wants_native:
        logger.info("kernels: torch, as the options say")
        return None
    try:
        made = make()
    except (NoKernels, NotRecognised, OutputDiffers) as error:
        check_need(config, str(error))
        logger.info("kernels: torch, because %s", error)
        if isinstance(error, OutputDiffers):
            raise
        return None
    log_kernels(made)
    return made


def check_need(config: ModelConfig, obstacle: str) -> None:
    """Refuse options that need native kernels.

    Args:
      obstacle: the reason why they cannot run the model.

    Raises:
      InvalidConfig
    """
    if config.quantization != "none":
        reason = f"{config.quantization} needs native kernels: {obstacle}"
        raise InvalidConfig("quantization", reason) from None
    if config.kernels == "native":
        raise InvalidConfig("kernels", f"native cannot be used: {obstacle}") from None


def log_kernels(made: OnKernels) -> None:
    """Log which kernels run a model."""
    logger.info("kernels: %s", made.description)
