"""The vocabulary that crosses rooms: prompts, sampling, plans, results, deltas.

Values only: no I/O, no tensors, no clock. What a step costs must not depend on how
long an output already is, so a plan names a sequence by its *slot* (a row of the
tables that the runner keeps) and carries only what is new to that slot.

What is made for every row of every step is a msgspec.Struct: a frozen dataclass takes
twelve times as long to make, which was 0.3 of the 0.7 ms that a step of 128 cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import math
from typing import Literal, NewType

import msgspec

from .errors import InvalidParameter

RequestId = NewType("RequestId", str)
SequenceId = NewType("SequenceId", int)
BlockId = NewType("BlockId", int)

FinishReason = Literal["stop", "length", "abort"]


class TensorBytes:
    """A tensor on its way through rooms that know no torch.

    No dataclass, which msgspec would send as one: between processes its bytes go another
    way (processes/messages.py).

    Args:
      data: its elements in C order and the machine's byte order.
      dtype: torch's name of the type, such as "bfloat16".
      shape: its product times the type's bytes is the length of `data`.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(
        self,
        *,
        data: bytes | bytearray | memoryview,
        dtype: str,
        shape: tuple[int, ...],
    ) -> None:
        self.data = data
        self.dtype = dtype
        self.shape = shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorBytes) and (
            (self.data, self.dtype, self.shape)
            == (other.data, other.dtype, other.shape)
        )

    def __repr__(self) -> str:
        return f"TensorBytes({self.dtype}, {self.shape})"


# Stands in `Prompt.token_ids` where a vector that came from outside has no token.
NO_TOKEN = -1

