"""From the fields of a request to SamplingParams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ...errors import ContextLengthExceeded, InvalidParameter, list_some
from ...types.repetition import RepetitionDetection
from ...types.sampling import DEFAULT_MAX_LOGPROBS, SamplingParams
from ..chat.request import ChatRequest
from ..completions.request import CompletionRequest
from .requests import GenerationRequest, RepetitionFields

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
    # A token is reported once, however often it was sent.
    if request.logprob_token_ids:
        values["logprob_token_ids"] = tuple(dict.fromkeys(request.logprob_token_ids))
    if request.repetition_detection is not None:
        values["repetition_detection"] = _read_repetition(request.repetition_detection)
    values["logit_bias"] = _parse_logit_bias(request.logit_bias or {})
    values["logits_processors"] = tuple(
        (name, arguments or {})
        for name, arguments in (request.logits_processors or {}).items()
    )
    if isinstance(request, ChatRequest):
        _take_chat_fields(request, values)
    else:
        _take_completion_fields(request, values)
    with naming_sampling(request):
        sampling = SamplingParams(**values)
        if sampling.max_tokens == 0 and not _is_echo(request):
            is_chat = isinstance(request, ChatRequest)
            hint = "" if is_chat else "; 0 needs echo, to score a prompt"
            raise InvalidParameter("max_tokens", f"must be at least 1, got 0{hint}")
        sampling.check_logprobs(max_logprobs)
    return sampling


@contextmanager
def naming_sampling(request: GenerationRequest) -> Iterator[None]:
    """Let errors of SamplingParams name the fields of the request."""
    try:
        yield
    except ContextLengthExceeded as error:
        error.param = _find_name(request, error.param or "")
        raise
    except InvalidParameter as error:
        name = error.param or ""
        sent_as = _find_name(request, name)
        if sent_as == name:
            raise
        reason = str(error).removeprefix(f"{name}: ")
        raise InvalidParameter(sent_as, reason) from None


def _find_name(request: GenerationRequest, name: str) -> str:
    match request, name:
        case ChatRequest(), "logprobs":
            return "top_logprobs"
        case ChatRequest(max_completion_tokens=int()), "max_tokens":
            return "max_completion_tokens"
        case CompletionRequest(prompt_logprobs=None), "prompt_logprobs":
            return "logprobs"
    return name


def _is_echo(request: GenerationRequest) -> bool:
    """Whether the answer may be the prompt alone."""
    return isinstance(request, CompletionRequest) and bool(request.echo)


def _take_chat_fields(request: ChatRequest, values: dict[str, Any]) -> None:
    if request.logprobs:
        values["logprobs"] = request.top_logprobs or 0
    if request.max_completion_tokens is not None:
        values["max_tokens"] = request.max_completion_tokens


def _take_completion_fields(request: CompletionRequest, values: dict[str, Any]) -> None:
    values.setdefault("max_tokens", COMPLETION_MAX_TOKENS)
    values["logprobs"] = request.logprobs
    # Echoed tokens are reported with their log probabilities, too.
    if request.echo:
        values.setdefault("prompt_logprobs", request.logprobs)


def _read_repetition(fields: RepetitionFields) -> RepetitionDetection:
    return RepetitionDetection(
        max_pattern_size=fields.max_pattern_size or 0,
        min_pattern_size=fields.min_pattern_size or 0,
        min_count=fields.min_count or 0,
    )


def _parse_logit_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    # int() would also accept signs, spaces, underscores and other alphabets' digits.
    wrong = [
        key for key in bias if not (key.isascii() and key.isdigit() and len(key) <= 10)
    ]
    if wrong:
        verb = "are not token ids" if len(wrong) > 1 else "is not a token id"
        raise InvalidParameter("logit_bias", f"{list_some(wrong)} {verb}")
    return tuple((int(key), value) for key, value in bias.items())
