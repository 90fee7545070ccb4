"""Requests that the model cannot compute are refused before they enter the engine."""

from __future__ import annotations

from array import array
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from trioserve.config import SchedulingPolicy
from trioserve.engine.engine import MAX_PRIORITY, check_priority
from trioserve.engine.generation import admission
from trioserve.engine.generation.admission import check_request
from trioserve.engine.generation.core import LocalCore, SequenceGroup
from trioserve.engine.pooling.admission import check_input
from trioserve.errors import ContextLengthExceeded, InvalidParameter, RequestError
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import (
    FakeDevice,
    FakeExecutor,
    make_info,
    make_pooling_info,
)
from trioserve.types.ids import SequenceId
from trioserve.types.pooling import PoolingInput, PoolingParams
from trioserve.types.prompt import KEY_BYTES, NO_TOKEN, EmbeddedInput, Prompt
from trioserve.types.sampling import ReasoningBudget, SamplingParams
from trioserve.types.tensors import TensorBytes

INFO = make_info(32)
ONE = SamplingParams(max_tokens=1)


def make_item(begin: int = 0, num_vectors: int = 3, **changes: Any) -> EmbeddedInput:
    tensor = TensorBytes(
        data=bytes(4 * num_vectors * INFO.hidden_size),
        dtype="float32",
        shape=(num_vectors, INFO.hidden_size),
    )
    item = EmbeddedInput(
        kind="embeds",
        runs=((begin, begin + num_vectors),),
        keys=bytes(KEY_BYTES * num_vectors),
        tensors={"embeds": tensor},
    )
    return replace(item, **changes)


def make_prompt(*items: EmbeddedInput, num_tokens: int = 8) -> Prompt:
    token_ids = [5] * num_tokens
    for item in items:
        for begin, end in item.runs:
            token_ids[begin:end] = [NO_TOKEN] * (end - begin)
    return Prompt(token_ids=tuple(token_ids), embedded=items)


@pytest.mark.parametrize(
    ("priority", "policy", "is_taken"),
    [
        (0, "fcfs", True),
        (1, "fcfs", False),
        (-1, "fcfs", False),
        (0, "priority", True),
        (MAX_PRIORITY, "priority", True),
        (-MAX_PRIORITY, "priority", True),
        (MAX_PRIORITY + 1, "priority", False),
        (-MAX_PRIORITY - 1, "priority", False),
    ],
)
def test_a_priority_is_accepted(
    priority: int, policy: SchedulingPolicy, is_taken: bool
) -> None:
    """It needs its policy. Bounds keep the wait of others within ageing's limit."""
    if is_taken:
        check_priority(priority, policy)
        return
    with pytest.raises(InvalidParameter) as caught:
        check_priority(priority, policy)
    assert caught.value.param == "priority"


@pytest.mark.parametrize(
    "prompt",
    [
        make_prompt(make_item()),
        make_prompt(make_item(2), make_item(5)),
        make_prompt(make_item(0, 8)),
    ],
)
def test_vectors_are_accepted_in_the_width_of_the_model(prompt: Prompt) -> None:
    check_request([prompt], ONE, INFO)
    with pytest.raises(InvalidParameter, match="7 numbers"):
        check_request([prompt], ONE, replace(INFO, hidden_size=7))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorBytes(data=b"", dtype="float32", shape=(3, 7)), "8 numbers"),
        (TensorBytes(data=b"", dtype="float32", shape=(2, 8)), "8 numbers"),
        (TensorBytes(data=b"", dtype="bfloat16", shape=(3, 8)), "must be float32"),
    ],
)
def test_other_vectors_are_refused(tensor: TensorBytes, message: str) -> None:
    prompt = make_prompt(make_item(tensors={"embeds": tensor}))
    with pytest.raises(InvalidParameter, match=message) as caught:
        check_request([prompt], ONE, INFO)
    assert caught.value.param == "prompt_embeds"


def test_a_position_without_a_vector_needs_a_token() -> None:
    prompt = replace(make_prompt(make_item()), token_ids=(NO_TOKEN,) * 8)
    with pytest.raises(InvalidParameter, match="token ids must be between"):
        check_request([prompt], ONE, INFO)


