"""The device that a model runs on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from ...config import ModelConfig
from ...errors import InvalidConfig, shorten_message
from ...kernels.threads import count_threads


def resolve_device(name: str) -> torch.device:
    """Return the device that a configuration names.

    Args:
      name: as in ModelConfig; auto is a GPU if there is one.

    Raises:
      InvalidConfig: the machine does not have it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        # To allocate is the only test that works for every device.
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidConfig("device", _explain(name, error)) from None
    return device


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Let this thread launch Triton's kernels on a device, and capture graphs there.

    Operators of torch run where their tensors are. Triton and graphs take the device of the
    thread, which is the first GPU in each new one.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _explain(name: str, error: Exception) -> str:
    reason = f"{name!r} cannot be used: {shorten_message(error)}"
    if name == "cpu":
        return reason
    return f"{reason}; `nvidia-smi` lists the GPUs, and --device cpu needs none"


def set_threads(config: ModelConfig) -> None:
    """Set the number of threads of a step on a CPU.

    torch counts the cores of the machine that the process may use. It does not know the
    quota of a container.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    else:
        torch.set_num_threads(min(torch.get_num_threads(), count_threads()))
