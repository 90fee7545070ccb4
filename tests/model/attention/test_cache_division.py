"""Two kinds of blocks share the memory of the KV cache."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings, strategies as st

from trioserve.model.attention.cache_division import CacheDivision
from trioserve.types.windows import CacheBlocks, WindowLayers, count_window_blocks


@settings(max_examples=examples(300))
@given(
    memory_bytes=st.integers(0, 2**32),
    token_bytes=st.integers(1, 300),
    part=st.floats(0.0, 1.0),
    block_size=st.sampled_from([1, 16, 256]),
    window=st.integers(1, 5000),
    max_chunk=st.integers(1, 3000),
    max_model_len=st.integers(1, 100_000),
    max_num_seqs=st.integers(1, 200),
    is_wanted=st.booleans(),
)
def test_one_sequence_can_run_alone_and_no_cache_holds_less_than_without_windows(
    memory_bytes: int,
    token_bytes: int,
    part: float,
    block_size: int,
    window: int,
    max_chunk: int,
    max_model_len: int,
    max_num_seqs: int,
    is_wanted: bool,
) -> None:
    windows = WindowLayers(
        window=window, kv_bytes_per_token=max(1, int(part * token_bytes))
    )
    sizes = {"max_chunk": max_chunk, "max_model_len": max_model_len}
    division = CacheDivision(token_bytes, block_size, windows=windows, **sizes)
    without = CacheDivision(token_bytes, block_size, windows=None, **sizes)
    enough = max_num_seqs * division.longest
    wanted = max_model_len if is_wanted else None
    blocks = division.divide(memory_bytes, enough, wanted)
    before = without.divide(memory_bytes, enough)
    num_blocks, num_window = blocks.num_blocks, blocks.num_window_blocks
    assert before.num_window_blocks is None
    if window >= max_model_len:
        assert blocks == before
        return
    assert num_window is not None
    full_bytes = token_bytes - windows.kv_bytes_per_token
    held = num_blocks * full_bytes + num_window * windows.kv_bytes_per_token
    assert held * block_size <= memory_bytes
    most = count_window_blocks(window, max_chunk, block_size)
    assert min(num_blocks, most) <= num_window <= num_blocks
    assert num_blocks >= min(before.num_blocks, division.longest)
    alone = division.count_longest(memory_bytes)
    if is_wanted:
        assert num_blocks >= min(alone, division.longest)
    assert division.count_bytes(min(alone, 10**9)) <= memory_bytes


def test_typical_sequences_fill_both_at_the_same_time() -> None:
    # Of 10 layers, 8 have windows of 1,024 tokens.
    windows = WindowLayers(window=1024, kv_bytes_per_token=800)
    division = CacheDivision(
        1000, 16, windows=windows, max_chunk=512, max_model_len=32_768
    )
    # 4,096 tokens take 819,200 bytes, 67 window blocks 857,600, and those of a chunk 409,600.
    many = division.divide(100 * 1_676_800 + 409_600, 128 * 2048)
    assert many == CacheBlocks(num_blocks=100 * 256, num_window_blocks=100 * 67 + 32)
    # The longest sequence takes 6,553,600 bytes, and alone 98 window blocks.
    one = division.divide(6_553_600 + 98 * 12_800, 128 * 2048, 32_768)
    assert one == CacheBlocks(num_blocks=2048, num_window_blocks=98)
    # Nobody asks for it, so more of shorter ones run.
    some = division.divide(6_553_600 + 98 * 12_800, 128 * 2048)
    assert some == CacheBlocks(num_blocks=1129, num_window_blocks=327)
    # More is of no use.
    all_of_them = division.divide(2**40, 128 * 2048)
    assert all_of_them == CacheBlocks(
        num_blocks=128 * 2048, num_window_blocks=128 * 2048
    )
