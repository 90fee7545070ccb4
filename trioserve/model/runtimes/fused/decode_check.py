"""A trial of the kernels at both ends of captured decodes: they are compared with torch.

Kernels for GPUs are compiled where they run, for devices that nobody here may know.
"""

from __future__ import annotations

import torch

from ....kernels.triton.decodes import NewBlocks, take_tokens
from ....kernels.triton.sampling import Kept, choose_plain, choose_tokens
from ...self_check.compare import describe_failure

# Several parts of the kernel that reads logits.
_VOCABULARY = 10_000


@torch.inference_mode()
def find_fault(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return how the kernels fail on a device; None if they do what they should.

    Args:
      dtype: of the logits.
    """
    try:
        has_read = _read(device) == ([7, 5, 3], [0, 8, 0, 0, 9, 0])
        found, expected = _choose(device, dtype)
    except Exception as error:
        return describe_failure(error)
    if not has_read:
        return "it reads other tokens or blocks"
    return None if found == expected else "it chooses other tokens"


def _read(device: torch.device) -> tuple[list[int], list[int]]:
    """Read three tokens, the second of them from its slot, and write two blocks."""
    numbers = [[7, -1, 3], [2, 0, -1], [5, 6, 4], [4, -1, 1], [9, 9, 8]]
    tokens, slots, last, places, block_ids = torch.tensor(numbers).to(device)
    table = torch.zeros((3, 2), dtype=torch.int64, device=device)
    new = NewBlocks(table=table, places=places, block_ids=block_ids)
    token_ids = take_tokens(tokens, slots, last, [new])
    return token_ids.tolist(), table.flatten().tolist()


def _choose(device: torch.device, dtype: torch.dtype) -> tuple[list[int], list[int]]:
    """Choose the likeliest tokens of two of three rows, in both ways of captured steps.

    Returns:
      the tokens by places and by slots, once for each way
      the same of torch's choice
    """
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn((3, _VOCABULARY), generator=chance).to(device, dtype)
    best = logits.max(dim=-1).indices.tolist()
    none = torch.zeros(3, dtype=torch.int64, device=device)
    # A temperature of 1, the likeliest token alone, cut by it: as draw.py numbers them.
    settings = torch.tensor([[1.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0]] * 3).to(device)
    settings[1, 3] = 0.0
    found = []
    for choose in (
        lambda kept: choose_plain(logits, none.float(), none, kept),
        lambda kept: choose_tokens(logits, settings.double(), has_cut=True, kept=kept),
    ):
        kept = Kept(
            places=torch.tensor([1, -1, 0], dtype=torch.int32).to(device),
            slots=torch.tensor([2, 1, 0]).to(device),
            last_tokens=none.clone(),
        )
        found += choose(kept)[:2].tolist() + kept.last_tokens.tolist()
    return found, 2 * [best[2], best[0], best[2], 0, best[0]]