def test_an_images_tokens_are_the_models() -> None:
    sees = replace(INFO, takes_images=True)
    image = make_item(kind="image", tensors={})
    prompt = Prompt(token_ids=(5,) * 8, embedded=(image,))
    check_request([prompt], ONE, sees)
    with pytest.raises(InvalidParameter, match="token ids must be between"):
        check_request([replace(prompt, token_ids=(10**6,) * 8)], ONE, sees)


def test_a_model_may_have_no_place_for_vectors() -> None:
    with pytest.raises(InvalidParameter, match="tokens only"):
        check_request([make_prompt(make_item())], ONE, replace(INFO, hidden_size=0))


def test_an_image_is_refused_by_a_model_that_sees_none() -> None:
    prompt = make_prompt(make_item(kind="image"))
    with pytest.raises(InvalidParameter, match="takes no images"):
        check_request([prompt], ONE, INFO)


def test_vectors_count_as_tokens() -> None:
    with pytest.raises(ContextLengthExceeded):
        check_request([make_prompt(make_item(0, 32), num_tokens=32)], ONE, INFO)


def test_there_is_nothing_to_report_on_vectors() -> None:
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
    with pytest.raises(InvalidParameter) as caught:
        check_request([make_prompt(make_item())], sampling, INFO)
    assert caught.value.param == "prompt_logprobs"


@pytest.mark.parametrize(
    "prompt",
    [
        make_prompt(make_item(keys=b"")),
        make_prompt(make_item(runs=(), keys=b"")),
        replace(make_prompt(make_item(2)), embedded=(make_item(2), make_item(4))),
        replace(make_prompt(make_item(2)), embedded=(make_item(2), make_item(0))),
        replace(make_prompt(), embedded=(make_item(6),)),
        replace(make_prompt(), embedded=(make_item(2),)),
    ],
    ids=["no keys", "no runs", "overlap", "order", "outside", "token"],
)
def test_vectors_that_make_no_sense_are_a_mistake_of_the_caller(prompt: Prompt) -> None:
    with pytest.raises(ValueError, match="vector|runs"):
        check_request([prompt], ONE, INFO)


def test_a_plug_in_that_is_not_loaded_is_refused_by_its_name() -> None:
    info = replace(INFO, logits_processors=("left", "right"))
    known = replace(ONE, logits_processors=(("right", {}), ("left", {"by": 1})))
    check_request([make_prompt()], known, info)
    unknown = replace(ONE, logits_processors=(("left", {}), ("up\n" * 99, {})))
    with pytest.raises(
        InvalidParameter, match="'up.*is not loaded; loaded: left, right$"
    ) as (caught):
        check_request([make_prompt()], unknown, info)
    assert caught.value.param == "logits_processors"
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logprobs": 0, "logprob_token_ids": (512,)}, "logprob_token_ids"),
    ],
)
def test_the_server_bounds_the_alternatives(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_request([make_prompt()], replace(ONE, **fields), INFO)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "num_entries"),
    [
        ({"logprobs": -1, "max_tokens": 10}, 5120),
        ({"logprobs": -1, "max_tokens": None}, 512 * 24),
        ({"logprobs": 30, "max_tokens": 10, "n": 3}, 900),
        ({"logprobs": 900, "max_tokens": 1}, 512),
        ({"prompt_logprobs": -1, "n": 2}, 8192),
    ],
)
def test_many_alternatives_are_bounded_in_all(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], num_entries: int
) -> None:
    info = replace(INFO, max_logprobs=-1)
    sampling = replace(ONE, **fields)
    monkeypatch.setattr(admission, "MAX_LOGPROB_ENTRIES", num_entries)
    check_request([make_prompt()], sampling, info)
    monkeypatch.setattr(admission, "MAX_LOGPROB_ENTRIES", num_entries - 1)
    with pytest.raises(InvalidParameter, match=f"have {num_entries} log") as caught:
        check_request([make_prompt()], sampling, info)
    assert caught.value.param in fields
    # Few were never bounded.
    check_request(
        [make_prompt()], replace(sampling, logprobs=20, prompt_logprobs=20), info
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"allowed_token_ids": (5, 6), "bad_words": ((5,), (6,))},
            "allowed_token_ids and bad_words",
        ),
        (
            {"allowed_token_ids": (7, 2), "min_tokens": 1, "stop_token_ids": (7,)},
            "allowed_token_ids and min_tokens",
        ),
        (
            {
                "allowed_token_ids": (7, 5),
                "bad_words": ((5,),),
                "min_tokens": 1,
                "stop_token_ids": (7,),
            },
            "allowed_token_ids and bad_words and min_tokens",
        ),
        (
            {"bad_words": tuple((i,) for i in range(255)), "stop_token_ids": (9,)},
            None,
        ),
        # Tokens may be left.
        ({"allowed_token_ids": (5, 6), "bad_words": ((5,), (6, 6))}, None),
        ({"allowed_token_ids": (2,), "min_tokens": 1, "ignore_eos": True}, None),
        ({"allowed_token_ids": (2,)}, None),
    ],
)
def test_parameters_that_leave_no_token_are_refused(
    fields: dict[str, Any], reason: str | None
) -> None:
    info = replace(INFO, eos_token_ids=frozenset({2}))
    with (
        nullcontext()
        if reason is None
        else pytest.raises(
            InvalidParameter,
            match=f"^allowed_token_ids: no token is left; all are excluded by {reason}$",
        )
    ):
        check_request([make_prompt()], replace(ONE, **fields), info)


