"""Convolutions of single channels in 16 bits on CPUs.

PyTorch may take two seconds for 6144 channels and a few tokens, where its operators on
single numbers take a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode


def convolving_quickly(inputs: Tensor) -> AbstractContextManager[object]:
    """Compute such convolutions in another way inside the block.

    Every operator costs a little more there, so other inputs get no such block.

    Args:
      inputs: of the module that convolves; the type and the device matter.
    """
    is_slow = inputs.device.type == "cpu" and inputs.dtype in _SLOW_TYPES
    return _QuickConvolutions() if is_slow else nullcontext()


_SLOW_TYPES = (torch.bfloat16, torch.float16)


class _QuickConvolutions(TorchFunctionMode):

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv1d:
            return _convolve(*args, **kwargs)
        return func(*args, **kwargs)


def _convolve(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Compute torch.conv1d; the arguments have its names."""
    num_channels = weight.shape[0]
    if (
        input.device.type != "cpu"
        or input.dtype not in _SLOW_TYPES
        or not groups == num_channels == input.shape[1]
        or (stride, dilation) != (1, 1)
        or not isinstance(padding, int)
    ):
        return torch.conv1d(input, weight, bias, stride, padding, dilation, groups)
    padded = pad(input, (padding, padding)).float()
    windows = padded.unfold(-1, weight.shape[-1], 1)  # (..., num_outputs, num_taps)
    output = (windows * weight[:, 0, None].float()).sum(dim=-1)
    if bias is not None:
        output = output + bias.float()[:, None]
    return output.to(input.dtype)
