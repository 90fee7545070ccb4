"""From the fields of a request to SamplingParams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ...errors import InvalidParameter
from ...types.sampling import DEFAULT_MAX_LOGPROBS, SamplingParams
from .chat_request import ChatRequest
from .completion_request import CompletionRequest

# OpenAI's default for plain completions.
COMPLETION_MAX_TOKENS: Final = 16

# The fields that vLLM, too, reads from a model's generation_config. The files contain
# floats where integers are meant.
_SERVER_DEFAULTS: Final[Mapping[str, Callable[[float], float]]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}

# The fields with the same name and meaning in requests and in SamplingParams.
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
    "allowed_token_ids",
    "prompt_logprobs",
    "logprob_token_ids",
)


def to_sampling(
    request: ChatRequest | CompletionRequest,
    defaults: Mapping[str, float],
    *,
    max_logprobs: int = DEFAULT_MAX_LOGPROBS,
) -> SamplingParams:
    """Make the SamplingParams of a request.

    Args:
      defaults: fields of SamplingParams from the model's generation_config. They apply
        where the client sent no value.
      max_logprobs: see ModelInfo.

    Raises:
      InvalidParameter: a number is out of its range; `param` is the client's name for it.
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
        sampling = SamplingParams(**values)
        sampling.check_logprobs(max_logprobs)
    except InvalidParameter as error:
        raise _rename(error, sent_as) from None
    return sampling


def _take_chat_fields(request: ChatRequest, values: dict[str, Any]) -> dict[str, str]:
    """Add the fields with other names in chats; returns their names in chats."""
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
    # Echoed tokens are reported with their log probabilities, too.
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
        # int() would also accept signs, spaces, underscores and other alphabets' digits.
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            # Only the beginning: a client may send a key of kilobytes.
            raise InvalidParameter("logit_bias", f"{key[:64]!r} is not a token id")
    return tuple((int(key), value) for key, value in bias.items())