# Bytes of a vector's key: enough that nobody finds two vectors with the same one.
KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedInput:
    """Positions of a prompt at which the model reads vectors instead of tokens.

    Args:
      kind: "embeds" came as vectors; "image" the model's own encoder will make so.
      runs: (begin, end) positions, rising; the vectors fill them in order.
      keys: KEY_BYTES for each vector. The prefix cache takes two prompts for the same up
        to a position if all tokens and keys up to it are; so neighbours may share the
        key of all of them together, as all vectors of an image do.
      tensors: for "embeds" one, `embeds`, (num_vectors, hidden_size) in the model's
        own type; for "image" what the model's image processor made, by name.
    """

    kind: Literal["embeds", "image"]
    runs: tuple[tuple[int, int], ...]
    keys: bytes
    tensors: Mapping[str, TensorBytes]

    @property
    def num_vectors(self) -> int:
        return sum(end - begin for begin, end in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model reads before it writes.

    Args:
      token_ids: at least one id, each below the model's vocabulary size, or NO_TOKEN
        at positions of embedded inputs of the kind "embeds".
      text: what the ids say, where it is known; the engine never reads it.
      cache_salt: prompts share prefix-cache blocks only under the same salt.
      embedded: in the order of positions, which do not overlap.
    """

    token_ids: tuple[int, ...]
    text: str | None = None
    cache_salt: str = ""
    embedded: tuple[EmbeddedInput, ...] = ()

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise InvalidParameter("prompt", "must not be empty")


# Inclusive bounds of every number that a client may send. One table serves the check
# below and the OpenAPI document. Sources: OpenAI's reference for the penalties and
# the bias; vLLM 0.33 for top_logprobs (--max-logprobs 20) and seed (int64); the
# others bound what is allocated for one request.
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
    "max_tokens": (1, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
}
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_LOGITS_PROCESSORS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """How long a model that reasons before it answers may do so.

    Args:
      num_tokens: tokens of reasoning, its tags not counted; then the end tag is forced,
        token by token.
      start_token_ids, end_token_ids: the tags around it; at least one token each.
      is_open: the prompt ends inside of the reasoning.
    """

    num_tokens: int
    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one prompt's tokens are chosen, and when the choosing ends.

    Args:
      n: sequences generated from the prompt.
      temperature: 0 is greedy.
      top_p: in (0, 1]; 1 is off.
      top_k: 0 or -1 is off.
      min_p: drop tokens below this share of the most likely one's probability.
      seed: None draws a fresh one; sequence k of n samples with seed + k.
      presence_penalty, frequency_penalty: subtracted from output tokens' logits.
      repetition_penalty: divides (or multiplies) logits of prompt and output tokens.
      logit_bias: (token id, added to its logit in [-100, 100]) pairs.
      bad_words: sequences of token ids of which none is completed.
      min_tokens: no stop token may be sampled before.
      max_tokens: None is as many as the model's length leaves.
      ignore_eos: go on past the model's end-of-sequence tokens.
      stop_token_ids: end after one of these, besides the model's own.
      logprobs: alternatives reported with each token; None reports nothing.
      prompt_logprobs: the same for the prompt's tokens.
      thinking: bounds the reasoning of models that reason; None does not. TextEngine
        makes it of a number and the model's tags.
      logits_processors: (name, arguments) of each plug-in that takes part, each once;
        the arguments are JSON objects.

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
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    thinking: ThinkingBudget | None = None
    logits_processors: tuple[tuple[str, Mapping[str, object]], ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high) in SAMPLING_BOUNDS.items():
            _check_bounds(name, getattr(self, name), low, high)
        if self.top_p == 0.0:
            raise InvalidParameter("top_p", "must be greater than 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter("min_tokens", "must not exceed max_tokens")
        _check_logit_bias(self.logit_bias)
        _check_bad_words(self.bad_words)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidParameter(
                "stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} ids are taken"
            )
        _check_processors([name for name, _ in self.logits_processors])


def _check_bounds(
    name: str, value: int | float | None, low: float, high: float
) -> None:
    if value is None:
        return
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidParameter(name, f"must be between {low} and {high}, got {value}")


def _check_logit_bias(pairs: tuple[tuple[int, float], ...]) -> None:
    if len(pairs) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidParameter(
            "logit_bias", f"at most {MAX_LOGIT_BIAS_ENTRIES} entries are taken"
        )
    for token_id, bias in pairs:
        _check_bounds("logit_bias", bias, -100.0, 100.0)
        if token_id < 0:
            raise InvalidParameter("logit_bias", f"{token_id} is not a token id")


def _check_bad_words(words: tuple[tuple[int, ...], ...]) -> None:
    if len(words) > MAX_BAD_WORDS:
        raise InvalidParameter("bad_words", f"at most {MAX_BAD_WORDS} are taken")
    if not all(0 < len(word) <= MAX_BAD_WORD_TOKENS for word in words):
        raise InvalidParameter(
            "bad_words", f"each must have 1 to {MAX_BAD_WORD_TOKENS} tokens"
        )


def _check_processors(names: list[str]) -> None:
    if len(names) > MAX_LOGITS_PROCESSORS:
        raise InvalidParameter(
            "logits_processors", f"at most {MAX_LOGITS_PROCESSORS} are taken"
        )
    if len(names) > len(set(names)):
        raise InvalidParameter("logits_processors", "each may be named once")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the other rooms need to know of a loaded model.

    Args:
      name: what clients call it.
      architecture: transformers' class name.
      vocab_size: rows of the output projection; every token id lies below.
      max_model_len: tokens of prompt and output together.
      eos_token_ids: generation ends after any of these.
      default_sampling: fields of SamplingParams that the model's own
        generation_config sets.
      kv_bytes_per_token: bytes of keys and values that all layers keep for a token.
      hidden_size: width of the vectors that the first layer reads.
      dtype: torch's name of their type.
      takes_images: it has an encoder for images.
      fingerprint: changes whenever the same request could get another answer.
      logits_processors: names of the plug-ins that requests may name.
    """

    name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    default_sampling: tuple[tuple[str, float], ...] = ()
    kv_bytes_per_token: int = 0
    hidden_size: int = 0
    dtype: str = "float32"
    takes_images: bool = False
    fingerprint: str = ""
    logits_processors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStart:
    """A sequence takes a slot: all that the runner must know from now on.

    Sent once when a sequence is admitted, and again after a preemption, then with the
    tokens that it had already produced as `output_token_ids`.

    Args:
      slot: row of the runner's tables, below max_num_seqs.
      seed: noise of the i-th output token is a function of (seed, i) alone, so that
        neither the batch nor a preemption changes what is sampled.
      stop_token_ids: all ids that must not be sampled before min_tokens.
      embedded: as in Prompt.
    """

    slot: int
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    embedded: tuple[EmbeddedInput, ...] = ()


class StepRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sequence's share of a step.

    The tokens at positions [start, start + num_tokens) of the slot are computed and
    their keys and values are written. `new_block_ids` follow those that the slot's
    block table holds already. With `sample`, the chunk ends at the sequence's last
    known token and the next one is sampled; the runner appends it to the slot.
    """

    slot: int
    start: int
    num_tokens: int
    new_block_ids: tuple[BlockId, ...]
    sample: bool

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step computes: `ends`, then `starts`, then `rows` in batch order.

    Args:
      ends: slots whose sequences were given up before all their vectors were read,
        which the runner would hold until the slots are taken again.
    """

    step_id: int
    starts: tuple[SlotStart, ...]
    rows: tuple[StepRow, ...]
    ends: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_sampled(self) -> int:
        """Rows that sample."""
        return sum(row.sample for row in self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Log probabilities at one position, under the raw distribution of the model.

    Args:
      token_id: the token that stands there.
      logprob: natural logarithm; under the unmodified softmax, as vLLM's
        raw_logprobs.
      rank: 1 for the most likely token.
      top: (token id, logprob) of the most likely tokens, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


# Fills a row of StepResult.sampled up to the length of others.
NOT_SAMPLED = -1


class StepResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the device gave back for a plan.

    Args:
      sampled: the new token ids of each row with `sample`, in batch order: one, or as
        many as the device could tell at once, or none where it had to give the row up;
        from NOT_SAMPLED on a row says nothing.
      logprobs: slot -> one for each of its new tokens, where they were asked for.
      prompt_logprobs: slot -> logprobs of the prompt tokens at positions
        [start + 1, start + num_tokens], as far as they lie inside the prompt.
    """

    step_id: int
    sampled: tuple[tuple[int, ...], ...]
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step added to a sequence: the scheduler's answer to a result.

    An empty one tells that a step has begun with the sequence.
    """

    sequence_id: SequenceId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an open stream yields: new tokens of one of its sequences.

    Args:
      index: prompt number * n + sequence number within the prompt.
      token_ids: new output ids; the token that ended the sequence is the last one.
      logprobs: one for each of token_ids if they were asked for.
      prompt_logprobs: for prompt tokens 1, 2, ...; all before the first output token.
      num_cached_tokens: prompt tokens found in the prefix cache.
      finish_reason: set in a sequence's last delta.
      stop_token_id: the token that ended it, unless that was the model's own EOS.
    """

    index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
