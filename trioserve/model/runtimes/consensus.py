"""One choice of kernels for all processes that share the layers.

A process that ran by its modules while others run on kernels would make other exchanges than
they do, and so would one that reads its weights again alone. All would wait, or add up numbers
that do not belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from ...kernels.library import NoKernels
from ..shards.group import TensorGroup
from .choice import NotRecognised, OutputDiffers

Packed = TypeVar("Packed")

_ELSEWHERE = "another process that shares the layers cannot use them"


@contextmanager
def agreeing(group: TensorGroup | None, device: torch.device) -> Iterator[None]:
    """Let kernels be refused by all processes of a group, if one of them refuses.

    Args:
      group: None if layers are whole.
      device: of the model.

    Raises:
      NotRecognised: another process has refused.
      NoKernels, NotRecognised: raised by the block.
    """
    refusal: Exception | None = None
    try:
        yield
    except (NoKernels, NotRecognised) as error:
        refusal = error
    all_accept = group is None or group.agree(refusal is None, device)
    if refusal is not None:
        raise refusal
    if not all_accept:
        raise NotRecognised(_ELSEWHERE)


def pack_together(
    pack: Callable[[], Packed], group: TensorGroup | None, device: torch.device
) -> Packed:
    """Pack weights in all processes of a group.

    Args:
      pack: takes the weights of the model's products, unless it raises NotRecognised. It may
        raise OutputDiffers, too.

    Raises:
      NotRecognised: no process has packed its weights.
      OutputDiffers: some have, so that all must read their weights again.
    """
    if group is None:
        return pack()
    packed: Packed | None = None
    refusal: NotRecognised | OutputDiffers | None = None
    try:
        packed = pack()
    except (NotRecognised, OutputDiffers) as error:
        refusal = error
    all_have = group.agree(packed is not None, device)
    if all_have and packed is not None:
        return packed
    none_have = group.agree(isinstance(refusal, NotRecognised), device)
    if none_have and refusal is not None:
        raise refusal
    raise OutputDiffers(_ELSEWHERE)
