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
from trioserve.engine.generation.admission import check_request, resolve_sampling
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
from trioserve.types.model_info import ModelInfo
from trioserve.types.pooling import PoolingInput, PoolingParams, PoolingTask
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
    message = "between -100" if policy == "priority" else "with --scheduling-policy"
    with pytest.raises(InvalidParameter, match=f"^priority: .* {message}"):
        check_priority(priority, policy)


SEES = replace(INFO, takes_images=True)
IMAGE = Prompt(token_ids=(5,) * 8, embedded=(make_item(kind="image", tensors={}),))
PLUGGED = replace(INFO, logits_processors=("left", "right"))


def make_vectors(width: int, number: int = 3, dtype: str = "float32") -> Prompt:
    tensor = TensorBytes(data=b"", dtype=dtype, shape=(number, width))
    return make_prompt(make_item(tensors={"embeds": tensor}))


def make_budget(*end_token_ids: int) -> ReasoningBudget:
    return ReasoningBudget(
        num_tokens=1, start_token_ids=(1,), end_token_ids=end_token_ids
    )


@pytest.mark.parametrize(
    ("prompt", "fields", "info"),
    [
        (make_prompt(make_item()), {}, INFO),
        (make_prompt(make_item(2), make_item(5)), {}, INFO),
        (make_prompt(make_item(0, 8)), {}, INFO),
        (IMAGE, {}, SEES),
        (make_prompt(), {"reasoning_budget": make_budget(511)}, INFO),
        (
            make_prompt(),
            {"logits_processors": (("right", {}), ("left", {"by": 1}))},
            PLUGGED,
        ),
        (make_prompt(num_tokens=31), {"max_tokens": None}, INFO),
        (make_prompt(num_tokens=31), {"max_tokens": 1}, INFO),
    ],
)
def test_a_request_is_accepted(
    prompt: Prompt, fields: dict[str, Any], info: ModelInfo
) -> None:
    check_request([prompt], replace(ONE, **fields), info)


@pytest.mark.parametrize(
    ("prompt", "fields", "info", "message"),
    [
        (None, {}, INFO, "^prompt: must not be empty$"),
        # Vectors and images.
        (make_vectors(7), {}, INFO, "^prompt_embeds: .* 8 numbers"),
        (make_vectors(8, 2), {}, INFO, "^prompt_embeds: .* 8 numbers"),
        (
            make_vectors(8, dtype="bfloat16"),
            {},
            INFO,
            "^prompt_embeds: must be float32",
        ),
        (
            make_prompt(make_item()),
            {},
            replace(INFO, hidden_size=7),
            "^prompt_embeds: .* 7 numbers",
        ),
        (make_prompt(make_item()), {}, replace(INFO, hidden_size=0), "tokens only"),
        (
            replace(make_prompt(make_item()), token_ids=(NO_TOKEN,) * 8),
            {},
            INFO,
            "token ids must be between",
        ),
        (IMAGE, {}, INFO, "takes no images"),
        (IMAGE, {}, replace(SEES, max_image_tokens=1), "has room for 1"),
        (replace(IMAGE, token_ids=(10**6,) * 8), {}, SEES, "token ids must be between"),
        (make_prompt(make_item()), {"prompt_logprobs": 0}, INFO, "^prompt_logprobs: "),
        # Plug-ins; only the beginning of a name is repeated, in one line.
        (
            make_prompt(),
            {"logits_processors": (("left", {}), ("up\n" * 99, {}))},
            PLUGGED,
            r"^logits_processors: '(up.n){21}u' is not loaded; loaded: left, right$",
        ),
        (
            make_prompt(),
            {"logits_processors": (("left", {}),)},
            INFO,
            "^logits_processors: 'left' is not loaded; loaded: none$",
        ),
        # Alternatives.
        (make_prompt(), {"logprobs": 21}, INFO, "^logprobs: "),
        (make_prompt(), {"logprobs": -1}, INFO, "^logprobs: "),
        (make_prompt(), {"prompt_logprobs": 21}, INFO, "^prompt_logprobs: "),
        (make_prompt(), {"prompt_logprobs": -1}, INFO, "^prompt_logprobs: "),
        # Token ids.
        (
            make_prompt(),
            {"logprobs": 0, "logprob_token_ids": (512,)},
            INFO,
            "^logprob_token_ids: ",
        ),
        (make_prompt(), {"stop_token_ids": (512,)}, INFO, "^stop_token_ids: "),
        (
            make_prompt(),
            {"logit_bias": tuple((i, 1.0) for i in (3, 512, 999))},
            INFO,
            "^logit_bias: .* between 0 and 511, got 512, 999$",
        ),
        (
            make_prompt(),
            {"reasoning_budget": make_budget(512)},
            INFO,
            "^thinking_token_budget: ",
        ),
    ],
)
def test_a_request_is_refused(
    prompt: Prompt | None, fields: dict[str, Any], info: ModelInfo, message: str
) -> None:
    prompts = [] if prompt is None else [prompt]
    with pytest.raises(InvalidParameter, match=message):
        check_request(prompts, replace(ONE, **fields), info)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [
        (make_prompt(num_tokens=31), 2, "max_tokens"),
        # A prompt as long as the model leaves no room for a token of output.
        (make_prompt(num_tokens=32), None, "prompt"),
        (make_prompt(num_tokens=32), 1, "prompt"),
        (make_prompt(num_tokens=33), 1, "prompt"),
        # Vectors count as tokens.
        (make_prompt(make_item(0, 32), num_tokens=32), 1, "prompt"),
    ],
)
def test_prompt_and_output_fit_the_model(
    prompt: Prompt, max_tokens: int | None, param: str
) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        check_request([prompt], SamplingParams(max_tokens=max_tokens), INFO)
    assert caught.value.param == param
    num_tokens = len(prompt.token_ids)
    assert (caught.value.num_tokens, caught.value.limit) == (num_tokens, 32)
    assert f"{num_tokens} tokens" in str(caught.value)


