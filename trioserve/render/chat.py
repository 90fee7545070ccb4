"""Chat messages to one text, by the model's own Jinja template.

Blocking: templates are Python and run in a renderer worker. transformers renders them
in its sandbox; what a template refuses is the request's fault and becomes a 400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import inspect
from typing import TYPE_CHECKING, Any, Protocol

import jinja2
import msgspec

from ..errors import InvalidParameter, NotSupported

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Messages as templates take them: checked, contents are strings.
Conversation = list[dict[str, Any]]

# OpenAI's roles; `developer` is its newer name for what templates call `system`.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

# A template is a program over a client's messages: what it raises, short of running
# out of memory, says that it was not written for them.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

# Names that the renderer itself passes to a template, or that would change how it is
# called, besides the parameters of apply_chat_template.
_RENDERER_NAMES = frozenset({"self", "conversations", "messages"})

# A reason may quote the whole chat; a client needs its beginning.
_MAX_REASON_CHARACTERS = 300


class ChatMessage(Protocol):
    """One turn of a conversation: a frozen struct or dataclass with these fields.

    Further fields (`name`, `tool_call_id` ...) reach the template as they are; a
    mapping with the same keys will do as well.
    """

    @property
    def role(self) -> str: ...

    @property
    def content(self) -> object:
        """Text, None, or a sequence of {"type": "text", "text": ...} parts."""


def read_messages(
    messages: Sequence[ChatMessage | Mapping[str, object]],
) -> Conversation:
    """Check messages and bring them into the form that templates expect.

    Raises:
      InvalidParameter: there are none, or a field has the wrong type.
      NotSupported: content that is not text, or calls of tools.
    """
    if not messages:
        raise InvalidParameter("messages", "must not be empty")
    return [
        _read_message(message, f"messages[{index}]")
        for index, message in enumerate(messages)
    ]


def apply_template(
    tokenizer: PreTrainedTokenizerBase,
    messages: Conversation,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: Mapping[str, object],
) -> str:
    """Render checked messages as the text that the model reads.

    Raises:
      InvalidParameter: there is no template, it refuses these messages, or a key of
        `template_kwargs` is not the client's to set.
    """
    if add_generation_prompt and continue_final_message:
        raise InvalidParameter(
            "continue_final_message",
            "cannot be set together with add_generation_prompt",
        )
    if tokenizer.chat_template is None:
        raise InvalidParameter(
            "messages",
            "this model has no chat template, so it takes no messages; send a prompt "
            "to /v1/completions, or start the server with --chat-template",
        )
    _check_template_kwargs(tokenizer, template_kwargs)
    # Named, because mypy would match `object` against every other parameter.
    variables: Mapping[str, Any] = template_kwargs
    try:
        text = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tokenize=False,
            **variables,
        )
    except _TEMPLATE_ERRORS as error:
        raise InvalidParameter(
            "messages", f"the chat template refuses them: {_shorten(error)}"
        ) from error
    assert isinstance(text, str), "one conversation renders as one text"
    return text


def _read_message(
    message: ChatMessage | Mapping[str, object], param: str
) -> dict[str, object]:
    fields = _read_fields(message, param)
    role = fields.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidParameter(f"{param}.role", f"must be one of {', '.join(_ROLES)}")
    if fields.get("tool_calls"):
        raise NotSupported(f"{param}.tool_calls")
    content = _read_content(fields.get("content"), f"{param}.content")
    return {**fields, "role": _ROLES[role], "content": content}


def _read_content(content: object, param: str) -> str:
    # None becomes "", because templates add content to strings.
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidParameter(param, "must be a string or a list of parts")
    return "\n".join(
        _read_part(part, f"{param}[{index}]") for index, part in enumerate(content)
    )


def _read_part(part: object, param: str) -> str:
    fields = _read_fields(part, param)
    kind = fields.get("type")
    if kind != "text":
        raise NotSupported(f"{param}.type", f"only text parts are taken, got {kind!r}")
    text = fields.get("text")
    if not isinstance(text, str):
        raise InvalidParameter(f"{param}.text", "must be a string")
    return text


def _read_fields(value: object, param: str) -> dict[str, object]:
    if isinstance(value, Mapping):
        return dict(value)
    # A string would pass through to_builtins as itself.
    fields = value if isinstance(value, str) else msgspec.to_builtins(value)
    if not isinstance(fields, dict):
        raise InvalidParameter(param, "must be an object")
    return fields


def _check_template_kwargs(
    tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, object]
) -> None:
    own = inspect.signature(tokenizer.apply_chat_template).parameters
    for name in template_kwargs:
        if name in own or name in _RENDERER_NAMES:
            raise InvalidParameter("chat_template_kwargs", f"{name} cannot be set here")


def _shorten(error: BaseException) -> str:
    reason = str(error) or type(error).__name__
    return reason[:_MAX_REASON_CHARACTERS]
