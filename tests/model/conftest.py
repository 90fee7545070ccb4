"""A planner as simple as can be, tiny models, and what transformers says about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
import functools
from pathlib import Path
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from trioserve.config import ModelConfig
from trioserve.model import LoadedModel, ModelRunner, load_model
from trioserve.steps import (
    BlockId,
    SampledToken,
    SamplingParams,
    SlotStart,
    StepPlan,
    StepResult,
    StepRow,
)
from trioserve.testing_models import save_tiny_model

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@dataclass(frozen=True)
class Tiny:
    """A model twice: as trioserve loads it, and as transformers alone runs it."""

    folder: Path
    loaded: LoadedModel
    reference: PreTrainedModel

    def generate(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What transformers writes greedily, past any end of sequence."""
        output = self.reference.generate(
            torch.tensor([list(prompt)], device=self.reference.device),
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """(len(token_ids), vocab_size) float32, in one forward pass"""
        output = self.reference(torch.tensor([list(token_ids)]), use_cache=False)
        logits: torch.Tensor = output.logits[0].float()
        return logits


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tiny]:
    """Build a tiny model of a type, once for all tests."""

    @functools.cache
    def build(model_type: str = "llama", device: str = "cpu") -> Tiny:
        folder = save_tiny_model(model_type, tmp_path_factory.mktemp(model_type))
        reference = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        )
        return Tiny(
            folder=folder,
            loaded=load_model(folder, ModelConfig(device=device), name=model_type),
            reference=reference.eval().to(device),
        )

    return build


@dataclass
class Story:
    """One sequence as the planner sees it."""

    slot: int
    prompt: list[int]
    sampling: SamplingParams
    seed: int
    block_ids: list[BlockId]
    num_sent_blocks: int = 0
    num_computed: int = 0
    is_started: bool = False
    outputs: list[int] = field(default_factory=list)
    sampled: list[SampledToken] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)


class Planner:
    """Makes plans for a runner, with blocks in an order that no sequence shares."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int = 96,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_model_len: int = 96,
    ) -> None:
        self.runner = ModelRunner(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        )
        self._block_size = block_size
        self._free = [BlockId(i) for i in range(num_blocks)]
        random.Random(0).shuffle(self._free)

    def begin(
        self,
        prompt: Sequence[int],
        *,
        slot: int = 0,
        sampling: SamplingParams = GREEDY,
        seed: int = 0,
        shared: Sequence[BlockId] = (),
    ) -> Story:
        """Make a sequence; `shared` blocks hold the start of its prompt already."""
        return Story(
            slot=slot,
            prompt=list(prompt),
            sampling=sampling,
            seed=seed,
            block_ids=list(shared),
            num_computed=len(shared) * self._block_size,
        )

    def preempt(self, story: Story, *, slot: int) -> None:
        """Take all blocks from a sequence; it begins again in another slot."""
        self._free += story.block_ids
        story.block_ids = []
        story.num_sent_blocks = 0
        story.num_computed = 0
        story.is_started = False
        story.slot = slot

    def take_block(self) -> BlockId:
        return self._free.pop()

    def step(self, *shares: tuple[Story, int]) -> StepResult:
        """Run one step that computes so many tokens of each sequence."""
        starts = tuple(self._start(s) for s, _ in shares if not s.is_started)
        rows = tuple(self._make_row(story, count) for story, count in shares)
        result = self.runner.step(StepPlan(step_id=7, starts=starts, rows=rows))
        assert result.step_id == 7
        sampled = iter(result.sampled)
        for (story, count), row in zip(shares, rows):
            story.num_computed += count
            if row.sample:
                story.sampled.append(next(sampled))
                story.outputs.append(story.sampled[-1].token_id)
        assert next(sampled, None) is None
        return result

    def run(self, *stories: Story, num_tokens: int, chunk: int = 1000) -> None:
        """Step until each sequence has written so many tokens."""
        while rest := [s for s in stories if len(s.outputs) < num_tokens]:
            self.step(*((s, min(chunk, s.num_tokens - s.num_computed)) for s in rest))

    def _start(self, story: Story) -> SlotStart:
        story.is_started = True
        return SlotStart(
            slot=story.slot,
            prompt_token_ids=tuple(story.prompt),
            output_token_ids=tuple(story.outputs),
            sampling=story.sampling,
            seed=story.seed,
            stop_token_ids=frozenset(story.sampling.stop_token_ids),
        )

    def _make_row(self, story: Story, num_tokens: int) -> StepRow:
        end = story.num_computed + num_tokens
        while len(story.block_ids) * self._block_size < end:
            story.block_ids.append(self._free.pop())
        new = tuple(story.block_ids[story.num_sent_blocks :])
        story.num_sent_blocks = len(story.block_ids)
        return StepRow(
            slot=story.slot,
            start=story.num_computed,
            num_tokens=num_tokens,
            new_block_ids=new,
            sample=end == story.num_tokens,
        )


@pytest.fixture
def make_planner() -> type[Planner]:
    return Planner


@pytest.fixture
def make_prompt() -> Callable[[int, int], list[int]]:
    """Random prompts of tokens that every tiny model has."""

    def make(length: int, seed: int = 0) -> list[int]:
        return random.Random(seed).choices(range(3, 97), k=length)

    return make
