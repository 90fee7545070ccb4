"""The payloads of chats and completions: URLs of images, and tensors."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..decode.lazy_fields import begins_with
from ..decode.messages import (
    ContentPart,
    ImageUrl,
    Message,
)
from ..decode.payloads import (
    LABEL,
    Payloads,
    Strings,
)

_LONGEST_LABEL: Final = 64


def _put_back(fields: dict[str, Any], strings: Strings) -> None:
    if embeds := fields.get("prompt_embeds"):
        whole = {label: payload[1:-1] for label, payload in strings.items()}
        fields["prompt_embeds"] = tuple(
            whole.get(bytes(e), e) if len(e) < _LONGEST_LABEL else e for e in embeds
        )
    if messages := fields.get("messages"):
        fields["messages"] = tuple(_complete(message, strings) for message in messages)


CHAT_PAYLOADS: Final = Payloads(
    keys=frozenset({b'"prompt_embeds"', b'"image_url"', b'"url"'}), put_back=_put_back
)


def _complete(message: Message, strings: Strings) -> Message:
    if not isinstance(message.content, tuple):
        return message
    content = tuple(_complete_part(part, strings) for part in message.content)
    return msgspec.structs.replace(message, content=content)


def _complete_part(part: ContentPart, strings: Strings) -> ContentPart:
    for field in ("image_url", "prompt_embeds"):
        raw = getattr(part, field)
        found = LABEL.search(raw)
        # The object of an image is replaced by its URL. A wrong object stays, and is
        # refused when it is read.
        if found and not _is_wrong_image(raw):
            if (payload := strings.get(found[1])) is not None:
                part = msgspec.structs.replace(part, **{field: msgspec.Raw(payload)})
    return part


def _is_wrong_image(raw: msgspec.Raw) -> bool:
    if not begins_with(raw, b"{"):
        return False
    try:
        return not msgspec.json.decode(raw, type=ImageUrl).wants_detail
    except ValueError:
        return True
