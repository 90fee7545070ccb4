"""No sequence says what it must not say, and everything else it says as before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import pickle
from typing import Any

from hypothesis import given, settings, strategies as st
import pytest
import torch
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor

from trioserve.model.bad_words import BadWords
from trioserve.model.sampler import Sampler
from trioserve.steps import MAX_BAD_WORD_TOKENS, NO_TOKEN, SamplingParams, SlotStart

Words = tuple[tuple[int, ...], ...]

every_device = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(
                    not torch.cuda.is_available(), reason="needs a CUDA device"
                ),
            ],
        ),
    ],
)


def forbid(*words: Sequence[int], **wishes: Any) -> SamplingParams:
    bad_words = tuple(tuple(word) for word in words)
    return SamplingParams(**{"temperature": 0.0, "bad_words": bad_words, **wishes})


def make_start(
    sampling: SamplingParams,
    *,
    slot: int = 0,
    prompt: Sequence[int] = (1,),
    outputs: Sequence[int] = (),
    seed: int = 0,
    stops: frozenset[int] = frozenset(),
) -> SlotStart:
    return SlotStart(
        slot=slot,
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(outputs),
        sampling=sampling,
        seed=seed,
        stop_token_ids=stops,
    )


def make_sampler(vocab_size: int, *starts: SlotStart, device: str = "cpu") -> Sampler:
    sampler = Sampler(vocab_size=vocab_size, device=torch.device(device))
    for start in starts:
        sampler.start(start)
    return sampler


def write(sampler: Sampler, logits: Tensor, num_tokens: int) -> list[int]:
    """What slot 0 writes where the model always thinks the same."""
    return [
        sampler.sample([0], [i], logits[None])[0].token_id for i in range(num_tokens)
    ]


def has_word(tokens: Sequence[int], words: Words, num_prompt_tokens: int) -> bool:
    """Whether a word ends in the output."""
    return any(
        tuple(tokens[end - len(word) : end]) == word
        for word in words
        for end in range(num_prompt_tokens + 1, len(tokens) + 1)
        if len(word) <= end
    )


# A number stands for that token of what the model would say without bad words, counted
# from the first output token; a negative one lies in the prompt.
@every_device
@pytest.mark.parametrize(
    "places",
    [
        [[0]],
        [[4], [9]],
        [[0, 1]],
        [[3, 4, 5]],
        [[2, 3, 4, 5, 6, 7, 8]],
        [[-1, 0]],
        [[-4, -3, -2, -1, 0, 1]],
        [range(-9, 1)],
        # Longer than the prompt.
        [range(-9, 4)],
        [[1], [3, 4], [3, 4, 5], [-2, -1, 0], [6, 7], [7, 6], [5, 5]],
    ],
    ids=str,
)
def test_what_generate_says(
    tiny: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    places: list[Sequence[int]],
    device: str,
) -> None:
    model = tiny("llama", device)
    prompt = make_prompt(9)
    plain = model.generate(prompt, 20)
    words = [[(prompt + plain)[9 + place] for place in word] for word in places]
    planner = make_planner(model.loaded)
    story = planner.begin(prompt, sampling=forbid(*words))
    planner.run(story, num_tokens=20, chunk=4)
    assert story.outputs == model.generate(prompt, 20, bad_words_ids=words)
    assert story.outputs != plain


@every_device
def test_beside_others(
    tiny: Callable[..., Any], make_planner: Any, make_prompt: Any, device: str
) -> None:
    """Each sequence has its own bad words or none, and some end before others."""
    model = tiny("llama", device)
    planner = make_planner(model.loaded)
    prompts = [make_prompt(length, length) for length in (12, 3, 7, 20)]
    plain = [model.generate(prompt, 16) for prompt in prompts]
    words = [
        [plain[0][2:4], plain[0][:1]],
        [],
        [[prompts[2][-1], plain[2][0]], plain[2][3:6]],
        [plain[3][1:6]],
    ]
    stories = [
        planner.begin(prompt, slot=slot, sampling=forbid(*words[slot]))
        for slot, prompt in enumerate(prompts)
    ]
    planner.step((stories[3], 8), (stories[0], 12))
    planner.run(stories[2], stories[0], num_tokens=5)
    planner.run(*stories, num_tokens=16)
    for story, expected, own in zip(stories, plain, words):
        if own:
            expected = model.generate(story.prompt, 16, bad_words_ids=own)
        assert story.outputs == expected


@pytest.mark.parametrize("num_before", [1, 3, 6])
def test_after_preemption(
    tiny: Callable[..., Any], make_planner: Any, make_prompt: Any, num_before: int
) -> None:
    """Also where a word has begun in what was written before."""
    model = tiny("llama")
    prompt = make_prompt(8)
    plain = model.generate(prompt, 16)
    words = [plain[:4], plain[2:8], [prompt[-1], *plain[:2]]]
    planner = make_planner(model.loaded)
    story = planner.begin(prompt, sampling=forbid(*words))
    other = planner.begin(make_prompt(5, 1), slot=1)
    planner.run(story, other, num_tokens=num_before)
    planner.preempt(story, slot=3)
    planner.run(story, other, num_tokens=16)
    assert story.outputs == model.generate(prompt, 16, bad_words_ids=words)
    assert other.outputs == model.generate(other.prompt, 16)


def test_vectors_are_no_part_of_a_word(
    tiny: Callable[..., Any], make_planner: Any, make_prompt: Any, make_vectors: Any
) -> None:
    """Neither as token 0 nor as the number that stands where no token is."""
    model = tiny("llama")
    vectors = model.embed(make_prompt(9)).flip(1)
    plain = model.generate_from(vectors, 12)
    words = [[0, plain[0]], [0, 0, *plain[:2]], plain[4:7]]
    planner = make_planner(model.loaded)
    sampling = forbid(*words, (NO_TOKEN, plain[0]))
    story = planner.begin(
        [0] * 9, sampling=sampling, embedded=[make_vectors(0, vectors)]
    )
    planner.run(story, num_tokens=12)
    assert story.outputs == model.generate_from(vectors, 12, bad_words_ids=words)
    assert story.outputs[:6] == plain[:6]


tokens = st.integers(0, 3)
some_words = st.lists(
    st.lists(tokens, min_size=1, max_size=4).map(tuple), min_size=1, max_size=8
).map(tuple)


@given(
    words=some_words,
    prompt=st.lists(tokens, min_size=1, max_size=6),
    num_before=st.integers(0, 6),
)
@settings(max_examples=60)
def test_what_transformers_leaves(
    words: Words, prompt: list[int], num_before: int
) -> None:
    """Words that overlap, repeat and contain each other, until nothing is left."""
    logits = torch.tensor([0.5, 2.0, 1.5, 1.0])
    oracle = NoBadWordsLogitsProcessor([list(word) for word in words])
    expected = list(prompt)
    for _ in range(12):
        scores = oracle(torch.tensor([expected]), logits[None])
        expected.append(int(scores.argmax()))
    outputs = expected[len(prompt) : len(prompt) + num_before]
    start = make_start(forbid(*words), prompt=prompt, outputs=outputs)
    rest = write(make_sampler(4, start), logits, 12 - num_before)
    assert prompt + outputs + rest == expected


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"temperature": 3.0},
        {"top_k": 2},
        {"top_p": 0.5},
        {"min_p": 0.3},
        {"top_k": 4, "top_p": 0.9, "presence_penalty": -2.0, "logprobs": 1},
        {"logit_bias": ((1, 100.0), (3, 100.0))},
        {"repetition_penalty": 0.5},
    ],
    ids=str,
)
def test_no_seed_draws_a_bad_word(wishes: dict[str, Any]) -> None:
    words = ((3,), (1, 2), (1, 1), (2, 2, 2), (4, 0, 4, 0), (0, 1, 0))
    sampling = forbid(*words, **{"temperature": 1.0, **wishes})
    prompt = [4, 0, 1]
    slots = list(range(150))
    sampler = make_sampler(
        5, *(make_start(sampling, slot=s, prompt=prompt, seed=s) for s in slots)
    )
    logits = torch.tensor([1.0, 1.2, 1.1, 2.0, 0.9]).expand(len(slots), -1)
    written = [list(prompt) for _ in slots]
    for step in range(24):
        for tokens, token in zip(
            written, sampler.sample(slots, [step] * len(slots), logits)
        ):
            tokens.append(token.token_id)
    assert not any(has_word(tokens, words, len(prompt)) for tokens in written)
    assert len({tuple(tokens) for tokens in written}) > 1


def test_a_draw_is_as_if_the_model_ruled_the_token_out() -> None:
    logits = torch.randn((1, 50), generator=torch.manual_seed(0))
    ruled_out = logits.index_fill(1, torch.tensor([7, 9]), -torch.inf)
    for seed in range(40):
        without = make_start(SamplingParams(), seed=seed)
        banning = make_start(forbid([7], [1, 9], temperature=1.0), seed=seed)
        assert make_sampler(50, banning).sample([0], [0], logits) == make_sampler(
            50, without
        ).sample([0], [0], ruled_out)


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = torch.tensor([[0.5, 2.0, 1.5, 1.0]])
    start = make_start(forbid([1], [0, 2], logprobs=4), prompt=[0])
    sampled = make_sampler(4, start).sample([0], [0], logits)[0]
    raw = logits.log_softmax(-1)[0].tolist()
    assert sampled.token_id == 3
    assert sampled.logprobs is not None
    assert (sampled.logprobs.rank, sampled.logprobs.logprob) == (3, raw[3])
    assert sampled.logprobs.top == tuple((i, raw[i]) for i in (1, 2, 3, 0))


def test_logits_are_left_as_they_are() -> None:
    logits = torch.tensor([0.5, 2.0, 1.5, 1.0])
    before = logits.clone()
    write(make_sampler(4, make_start(forbid([1], [2, 2]))), logits, 3)
    assert torch.equal(logits, before)


def test_stop_tokens_are_held_back_besides() -> None:
    """A stop token that is a bad word stays one when min_tokens has been reached."""
    logits = torch.tensor([0.5, 2.0, 1.5, 1.0])
    sampling = forbid([1], [3, 3], min_tokens=3)
    start = make_start(sampling, stops=frozenset((1, 2)))
    assert write(make_sampler(4, start), logits, 5) == [3, 0, 3, 2, 2]


@every_device
@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 2, "top_p": 0.5},
        {"temperature": 1.0, "min_p": 0.2, "repetition_penalty": 1.5},
        {"logprobs": 2, "presence_penalty": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab_size", [4, 300])
def test_where_nothing_is_left_a_token_comes_nevertheless(
    wishes: dict[str, Any], vocab_size: int, device: str
) -> None:
    """Greedily the first one; nobody beside notices."""
    bias = tuple((i, 100.0) for i in range(vocab_size))
    words: list[tuple[int, ...]] = [(i,) for i in range(0, vocab_size, 2)]
    words += [(1, i) for i in range(1, min(vocab_size, 200), 2)]
    stops = frozenset(range(199, vocab_size, 2))
    sampling = forbid(*words, min_tokens=9, logit_bias=bias, **wishes)
    other = SamplingParams(temperature=1.0, top_k=3)
    sampler = make_sampler(
        vocab_size,
        make_start(sampling, stops=stops),
        make_start(other, slot=1),
        device=device,
    )
    logits = torch.randn((2, vocab_size), generator=torch.manual_seed(1)).to(device)
    sampled = sampler.sample([0, 1], [0, 0], logits)
    alone = make_sampler(vocab_size, make_start(other, slot=1), device=device)
    assert [sampled[1]] == alone.sample([1], [0], logits[1:])
    assert 0 <= sampled[0].token_id < vocab_size
    if sampling.temperature == 0.0:
        assert sampled[0].token_id == 0


def test_ids_that_the_model_does_not_have_are_no_part_of_a_word() -> None:
    logits = torch.tensor([0.5, 2.0, 1.5, 1.0])
    start = make_start(forbid([4], [-3], [1, 4], [4, 1], [-1, 1], [2**40, 2]))
    assert write(make_sampler(4, start), logits, 3) == [1, 1, 1]


def test_a_slot_forgets_its_former_sequence() -> None:
    logits = torch.tensor([0.5, 2.0, 1.5, 1.0])
    sampler = make_sampler(4, make_start(forbid([1, 1], [2, 2], [0])))
    write(sampler, logits, 3)
    sampler.start(make_start(SamplingParams(temperature=0.0)))
    assert write(sampler, logits, 3) == [1, 1, 1]
    # The tokens before are forgotten as well as the words.
    sampler.start(make_start(forbid([1, 1, 1]), prompt=[0]))
    assert write(sampler, logits, 5) == [1, 1, 2, 1, 1]


@pytest.mark.parametrize("num_word_tokens", [2, MAX_BAD_WORD_TOKENS])
def test_all_that_is_kept_is_as_many_tokens_as_a_word_has(num_word_tokens: int) -> None:
    """So what a step costs cannot depend on how long the output is already."""
    start = make_start(forbid(range(num_word_tokens)), prompt=[9] * 5000)
    written, resumed = BadWords(100), BadWords(100)
    written.start(start)
    states = []
    for i in range(3000):
        written.append([0], [i % 100])
        states.append(pickle.dumps(written))
    # From here on the prompt has been left behind.
    assert states[100:200] == states[2900:]
    assert len(states[-1]) < 1000
    resumed.start(
        make_start(start.sampling, outputs=[i % 100 for i in range(3000)], prompt=[9])
    )
    assert pickle.dumps(resumed) == states[-1]


def test_nothing_is_kept_of_sequences_without_bad_words() -> None:
    bad_words = BadWords(100)
    fresh = pickle.dumps(bad_words)
    bad_words.start(make_start(forbid([1, 2])))
    bad_words.start(make_start(SamplingParams(), prompt=[1] * 50))
    bad_words.append([0], [4])
    assert bad_words.find([0]) == []
    assert pickle.dumps(bad_words) == fresh
