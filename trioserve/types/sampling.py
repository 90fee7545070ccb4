"""Sampling parameters, and the bounds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import math
from typing import Any

from ..errors import InvalidParameter
from .repetition import RepetitionDetection
from .structured import Grammar

# Bounds of every number that a client may send. One table serves the check
# below and the OpenAPI document. Sources: OpenAI's reference for the penalties and
# the bias; vLLM 0.33 for the seed (int64); the others bound what is allocated for one
# request. The server's --max-logprobs bounds log probabilities further.
# A number in EXCLUSIVE may not be equal to its lower bound.
SAMPLING_BOUNDS: dict[str, tuple[float, float]] = {
    "n": (1, 128),
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "seed": (-(2**63), 2**63 - 1),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
    "min_tokens": (0, 2**31 - 1),
    "max_tokens": (0, 2**31 - 1),
    "logprobs": (-1, 2**31 - 1),
    "prompt_logprobs": (-1, 2**31 - 1),
}
EXCLUSIVE: frozenset[str] = frozenset({"top_p"})

# The fields of a model's generation_config.json that are defaults of requests, as for vLLM
# (ModelConfig.get_diff_sampling_param). Both ignore its do_sample.
MODEL_DEFAULTS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")

# A value of each rule that changes scores, at which it has an effect: to try out a device.
EACH_RULE: Mapping[str, Any] = {
    "temperature": 0.7,
    "top_k": 50,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": ((0, 1.0),),
    "bad_words": ((0, 0),),
    "allowed_token_ids": (0, 1),
}

# vLLM's default of --max-logprobs.
DEFAULT_MAX_LOGPROBS = 20

MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKEN_IDS = 1024
# A quarter of a small vocabulary.
MAX_ALLOWED_TOKEN_IDS = 16_384
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_LOGITS_PROCESSORS = 16
# vLLM's limit.
MAX_LOGPROB_TOKEN_IDS = 128

# The most items of each field that is a list, and their name in the refusal.
_MOST_ITEMS = {
    "logit_bias": (MAX_LOGIT_BIAS_ENTRIES, " entries"),
    "bad_words": (MAX_BAD_WORDS, ""),
    "allowed_token_ids": (MAX_ALLOWED_TOKEN_IDS, " ids"),
    "stop_token_ids": (MAX_STOP_TOKEN_IDS, " ids"),
    "logprob_token_ids": (MAX_LOGPROB_TOKEN_IDS, " ids"),
    "logits_processors": (MAX_LOGITS_PROCESSORS, ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """A limit on the reasoning of a model before its answer.

    Args:
      num_tokens: tokens of reasoning, without its tags; after these the end tag is forced,
        token by token.
      start_token_ids, end_token_ids: the tags around the reasoning; at least one token
        each.
      is_open: the prompt ends inside the reasoning.
    """

    num_tokens: int
    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The rules by which tokens are sampled, and by which a sequence ends.

    Args:
      n: sequences generated from the prompt.
      temperature: 0 is greedy.
      top_p: in (0, 1]; 1 is off.
      top_k: 0 or -1 is off.
      min_p: drop tokens less likely than this fraction of the most likely token.
      seed: None draws a fresh one; sequence k of n samples with seed + k.
      presence_penalty, frequency_penalty: subtracted from output tokens' logits.
      repetition_penalty: divides (or multiplies) logits of prompt and output tokens.
      logit_bias: (token id, added to its logit in [-100, 100]) pairs.
      allowed_token_ids: no other token is sampled; empty allows all.
      bad_words: sequences of token ids; no output contains one of them.
      min_tokens: no stop token is sampled before this many tokens.
      max_tokens: None is the number of tokens that the prompt leaves; 0 only reads the prompt,
        for its log probabilities.
      ignore_eos: go on past the model's end-of-sequence tokens.
      repetition_detection: end a sequence that repeats itself; None is the server's rule, or
        none with ignore_eos.
      stop_token_ids: ids that end a sequence, in addition to the model's own.
      logprobs: alternatives reported with each token; None reports nothing, and -1 the
        whole vocabulary.
      prompt_logprobs: the same for each token of the prompt.
      logprob_token_ids: the alternatives reported with each output token, in place of the
        most likely ones; needs `logprobs`.
      reasoning_budget: limit on the reasoning; None sets none. TextEngine makes it from
        thinking_token_budget and the model's tags.
      logits_processors: (name, arguments) of each plug-in that the sequence uses; the
        arguments are JSON objects.
      grammar: the form of the output; TextEngine makes it from TextParams.structured. A
        sequence with a grammar ends with a stop token when its output is complete.

    Raises:
      InvalidParameter: a number lies outside SAMPLING_BOUNDS; `param` names it.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    repetition_detection: RepetitionDetection | None = None
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    reasoning_budget: ReasoningBudget | None = None
    logits_processors: tuple[tuple[str, Mapping[str, object]], ...] = ()
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in SAMPLING_BOUNDS.items():
            _check_bounds(name, getattr(self, name), low, high)
            if name in EXCLUSIVE and getattr(self, name) == low:
                raise InvalidParameter(name, f"must be greater than {low:g}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                "min_tokens",
                f"must not exceed the most output tokens, {self.max_tokens}",
            )
        for name, (most, items) in _MOST_ITEMS.items():
            if len(getattr(self, name)) > most:
                raise InvalidParameter(name, f"at most {most}{items} are possible")
        if self.logit_bias:
            _check_logit_bias(self.logit_bias)
        if self.bad_words:
            _check_bad_words(self.bad_words)
        if self.logprob_token_ids and self.logprobs is None:
            raise InvalidParameter("logprob_token_ids", "is only taken with logprobs")
        if len(dict(self.logits_processors)) < len(self.logits_processors):
            raise InvalidParameter("logits_processors", "each name must be unique")
        if self.grammar is not None:
            _check_with_grammar(self)

    def check_logprobs(self, most: int) -> None:
        """Refuse more alternatives than the server allows.

        Args:
          most: ModelInfo.max_logprobs.

        Raises:
          InvalidParameter
        """
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and most != -1 and not 0 <= value <= most:
                raise InvalidParameter(
                    name,
                    f"must be between 0 and {most} on this server (--max-logprobs), "
                    f"got {value}",
                )


def _check_bounds(
    name: str, value: int | float | None, low: float, high: float
) -> None:
    if value is None:
        return
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidParameter(name, f"must be between {low} and {high}, got {value}")


def _check_logit_bias(pairs: tuple[tuple[int, float], ...]) -> None:
    for token_id, bias in pairs:
        _check_bounds("logit_bias", bias, -100.0, 100.0)
        if token_id < 0:
            raise InvalidParameter("logit_bias", f"{token_id} is not a token id")


def _check_bad_words(words: tuple[tuple[int, ...], ...]) -> None:
    if not all(0 < len(word) <= MAX_BAD_WORD_TOKENS for word in words):
        raise InvalidParameter(
            "bad_words", f"each must have 1 to {MAX_BAD_WORD_TOKENS} tokens"
        )


def _check_with_grammar(sampling: SamplingParams) -> None:
    """Refuse what would keep a sequence from ending where its grammar ends."""
    if sampling.min_tokens:
        raise InvalidParameter("min_tokens", "is not taken with structured output")
    if sampling.ignore_eos:
        raise InvalidParameter("ignore_eos", "is not taken with structured output")
