"""What the model cannot read and what is not loaded never enters the engine."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from trioserve.config import SchedulingPolicy
from trioserve.engine.generation.admission import check_request
from trioserve.engine.priority import MAX_PRIORITY, check_priority
from trioserve.errors import ContextLengthExceeded, InvalidParameter
from trioserve.testing.fake_device import make_info
from trioserve.types.prompt import KEY_BYTES, NO_TOKEN, EmbeddedInput, Prompt
from trioserve.types.sampling import SamplingParams
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
def test_a_priority_is_taken(
    priority: int, policy: SchedulingPolicy, is_taken: bool
) -> None:
    """Only by its policy, and within bounds: others may wait no longer than ageing says."""
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
def test_vectors_of_the_model_are_taken(prompt: Prompt) -> None:
    check_request([prompt], ONE, INFO)


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
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
    with pytest.raises(InvalidParameter) as caught:
        check_request([make_prompt(make_item())], asked, INFO)
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


def test_where_nothing_is_loaded_that_is_told() -> None:
    asked = replace(ONE, logits_processors=(("left", {}),))
    with pytest.raises(
        InvalidParameter,
        match="^logits_processors: 'left' is not loaded; loaded: none$",
    ):
        check_request([make_prompt()], asked, INFO)


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a", "a"], "once"), ([str(i) for i in range(17)], "at most 16")],
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
def test_what_a_plug_in_is_told_can_be_sent_to_any_process(
    arguments: dict[str, object], is_taken: bool
) -> None:
    info = replace(INFO, logits_processors=("left",))
    asked = replace(ONE, logits_processors=(("left", arguments),))
    with nullcontext() if is_taken else pytest.raises(InvalidParameter) as caught:
        check_request([Prompt(token_ids=(1,))], asked, info)
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
