"""The device that a model runs on."""

from __future__ import annotations

import torch

from ...config import ModelConfig
from ...errors import InvalidConfig, shorten_message
from ...kernels.threads import count_threads

_TYPES = ("cpu", "cuda")


def resolve_device(name: str) -> torch.device:
    """Return the device that a configuration names.

    Args:
      name: auto, cpu, cuda or cuda:N; auto is a GPU if there is one.

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
    if device.type not in _TYPES:
        raise InvalidConfig("device", _explain_type(name))
    return device


def _explain(name: str, error: Exception) -> str:
    kind = name.partition(":")[0]
    if kind not in _TYPES:
        return _explain_type(name)
    reason = f"{name!r} cannot be used: {shorten_message(error)}"
    if kind != "cuda":
        return reason
    return f"{reason}; `nvidia-smi` lists the GPUs, and --device cpu needs none"


def _explain_type(name: str) -> str:
    hint = "; did you mean cuda?" if name.lower().startswith(("gpu", "nvidia")) else ""
    return f"{name!r} is not one of cpu, cuda, cuda:N, auto{hint}"


def set_threads(config: ModelConfig) -> None:
    """Set the number of threads of a step on a CPU.

    torch counts the cores of the machine that the process may use. It does not know the
    quota of a container.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    else:
        torch.set_num_threads(min(torch.get_num_threads(), count_threads()))
