"""Prefixes of models with states are found where the states were copied."""

from __future__ import annotations

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.ids import SequenceId
from trioserve.types.sampling import SamplingParams

BLOCK_SIZE = 4


class Chats:
    """Prompts that are answered one after the other.

    Args:
      num_checkpoints: copies of states.
    """

    def __init__(self, num_checkpoints: int = 8) -> None:
        self._scheduler = Scheduler(
            num_blocks=64,
            block_size=BLOCK_SIZE,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=128,
            num_checkpoints=num_checkpoints,
        )
        self._device = FakeDevice(
            block_size=BLOCK_SIZE, reads_blocks=True, keeps_states=True
        )
        self._num_added = 0

    def answer(self, *prompts: range | tuple[int, ...]) -> list[int]:
        """Answer prompts beside each other; return the tokens that each has found."""
        sequences = []
        for prompt in prompts:
            self._num_added += 1
            sequence = Sequence(
                sequence_id=SequenceId(self._num_added),
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(max_tokens=6),
                seed=self._num_added,
                arrival=self._num_added,
            )
            self._scheduler.add(sequence)
            sequences.append(sequence)
        while (plan := self._scheduler.schedule()) is not None:
            self._scheduler.update(plan, self._device.step(plan))
            self._scheduler.check()
        return [sequence.num_cached_tokens for sequence in sequences]


def test_the_next_turn_of_a_chat_goes_on_behind_the_last_prompt() -> None:
    chats = Chats()
    assert chats.answer(range(30)) == [0]
    # 28 of the 30 tokens fill blocks.
    assert chats.answer(range(50)) == [28]
    assert chats.answer((*range(50), 7, 8)) == [48]


def test_prompts_that_begin_alike_share_the_chunks_and_the_place_where_they_part() -> (
    None
):
    chats = Chats()
    system = tuple(range(100, 126))
    assert chats.answer((*system, 1, 2, 3, 4, 5, 6)) == [0]
    # Steps have 16 tokens.
    assert chats.answer((*system, 11, 12, 13, 14, 15)) == [16]
    # There the second one parted from the first.
    assert chats.answer((*system, 21, 22, 23)) == [24]


def test_a_state_is_found_from_the_next_step_on() -> None:
    """The second prompt is admitted in the step that computes the first one."""
    chats = Chats()
    assert chats.answer(range(9), range(9)) == [0, 0]
    assert chats.answer(range(9)) == [8]


def test_the_least_recently_used_copy_goes_first() -> None:
    chats = Chats(num_checkpoints=2)
    first, second, third = (range(begin, begin + 9) for begin in (0, 200, 400))
    assert chats.answer(first) + chats.answer(second) == [0, 0]
    assert chats.answer(first) == [8]
    assert chats.answer(third) == [0]
    assert chats.answer(first) + chats.answer(second) == [8, 0]


def test_a_long_prompt_takes_no_copies_from_others() -> None:
    chats = Chats(num_checkpoints=3)
    assert chats.answer(range(9)) == [0]
    # It has six chunks.
    assert chats.answer(range(200, 296)) == [0]
    assert chats.answer(range(9)) == [8]
    assert chats.answer(range(200, 296)) == [92]


def test_without_copies_nothing_is_found() -> None:
    chats = Chats(num_checkpoints=0)
    assert chats.answer(range(30)) + chats.answer(range(30)) == [0, 0]
