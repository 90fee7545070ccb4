"""A simple planner, and the prompts that it gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
import random
from typing import Any, cast

from PIL import Image
import torch

from trioserve.model.runner import ModelRunner
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.self_check.steps import COMPARED_TOKENS, make_check
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.spans import Spans
from trioserve.types.ids import BlockId
from trioserve.types.logits import LogitsProcessor
from trioserve.types.output import StepResult, TokenDelta, TokenLogprobs
from trioserve.types.plan import SlotStart, StepPlan, StepRow
from trioserve.types.prompt import (
    KEY_BYTES,
    NO_TOKEN,
    EmbeddedInput,
    list_image_runs,
)
from trioserve.types.sampling import SamplingParams
from trioserve.types.tensors import TensorBytes

GREEDY = SamplingParams(temperature=0.0)


def make_start(
    sampling: SamplingParams = SamplingParams(),
    slot: int = 0,
    *,
    prompt: Sequence[int] = (1,),
    outputs: Sequence[int] = (),
    seed: int = 0,
    stops: frozenset[int] = frozenset(),
    **fields: Any,
) -> SlotStart:
    """Return the start of a sequence, of which most tests want a few facts only."""
    return SlotStart(
        slot=slot,
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(outputs),
        sampling=sampling,
        seed=seed,
        stop_token_ids=stops,
        **fields,
    )


@dataclass
class PlannedSequence:
    """One sequence of the planner."""

    slot: int
    prompt: list[int]
    sampling: SamplingParams
    seed: int
    block_ids: list[BlockId]
    embedded: tuple[EmbeddedInput, ...] = ()
    adapter: int = 0
    spans: Spans = field(default_factory=Spans)
    num_sent_blocks: int = 0
    num_computed: int = 0
    is_started: bool = False
    outputs: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)


class Planner:
    """Makes plans for a runner, with blocks in random order."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int = 96,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_model_len: int = 256,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        **others: Any,
    ) -> None:
        self.runner = ModelRunner(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            logits_processors=logits_processors,
            **others,
        )
        self._joins_images = model.info.joins_images
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
        embedded: Sequence[EmbeddedInput] = (),
        adapter: int = 0,
    ) -> PlannedSequence:
        """Make a sequence; `shared` blocks already hold the start of its prompt."""
        tokens = list(prompt)
        for item in embedded:
            if item.kind == "embeds":
                for run_begin, run_end in item.runs:
                    tokens[run_begin:run_end] = [NO_TOKEN] * (run_end - run_begin)
        return PlannedSequence(
            slot=slot,
            prompt=tokens,
            embedded=tuple(embedded),
            adapter=adapter,
            spans=Spans(list_image_runs(embedded) if self._joins_images else ()),
            sampling=sampling,
            seed=seed,
            block_ids=list(shared),
            num_computed=len(shared) * self._block_size,
        )

    def preempt(self, sequence: PlannedSequence, *, slot: int) -> None:
        """Take all blocks from a sequence; it begins again in another slot."""
        self._free += sequence.block_ids
        sequence.block_ids = []
        sequence.num_sent_blocks = 0
        sequence.num_computed = 0
        sequence.is_started = False
        sequence.slot = slot

    def take_block(self) -> BlockId:
        return self._free.pop()

    def step(self, *shares: tuple[PlannedSequence, int]) -> StepResult:
        """Run one step with the given number of tokens of each sequence.

        A chunk that would divide an image whose tokens see each other ends before it, or
        behind it if it begins there.
        """
        shares = tuple((each, _keep_whole(each, count)) for each, count in shares)
        starts = tuple(self._start(s) for s, _ in shares if not s.is_started)
        rows = tuple(self._make_row(sequence, count) for sequence, count in shares)
        result = self.runner.step(StepPlan(step_id=7, starts=starts, rows=rows))
        assert result.step_id == 7
        sampled = iter(result.sampled)
        for (sequence, count), row in zip(shares, rows):
            sequence.num_computed += count
            if row.sample:
                sequence.outputs += next(sampled)
                sequence.logprobs += result.logprobs.get(sequence.slot, ())
        assert next(sampled, None) is None
        return result

    def run(
        self, *sequences: PlannedSequence, num_tokens: int, chunk: int = 1000
    ) -> None:
        """Run steps until each sequence has `num_tokens` outputs."""
        while rest := [s for s in sequences if len(s.outputs) < num_tokens]:
            self.step(*((s, min(chunk, s.num_tokens - s.num_computed)) for s in rest))

    def _start(self, sequence: PlannedSequence) -> SlotStart:
        sequence.is_started = True
        return make_start(
            sequence.sampling,
            sequence.slot,
            prompt=sequence.prompt,
            outputs=sequence.outputs,
            seed=sequence.seed,
            stops=frozenset(sequence.sampling.stop_token_ids),
            embedded=sequence.embedded,
            adapter=sequence.adapter,
        )

    def _make_row(self, sequence: PlannedSequence, num_tokens: int) -> StepRow:
        end = sequence.num_computed + num_tokens
        while len(sequence.block_ids) * self._block_size < end:
            sequence.block_ids.append(self._free.pop())
        new = tuple(sequence.block_ids[sequence.num_sent_blocks :])
        sequence.num_sent_blocks = len(sequence.block_ids)
        return StepRow(
            slot=sequence.slot,
            start=sequence.num_computed,
            num_tokens=num_tokens,
            new_block_ids=new,
            sample=end == sequence.num_tokens,
        )