def test_a_small_vocabulary_may_be_excluded_as_a_whole() -> None:
    words = tuple((i,) for i in range(200))
    sampling = replace(ONE, bad_words=words, min_tokens=1, stop_token_ids=(200,))
    check_request([make_prompt()], sampling, make_info(32, vocab_size=202))
    with pytest.raises(InvalidParameter, match="^bad_words: .* bad_words and min_to"):
        check_request([make_prompt()], sampling, make_info(32, vocab_size=201))


def test_all_wrong_ids_of_a_bias_are_named() -> None:
    sampling = replace(ONE, logit_bias=tuple((i, 1.0) for i in (3, 512, 999)))
    with pytest.raises(
        InvalidParameter, match="^logit_bias: .* between 0 and 511, got 512, 999$"
    ):
        check_request([make_prompt()], sampling, INFO)


def test_the_error_says_that_no_plug_in_is_loaded() -> None:
    sampling = replace(ONE, logits_processors=(("left", {}),))
    with pytest.raises(
        InvalidParameter,
        match="^logits_processors: 'left' is not loaded; loaded: none$",
    ):
        check_request([make_prompt()], sampling, INFO)


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a", "a"], "unique"), ([str(i) for i in range(17)], "at most 16")],
)
def test_a_plug_in_takes_part_once_and_few_do(names: list[str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        SamplingParams(logits_processors=tuple((name, {}) for name in names))


def nest(depth: int) -> list[object]:
    nested: list[object] = []
    for _ in range(depth - 1):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("arguments", "is_taken"),
    [
        ({"text": "a", "list": [1, 2.5, None, True], "big": 2**63 - 1}, True),
        ({"big": 2**63}, False),
        ({"deep": nest(31)}, True),
        ({"deep": nest(32)}, False),
        ({"deep": nest(100_000)}, False),
    ],
)
def test_arguments_of_a_plug_in_can_be_sent_to_any_process(
    arguments: dict[str, object], is_taken: bool
) -> None:
    info = replace(INFO, logits_processors=("left",))
    sampling = replace(ONE, logits_processors=(("left", arguments),))
    with nullcontext() if is_taken else pytest.raises(InvalidParameter) as caught:
        check_request([Prompt(token_ids=(1,))], sampling, info)
    assert is_taken or caught.value.param == "logits_processors.left"


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "param"),
    [
        (31, None, None),
        (31, 1, None),
        (31, 2, "max_tokens"),
        # A prompt as long as the model leaves no room for a token of output.
        (32, None, "prompt"),
        (32, 1, "prompt"),
        (33, 1, "prompt"),
    ],
)
def test_prompt_and_output_fit_the_model(
    num_tokens: int, max_tokens: int | None, param: str | None
) -> None:
    prompt = make_prompt(num_tokens=num_tokens)
    sampling = SamplingParams(max_tokens=max_tokens)
    if param is None:
        check_request([prompt], sampling, INFO)
        return
    with pytest.raises(ContextLengthExceeded) as caught:
        check_request([prompt], sampling, INFO)
    assert caught.value.param == param


def test_a_request_needs_a_prompt() -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_request([], ONE, INFO)
    assert str(caught.value) == "prompt: must not be empty"


