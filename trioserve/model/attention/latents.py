"""Attention over latents: one small vector a token, from which all heads' keys and values follow.

A layer keeps a latent and a rotated key that all heads share. Its product turns a latent into a
key and a value of each head. Both directions of that product are used, so that no key or value
is ever computed:

    keys    q · (W_key c)         = (W_key^T q) · c      queries are absorbed
    values  sum_i p_i (W_value c_i) = W_value (sum_i p_i c_i)    outputs are expanded

So the cache has one head, of the numbers [latent | shared key], and its values are the latents,
which begin its keys.

Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LatentProjection(nn.Module):
    """The product of latents, in the place of a linear module that attention has.

    It is not a linear module, so that nothing packs the weight for products that do not happen.

    Args:
      linear: computes keys and values of each head: (num_heads * (key_dim + value_dim), rank)
      key_dim: numbers of a head's key without its shared part.
    """

    def __init__(self, linear: nn.Linear, num_heads: int, key_dim: int) -> None:
        super().__init__()
        self.weight, self.num_heads, self.key_dim = linear.weight, num_heads, key_dim

    def forward(self, latents: Tensor) -> Tensor:
        """Return keys and values, as the linear module does."""
        return nn.functional.linear(latents, self.weight)

    @property
    def rank(self) -> int:
        """The numbers of a latent."""
        return self.weight.shape[1]

    @property
    def value_dim(self) -> int:
        """The numbers of a head's value."""
        return self.weight.shape[0] // self.num_heads - self.key_dim

    def expand(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys, without their shared part, and the values of latents.

        Args:
          latents: (num_tokens, rank)

        Returns:
          (num_tokens, num_heads, key_dim) and (num_tokens, num_heads, value_dim)
        """
        heads = self(latents).unflatten(-1, (self.num_heads, -1))
        return heads[..., : self.key_dim], heads[..., self.key_dim :]

    def absorb_queries(self, query: Tensor) -> Tensor:
        """Turn queries of keys into queries of latents.

        Args:
          query: (1, num_heads, num_tokens, key_dim + shared_dim)

        Returns:
          (1, num_heads, num_tokens, rank + shared_dim)
        """
        own, shared = query.tensor_split((self.key_dim,), dim=-1)
        return torch.cat((own @ self._heads[:, : self.key_dim], shared), dim=-1)

    def expand_outputs(self, output: Tensor) -> Tensor:
        """Turn sums of latents into sums of values.

        Args:
          output: (num_tokens, num_heads, rank)

        Returns:
          (num_tokens, num_heads, value_dim)
        """
        values = self._heads[:, self.key_dim :].transpose(1, 2)
        by_heads = torch.matmul(output.transpose(0, 1), values)
        return by_heads.transpose(0, 1)

    @property
    def _heads(self) -> Tensor:
        """(num_heads, key_dim + value_dim, rank)"""
        heads: Tensor = self.weight.unflatten(0, (self.num_heads, -1))
        return heads


def find_projection(attention: nn.Module) -> LatentProjection | None:
    """Return the product of an attention over latents; None if it keeps keys and values."""
    found = getattr(attention, "kv_b_proj", None)
    return found if isinstance(found, LatentProjection) else None
