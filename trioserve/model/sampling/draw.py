"""Draw tokens from distributions, with noise that a key gives to each token.

Everything here works row by row: the token of a row depends on its own logits and
parameters alone, never on the rest of the batch.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ..step.scans import Scans

# A nucleus is rarely larger (at a temperature of 1, natural text keeps tens of tokens
# in 95 % of the mass), and finding so many takes a tenth of a sort of the vocabulary.
_NUM_CANDIDATES = 256

# The sums of so many weights are added in double precision.
_GROUP_SIZE = 256


def make_key(seed: int, index: int) -> int:
    """Return 64 bits, as a signed number, that depend on the arguments alone.

    Args:
      seed: the sequence's.
      index: number of output tokens before this one.
    """
    key = (seed % 2**64).to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little", signed=True)


def make_keys(
    seeds: NDArray[np.uint64], indices: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return make_key's numbers for many rows.

    Args:
      seeds, indices: (num_rows,); of seeds, the last 64 bits

    Returns:
      (num_rows,) int64
    """
    pairs = np.stack((seeds, indices.view(np.uint64)), axis=1)
    keys = pairs.astype("<u8", copy=False).tobytes()
    digests = [
        blake2b(keys[begin : begin + 16], digest_size=8).digest()
        for begin in range(0, len(keys), 16)
    ]
    return np.frombuffer(bytearray().join(digests), dtype="<i8")


def drop_unlikely(logits: Tensor, min_p: Tensor) -> Tensor:
    """Set logits to -inf below a share of the likeliest token's probability.

    Args:
      logits: (num_rows, vocab_size)
      min_p: (num_rows,) in [0, 1]; 0 drops nothing
    """
    limits = logits.amax(dim=-1) + min_p.log()
    return logits.masked_fill(logits < limits[:, None], -torch.inf)


def draw_from_best(
    logits: Tensor, keys: Tensor, top_k: Tensor, top_p: Tensor, scans: Scans
) -> Tensor:
    """Draw from the most likely tokens.

    Args:
      logits: (num_rows, vocab_size) float32
      keys: (num_rows,) int64
      top_k: (num_rows,) int64; at least 1; the size of the vocabulary means off
      top_p: (num_rows,) in (0, 1]; a part of the mass of the top_k tokens

    Returns:
      (num_rows,) int64
    """
    vocab_size = logits.shape[1]
    # On a GPU, the host would have to wait to learn whether a few hundred are enough. In
    # that time the GPU can sort the vocabulary.
    if vocab_size <= _NUM_CANDIDATES or logits.device.type != "cpu":
        return _draw_sorted(logits, keys, top_k, top_p, vocab_size, scans)[0]
    drawn, is_settled = _draw_sorted(logits, keys, top_k, top_p, _NUM_CANDIDATES, scans)
    if not is_settled.all():
        left = (~is_settled).nonzero()[:, 0]
        drawn[left], _ = _draw_sorted(
            *(logits[left], keys[left], top_k[left], top_p[left]), vocab_size, scans
        )
    return drawn


def _draw_sorted(
    logits: Tensor,
    keys: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    num_candidates: int,
    scans: Scans,
) -> tuple[Tensor, Tensor]:
    """Draw among the most likely tokens.

    Returns:
      (num_rows,) int64, the tokens
      (num_rows,) bool, whether the other tokens could not have been drawn
    """
    values, token_ids = scans.find_top(logits, num_candidates)
    best = values[:, :1]
    weights = (values - best).exp_()
    ranks = torch.arange(num_candidates, device=logits.device)
    is_kept = ranks < top_k[:, None]
    weights *= is_kept
    sums = weights.double().cumsum(dim=-1)
    is_covered = top_k <= num_candidates
    total = sums[:, -1]
    if num_candidates < logits.shape[1] and not is_covered.all():
        # The mass of all tokens is known without sorting. The mass of the best top_k is
        # not known if top_k is larger than the candidates: then nothing is settled.
        rest = scans.sum_weights(logits, _GROUP_SIZE)[1].sum(dim=-1)
        rest.masked_fill_(top_k < logits.shape[1], torch.inf)
        total = torch.where(is_covered, total, rest)
    mass = top_p * total
    # A token stays if the tokens before it do not reach the mass; the first always stays.
    is_kept &= sums - weights < mass[:, None]
    is_settled = is_covered | (sums[:, -1] >= mass)
    values = values.masked_fill(~is_kept, -torch.inf)
    drawn = scans.race(values, keys, token_ids)
    return token_ids.gather(1, drawn[:, None])[:, 0], is_settled
