"""Routers of experts: the choice of each token, and the pairs of each expert.

    route        (token,)   the experts of a token, with their weights
    group_pairs  (expert,)  the pairs of an expert, cut into blocks

A pair is a token and one of its experts: pair p belongs to token p // NUM_CHOSEN. All sizes depend
on the number of tokens alone, so that a captured graph is right for any choice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .follow import follow, may_follow

# Columns of the tensor of blocks.
BLOCK_EXPERT = tl.constexpr(0)
BLOCK_BEGIN = tl.constexpr(1)
BLOCK_COUNT = tl.constexpr(2)
BLOCK_COLUMNS = tl.constexpr(3)


@triton.jit
def read_block(
    order,
    blocks,
    block,
    NUM_EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    IS_GROUPED: tl.constexpr,
):
    """Return the expert of a block of pairs, their number, and the pairs, (ROWS,) int64.

    Args:
      order, blocks: as `group_pairs` writes them, if IS_GROUPED; otherwise each pair is a
        block, and `blocks` has its expert, (num_pairs,) int32
    """
    rows = tl.arange(0, ROWS)
    if IS_GROUPED:
        line = blocks + block * BLOCK_COLUMNS
        expert = tl.load(line + BLOCK_EXPERT).to(tl.int64)
        count = tl.load(line + BLOCK_COUNT)
        places = tl.load(line + BLOCK_BEGIN) + rows
        pairs = tl.load(order + places, mask=rows < count, other=0)
        pairs = pairs.to(tl.int64)
    else:
        expert = tl.load(blocks + block).to(tl.int64)
        count = (expert < NUM_EXPERTS).to(tl.int32)
        pairs = block.to(tl.int64) + tl.zeros((ROWS,), tl.int64)
    return expert, count, pairs


@triton.jit
def find_best(ranks, places, last):
    """Return the place of the largest rank, the first one of equals; never behind `last`."""
    best = tl.max(tl.max(ranks, 1), 0)
    found = tl.min(tl.min(tl.where(ranks == best, places, last), 1), 0)
    # Ranks that are no numbers equal nothing.
    return tl.minimum(found, last)


@triton.jit
def open_groups(
    ranks,
    groups,
    members,
    GROUPS_WIDTH: tl.constexpr,
    MEMBERS_WIDTH: tl.constexpr,
    NUM_OPEN: tl.constexpr,
    NUM_RANKED: tl.constexpr,
):
    """Return the ranks of the experts of the best groups; the others get minus infinity."""
    largest = tl.max(ranks, 1)[:, None]  # (GROUPS_WIDTH, 1)
    strengths = largest
    if NUM_RANKED == 2:
        equal = tl.where(ranks == largest, members, MEMBERS_WIDTH)
        first = tl.min(equal, 1)[:, None]
        rest = tl.where(members == first, -float("inf"), ranks)
        strengths += tl.max(rest, 1)[:, None]
    opened = tl.where(groups < 0, ranks, -float("inf"))
    for _ in range(NUM_OPEN):
        best = find_best(strengths, groups, GROUPS_WIDTH - 1)
        opened = tl.where(groups == best, ranks, opened)
        strengths = tl.where(groups == best, -float("inf"), strengths)
    return opened


@may_follow
@triton.jit
def route(
    scores,
    biases,
    choice_bias,
    expert_scales,
    slots,
    chosen,
    weights,
    scale,
    NUM_EXPERTS: tl.constexpr,
    NUM_CHOSEN: tl.constexpr,
    CHOSEN_WIDTH: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUPS_WIDTH: tl.constexpr,
    MEMBERS_WIDTH: tl.constexpr,
    NUM_OPEN: tl.constexpr,
    NUM_RANKED: tl.constexpr,
    HAS_SIGMOID: tl.constexpr,
    RENORMALIZES: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    HAS_CHOICE_BIAS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """Choose the experts of one token; see MixtureParts (description.py) for the rule.

    Args:
      scores: (num_tokens, NUM_EXPERTS), of the router
      biases, choice_bias, expert_scales: (NUM_EXPERTS,) float32
      slots: (num_tokens,) int64; a token without one, which is padding, gets no experts
      chosen: (num_tokens, NUM_CHOSEN) int32, the best first; NUM_EXPERTS is none
      weights: (num_tokens, NUM_CHOSEN) float32
      scale: factor of the weights.
      NUM_OPEN: groups from which experts are chosen.
      CHOSEN_WIDTH, GROUPS_WIDTH, MEMBERS_WIDTH: NUM_CHOSEN, NUM_GROUPS and the experts of a
        group, rounded up to powers of two.
    """
    follow()
    token = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS_WIDTH)[:, None]
    members = tl.arange(0, MEMBERS_WIDTH)[None, :]
    size: tl.constexpr = NUM_EXPERTS // NUM_GROUPS
    inside = (groups < NUM_GROUPS) & (members < size)
    # Outside, a place that no expert has.
    experts = tl.where(inside, groups * size + members, NUM_EXPERTS)
    numbers = tl.load(
        scores + token * NUM_EXPERTS + experts, mask=inside, other=-float("inf")
    ).to(tl.float32)
    if HAS_BIASES:
        numbers += tl.load(biases + experts, mask=inside, other=0.0)
    if HAS_SIGMOID:
        numbers = tl.sigmoid(numbers)
    else:
        numbers = tl.exp(numbers - tl.max(tl.max(numbers, 1), 0))
        numbers = numbers / tl.sum(tl.sum(numbers, 1), 0)
    ranks = numbers
    if HAS_CHOICE_BIAS:
        ranks += tl.load(choice_bias + experts, mask=inside, other=0.0)
    ranks = tl.where(inside, ranks, -float("inf"))
    if NUM_OPEN < NUM_GROUPS:
        ranks = open_groups(
            ranks, groups, members, GROUPS_WIDTH, MEMBERS_WIDTH, NUM_OPEN, NUM_RANKED
        )
    places = tl.arange(0, CHOSEN_WIDTH)
    best_experts = tl.zeros((CHOSEN_WIDTH,), tl.int32)
    best_weights = tl.zeros((CHOSEN_WIDTH,), tl.float32)
    for place in range(NUM_CHOSEN):
        best = find_best(ranks, experts, NUM_EXPERTS - 1)
        weight = tl.sum(tl.sum(tl.where(experts == best, numbers, 0.0), 1), 0)
        best_experts = tl.where(places == place, best, best_experts)
        best_weights = tl.where(places == place, weight, best_weights)
        ranks = tl.where(experts == best, -float("inf"), ranks)
    if RENORMALIZES:
        best_weights = best_weights / tl.sum(best_weights, 0)
    best_weights *= scale
    if HAS_SCALES:
        best_weights *= tl.load(expert_scales + best_experts)
    if tl.load(slots + token) < 0:
        best_experts = tl.zeros((CHOSEN_WIDTH,), tl.int32) + NUM_EXPERTS
    targets = token * NUM_CHOSEN + places
    tl.store(chosen + targets, best_experts, mask=places < NUM_CHOSEN)
    tl.store(weights + targets, best_weights, mask=places < NUM_CHOSEN)


@may_follow
@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def group_pairs(
    chosen,
    order,
    blocks,
    num_pairs,
    num_blocks,
    NUM_EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """List the pairs of one expert, and cut them into blocks; the grid is (NUM_EXPERTS,).

    Expert e has the blocks from begin(e) // ROWS + e on, where begin(e) is the number of pairs
    before its own. These are as many as it needs, and one more at most, which is empty.

    Args:
      chosen: (num_pairs,) int32
      order: (num_pairs,) int32, pairs in the order of experts
      blocks: (num_blocks, BLOCK_COLUMNS) int32: the expert, the place of its first pair in
        `order`, and the number of pairs
      num_blocks: num_pairs // ROWS + NUM_EXPERTS.
      ROWS: most pairs of a block.
      CHUNK: pairs that are read at a time.
    """
    follow()
    expert = tl.program_id(0)
    counted = tl.arange(0, CHUNK)
    before, own = 0, 0
    for start in range(0, num_pairs, CHUNK):
        pairs = start + counted
        experts = tl.load(chosen + pairs, mask=pairs < num_pairs, other=NUM_EXPERTS)
        before += tl.sum((experts < expert).to(tl.int32), 0)
        own += tl.sum((experts == expert).to(tl.int32), 0)
    first = before // ROWS + expert
    end = (before + own) // ROWS + expert + 1
    if expert == NUM_EXPERTS - 1:
        end = num_blocks
    for block in range(first, end):
        done = (block - first) * ROWS
        line = blocks + block * BLOCK_COLUMNS
        tl.store(line + BLOCK_EXPERT, expert)
        tl.store(line + BLOCK_BEGIN, before + done)
        tl.store(line + BLOCK_COUNT, tl.maximum(tl.minimum(own - done, ROWS), 0))
    for start in range(0, num_pairs, CHUNK):
        pairs = start + counted
        experts = tl.load(chosen + pairs, mask=pairs < num_pairs, other=NUM_EXPERTS)
        is_own = (experts == expert).to(tl.int32)
        targets = before + tl.cumsum(is_own, 0) - 1
        tl.store(order + targets, pairs, mask=is_own != 0)
        before += tl.sum(is_own, 0)
