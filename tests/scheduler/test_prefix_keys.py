"""Prompts with equal vectors share blocks; others never do."""

from __future__ import annotations

from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import scheduling
from scheduling import make_device, make_scheduler

from trioserve.scheduler.generation.sequence import Sequence
from trioserve.types.ids import SequenceId
from trioserve.types.prompt import KEY_BYTES, NO_TOKEN, EmbeddedInput, Prompt

BLOCK_SIZE = 4

# A position of a prompt: a token id, or the number of a vector.
Position = tuple[str, int]


def make_prompt(positions: list[Position]) -> Prompt:
    """Return a prompt with one item for each run of vectors."""
    items: list[EmbeddedInput] = []
    for index, (kind, number) in enumerate(positions):
        if kind == "token":
            continue
        key = number.to_bytes(KEY_BYTES, "big")
        if items and items[-1].runs[0][1] == index:
            begin, _ = items[-1].runs[0]
            key = items.pop().keys + key
        else:
            begin = index
        items.append(
            EmbeddedInput(
                kind="embeds", runs=((begin, index + 1),), keys=key, tensors={}
            )
        )
    return Prompt(
        token_ids=tuple(n if kind == "token" else NO_TOKEN for kind, n in positions),
        embedded=tuple(items),
    )


def make_sequence(prompt: Prompt, number: int = 0, **changes: Any) -> Sequence:
    return scheduling.make_sequence(
        number,
        prompt_token_ids=prompt.token_ids,
        embedded=prompt.embedded,
        max_tokens=1,
        **changes,
    )


def hash_blocks(prompt: Prompt) -> list[bytes]:
    sequence = make_sequence(prompt)
    num_blocks = len(prompt.token_ids) // BLOCK_SIZE
    return [sequence.hashes.get(i, BLOCK_SIZE) for i in range(num_blocks)]


positions = st.tuples(st.sampled_from(["token", "vector"]), st.integers(0, 2))


@given(
    st.lists(positions, min_size=4, max_size=12),
    st.lists(positions, min_size=4, max_size=12),
)
@settings(max_examples=examples(300))
def test_blocks_have_the_same_hash_if_and_only_if_all_up_to_them_is_the_same(
    one: list[Position], other: list[Position]
) -> None:
    hashes = zip(hash_blocks(make_prompt(one)), hash_blocks(make_prompt(other)))
    for index, (first, second) in enumerate(hashes):
        end = (index + 1) * BLOCK_SIZE
        assert (first == second) == (one[:end] == other[:end])


def test_images_with_different_runs_have_different_hashes() -> None:
    def make(*runs: tuple[int, int]) -> Prompt:
        num_vectors = sum(end - begin for begin, end in runs)
        item = EmbeddedInput(
            kind="image", runs=runs, keys=bytes(KEY_BYTES) * num_vectors, tensors={}
        )
        return Prompt(token_ids=(7,) * 8, embedded=(item,))

    assert hash_blocks(make((1, 3), (5, 8))) == hash_blocks(make((1, 3), (5, 8)))
    assert hash_blocks(make((1, 3), (5, 8))) != hash_blocks(make((1, 4), (6, 8)))
    assert hash_blocks(make((1, 3))) != hash_blocks(Prompt(token_ids=(7,) * 8))


def test_a_second_prompt_of_the_same_vectors_computes_only_new_positions() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=32)
    device = make_device()
    shared: list[Position] = [("vector", n) for n in range(10)]
    cached = []
    for number, last in enumerate((1, 1, 2)):
        prompt = make_prompt([*shared, ("token", last)])
        scheduler.add(make_sequence(prompt, number))
        while plan := scheduler.schedule():
            cached += [
                o.num_cached_tokens for o in scheduler.update(plan, device.step(plan))
            ]
            starts = [start.embedded for start in plan.starts]
            assert starts in ([], [prompt.embedded])
    assert cached == [0, 8, 8]


def test_blocks_are_shared_only_with_the_same_adapter_and_the_same_salt() -> None:
    def hash_with(adapter_digest: bytes, cache_salt: str = "") -> bytes:
        sequence = make_sequence(
            Prompt(token_ids=(7,) * BLOCK_SIZE),
            adapter_digest=adapter_digest,
            cache_salt=cache_salt,
        )
        return sequence.hashes.get(0, BLOCK_SIZE)

    assert hash_with(b"one") == hash_with(b"one")
    # A client that chooses its salt cannot come near the blocks of an adapter.
    different = [
        *(hash_with(b""), hash_with(b"one"), hash_with(b"two")),
        *(hash_with(b"", "one"), hash_with(b"one", "two"), hash_with(b"two", "one")),
    ]
    assert len(set(different)) == len(different)


def test_another_salt_shares_no_vector() -> None:
    prompt = make_prompt([("vector", n) for n in range(4)])
    salted = make_sequence(prompt, cache_salt="a").hashes.get(0, BLOCK_SIZE)
    assert salted != make_sequence(prompt).hashes.get(0, BLOCK_SIZE)


def test_the_device_learns_of_vectors_that_no_step_will_read() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4, prefix_caching=False)
    device = make_device()
    prompt = make_prompt([("vector", n) for n in range(10)])
    scheduler.add(make_sequence(prompt, 1))
    plan = scheduler.schedule()
    assert plan is not None and plan.ends == ()
    (start,) = plan.starts
    # The step in flight still reads the vectors, so a later step ends the slot.
    scheduler.abort(SequenceId(1))
    last = scheduler.schedule()
    assert last is not None
    assert (last.ends, last.starts, last.rows) == ((start.slot,), (), ())
    for step in (plan, last):
        assert scheduler.update(step, device.step(step)) == []
    assert scheduler.schedule() is None


def test_a_sequence_that_has_read_its_vectors_ends_without_a_word() -> None:
    scheduler = make_scheduler()
    device = make_device()
    scheduler.add(make_sequence(make_prompt([("vector", 1), ("token", 2)]), 1))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.update(plan, device.step(plan))
    assert scheduler.schedule() is None


def make_image(keys: bytes, *runs: tuple[int, int]) -> Prompt:
    """Return a prompt with an image whose positions hold the text's own token."""
    item = EmbeddedInput(kind="image", runs=runs, keys=keys, tensors={})
    return Prompt(token_ids=(7,) * 12, embedded=(item,))


def test_a_vector_that_stands_elsewhere_in_its_block_gives_another_hash() -> None:
    keys = bytes(2 * KEY_BYTES)
    first, second = make_image(keys, (0, 2)), make_image(keys, (1, 3))
    assert hash_blocks(first)[0] != hash_blocks(second)[0]


def test_the_hash_of_a_block_depends_on_the_keys_of_its_own_runs() -> None:
    """Each of three blocks has one run. A new key changes its block and later ones."""
    runs = (0, 1), (4, 6), (9, 12)
    keys = bytes(range(6 * KEY_BYTES))
    expected = hash_blocks(make_image(keys, *runs))
    for vector, block in enumerate((0, 1, 1, 2, 2, 2)):
        changed = bytearray(keys)
        changed[vector * KEY_BYTES] ^= 255
        hashes = hash_blocks(make_image(bytes(changed), *runs))
        assert [a == b for a, b in zip(hashes, expected)] == [
            index < block for index in range(3)
        ]