def test_a_refusal_for_length_names_the_requested_tokens() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        check_request([make_prompt(num_tokens=30)], SamplingParams(max_tokens=7), INFO)
    assert (caught.value.num_tokens, caught.value.limit) == (30, 32)
    assert "30 tokens and 7 output tokens were requested" in str(caught.value)


@pytest.mark.parametrize("start, end", [((), (1,)), ((1,), ())])
def test_a_tag_of_no_token_is_a_mistake_of_the_caller(
    start: tuple[int, ...], end: tuple[int, ...]
) -> None:
    budget = ReasoningBudget(num_tokens=1, start_token_ids=start, end_token_ids=end)
    with pytest.raises(ValueError, match="a tag has at least one token"):
        check_request([make_prompt()], replace(ONE, reasoning_budget=budget), INFO)


@pytest.mark.parametrize("token_id, is_taken", [(511, True), (512, False)])
def test_tags_consist_of_the_models_tokens(token_id: int, is_taken: bool) -> None:
    budget = ReasoningBudget(
        num_tokens=1, start_token_ids=(1,), end_token_ids=(token_id,)
    )
    sampling = replace(ONE, reasoning_budget=budget)
    with nullcontext() if is_taken else pytest.raises(InvalidParameter) as caught:
        check_request([make_prompt()], sampling, INFO)
    assert is_taken or caught.value.param == "thinking_token_budget"


def test_a_size_of_vectors_is_only_taken_for_vectors() -> None:
    params = PoolingParams(task="classify", dimensions=4)
    with pytest.raises(InvalidParameter) as caught:
        make_pooling_info("classify").check(params, INFO.name)
    assert str(caught.value) == "dimensions: is not taken for the task classify"


@pytest.mark.parametrize(
    "token_ids, message",
    [
        ([], "texts[3]: must not be empty"),
        ([1] * 33, "the prompt has 33 tokens"),
        ([1, 512], "texts[3]: token ids must be between 0 and 511"),
        ([1, -1], "texts[3]: token ids must be between 0 and 511"),
    ],
)
def test_an_input_that_cannot_be_pooled_is_refused_by_its_name(
    token_ids: list[int], message: str
) -> None:
    each = PoolingInput(token_ids=array("i", token_ids))
    with pytest.raises(RequestError) as caught:
        check_input(each, INFO, "texts[3]")
    assert caught.value.param == "texts[3]"
    assert message in str(caught.value)


def test_an_input_may_be_as_long_as_the_model() -> None:
    check_input(PoolingInput(token_ids=array("i", [511] * 32)), INFO)
    with pytest.raises(ContextLengthExceeded):
        check_input(PoolingInput(token_ids=array("i", [511] * 33)), INFO)


async def test_seeds_of_a_request_stay_numbers_of_64_bits() -> None:
    """Sequence k samples with seed + k; after the largest seed comes the smallest."""
    device = FakeDevice(block_size=4)
    scheduler = Scheduler(
        num_blocks=64,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=32,
    )
    core = LocalCore(scheduler, FakeExecutor(device.step), info=INFO)
    await core.add(
        SequenceGroup(
            first_id=SequenceId(1),
            prompts=(make_prompt(),),
            sampling=SamplingParams(n=3, max_tokens=1),
            seed=2**63 - 2,
        )
    )
    plan = scheduler.schedule()
    assert plan is not None
    seeds = [start.seed for start in plan.starts]
    assert seeds == [2**63 - 2, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize(("size", "other"), [(1, 0), (8, 9)])
def test_a_size_is_at_most_the_models_own(size: int, other: int) -> None:
    pooling = make_pooling_info("embed", num_outputs=8, matryoshka=())
    pooling.check(PoolingParams(task="embed", dimensions=size), INFO.name)
    with pytest.raises(InvalidParameter):
        pooling.check(PoolingParams(task="embed", dimensions=other), INFO.name)


def test_a_model_that_cannot_cut_its_vectors_says_so_by_its_name() -> None:
    params = PoolingParams(task="embed", dimensions=4)
    with pytest.raises(InvalidParameter) as caught:
        make_pooling_info("embed").check(params, INFO.name, param="size")
    assert str(caught.value) == (
        "size: Model 'fake' does not support Matryoshka embeddings; size must be unset "
        "(received size=4)."
    )


def test_a_refused_priority_names_the_option_that_takes_it() -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_priority(1, "fcfs")
    assert str(caught.value) == (
        "priority: is only taken with --scheduling-policy priority"
    )
