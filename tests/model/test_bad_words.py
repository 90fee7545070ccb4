"""Bad words never appear, and all other output stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
import torch
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor

from trioserve.model.sampling.bad_words import BadWords
from trioserve.model.sampling.sampler import Sampler
from trioserve.types.plan import SlotStart
from trioserve.types.prompt import NO_TOKEN
from trioserve.types.sampling import MAX_BAD_WORD_TOKENS, SamplingParams

from .planning import Planner, make_prompt, make_start, make_vectors

Words = tuple[tuple[int, ...], ...]


def forbid(*words: Sequence[int], **params: Any) -> SamplingParams:
    bad_words = tuple(tuple(word) for word in words)
    return SamplingParams(**{"temperature": 0.0, "bad_words": bad_words, **params})


def make_sampler(vocab_size: int, *starts: SlotStart) -> Sampler:
    sampler = Sampler(vocab_size=vocab_size, device=torch.device("cpu"))
    for start in starts:
        sampler.start(start)
    return sampler


def sample(
    sampler: Sampler, slots: list[int], counts: list[int], logits: Tensor
) -> list[int]:
    return sampler.sample(slots, counts, logits).ids.read()


def write(sampler: Sampler, logits: Tensor, num_tokens: int) -> list[int]:
    """Return the output of slot 0 if the model always gives the same logits."""
    return [sample(sampler, [0], [i], logits[None])[0] for i in range(num_tokens)]


def has_word(tokens: Sequence[int], words: Words, num_prompt_tokens: int) -> bool:
    """Return whether a word ends in the output; it may begin in the prompt."""
    return any(
        tuple(tokens[end - len(word) : end]) == word
        for word in words
        for end in range(num_prompt_tokens + 1, len(tokens) + 1)
        if len(word) <= end
    )


# A number is the position of a token in the model's output without bad words. A
# negative number is a position in the prompt, from its end.
@pytest.mark.parametrize(
    "places",
    [
        [[0], [2, 3, 4, 5, 6, 7, 8]],
        [[-4, -3, -2, -1, 0, 1]],
        [[1], [3, 4], [3, 4, 5], [-2, -1, 0], [6, 7], [7, 6], [5, 5]],
    ],
    ids=str,
)
def test_output_equals_that_of_generate(
    tiny: Callable[..., Any], places: list[Sequence[int]]
) -> None:
    model = tiny("llama")
    prompt = make_prompt(9)
    plain = model.generate(prompt, 14)
    words = [[(prompt + plain)[9 + place] for place in word] for word in places]
    planner = Planner(model.loaded)
    sequence = planner.begin(prompt, sampling=forbid(*words))
    planner.run(sequence, num_tokens=14, chunk=4)
    assert sequence.outputs == model.generate(prompt, 14, bad_words_ids=words)
    assert sequence.outputs != plain


@pytest.mark.parametrize("count", [0, 3])
def test_a_word_may_be_the_whole_prompt_and_some_output(
    tiny: Callable[..., Any], count: int
) -> None:
    """generate() of transformers 5.17 lets such a word pass, so it gets the last token alone."""
    model = tiny("llama")
    prompt = make_prompt(9)
    plain = model.generate(prompt, 14)
    word = [*prompt, *plain[: count + 1]]
    (other,) = model.generate(word[:-1], 1, bad_words_ids=[word[-1:]])
    rest = model.generate([*word[:-1], other], 13 - count)
    planner = Planner(model.loaded)
    sequence = planner.begin(prompt, sampling=forbid(word))
    planner.run(sequence, num_tokens=14, chunk=4)
    assert sequence.outputs == [*plain[:count], other, *rest]


def test_vectors_are_no_part_of_a_word(tiny: Callable[..., Any]) -> None:
    """A vector counts neither as token 0 nor as the number in its place."""
    model = tiny("llama")
    vectors = model.embed(make_prompt(9)).flip(1)
    plain = model.generate_from(vectors, 12)
    words = [[0, plain[0]], [0, 0, *plain[:2]], plain[4:7]]
    planner = Planner(model.loaded)
    sampling = forbid(*words, (NO_TOKEN, plain[0]))
    sequence = planner.begin(
        [0] * 9, sampling=sampling, embedded=[make_vectors(0, vectors)]
    )
    planner.run(sequence, num_tokens=12)
    assert sequence.outputs == model.generate_from(vectors, 12, bad_words_ids=words)
    assert sequence.outputs[:6] == plain[:6]


tokens = st.integers(0, 3)
some_words = st.lists(
    st.lists(tokens, min_size=1, max_size=4).map(tuple), min_size=1, max_size=8
).map(tuple)


@given(
    words=some_words,
    prompt=st.lists(tokens, min_size=1, max_size=6),
    num_before=st.integers(0, 6),
)
@settings(max_examples=examples(60))
def test_the_tokens_left_are_those_that_transformers_leaves(
    words: Words, prompt: list[int], num_before: int
) -> None:
    """Words overlap, repeat and contain each other, until no token is left."""
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
    "params",
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
def test_no_seed_draws_a_bad_word(params: dict[str, Any]) -> None:
    words = ((3,), (1, 2), (1, 1), (2, 2, 2), (4, 0, 4, 0), (0, 1, 0))
    sampling = forbid(*words, **{"temperature": 1.0, **params})
    prompt = [4, 0, 1]
    slots = list(range(50))
    sampler = make_sampler(
        5, *(make_start(sampling, slot=s, prompt=prompt, seed=s) for s in slots)
    )
    logits = torch.tensor([1.0, 1.2, 1.1, 2.0, 0.9]).expand(len(slots), -1)
    written = [list(prompt) for _ in slots]
    for step in range(10):
        for tokens, token in zip(
            written, sample(sampler, slots, [step] * len(slots), logits)
        ):
            tokens.append(token)
    assert not any(has_word(tokens, words, len(prompt)) for tokens in written)
    assert len({tuple(tokens) for tokens in written}) > 1


def test_a_draw_is_as_if_the_model_ruled_the_token_out() -> None:
    logits = torch.randn((1, 50), generator=torch.manual_seed(0))
    ruled_out = logits.index_fill(1, torch.tensor([7, 9]), -torch.inf)
    for seed in range(40):
        without = make_start(SamplingParams(), seed=seed)
        banning = make_start(forbid([7], [1, 9], temperature=1.0), seed=seed)
        assert sample(make_sampler(50, banning), [0], [0], logits) == sample(
            make_sampler(50, without), [0], [0], ruled_out
        )


def test_stop_tokens_are_held_back_beside_bad_words() -> None:
    """A stop token that is a bad word stays banned after min_tokens."""
    logits = torch.tensor([0.5, 2.0, 1.5, 1.0])
    sampling = forbid([1], [3, 3], min_tokens=3)
    start = make_start(sampling, stops=frozenset((1, 2)))
    assert write(make_sampler(4, start), logits, 5) == [3, 0, 3, 2, 2]


@pytest.mark.parametrize(
    "params",
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
def test_a_row_gets_a_token_even_if_all_are_banned(
    params: dict[str, Any], vocab_size: int
) -> None:
    """A greedy row gets the first token, and other rows are not affected."""
    bias = tuple((i, 100.0) for i in range(vocab_size))
    words: list[tuple[int, ...]] = [(i,) for i in range(0, vocab_size, 2)]
    words += [(1, i) for i in range(1, min(vocab_size, 200), 2)]
    stops = frozenset(range(199, vocab_size, 2))
    sampling = forbid(*words, min_tokens=9, logit_bias=bias, **params)
    other = SamplingParams(temperature=1.0, top_k=3)
    sampler = make_sampler(
        vocab_size, make_start(sampling, stops=stops), make_start(other, slot=1)
    )
    logits = torch.randn((2, vocab_size), generator=torch.manual_seed(1))
    sampled = sample(sampler, [0, 1], [0, 0], logits)
    alone = make_sampler(vocab_size, make_start(other, slot=1))
    assert [sampled[1]] == sample(alone, [1], [0], logits[1:])
    assert 0 <= sampled[0] < vocab_size
    if sampling.temperature == 0.0:
        assert sampled[0] == 0


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
    # The earlier tokens are forgotten, too.
    sampler.start(make_start(forbid([1, 1, 1]), prompt=[0]))
    assert write(sampler, logits, 5) == [1, 1, 2, 1, 1]


def start_bad_words(*starts: SlotStart, vocab_size: int = 100) -> BadWords:
    bad_words = BadWords(vocab_size, torch.device("cpu"))
    for start in starts:
        bad_words.start(start)
    return bad_words


def find_banned(bad_words: BadWords, *slots: int, vocab_size: int = 100) -> Any:
    """Return the tokens that must not come next, for each slot."""
    scores = torch.zeros((len(slots), vocab_size))
    bad_words.ban(scores, list(slots))
    assert set(scores.unique().tolist()) <= {0.0, -torch.inf}
    return [row.nonzero()[:, 0].tolist() for row in scores]


@pytest.mark.parametrize("num_word_tokens", [2, MAX_BAD_WORD_TOKENS])
def test_a_step_costs_the_same_after_any_number_of_outputs(
    num_word_tokens: int, record_operations: Any
) -> None:
    sampling = forbid(range(num_word_tokens), [5, 6])
    records, banned = [], []
    for num_outputs in (100, 6_000):
        outputs = [i % 100 for i in range(num_outputs)]
        bad_words = start_bad_words(
            make_start(sampling, prompt=[9] * 500, outputs=outputs),
            make_start(forbid([1, 2]), slot=1),
        )
        scores, token_ids = torch.zeros((2, 100)), torch.tensor([0, 1])
        with record_operations() as record:
            for token_id in range(num_word_tokens):
                bad_words.ban(scores, [0, 1])
                bad_words.append([0, 1], token_ids + token_id)
        records.append(record)
        banned.append(scores)
    assert records[0] == records[1] != []
    assert torch.equal(banned[0], banned[1])
    assert banned[0][0, num_word_tokens - 1] == -torch.inf


def test_a_preempted_sequence_has_the_tail_of_one_that_goes_on() -> None:
    words = [[*range(3, 40), 50], [7, 7, 51], [39, 52]]
    written = start_bad_words(make_start(forbid(*words), prompt=[9] * 5000))
    outputs = [i % 40 for i in range(400)]
    for i, token_id in enumerate(outputs):
        written.append([0], torch.tensor([token_id]))
        if i % 37 == 0 or i == 399:
            resumed = start_bad_words(
                make_start(forbid(*words), prompt=[7], outputs=outputs[: i + 1])
            )
            assert find_banned(written, 0) == find_banned(resumed, 0)
    assert find_banned(written, 0) == [[50, 52]]


def test_words_of_very_different_sizes_meet_in_a_step() -> None:
    """The tables have grown, and some rows belonged to other sequences before."""
    long = list(range(1, 60))
    bad_words = start_bad_words(make_start(forbid([8, 9]), prompt=[8]))
    bad_words.start(make_start(forbid(*[[8, i] for i in range(90)]), slot=1))
    bad_words.start(make_start(forbid([*long, 99], [59, 98]), slot=2, prompt=long))
    bad_words.start(make_start(SamplingParams(), slot=1))
    bad_words.start(make_start(forbid([*long, 97], [3, 4]), slot=5, prompt=long[1:]))
    bad_words.start(make_start(forbid([2, 8, 7]), slot=3, prompt=[2, 8]))
    assert find_banned(bad_words, 3, 1, 0, 4, 5, 2) == [[7], [], [9], [], [], [98, 99]]
    assert find_banned(bad_words, 0, 3) == [[9], [7]]
    bad_words.append([4, 2, 0], torch.tensor([8, 8, 59]))
    assert find_banned(bad_words, 2, 0, 3) == [[], [], [7]]


@pytest.mark.parametrize(
    ("word", "banned"), [([3, 9], [9]), ([2, 3, 9], []), ([3, 3, 3, 3, 9], [])]
)
def test_nothing_of_a_slots_larger_former_tables_is_found(
    word: list[int], banned: list[int]
) -> None:
    """This also holds beside a sequence that needs the tables to stay as large."""
    large = forbid([1, 2, 3, 9], [3, 8], [2, 3, 7])
    bad_words = start_bad_words(
        *(make_start(large, slot=slot, prompt=[1, 2, 3]) for slot in range(2))
    )
    bad_words.start(make_start(forbid(word), prompt=[3]))
    assert find_banned(bad_words, 0, 1) == [banned, [7, 8, 9]]


def test_nothing_is_done_for_sequences_without_bad_words(
    record_operations: Any,
) -> None:
    bad_words = start_bad_words(
        make_start(forbid([1, 2])),
        make_start(SamplingParams(), prompt=[1] * 50),
        # Words of one token, or with tokens that the model lacks, do not count here.
        make_start(forbid([1], [1, 100], [-1, 2]), slot=1),
        make_start(forbid([4, 1]), slot=2),
    )
    scores, token_ids = torch.zeros((2, 100)), torch.tensor([1, 1])
    with record_operations() as record:
        assert not bad_words.has_any([0, 1])
        bad_words.ban(scores, [0, 1])
        bad_words.append([0, 1], token_ids)
    assert record == []
    assert bad_words.has_any([0, 2])


def test_only_a_banned_score_is_another_one_afterwards() -> None:
    """All other scores stay, even if infinite or not a number."""
    scores = torch.tensor([[torch.inf, -torch.inf, torch.nan, 1.0, 2.0]] * 2)
    before = scores.clone()
    bad_words = start_bad_words(
        make_start(forbid([1, 0], [1, 3], [1, 3])), vocab_size=5
    )
    bad_words.ban(scores, [3, 0])
    before[1, [0, 3]] = -torch.inf
    assert torch.equal(scores.nan_to_num(9.0), before.nan_to_num(9.0))
