"""JSON in, frozen structs out; what is wrong is an error that names the field.

Whatever the bytes are, decoding ends in a struct or in an errors.RequestError.

Decoding is one call that holds the GIL, so that a long one is a pause of every stream:
msgspec and not pydantic, because it takes 22 ms instead of 53 for 20 MB of text, 169
instead of 321 for 20 MB of token ids, and 0.11 instead of 0.24 for 200 messages (one
core of a shared AMD EPYC; bench/schema.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from . import unsupported
from ..errors import InvalidParameter
from ..steps import SamplingParams
from .explain import explain
from .requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    Message,
    TokenizeRequest,
)

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "TokenizeRequest",
    "decode_chat",
    "decode_completion",
    "decode_detokenize",
    "decode_tokenize",
    "list_unknown_fields",
    "to_messages",
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

# Templates need a few flags: a bound on what one request makes us build.
MAX_TEMPLATE_KWARGS_BYTES: Final = 16_384

RequestT = TypeVar("RequestT", bound=msgspec.Struct)


class _BodyDecoder(Generic[RequestT]):
    """Decodes the bodies of one endpoint.

    What is decoded first has fields that a request has not: those that are refused
    (unsupported.py). They, and free-form objects, stay bytes until it is known that
    they are small, because a byte of JSON can become thirty bytes of objects.
    """

    def __init__(
        self,
        request_type: type[RequestT],
        refused: Mapping[str, unsupported.Neutral],
        free_form: tuple[str, ...] = (),
    ) -> None:
        body_type = msgspec.defstruct(
            f"{request_type.__name__}Body",
            [(name, msgspec.Raw, msgspec.Raw()) for name in (*refused, *free_form)],
            bases=(request_type,),
            # The request is checked once, when it is complete.
            namespace={"__post_init__": lambda self: None},
            frozen=True,
            kw_only=True,
        )
        self._request_type = request_type
        self._refused = refused
        self._free_form = free_form
        self._decoder: msgspec.json.Decoder[RequestT] = msgspec.json.Decoder(body_type)

    @property
    def known_fields(self) -> frozenset[str]:
        fields = frozenset(self._request_type.__struct_fields__)
        return fields | self._refused.keys() | unsupported.LABELS

    def decode(self, body: bytes) -> RequestT:
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
        for name in self._free_form:
            fields[name] = _decode_template_kwargs(name, fields[name])
        return request_type(**fields)


def decode_chat(body: bytes) -> ChatRequest:
    """Read the body of POST /v1/chat/completions.

    Raises:
      InvalidParameter: it is not JSON, or a field has the wrong type or length.
      NotSupported: a field asks for what this server does not do.
    """
    return _CHAT.decode(body)


def decode_completion(body: bytes) -> CompletionRequest:
    """Read the body of POST /v1/completions; raises as decode_chat does."""
    return _COMPLETION.decode(body)


def decode_tokenize(body: bytes) -> TokenizeRequest:
    """Read the body of POST /tokenize; raises as decode_chat does."""
    return _TOKENIZE.decode(body)


def decode_detokenize(body: bytes) -> DetokenizeRequest:
    """Read the body of POST /detokenize; raises as decode_chat does."""
    return _DETOKENIZE.decode(body)


def list_unknown_fields(body: bytes, request: msgspec.Struct) -> tuple[str, ...]:
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


def to_messages(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    """Messages the way chat templates read them: plain mappings of strings."""
    return [_to_mapping(message) for message in messages]


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


def _to_mapping(message: Message) -> dict[str, str]:
    mapping = {"role": message.role, "content": message.text}
    if message.name is not None:
        mapping["name"] = message.name
    if message.tool_call_id is not None:
        mapping["tool_call_id"] = message.tool_call_id
    return mapping


def _decode_template_kwargs(name: str, value: msgspec.Raw) -> dict[str, object] | None:
    if not value:
        return None
    encoded = bytes(value)
    if len(encoded) > MAX_TEMPLATE_KWARGS_BYTES:
        raise InvalidParameter(
            name, f"at most {MAX_TEMPLATE_KWARGS_BYTES} bytes are taken"
        )
    try:
        return msgspec.json.decode(encoded, type=dict[str, object] | None)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(name, str(explain(error))) from None


_CHAT: Final = _BodyDecoder(
    ChatRequest, unsupported.CHAT, free_form=("chat_template_kwargs",)
)
_COMPLETION: Final = _BodyDecoder(CompletionRequest, unsupported.COMPLETION)
_TOKENIZE: Final = _BodyDecoder(
    TokenizeRequest, unsupported.TOKENIZE, free_form=("chat_template_kwargs",)
)
_DETOKENIZE: Final = _BodyDecoder(DetokenizeRequest, {})
_DECODERS: Final[Mapping[type[msgspec.Struct], _BodyDecoder[Any]]] = {
    ChatRequest: _CHAT,
    CompletionRequest: _COMPLETION,
    TokenizeRequest: _TOKENIZE,
    DetokenizeRequest: _DETOKENIZE,
}