def _keep_whole(sequence: PlannedSequence, num_tokens: int) -> int:
    begin, spans = sequence.num_computed, sequence.spans
    end = spans.step_back(begin + num_tokens)
    return (end if end > begin else spans.step_on(begin + num_tokens)) - begin


def run_steps(
    scheduler: Scheduler, launch: Callable[[StepPlan], Any], *, depth: int
) -> Iterator[TokenDelta]:
    """Run steps as the engine does, and yield the outputs of sequences.

    Args:
      launch: starts a step; its `finish` returns the result.
      depth: most steps in flight.
    """
    in_flight: deque[tuple[StepPlan, Any]] = deque()
    while True:
        while len(in_flight) < depth and (plan := scheduler.schedule()) is not None:
            in_flight.append((plan, launch(plan)))
        if not in_flight:
            return
        plan, launched = in_flight.popleft()
        yield from scheduler.update(plan, launched.finish())
        scheduler.check()


@torch.inference_mode()
def compute_on_kernels(*models: Any) -> torch.Tensor:
    """Return the logits of COMPARED_TOKENS on kernels, by one stage after the other."""
    tables, inputs = make_check(models[0].info.vocab_size)
    vectors = models[0].model.get_input_embeddings()(inputs.input_ids)[0]
    for model in models:
        assert model.native is not None, "the kernels run it"
        layers = model.native.open(tables, num_blocks=tables.block_ids.shape[1])
        vectors = layers.run(vectors, inputs, COMPARED_TOKENS, inputs.position_ids)
    return cast(torch.Tensor, vectors)


def make_prompt(length: int, seed: int = 0) -> list[int]:
    """Return random tokens that every tiny model has."""
    return random.Random(seed).choices(range(3, 97), k=length)


def make_vectors(begin: int, vectors: torch.Tensor) -> EmbeddedInput:
    """Return vectors that come with a prompt, from a position on."""
    return EmbeddedInput(
        kind="embeds",
        runs=((begin, begin + len(vectors)),),
        keys=bytes(KEY_BYTES * len(vectors)),
        tensors={"embeds": write_bytes(vectors)},
    )


def make_image(seed: int = 0, size: tuple[int, int] = (90, 60)) -> Image.Image:
    """Return an image of noise, in which all pieces differ."""
    pixels = random.Random(seed).randbytes(size[0] * size[1] * 3)
    return Image.frombytes("RGB", size, pixels)


def write_bytes(tensor: torch.Tensor) -> TensorBytes:
    """Return a tensor as TensorBytes, with read-only bytes."""
    data = bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return TensorBytes(
        data=memoryview(data),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
    )
