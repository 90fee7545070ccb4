"""From the fields of a request to SamplingParams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

import msgspec

from ...errors import ContextLengthExceeded, InvalidParameter, list_some
from ...types.repetition import RepetitionDetection
from ...types.sampling import DEFAULT_MAX_LOGPROBS, SamplingParams
from ..decode.values import begins_with, decode_free_form
from .requests import GenerationRequest, RepetitionFields

# Plug-ins need a few flags.
MAX_LOGITS_PROCESSORS_BYTES: Final = 16_384

# The fields that have another form in requests than in SamplingParams.
_CONVERTED: Final = {
    *("bad_words", "logit_bias", "logits_processors", "logprob_token_ids"),
    "repetition_detection",
}
_SAME: Final = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name in GenerationRequest.__struct_fields__
    and field.name not in _CONVERTED
)


def to_sampling(
    request: GenerationRequest,
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
    values: dict[str, Any] = dict(defaults)
    for name in _SAME:
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
    request.take_sampling(values)
    with naming_sampling(request):
        sampling = SamplingParams(**values)
        request.check_sampling(sampling)
        sampling.check_logprobs(max_logprobs)
    return sampling


@contextmanager
def naming_sampling(request: GenerationRequest) -> Iterator[None]:
    """Let errors of SamplingParams name the fields of the request."""
    try:
        yield
    except ContextLengthExceeded as error:
        error.param = request.name_sampling(error.param or "")
        raise
    except InvalidParameter as error:
        name = error.param or ""
        sent_as = request.name_sampling(name)
        if sent_as == name:
            raise
        reason = str(error).removeprefix(f"{name}: ")
        raise InvalidParameter(sent_as, reason) from None


def decode_processors(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, dict[str, object] | None] | None:
    """Decode the names of the logits processors and their arguments.

    Raises:
      InvalidParameter: the value is not an object of objects, or is too large or too
        deep.
    """
    # The field was a list in old versions of vLLM, and clients send an empty one.
    if begins_with(raw, b"[") and not bytes(raw)[1:-1].strip():
        return None
    named: dict[str, dict[str, object] | None] | None = decode_free_form(
        name,
        raw,
        dict[str, dict[str, object] | None] | None,
        MAX_LOGITS_PROCESSORS_BYTES,
    )
    return named


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
