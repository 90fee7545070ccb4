"""The payloads of the Responses API: images."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..decode.payloads import (
    Payloads,
    Strings,
    restore,
)
from .items import (
    InputItem,
    InputPart,
    replace_parts,
)


def _put_back(fields: dict[str, Any], strings: Strings) -> None:
    if isinstance(items := fields["input"], tuple):
        fields["input"] = tuple(_complete(item, strings) for item in items)


RESPONSE_PAYLOADS: Final = Payloads(
    keys=frozenset({b'"image_url"'}), put_back=_put_back
)


def _complete(item: InputItem, strings: Strings) -> InputItem:
    def complete(part: InputPart) -> InputPart:
        image = restore(part.image_url, strings)
        return msgspec.structs.replace(part, image_url=image)

    return replace_parts(item, complete)
