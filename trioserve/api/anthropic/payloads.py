"""The payloads of Anthropic's API: images, and strings in the inputs of calls."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from ..decode.payloads import (
    Payloads,
    Strings,
    restore,
)
from .turns import Block, ResultBlock, Turn

BlockT = TypeVar("BlockT", bound=ResultBlock)


def _put_back(fields: dict[str, Any], strings: Strings) -> None:
    fields["messages"] = tuple(_complete(turn, strings) for turn in fields["messages"])


TURN_PAYLOADS: Final = Payloads(
    keys=frozenset({b'"data"', b'"url"'}), put_back=_put_back
)


def _complete(turn: Turn, strings: Strings) -> Turn:
    if isinstance(turn.content, str):
        return turn
    content = tuple(_complete_block(block, strings) for block in turn.content)
    return msgspec.structs.replace(turn, content=content)


def _complete_block(block: Block, strings: Strings) -> Block:
    block = _complete_source(block, strings)
    if block.input:
        # The input of a call may have fields of the same names.
        block = msgspec.structs.replace(block, input=restore(block.input, strings))
    if isinstance(block.content, tuple):
        content = tuple(_complete_source(each, strings) for each in block.content)
        block = msgspec.structs.replace(block, content=content)
    return block


def _complete_source(block: BlockT, strings: Strings) -> BlockT:
    if block.source is None:
        return block
    source = msgspec.structs.replace(
        block.source,
        data=restore(block.source.data, strings),
        url=restore(block.source.url, strings),
    )
    return msgspec.structs.replace(block, source=source)
