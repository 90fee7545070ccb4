"""Sequences with grammars get tokens that fit; the others in the step do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import threading

from llguidance import LLTokenizer
import pytest
from tokenizers import Tokenizer
import torch
from torch import Tensor

from trioserve.grammar.compile import compile_structure
from trioserve.grammar.guide import Guide, Mask
from trioserve.grammar.matchers import make_tokenizer
from trioserve.grammar.workers import GuideWorkers
from trioserve.model.sampling.launched import LaunchedStep
from trioserve.model.sampling.sampler import Sampler
from trioserve.types.output import StepResult
from trioserve.types.plan import SlotStart
from trioserve.types.sampling import SamplingParams
from trioserve.types.structured import Grammar, StructuredOutput

from .planning import make_start

VOCAB_SIZE, IM_END = 520, 1
CPU = torch.device("cpu")

MakeSampler = Callable[..., Sampler]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def guidance(tokenizer_folder: Path) -> LLTokenizer:
    file = (tokenizer_folder / "tokenizer.json").read_text()
    return make_tokenizer(file, vocab_size=VOCAB_SIZE, eos_token_ids=[IM_END])


@pytest.fixture
def sampler(guidance: LLTokenizer) -> Sampler:
    return Sampler(vocab_size=VOCAB_SIZE, device=CPU, load_tokenizer=lambda: guidance)


def start_choosing(
    slot: int,
    *choices: str,
    outputs: tuple[int, ...] = (),
    temperature: float = 0.0,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> SlotStart:
    grammar = None
    if choices:
        form = StructuredOutput(kind="choice", choices=choices)
        grammar = Grammar(text=compile_structure(form))
    sampling = SamplingParams(
        temperature=temperature, grammar=grammar, bad_words=bad_words
    )
    stops = frozenset({IM_END})
    return make_start(
        sampling, slot, prompt=(300,), outputs=outputs, seed=7, stops=stops
    )


def step(
    sampler: Sampler, slots: list[int], num_outputs: int, logits: Tensor
) -> StepResult:
    """Sample as SamplingWriter does."""
    counts = [num_outputs] * len(slots)
    skipped = sampler.list_late(slots, counts, has_others=False)
    rows = [row for row in range(len(slots)) if row not in skipped]
    kept = [slots[row] for row in rows]
    sampled = sampler.sample(kept, counts[: len(rows)], logits[rows]) if kept else None
    return LaunchedStep(
        step_id=1, slots=tuple(kept), sampled=sampled, skipped=skipped
    ).finish()


def write(
    sampler: Sampler,
    slot: int,
    logits: Tensor,
    count: int = 20,
    outputs: tuple[int, ...] = (),
) -> list[int]:
    """Sample one sequence until its end token.

    Args:
      outputs: the tokens that it has already.
    """
    token_ids: list[int] = []
    while len(token_ids) < count and token_ids[-1:] != [IM_END]:
        result = step(sampler, [slot], len(outputs) + len(token_ids), logits)
        assert not result.errors
        # Empty while the grammar is built.
        token_ids += [token for row in result.sampled for token in row]
    return token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_writes_one_of_its_choices(
    sampler: Sampler, tokenizer: Tokenizer, temperature: float
) -> None:
    torch.manual_seed(0)
    sampler.start(start_choosing(0, "quick", "lazy dog", temperature=temperature))
    token_ids = write(sampler, 0, torch.randn(1, VOCAB_SIZE))
    assert token_ids[-1] == IM_END
    assert tokenizer.decode(token_ids[:-1]) in ("quick", "lazy dog")


def test_other_rows_are_not_changed(sampler: Sampler, tokenizer: Tokenizer) -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 400] = 1.0
    [x] = tokenizer.encode("x").ids
    for slot, choices in enumerate([(), ("x",), ()]):
        sampler.start(start_choosing(slot, *choices))
    write(sampler, 1, logits[1:2], count=1)
    sampler.start(start_choosing(1, "x"))
    result = step(sampler, [0, 1, 2], 0, logits)
    while not result.sampled[1]:
        # A thread is still building the grammar.
        result = step(sampler, [0, 1, 2], 0, logits)
    assert result.sampled == ((400,), (x,), (400,))
    # The caller's logits stay as they were.
    assert logits[1].argmax() == 400


def test_a_preempted_sequence_goes_on_where_it_was(
    sampler: Sampler, tokenizer: Tokenizer
) -> None:
    [x, y] = tokenizer.encode("xy").ids
    sampler.start(start_choosing(0, "xy", outputs=(x,)))
    logits = torch.zeros(1, VOCAB_SIZE)
    assert write(sampler, 0, logits, outputs=(x,)) == [y, IM_END]


def test_a_slot_forgets_its_former_grammar(sampler: Sampler) -> None:
    sampler.start(start_choosing(0, "x"))
    sampler.start(start_choosing(0))
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 400] = 1.0
    assert step(sampler, [0], 0, logits).sampled == ((400,),)


def test_a_grammar_that_is_being_built_costs_others_nothing(
    guidance: LLTokenizer, tokenizer: Tokenizer
) -> None:
    event = threading.Event()

    def load() -> LLTokenizer:
        event.wait(10.0)
        return guidance

    sampler = Sampler(vocab_size=VOCAB_SIZE, device=CPU, load_tokenizer=load)
    sampler.start(start_choosing(0))
    sampler.start(start_choosing(1, "x"))
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, 400] = 1.0
    # The row is skipped; the scheduler plans it again.
    assert step(sampler, [0, 1], 0, logits).sampled == ((400,), ())
    event.set()
    assert tokenizer.decode(write(sampler, 1, logits[1:])[:-1]) == "x"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_token_left_is_an_error(
    sampler: Sampler, tokenizer: Tokenizer, temperature: float
) -> None:
    """A drawn row gets any token, even one that fits."""
    [x] = tokenizer.encode("x").ids
    sampler.start(start_choosing(0, "x", temperature=temperature, bad_words=((x,),)))
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, x] = 100.0
    result = StepResult(step_id=0, sampled=((),))
    while result.sampled == ((),):
        result = step(sampler, [0], 0, logits)
    assert "no token is left" in result.errors[0].reason


def test_a_wrong_grammar_is_an_error(sampler: Sampler) -> None:
    start = start_choosing(0, "x")
    grammar = Grammar(text='{"grammars": [{"lark_grammar": "start: <nope>"}]}')
    sampling = SamplingParams(grammar=grammar)
    sampler.start(make_start(sampling, prompt=start.prompt_token_ids, seed=1))
    result = StepResult(step_id=0, sampled=((),))
    while result.sampled == ((),) and not result.errors:
        result = step(sampler, [0], 0, torch.zeros(1, VOCAB_SIZE))
    assert "nope" in result.errors[0].reason


def test_a_sequence_that_has_left_is_forgotten(sampler: Sampler) -> None:
    sampler.start(start_choosing(0, "x"))
    sampler.end([0, 1])
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 400] = 1.0
    assert sampler.list_waiting([]) == ()
    assert step(sampler, [0], 0, logits).sampled == ((400,),)


def test_a_row_behind_a_skipped_one_is_skipped(
    sampler: Sampler, tokenizer: Tokenizer
) -> None:
    """It was planned before the host knew that its token never came."""
    [x] = tokenizer.encode("x").ids
    sampler.start(start_choosing(0, "xx"))
    logits = torch.zeros(1, VOCAB_SIZE)
    assert write(sampler, 0, logits, count=1) == [x]
    assert step(sampler, [0], 2, logits).sampled == ((),)
    assert step(sampler, [0], 1, logits).sampled == ((x,),)


def test_slots_whose_masks_do_not_come_are_reported(
    guidance: LLTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = threading.Event()
    is_costly = False

    def load() -> LLTokenizer:
        event.wait(10.0)
        return guidance

    sampler = Sampler(vocab_size=VOCAB_SIZE, device=CPU, load_tokenizer=load)
    sampler.start(start_choosing(0))
    sampler.start(start_choosing(1, "xx"))
    logits = torch.zeros(2, VOCAB_SIZE)
    assert step(sampler, [0, 1], 0, logits).sampled[1] == ()
    assert sampler.list_waiting([0]) == (1,)
    event.set()
    assert len(write(sampler, 1, logits[1:], count=1)) == 1
    while sampler.list_late([1], [1], has_others=False):
        pass
    write_mask = Guide.write_mask
    event.clear()

    def wait(guide: Guide, mask: Mask) -> None:
        event.wait(10.0)
        write_mask(guide, mask)

    monkeypatch.setattr(Guide, "write_mask", wait)
    monkeypatch.setattr(GuideWorkers, "is_costly", lambda workers, grammar: is_costly)
    assert step(sampler, [1], 1, logits[1:]).sampled[0] != ()
    # A mask that has just begun is in time, as a rule.
    assert sampler.list_waiting([1]) == ()
    is_costly = True
    assert sampler.list_waiting([1]) == (1,)
    event.set()
