"""JSON in, frozen structs out; what is wrong is an error that names the field.

Whatever the bytes are, decoding ends in a struct or in an errors.RequestError.

A call of the decoder holds the GIL, so that a long one is a pause of every stream:
msgspec and not pydantic, because it takes less than half as long (bench/schema.py). What
may be megabytes long is left as bytes by that call, and lazy_fields.py decodes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, get_args, overload

import msgspec

from . import unsupported
from ...errors import InvalidParameter, NotSupported
from ...render import TURN_CHARACTERS, ChatOptions
from ...render.text.nesting import check_nesting
from ...types.sampling import SamplingParams
from .errors import explain
from .lazy_fields import (
    begins_with,
    decode_embeds_list,
    decode_field,
    decode_ids,
    decode_prompt,
    read_string,
)
from .payloads import Strings, put_back, take_out
from .requests import (
    ChatRequest,
    CompletionRequest,
    ContentPart,
    DetokenizeRequest,
    GenerationRequest,
    ImageUrl,
    Message,
    TokenizeRequest,
    ToolChoice,
)

__all__ = [
    "UNBOUNDED",
    "BodyDecoder",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "MessageMappings",
    "TokenizeRequest",
    "decode_chat",
    "decode_completion",
    "decode_detokenize",
    "decode_template_kwargs",
    "decode_tokenize",
    "list_unknown_fields",
    "to_chat_options",
    "to_sampling",
]

# OpenAI's default of the legacy endpoint.
COMPLETION_MAX_TOKENS: Final = 16

# What a model's generation_config may set, as vLLM reads it. Its files hold floats
# where integers are meant.
_SERVER_DEFAULTS: Final[Mapping[str, Callable[[float], float]]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}

# Fields that mean in a request what they mean in SamplingParams.
_SAME_IN_SAMPLING: Final = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "max_tokens",
    "ignore_eos",
    "stop_token_ids",
    "prompt_logprobs",
)

# Bounds on what one request makes us build: a byte of free-form JSON can become thirty
# bytes of objects. Templates need a few flags, and so do plug-ins; the tools of the
# largest agents that were seen take 100 kB.
MAX_TEMPLATE_KWARGS_BYTES: Final = 16_384
MAX_TOOLS_BYTES: Final = 262_144
MAX_LOGITS_PROCESSORS_BYTES: Final = 16_384

# Smaller ones are decoded within a quarter of a millisecond.
_LARGE_BYTES: Final = 2**20

# Nobody sent the field.
_NOTHING: Final = msgspec.Raw()

# Longer than any body has token ids.
UNBOUNDED: Final = 2**62

RequestT = TypeVar("RequestT", bound=msgspec.Struct)

# Each decoder by the requests that it gives; it enters itself.
_DECODERS: Final[dict[type, BodyDecoder[Any]]] = {}


class BodyDecoder(Generic[RequestT]):
    """Decodes the bodies of one endpoint.

    What is decoded first has fields that a request has not: those that are refused
    (unsupported.py). They, and what may be long, stay bytes for the moment.

    Args:
      later: fields and how each is decoded from its bytes, given its name, the bytes
        and how many token ids are too many; a field that was not sent is None.
      takes_payloads: images and tensors are among them.
    """

    def __init__(
        self,
        request_type: type[RequestT],
        refused: Mapping[str, unsupported.Neutral],
        later: Mapping[str, Callable[[str, msgspec.Raw, int], object]] = {},
        *,
        takes_payloads: bool = True,
    ) -> None:
        required = {f.name for f in msgspec.structs.fields(request_type) if f.required}
        body_type = msgspec.defstruct(
            f"{request_type.__name__}Body",
            [
                (name, msgspec.Raw, msgspec.NODEFAULT if name in required else _NOTHING)
                for name in (*refused, *later)
            ],
            bases=(request_type,),
            # The request is checked once, when it is complete.
            namespace={"__post_init__": lambda self: None},
            frozen=True,
            kw_only=True,
        )
        self._request_type = request_type
        self._refused = refused
        self._later = later
        self._takes_payloads = takes_payloads
        self._decoder: msgspec.json.Decoder[RequestT] = msgspec.json.Decoder(body_type)
        _DECODERS[request_type] = self

    @property
    def known_fields(self) -> frozenset[str]:
        fields = frozenset(self._request_type.__struct_fields__)
        return fields | self._refused.keys() | unsupported.LABELS

    def decode(self, body: bytes, max_model_len: int) -> RequestT:
        if not body:
            raise InvalidParameter(None, "The body is empty.")
        strings: Strings = {}
        if self._takes_payloads and len(body) > _LARGE_BYTES:
            body, strings = take_out(body)
        try:
            decoded = self._decoder.decode(body)
        # UnicodeDecodeError is a ValueError and no DecodeError.
        except (ValueError, RecursionError) as error:
            raise explain(error) from None
        for name, neutral in self._refused.items():
            if value := getattr(decoded, name):
                unsupported.refuse(name, value, neutral)
        request_type = self._request_type
        fields = {
            name: getattr(decoded, name) for name in request_type.__struct_fields__
        }
        # What is cut may be longer.
        is_cut = fields.get("truncate_prompt_tokens") is not None
        max_tokens = UNBOUNDED if is_cut else max_model_len
        for name, decode in self._later.items():
            raw = fields[name]
            fields[name] = decode(name, raw, max_tokens) if raw else None
        if strings:
            put_back(fields, strings)
        return request_type(**fields)


def decode_chat(body: bytes, max_model_len: int = UNBOUNDED) -> ChatRequest:
    """Read the body of POST /v1/chat/completions.

    Args:
      max_model_len: a prompt of as many token ids is refused before it is decoded.

    Raises:
      InvalidParameter: it is not JSON, or a field has the wrong type or length.
      NotSupported: a field asks for what this server does not do.
    """
    return _CHAT.decode(body, max_model_len)


def decode_completion(body: bytes, max_model_len: int = UNBOUNDED) -> CompletionRequest:
    """Read the body of POST /v1/completions; raises as decode_chat does."""
    return _COMPLETION.decode(body, max_model_len)


def decode_tokenize(body: bytes, max_model_len: int = UNBOUNDED) -> TokenizeRequest:
    """Read the body of POST /tokenize; raises as decode_chat does."""
    return _TOKENIZE.decode(body, max_model_len)


def decode_detokenize(body: bytes, max_model_len: int = UNBOUNDED) -> DetokenizeRequest:
    """Read the body of POST /detokenize; raises as decode_chat does."""
    return _DETOKENIZE.decode(body, max_model_len)


def list_unknown_fields(body: bytes, request: object) -> tuple[str, ...]:
    """Name the top-level fields of a decoded body that nobody reads.

    For a line in the debug log alone: the body is walked through once more.

    Returns:
      at most 16 names, none longer than 64 characters.
    """
    known = _DECODERS[type(request)].known_fields
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    # A field's name is decoded here for the first time and may not be UTF-8.
    except ValueError:
        return ()
    return tuple(name[:64] for name in fields if name not in known)[:16]


class MessageMappings(Sequence[dict[str, object]]):
    """Messages the way the renderer reads them: as plain mappings.

    Each is made when it is read, which the renderer does in a worker's thread: there
    may be thousands of them, and megabytes in which an escape is looked for.

    Raises:
      InvalidParameter: on reading; the URL of an image, or a tensor, is not a string.
      NotSupported: on reading; an image shall be seen in little detail.
    """

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages

    @cached_property
    def num_characters(self) -> int:
        """How long their text is, about; images and tensors are no text."""
        return sum(map(_count_characters, self._messages))

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> dict[str, object]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, object]]: ...

    def __getitem__(
        self, index: int | slice
    ) -> dict[str, object] | Sequence[dict[str, object]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _to_mapping(self._messages[index], index)


def to_chat_options(request: ChatRequest | TokenizeRequest) -> ChatOptions:
    """Say what the chat template is told besides the messages."""
    return ChatOptions(
        add_generation_prompt=request.adds_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        variables=request.chat_template_kwargs or {},
        tools=request.shown_tools,
        chat_template=request.chat_template,
    )


def to_sampling(
    request: ChatRequest | CompletionRequest, defaults: Mapping[str, float]
) -> SamplingParams:
    """Work out how to sample for a request.

    Args:
      defaults: fields of SamplingParams from the model's generation_config, which
        stand where the client sent nothing.

    Raises:
      InvalidParameter: a number is out of its range; `param` is the field that the
        client sent.
    """
    values: dict[str, Any] = {
        name: convert(defaults[name])
        for name, convert in _SERVER_DEFAULTS.items()
        if name in defaults
    }
    for name in _SAME_IN_SAMPLING:
        if (value := getattr(request, name)) is not None:
            values[name] = value
    values["logit_bias"] = _parse_logit_bias(request.logit_bias or {})
    values["logits_processors"] = tuple(
        (name, arguments or {})
        for name, arguments in (request.logits_processors or {}).items()
    )
    if isinstance(request, ChatRequest):
        sent_as = _take_chat_fields(request, values)
    else:
        sent_as = _take_completion_fields(request, values)
    try:
        return SamplingParams(**values)
    except InvalidParameter as error:
        raise _rename(error, sent_as) from None


def _take_chat_fields(request: ChatRequest, values: dict[str, Any]) -> dict[str, str]:
    """Add what chat alone names otherwise, and tell by which name it was sent."""
    if request.logprobs:
        values["logprobs"] = request.top_logprobs or 0
    if request.max_completion_tokens is None:
        return {"logprobs": "top_logprobs"}
    values["max_tokens"] = request.max_completion_tokens
    return {"logprobs": "top_logprobs", "max_tokens": "max_completion_tokens"}


def _take_completion_fields(
    request: CompletionRequest, values: dict[str, Any]
) -> dict[str, str]:
    values.setdefault("max_tokens", COMPLETION_MAX_TOKENS)
    values["logprobs"] = request.logprobs
    # Echoed tokens are reported with their logprobs, as the others are.
    if request.echo:
        values.setdefault("prompt_logprobs", request.logprobs)
    return {"prompt_logprobs": "logprobs"} if request.prompt_logprobs is None else {}


def _rename(error: InvalidParameter, sent_as: Mapping[str, str]) -> InvalidParameter:
    name = error.param or ""
    if name not in sent_as:
        return error
    return InvalidParameter(sent_as[name], str(error).removeprefix(f"{name}: "))


def _parse_logit_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    for key in bias:
        # int() would also take signs, spaces, underscores and other alphabets' digits.
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidParameter("logit_bias", "every key must be a token id")
    return tuple((int(key), value) for key, value in bias.items())


def _to_mapping(message: Message, index: int) -> dict[str, object]:
    content: object = message.content
    if isinstance(message.content, tuple):
        path = f"messages[{index}].content"
        content = [
            _to_part(part, f"{path}[{i}]") for i, part in enumerate(message.content)
        ]
    mapping: dict[str, object] = {"role": message.role, "content": content}
    if message.name is not None:
        mapping["name"] = message.name
    if message.tool_call_id is not None:
        mapping["tool_call_id"] = message.tool_call_id
    for name in ("reasoning", "reasoning_content"):
        if (text := getattr(message, name)) is not None:
            mapping[name] = text
    if message.tool_calls:
        mapping["tool_calls"] = list(map(msgspec.to_builtins, message.tool_calls))
    return mapping


def _count_characters(message: Message) -> int:
    content = message.content or ""
    if isinstance(content, str):
        num_characters = len(content)
    else:
        num_characters = sum(len(part.text or "") for part in content)
    calls = message.tool_calls or ()
    return (
        TURN_CHARACTERS
        + num_characters
        + len(message.reasoning or "")
        + len(message.reasoning_content or "")
        + sum(len(call.function.arguments or "") for call in calls)
    )


def _to_part(part: ContentPart, path: str) -> dict[str, object]:
    match part.type:
        case "image_url":
            url = _read_image_url(part.image_url, f"{path}.image_url")
            return {"type": "image_url", "image_url": {"url": url}}
        case "prompt_embeds":
            payload = read_string(f"{path}.prompt_embeds", part.prompt_embeds)
            return {"type": "prompt_embeds", "prompt_embeds": payload}
    return {"type": "text", "text": part.text}


def _read_image_url(raw: msgspec.Raw, path: str) -> memoryview:
    # OpenAI's form is an object; some clients send the URL itself.
    if begins_with(raw, b'"'):
        return read_string(path, raw)
    image: ImageUrl = decode_field(path, raw, ImageUrl)
    if not image.wants_detail:
        raise NotSupported(f"{path}.detail", "images are seen in full; send auto")
    return read_string(f"{path}.url", image.url)


def decode_template_kwargs(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, object] | None:
    """Decode what templates are told; `later` of a BodyDecoder.

    Raises:
      InvalidParameter: it is no object, or a large or deep one.
    """
    kwargs: dict[str, object] | None = _decode_free_form(
        name, raw, dict[str, object] | None, MAX_TEMPLATE_KWARGS_BYTES
    )
    return kwargs


def _decode_tools(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[dict[str, object], ...] | None:
    tools: tuple[dict[str, object], ...] | None = _decode_free_form(
        name, raw, tuple[dict[str, object], ...] | None, MAX_TOOLS_BYTES
    )
    return tools or None


def _decode_tool_choice(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> ToolChoice | None:
    """Decode whether the model sees the tools.

    Raises:
      NotSupported: the model shall call one: no output can be forced yet.
    """
    unsupported.refuse(name, raw, get_args(ToolChoice))
    choice: ToolChoice | None = decode_field(name, raw, ToolChoice | None)
    return choice


def _decode_processors(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, dict[str, object] | None] | None:
    """Decode which plug-ins take part, and their arguments.

    Raises:
      InvalidParameter: it is no object of objects, or a large or deep one.
    """
    # vLLM's field was once a list, and client libraries send an empty one.
    if begins_with(raw, b"[") and not bytes(raw)[1:-1].strip():
        return None
    named: dict[str, dict[str, object] | None] | None = _decode_free_form(
        name,
        raw,
        dict[str, dict[str, object] | None] | None,
        MAX_LOGITS_PROCESSORS_BYTES,
    )
    return named


def _decode_free_form(name: str, raw: msgspec.Raw, kind: Any, max_bytes: int) -> Any:
    """Decode a field whose objects may hold anything.

    Raises:
      InvalidParameter: it is of another kind, or large, or nested too deeply.
    """
    if len(memoryview(raw)) > max_bytes:
        raise InvalidParameter(name, f"at most {max_bytes} bytes are taken")
    value = decode_field(name, raw, kind)
    check_nesting(name, value)
    return value


_GENERATION_FIELDS: Final = {"logits_processors": _decode_processors}
_TEMPLATE_FIELDS: Final = {
    "chat_template_kwargs": decode_template_kwargs,
    "tools": _decode_tools,
    "tool_choice": _decode_tool_choice,
}
_CHAT: Final = BodyDecoder(
    ChatRequest, unsupported.CHAT, {**_GENERATION_FIELDS, **_TEMPLATE_FIELDS}
)
_COMPLETION: Final = BodyDecoder(
    CompletionRequest,
    unsupported.COMPLETION,
    {
        **_GENERATION_FIELDS,
        "prompt": decode_prompt,
        "prompt_embeds": decode_embeds_list,
    },
)
_TOKENIZE: Final = BodyDecoder(TokenizeRequest, unsupported.TOKENIZE, _TEMPLATE_FIELDS)
_DETOKENIZE: Final = BodyDecoder(DetokenizeRequest, {}, {"tokens": decode_ids})
