"""The checks of a request before it enters the engine; afterwards nothing can fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...errors import ContextLengthExceeded, InvalidParameter, list_some
from ...types.model_info import ModelInfo
from ...types.output import SequenceError
from ...types.prompt import KEY_BYTES, NO_TOKEN, EmbeddedInput, Prompt, count_tokens
from ...types.sampling import DEFAULT_MAX_LOGPROBS, SamplingParams
from ...types.structured import Grammar

# Log probabilities of one request that asks for many. Each takes about 100 bytes in the
# engine, as many in the server, and as many in the answer. A million were measured to keep
# the event loop from other work for 0.06 s.
MAX_LOGPROB_ENTRIES = 2**20

# Far more than plug-ins need, and far less than the depth at which a decoder fails.
_MAX_ARGUMENT_DEPTH = 32


def check_request(
    prompts: Sequence[Prompt], sampling: SamplingParams, info: ModelInfo
) -> None:
    """Refuse a request that the model cannot compute.

    Raises:
      InvalidParameter: a token id lies outside the vocabulary, there is no prompt,
        vectors have another width or type than the model's, a plug-in is not loaded,
        too many log probabilities are asked for, or no token may be written.
      ContextLengthExceeded: a prompt with its max_tokens is longer than the model allows.
    """
    if not prompts:
        raise InvalidParameter("prompt", "must not be empty")
    for prompt in prompts:
        _check_prompt(prompt, info)
        if prompt.embedded and sampling.prompt_logprobs is not None:
            raise InvalidParameter(
                "prompt_logprobs", "a prompt of vectors has no tokens to report on"
            )
        _check_length(prompt, sampling, info.max_model_len)
    if sampling.logprob_token_ids:
        ids = sampling.logprob_token_ids
        _check_token_ids("logprob_token_ids", ids, info.vocab_size)
    if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
        _check_logprobs(prompts, sampling, info)
    _check_token_ids("stop_token_ids", sampling.stop_token_ids, info.vocab_size)
    _check_token_ids("allowed_token_ids", sampling.allowed_token_ids, info.vocab_size)
    if sampling.logit_bias:
        biased = [token_id for token_id, _ in sampling.logit_bias]
        _check_token_ids("logit_bias", biased, info.vocab_size)
    if sampling.bad_words or sampling.min_tokens:
        _check_exclusions(sampling, info)
    if sampling.reasoning_budget is not None:
        for tag in (
            sampling.reasoning_budget.start_token_ids,
            sampling.reasoning_budget.end_token_ids,
        ):
            if not tag:
                raise ValueError("a tag has at least one token")
            _check_token_ids("thinking_token_budget", tag, info.vocab_size)
    if sampling.grammar is not None:
        _check_grammar(sampling.grammar, info)
    for name, arguments in sampling.logits_processors:
        _check_processor(name, info.logits_processors)
        if not _is_sendable(arguments, _MAX_ARGUMENT_DEPTH):
            raise InvalidParameter(
                f"logits_processors.{name}",
                f"may be nested {_MAX_ARGUMENT_DEPTH} deep, with numbers of 64 bits",
            )


def resolve_sampling(
    prompts: Sequence[Prompt], sampling: SamplingParams, info: ModelInfo
) -> Iterator[SamplingParams]:
    """Replace the fields that a request leaves open.

    max_tokens is the number of tokens that the prompt leaves; the rule for repetitions is
    the server's. A client that ignores the ends of texts wants a number of tokens, so
    the rule does not end its sequences.

    Yields:
      the parameters of each prompt's sequences. All prompts share one object where they can,
      because a check of its fields takes a hundred calls.
    """
    has_rule = sampling.repetition_detection is not None or sampling.ignore_eos
    if not has_rule and info.stop_repetition is not None:
        sampling = replace(sampling, repetition_detection=info.stop_repetition)
    for prompt in prompts:
        if sampling.max_tokens is not None:
            yield sampling
            continue
        room = info.max_model_len - len(prompt.token_ids)
        yield replace(
            sampling, max_tokens=room, min_tokens=min(sampling.min_tokens, room)
        )


def _check_prompt(prompt: Prompt, info: ModelInfo) -> None:
    """Refuse tokens and vectors that the model cannot read.

    Raises:
      InvalidParameter: the model cannot read a token or a vector.
      ValueError: runs, keys and vectors do not match.
    """
    token_ids = prompt.token_ids
    begin_of_tokens = end = 0
    for item in prompt.embedded:
        _check_embedded(item, info)
        for begin, run_end in item.runs:
            if not end <= begin < run_end <= len(token_ids):
                raise ValueError("the runs of vectors overlap or leave the prompt")
            end = run_end
            # The positions of an image have tokens, too.
            if item.kind == "embeds":
                if set(token_ids[begin:end]) != {NO_TOKEN}:
                    raise ValueError("a position has a vector and a token")
                _check_token_ids(
                    "prompt", token_ids[begin_of_tokens:begin], info.vocab_size
                )
                begin_of_tokens = end
    _check_token_ids("prompt", token_ids[begin_of_tokens:], info.vocab_size)


def _check_embedded(item: EmbeddedInput, info: ModelInfo) -> None:
    if len(item.keys) != KEY_BYTES * item.num_vectors or not item.runs:
        raise ValueError("every vector has a key")
    if item.kind == "image":
        if not info.takes_images:
            raise InvalidParameter("prompt", "this model takes no images")
        _check_image(item, info.max_image_tokens)
        return
    if info.hidden_size == 0:
        raise InvalidParameter("prompt_embeds", "this model takes tokens only")
    embeds = item.tensors["embeds"]
    if embeds.shape != (item.num_vectors, info.hidden_size):
        raise InvalidParameter(
            "prompt_embeds", f"vectors of this model have {info.hidden_size} numbers"
        )
    if embeds.dtype != info.dtype:
        raise InvalidParameter(
            "prompt_embeds", f"must be {info.dtype}, got {embeds.dtype}"
        )


def _check_image(item: EmbeddedInput, limit: int | None) -> None:
    longest = max(end - begin for begin, end in item.runs)
    if limit is not None and longest > limit:
        raise InvalidParameter(
            "prompt",
            f"an image of {longest} tokens must be computed in one step, and a step has "
            f"room for {limit} (--max-num-batched-tokens)",
        )


def _check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = [each for each in token_ids if not 0 <= each < vocab_size]
        raise InvalidParameter(
            param,
            f"token ids must be between 0 and {vocab_size - 1}, got {list_some(wrong)}",
        )


def _check_exclusions(sampling: SamplingParams, info: ModelInfo) -> None:
    """Refuse parameters that leave no token to begin with.

    Sequences for which none is left later, or by other means, end with an error.
    """
    excluded: dict[str, set[int]] = {
        "bad_words": {word[0] for word in sampling.bad_words if len(word) == 1},
        "min_tokens": {*sampling.stop_token_ids} if sampling.min_tokens else set(),
    }
    if sampling.min_tokens and not sampling.ignore_eos:
        excluded["min_tokens"] |= info.eos_token_ids
    allowed = sampling.allowed_token_ids
    gone = set().union(*excluded.values())
    # Stops at the first token that is left.
    if not all(token_id in gone for token_id in allowed or range(info.vocab_size)):
        return
    names = ["allowed_token_ids"] if allowed else []
    names += [name for name, token_ids in excluded.items() if token_ids]
    error = SequenceError.exclude_all(names)
    raise InvalidParameter(error.param, error.reason)


def _check_grammar(grammar: Grammar, info: ModelInfo) -> None:
    if not info.eos_token_ids:
        raise InvalidParameter(
            grammar.param, "needs a model with an end-of-sequence token"
        )
    for tag in (grammar.start_token_ids, grammar.end_token_ids):
        _check_token_ids(grammar.param, tag, info.vocab_size)


def _check_processor(name: str, loaded: Sequence[str]) -> None:
    if name not in loaded:
        # Only the beginning: a client may send a name of kilobytes.
        raise InvalidParameter(
            "logits_processors",
            f"{name[:64]!r} is not loaded; loaded: {', '.join(loaded) or 'none'}",
        )


def _check_logprobs(
    prompts: Sequence[Prompt], sampling: SamplingParams, info: ModelInfo
) -> None:
    sampling.check_logprobs(info.max_logprobs)
    num_prompt = count_tokens(prompts)
    num_output = sum(
        (
            info.max_model_len - len(prompt.token_ids)
            if sampling.max_tokens is None
            else sampling.max_tokens
        )
        for prompt in prompts
    )
    for name, num_tokens in (("prompt_logprobs", num_prompt), ("logprobs", num_output)):
        num_each = _count_alternatives(getattr(sampling, name), info.vocab_size)
        num_entries = num_each * num_tokens * sampling.n
        # Fewer have always been possible for any number of tokens.
        if num_each > DEFAULT_MAX_LOGPROBS and num_entries > MAX_LOGPROB_ENTRIES:
            raise InvalidParameter(
                name,
                f"the answer may have {num_entries} log probabilities; at most "
                f"{MAX_LOGPROB_ENTRIES} are possible, so ask for fewer alternatives, "
                "fewer tokens or a lower n",
            )


def _count_alternatives(asked: int | None, vocab_size: int) -> int:
    return vocab_size if asked == -1 else min(asked or 0, vocab_size)


def _is_sendable(value: object, depth: int) -> bool:
    """Return whether the arguments of a plug-in can be sent to another process."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if not isinstance(value, (dict, list)):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_sendable(each, depth - 1) for each in inner)


def _check_length(prompt: Prompt, sampling: SamplingParams, limit: int) -> None:
    num_tokens = len(prompt.token_ids)
    max_tokens = sampling.max_tokens or 0
    if num_tokens + max(1, max_tokens) > limit:
        raise ContextLengthExceeded(
            num_tokens=num_tokens,
            limit=limit,
            max_tokens=max_tokens,
            param="prompt" if num_tokens >= limit else "max_tokens",
        )
