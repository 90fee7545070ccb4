"""A pipeline writes the same as the whole model, token for token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
from itertools import product
import random
from typing import Any

from kit.every_step_stage import EveryStepLinks
import pytest

from trioserve.config import ModelConfig
from trioserve.model.runner import ModelRunner
from trioserve.model.stages.loading import load_stage
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.scheduler.generation.spans import Spans
from trioserve.testing.models import TINY_MODELS
from trioserve.types.ids import SequenceId
from trioserve.types.plan import StepPlan
from trioserve.types.prompt import NO_TOKEN, list_image_runs
from trioserve.types.sampling import SamplingParams
from trioserve.types.stage_place import StagePlace
from trioserve.types.transfers import list_transfers
from trioserve.types.windows import WindowLayers

from ..conftest import NATIVE_MODELS
from ..planning import make_image, make_prompt, make_vectors, run_steps
from ..test_launching import SOME, answer_all, assert_same

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
# Their modules are built in different ways.
MODELS = "gemma3_text gpt2 gpt_neox gpt_oss llama qwen3_5_text".split()
CASES = [
    *(("gemma3_text", 2, "native"), ("gemma3_text", 3, "torch")),
    *(("gpt2", 3, "torch"), ("gpt_oss", 3, "torch"), ("llama", 3, "native")),
    *(("qwen3_5_text", 2, "native"), ("qwen3_5_text", 3, "torch")),
    ("qwen3_moe", 3, "native"),
]
MORE_CASES = sorted({*product(TINY_MODELS, (2, 3), ("native", "torch"))} - {*CASES})
SIZES: dict[str, int] = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 5}
# A window and a chunk take six.
NUM_WINDOW_BLOCKS = 12
# Models without states need none.
RUNNER_SIZES = {**SIZES, "num_checkpoints": 5}


def write_all(
    launch: Callable[[Any], Any],
    sequences: Sequence[Scheduled],
    *,
    depth: int,
    aborts: dict[int, int] | None = None,
    prefix_caching: bool = True,
    has_states: bool = False,
    windows: WindowLayers | None = None,
    budget: int = 9,
) -> dict[int, list[int]]:
    """Run sequences as the engine does.

    Args:
      windows: the layers with window blocks.
      budget: most tokens of a step.
      aborts: step -> the sequence that is cancelled once the step is launched.
    """
    scheduler = Scheduler(
        **SIZES,
        max_num_batched_tokens=budget,
        max_model_len=64,
        prefix_caching=prefix_caching,
        num_checkpoints=RUNNER_SIZES["num_checkpoints"] if has_states else None,
        num_window_blocks=None if windows is None else NUM_WINDOW_BLOCKS,
        window=None if windows is None else windows.window,
    )
    for sequence in sequences:
        scheduler.add(sequence)
    outputs: dict[int, list[int]] = {s.sequence_id: [] for s in sequences}

    def launch_and_abort(plan: StepPlan) -> Any:
        launched = launch(plan)
        if plan.step_id in (aborts or {}):
            scheduler.abort(SequenceId((aborts or {})[plan.step_id]))
        return launched

    for output in run_steps(scheduler, launch_and_abort, depth=depth):
        outputs[output.sequence_id].extend(output.token_ids)
    return outputs


def make_sequences(
    prompts: Sequence[Sequence[int]],
    *,
    sampling: SamplingParams = GREEDY,
    embedded: Sequence[tuple[Any, ...]] = (),
    joins_images: bool = False,
    adapters: Sequence[int] = (0,),
) -> list[Scheduled]:
    items = list(embedded) or [()] * len(prompts)
    return [
        Scheduled(
            sequence_id=SequenceId(number),
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            seed=number,
            arrival=number,
            embedded=item,
            spans=Spans(list_image_runs(item) if joins_images else ()),
            adapter=adapters[number % len(adapters)],
            adapter_digest=bytes([adapters[number % len(adapters)]]),
        )
        for number, (prompt, item) in enumerate(zip(prompts, items))
    ]


def make_prompts(seed: int = 0) -> list[list[int]]:
    """Return short prompts, prompts of several chunks, and two that begin alike."""
    rng = random.Random(seed)
    lengths = (3, 1, 11, 21, 5)
    prompts = [rng.choices(range(3, 90), k=length) for length in lengths]
    return [*prompts, [*prompts[3][:9], 7, 8, 9]]


def make_runner(model: Any) -> ModelRunner:
    return ModelRunner(model, **RUNNER_SIZES, max_model_len=64)


@functools.cache
def write_whole(model: Any) -> dict[int, list[int]]:
    """Return what the whole model writes for make_prompts()."""
    sequences = make_sequences(make_prompts())
    return write_all(
        make_runner(model.loaded).launch,
        sequences,
        depth=1,
        prefix_caching=False,
    )


def end_one(sequences: list[Scheduled]) -> list[Scheduled]:
    """Leave a sequence no token behind its first one."""
    sequences[2].sampling = dataclasses.replace(
        GREEDY, allowed_token_ids=(5, 6), bad_words=((6,), (5, 5))
    )
    return sequences


def list_rows(pipeline: Any, stage: int, kind: str, what: str) -> list[int]:
    """Return the number of rows of each message of a kind, in order."""
    record = pipeline.records[stage]
    return [rows for *note, rows in record if note == [kind, what]]


def assert_exchanged(pipeline: Any, num_stages: int) -> None:
    """Stages send and receive the messages that plans name, in their order."""
    planned = [t for plan in pipeline.plans for t in list_transfers(plan, num_stages)]
    for stage in range(num_stages):
        for what in ("hidden", "sampled"):
            sent = list_rows(pipeline, stage, "send", what)
            assert sent == [
                t.num_rows for t in planned if t.sender == stage and t.what == what
            ]
            received = list_rows(pipeline, stage, "receive", what)
            wanted = [
                t.num_rows for t in planned if t.receiver == stage and t.what == what
            ]
            # At the end, tokens without a reader are still in flight.
            num_left = num_stages + 1 if what == "sampled" else 0
            assert received == wanted[: len(received)]
            assert len(wanted) - len(received) <= num_left


def test_a_sequence_without_a_token_left_ends_and_no_other(
    cut: Callable[..., Any], make_pipeline: Any
) -> None:
    model = cut("llama")
    pipeline = make_pipeline(model.stages(3), **SIZES, max_model_len=64)
    sequences = end_one(make_sequences(make_prompts()))
    written = write_all(pipeline.launch, sequences, depth=4)
    assert written == write_whole(model) | {2: [5]}
    assert_exchanged(pipeline, 3)


@pytest.mark.parametrize(
    ("model_type", "num_stages", "kernels"),
    CASES + [pytest.param(*case, marks=pytest.mark.matrix) for case in MORE_CASES],
)
def test_every_architecture(
    cut: Callable[..., Any],
    make_pipeline: Any,
    needs_kernels: None,
    model_type: str,
    num_stages: int,
    kernels: str,
) -> None:
    if kernels == "native" and model_type not in NATIVE_MODELS:
        pytest.skip(f"{model_type} has no native kernels")
    model = cut(model_type)
    expected = write_whole(model)
    stages = model.stages(num_stages, kernels)
    windows = model.loaded.info.windows
    pipeline = make_pipeline(
        stages,
        **RUNNER_SIZES,
        max_model_len=64,
        num_window_blocks=None if windows is None else NUM_WINDOW_BLOCKS,
    )
    written = write_all(
        pipeline.launch,
        make_sequences(make_prompts()),
        depth=num_stages + 1,
        has_states=bool(model.loaded.states),
        windows=windows,
    )
    assert written == expected
    assert len({tuple(tokens) for tokens in expected.values()}) > 2
    assert_exchanged(pipeline, num_stages)


def test_all_sampling_parameters(cut: Callable[..., Any], make_pipeline: Any) -> None:
    """Sampling, penalties, bad words, log probabilities, plug-ins, and preemption."""
    model = cut("llama")
    expected, _ = answer_all(model, SOME, depth=1, num_blocks=12)
    answers, num_preemptions = answer_all(
        model,
        SOME,
        depth=4,
        num_blocks=12,
        runner_type=lambda _, **settings: make_pipeline(model.stages(3), **settings),
    )
    assert num_preemptions > 0
    assert_same(answers, expected)


def test_sequences_that_are_cancelled_in_flight(
    cut: Callable[..., Any], make_pipeline: Any
) -> None:
    """Their tokens come when their slots already belong to other sequences."""
    model = cut("llama")
    sampling = dataclasses.replace(GREEDY, temperature=1.0, max_tokens=12)
    sequences = functools.partial(make_sequences, make_prompts(2), sampling=sampling)
    expected = write_all(make_runner(model.loaded).launch, sequences(), depth=1)
    pipeline = make_pipeline(model.stages(3), **SIZES, max_model_len=64)
    aborts = {4: 0, 6: 1, 9: 3, 12: 5}
    written = write_all(pipeline.launch, sequences(), depth=4, aborts=aborts)
    for number, tokens in written.items():
        if number in aborts.values():
            assert tokens == expected[number][: len(tokens)]
        else:
            assert tokens == expected[number]
    assert_exchanged(pipeline, 3)


def test_vectors_of_prompts(cut: Callable[..., Any], make_pipeline: Any) -> None:
    """Only the first stage reads them."""
    model = cut("llama")
    embedding = model.loaded.model.get_input_embeddings().weight.detach()
    prompts = make_prompts(3)
    embedded: list[tuple[Any, ...]] = [()] * len(prompts)
    places = {2: (1, 9), 3: (0, 21), 4: (2, 5)}
    for number, (begin, end) in places.items():
        vectors = embedding[prompts[number][begin:end]]
        embedded[number] = (make_vectors(begin, vectors),)
    hidden = [
        [NO_TOKEN if begin <= i < end else token for i, token in enumerate(prompt)]
        for prompt, (begin, end) in zip(
            prompts, [places.get(n, (0, 0)) for n in range(len(prompts))]
        )
    ]
    run = functools.partial(write_all, prefix_caching=False)
    expected = run(make_runner(model.loaded).launch, make_sequences(prompts), depth=1)
    pipeline = make_pipeline(model.stages(2), **SIZES, max_model_len=64)
    sequences = make_sequences(hidden, embedded=embedded)
    assert run(pipeline.launch, sequences, depth=3) == expected


@pytest.mark.parametrize(
    ("model_type", "kernels"),
    [
        ("gemma3", "torch"),
        ("qwen2_vl", "native"),
        pytest.param("smolvlm", "torch", marks=pytest.mark.matrix),
    ],
)
def test_images(
    tiny_vision: Callable[..., Any],
    make_pipeline: Any,
    needs_kernels: None,
    model_type: str,
    kernels: Any,
) -> None:
    """The first stage encodes them; all stages know their positions."""
    model = tiny_vision(model_type)
    mixed_prompts = [
        model.join(make_prompt(3 + seed), make_image(seed), make_prompt(4, seed))
        for seed in range(2)
    ]
    text = make_prompt(13, 5)
    sequences = functools.partial(
        make_sequences,
        [*(mixed.prompt for mixed in mixed_prompts), text],
        embedded=[*(mixed.embedded for mixed in mixed_prompts), ()],
        joins_images=model.loaded.info.joins_images,
    )
    # An image of Gemma 3 has 16 tokens.
    write = functools.partial(write_all, budget=21 if model_type == "gemma3" else 9)
    sizes = {**SIZES, "max_model_len": 64}
    expected = write(ModelRunner(model.loaded, **sizes).launch, sequences(), depth=1)
    stages = tuple(
        load_stage(
            model.folder,
            ModelConfig(device="cpu", kernels=kernels),
            name="tiny",
            place=StagePlace(stage=stage, num_stages=2),
        )
        for stage in range(2)
    )
    for stage in stages:
        parts = {name.split(".")[1] for name, _ in stage.model.named_parameters()}
        assert bool(parts - {"language_model", "weight"}) == (stage is stages[0])
        assert stage.info.takes_images
    pipeline = make_pipeline(stages, **sizes)
    assert write(pipeline.launch, sequences(), depth=3) == expected


def test_tokens_can_be_made_to_go_back_in_every_step(
    cut: Callable[..., Any], make_pipeline: Any
) -> None:
    """The benchmark of pipelines does so. Only the messages become more."""
    model = cut("llama")
    sequences = functools.partial(make_sequences, make_prompts()[2:4])
    expected = write_all(make_runner(model.loaded).launch, sequences(), depth=1)
    pipeline = make_pipeline(
        model.stages(3), **SIZES, max_model_len=64, links_type=EveryStepLinks
    )
    assert write_all(pipeline.launch, sequences(), depth=4) == expected
    sent = list_rows(pipeline, 2, "send", "sampled")
    assert sent == [plan.num_sampled or 1 for plan in pipeline.plans]
    assert any(not plan.num_sampled for plan in pipeline.plans)
    # The first stage receives the tokens of each step before it sends the next one's
    # hidden states.
    messages = [note[:2] for note in pipeline.records[0]]
    rounds = [("send", "hidden"), ("receive", "sampled")] * len(sent)
    assert messages == rounds[: len(messages)]
    assert len(messages) == len(rounds) - 1