def test_a_sequence_without_a_limit_has_the_room_that_its_prompt_leaves() -> None:
    sampling = SamplingParams(max_tokens=None, min_tokens=30)
    prompts = [make_prompt(), make_prompt(num_tokens=20)]
    resolved = resolve_sampling(prompts, sampling, INFO)
    limits = [(each.min_tokens, each.max_tokens) for each in resolved]
    assert limits == [(24, 24), (12, 12)]


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


@pytest.mark.parametrize("start, end", [((), (1,)), ((1,), ())])
def test_a_tag_of_no_token_is_a_mistake_of_the_caller(
    start: tuple[int, ...], end: tuple[int, ...]
) -> None:
    budget = ReasoningBudget(num_tokens=1, start_token_ids=start, end_token_ids=end)
    with pytest.raises(ValueError, match="a tag has at least one token"):
        check_request([make_prompt()], replace(ONE, reasoning_budget=budget), INFO)


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
    # One may be as long as the model.
    check_input(PoolingInput(token_ids=array("i", [511] * 32)), INFO)
    each = PoolingInput(token_ids=array("i", token_ids))
    with pytest.raises(RequestError) as caught:
        check_input(each, INFO, "texts[3]")
    assert caught.value.param == "texts[3]"
    assert message in str(caught.value)


def make_scheduler() -> Scheduler:
    return Scheduler(
        num_blocks=64,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=32,
    )


async def test_seeds_of_a_request_stay_numbers_of_64_bits() -> None:
    """Sequence k samples with seed + k; after the largest seed comes the smallest."""
    device = FakeDevice(block_size=4)
    scheduler = make_scheduler()
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


async def test_a_sequence_starts_with_its_adapter() -> None:
    device = FakeDevice(block_size=4)
    scheduler = make_scheduler()
    executor = FakeExecutor(device.step)
    core = LocalCore(scheduler, executor, info=INFO)
    served = await core.adapters.load("french", "adapters/french")
    assert executor.adapters == {1: served.facts}
    prompt = Prompt(token_ids=(1,) * 9)
    found = []
    for number, adapter in enumerate(("", "french", "", "french")):
        await core.add(
            SequenceGroup(
                first_id=SequenceId(number),
                prompts=(prompt,),
                sampling=SamplingParams(max_tokens=1),
                seed=0,
                adapter=adapter,
            )
        )
        plan = scheduler.schedule()
        assert plan is not None
        assert [start.adapter for start in plan.starts] == [int(bool(adapter))]
        outputs = scheduler.update(plan, device.step(plan))
        core.adapters.leave([number])
        found += [output.num_cached_tokens for output in outputs]
    assert found == [0, 0, 8, 8], "prompts share blocks only with the same adapter"
    await core.adapters.unload("french")
    assert not executor.adapters


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("classify", "^size: is not taken for the task classify$"),
        ("embed", "^size: Model 'fake' .* size must be unset .received size=4.*$"),
    ],
)
def test_a_size_that_vectors_are_not_cut_to_is_refused(
    task: PoolingTask, message: str
) -> None:
    params = PoolingParams(task=task, dimensions=4)
    with pytest.raises(InvalidParameter, match=message):
        make_pooling_info(task).check(params, INFO.name, param="size")
