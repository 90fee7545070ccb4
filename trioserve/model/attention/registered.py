"""The name under which transformers' models find our attention function.

It is apart from the function, because a model without modules of transformers needs no
transformers.
"""

from __future__ import annotations

from transformers import AttentionInterface

from .bridge import attend_in_context

IMPLEMENTATION = "trioserve_paged"

AttentionInterface.register(IMPLEMENTATION, attend_in_context)
