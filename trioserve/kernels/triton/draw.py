"""Draw tokens by temperature, min-p, top-k and top-p, without sorting the vocabulary.

    find_peaks   (row, part)  the likeliest token of each part of the vocabulary
    sum_levels   (row, part)  number and weight of tokens within 1, 2, 4 ... of the likeliest;
                              if all tokens may come, the winner of the part
    list_tokens  (row, part)  the tokens of the first level that top-k and top-p cannot leave
    draw         (row,)       the token

In a captured step some rows have no token, and tokens go to their slots, too.

The key of a row and the id of a token determine noise for the token. Among the tokens that may
come, the one with the largest sum of scaled logit and noise is drawn. The noise comes
from model/step/scans.py, so a seed gives the token that sampling/draw.py draws.

The limits of top-k and top-p are found by bisection over the values of logits. Weights are whole
numbers, of 1 / ONE of the likeliest token's weight. Their sums are exact, so they do not depend on
the order in which a GPU adds, and rows do not see each other. A token that is less likely than
that has no weight.

Nothing is compiled for a batch of one size alone, because no step should wait for a compiler.
"""

from __future__ import annotations

from torch import Tensor
import triton
import triton.language as tl

from .follow import follow, may_follow

# 2**42: the weights of 2**20 tokens fit into 63 bits.
ONE = tl.constexpr(4398046511104.0)

# Numbers of each row of the settings.
SETTINGS = tl.constexpr(7)
TEMPERATURE = tl.constexpr(0)
TOP_P = tl.constexpr(1)
TOP_K = tl.constexpr(2)
WAY = tl.constexpr(3)
MIN_P = tl.constexpr(4)
KEY_LOW = tl.constexpr(5)
KEY_HIGH = tl.constexpr(6)

# The ways of a row: the likeliest token, one of all, or one of the rest after top-k and top-p.
BEST = tl.constexpr(0)
ALL = tl.constexpr(1)
CUT = tl.constexpr(2)


def find_limits(settings: Tensor) -> Tensor:
    """Return what `sum_levels` calls limits: the logarithm is torch's, as in sampling/draw.py.

    Args:
      settings: (num_rows, SETTINGS)
    """
    return settings[:, MIN_P.value].float().log()


@triton.jit
def scale(logits, temperature):
    """Divide logits by the temperature, as torch does; NaN counts as infinity."""
    logits = tl.where(logits != logits, float("inf"), logits)
    scaled = tl.div_rn(logits, temperature)
    # There is a zero with a sign, which equals the other.
    return tl.where(scaled == 0.0, 0.0, scaled)


@triton.jit
def weigh(scaled, peak):
    """Return the weights of scaled logits, int64; peak is the largest of them."""
    # Infinity less itself is not a number.
    shares = tl.where(scaled == peak, 1.0, tl.exp(scaled - peak))
    return (shares * ONE).to(tl.int64)


@triton.jit
def to_key(scaled):
    """Return whole numbers that have the order of the scaled logits, int64."""
    bits = scaled.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def from_key(key):
    """Return the scaled logit of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def has_token(places, row, HAS_PLACES: tl.constexpr):
    """Return whether a row gets a token."""
    has = True
    if HAS_PLACES:
        has = tl.load(places + row) >= 0
    return has


@triton.jit
def read_word(setting):
    """Return one half of a row's key, uint32."""
    return tl.load(setting).to(tl.int64).to(tl.uint32)


@triton.jit
def read_key(settings):
    """Return both halves of a row's key."""
    return read_word(settings + KEY_LOW), read_word(settings + KEY_HIGH)


@triton.jit
def add_noise(scaled, is_kept, tokens, low, high):
    """Return scaled logits with the noise of their tokens; -inf for dropped tokens.

    Args:
      low, high: the halves of the row's key, uint32
    """
    # scans.make_noise, in the same order.
    bits = tokens.to(tl.uint32) ^ low
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits ^= high
    bits = (bits ^ (bits >> 15)) * 0xD35A2D97
    bits = (bits ^ (bits >> 15)) >> 1
    uniform = (bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    uniform = tl.minimum(uniform, 0.99999994)
    # The logarithms of `rest` and of 1 - uniform are equally exact, though 1 - uniform is rounded.
    # Source: Goldberg 1991, theorem 4.
    rest = 1.0 - uniform
    lost = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    race = tl.where(rest == 1.0, uniform, -tl.log(rest) * (uniform / lost))
    return tl.where(is_kept, scaled - tl.log(race), float("-inf"))


@triton.jit
def find_first(values, tokens, LIMIT: tl.constexpr):
    """Return the largest value, and the smallest of its tokens."""
    largest = tl.max(values, 0)
    return largest, tl.min(tl.where(values == largest, tokens, LIMIT), 0)


@triton.jit
def keep_token(
    token,
    row,
    places,
    slots,
    last_tokens,
    chosen,
    VOCABULARY: tl.constexpr,
    HAS_PLACES: tl.constexpr,
):
    """Store the token of a row that gets one.

    Args:
      places: (num_rows,) int32, of the rows' tokens in chosen, if HAS_PLACES; then tokens go
        to last_tokens, too
      slots: (num_rows,) int64
      last_tokens: (num_slots,) int64, gets the tokens by slots
      chosen: (num_rows,) int64
    """
    # Broken logits still give a token.
    token = tl.minimum(token, VOCABULARY - 1).to(tl.int64)
    place = row
    if HAS_PLACES:
        place = tl.load(places + row).to(tl.int64)
        tl.store(last_tokens + tl.load(slots + row), token)
    tl.store(chosen + place, token)


@may_follow
@triton.jit
def find_peaks(
    scores,
    places,
    peaks,
    best,
    row_stride,
    VOCABULARY: tl.constexpr,
    PART: tl.constexpr,
    HAS_PLACES: tl.constexpr,
):
    """Find the likeliest token of one part; the grid is (rows, parts).

    Args:
      scores: (num_rows, VOCABULARY) of any float type, rows row_stride apart
      places: (num_rows,) int32, below 0 for rows without a token, if HAS_PLACES
      peaks: (num_rows, num_parts) float32, its logit; NaN counts as infinity
      best: (num_rows, num_parts) int32, the first token with that logit
    """
    follow()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if has_token(places, row, HAS_PLACES):
        tokens = part * PART + tl.arange(0, PART)
        inside = tokens < VOCABULARY
        source = scores + row * row_stride + tokens
        logits = tl.load(source, mask=inside, other=float("-inf")).to(tl.float32)
        logits = tl.where(logits != logits, float("inf"), logits)
        peak, token = find_first(logits, tokens, VOCABULARY)
        place = row * tl.num_programs(1) + part
        tl.store(peaks + place, peak)
        tl.store(best + place, token)


@triton.jit
def read_peak(peaks, row, temperature, NUM_PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the largest scaled logit of a row."""
    parts = tl.arange(0, WIDTH)
    values = tl.load(
        peaks + row * NUM_PARTS + parts, mask=parts < NUM_PARTS, other=float("-inf")
    )
    return scale(tl.max(values, 0), temperature)


@triton.jit
def read_part(scores, tokens, temperature, peak, limit, VOCABULARY: tl.constexpr):
    """Return the scaled logits of tokens, and whether they are as likely as min-p wants."""
    inside = tokens < VOCABULARY
    logits = tl.load(scores + tokens, mask=inside, other=float("-inf"))
    scaled = scale(logits.to(tl.float32), temperature)
    return scaled, inside & ~(scaled < peak + limit)


@triton.jit
def find_lowest(peak, level, LEVELS: tl.constexpr):
    """Return the lowest scaled logit of a level, 2 ** level below the largest."""
    return tl.where(level == LEVELS - 1, float("-inf"), peak - (1 << level))


@may_follow
@triton.jit
def sum_levels(
    scores,
    settings,
    limits,
    peaks,
    best,
    raced,
    counts,
    sums,
    row_stride,
    VOCABULARY: tl.constexpr,
    PART: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Look at one part for rows that are not greedy; the grid is (rows, parts).

    If top-k or top-p cut the row, this counts the tokens of each level and sums up their
    weights. If not, this finds the token with the largest sum of scaled logit and noise.

    Args:
      settings: (num_rows, SETTINGS) float64, see TEMPERATURE and the others; rows without a
        token are greedy
      limits: (num_rows,) float32, of `find_limits`
      best, raced: (num_rows, NUM_PARTS) int32 and float32, this token and its sum
      counts, sums: (num_rows, LEVELS, NUM_PARTS) int64
    """
    follow()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    settings += row * SETTINGS
    way = tl.load(settings + WAY)
    if way != BEST:
        temperature = tl.load(settings + TEMPERATURE).to(tl.float32)
        peak = read_peak(peaks, row, temperature, NUM_PARTS, WIDTH)
        tokens = part * PART + tl.arange(0, PART)
        limit = tl.load(limits + row)
        scaled, is_kept = read_part(
            scores + row * row_stride, tokens, temperature, peak, limit, VOCABULARY
        )
        if way == ALL:
            low, high = read_key(settings)
            values = add_noise(scaled, is_kept, tokens, low, high)
            largest, token = find_first(values, tokens, VOCABULARY)
            tl.store(raced + row * NUM_PARTS + part, largest)
            tl.store(best + row * NUM_PARTS + part, token)
        else:
            weights = weigh(scaled, peak)
            for level in tl.static_range(LEVELS):
                is_in = is_kept
                if level < LEVELS - 1:
                    # find_lowest, without a call: Triton's interpreter takes milliseconds
                    # for one.
                    is_in = is_kept & (scaled >= peak - (1 << level))
                place = (row * LEVELS + level) * NUM_PARTS + part
                tl.store(counts + place, tl.sum(is_in.to(tl.int64), 0))
                tl.store(sums + place, tl.sum(tl.where(is_in, weights, 0), 0))


@triton.jit
def read_level(numbers, row, level, NUM_PARTS, WIDTH: tl.constexpr, LEVELS):
    """Return one number of each part, (WIDTH,) int64."""
    parts = tl.arange(0, WIDTH)
    place = (row * LEVELS + level) * NUM_PARTS + parts
    return tl.load(numbers + place, mask=parts < NUM_PARTS, other=0)


@triton.jit
def take_share(share, total):
    """Return a share of a sum of weights, rounded up, and at least 1."""
    needed = tl.ceil(share.to(tl.float32).to(tl.float64) * total.to(tl.float64))
    return tl.minimum(tl.maximum(needed.to(tl.int64), 1), total)


@triton.jit
def choose_level(
    counts,
    sums,
    row,
    top_k,
    top_p,
    VOCABULARY: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Return the first level that has all tokens which top-k and top-p leave.

    Returns:
      the level, the number of its tokens, their weight, and the weight of all tokens
    """
    levels, parts = tl.arange(0, LEVELS), tl.arange(0, WIDTH)
    places = (row * LEVELS + levels)[:, None] * NUM_PARTS + parts[None, :]
    inside = (parts < NUM_PARTS)[None, :] & (levels >= 0)[:, None]
    # (LEVELS,)
    count = tl.sum(tl.load(counts + places, mask=inside, other=0), 1)
    weight = tl.sum(tl.load(sums + places, mask=inside, other=0), 1)
    is_last = levels == LEVELS - 1
    total = tl.sum(tl.where(is_last, weight, 0), 0)
    is_enough = weight >= take_share(top_p, total)
    if top_k < VOCABULARY:
        # The weight of the likeliest top_k tokens is known only if they are all there.
        is_enough = count >= top_k
    level = tl.min(tl.where(is_enough | is_last, levels, LEVELS), 0)
    is_it = levels == level
    count, weight = tl.where(is_it, count, 0), tl.where(is_it, weight, 0)
    return level, tl.sum(count, 0), tl.sum(weight, 0), total


@may_follow
@triton.jit
def list_tokens(
    scores,
    settings,
    limits,
    peaks,
    counts,
    sums,
    keys,
    listed,
    row_stride,
    VOCABULARY: tl.constexpr,
    PART: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """List one part's tokens of the chosen level, for rows that are cut.

    The grid is (rows, parts).

    Args:
      listed: (num_rows, VOCABULARY) int32, the tokens of all parts, in their order
      keys: the same shape, int32, their keys
    """
    follow()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    settings += row * SETTINGS
    if tl.load(settings + WAY) == CUT:
        temperature = tl.load(settings + TEMPERATURE).to(tl.float32)
        top_k = tl.load(settings + TOP_K).to(tl.int64)
        top_p = tl.load(settings + TOP_P)
        level, _, _, _ = choose_level(
            counts, sums, row, top_k, top_p, VOCABULARY, NUM_PARTS, WIDTH, LEVELS
        )
        before = read_level(counts, row, level, NUM_PARTS, WIDTH, LEVELS)
        begin = tl.sum(tl.where(tl.arange(0, WIDTH) < part, before, 0), 0)
        peak = read_peak(peaks, row, temperature, NUM_PARTS, WIDTH)
        tokens = part * PART + tl.arange(0, PART)
        limit = tl.load(limits + row)
        scaled, is_kept = read_part(
            scores + row * row_stride, tokens, temperature, peak, limit, VOCABULARY
        )
        is_in = is_kept & (scaled >= find_lowest(peak, level, LEVELS))
        targets = row * VOCABULARY + begin + tl.cumsum(is_in.to(tl.int32), 0) - 1
        tl.store(keys + targets, to_key(scaled).to(tl.int32), mask=is_in)
        tl.store(listed + targets, tokens, mask=is_in)


@triton.jit
def find_key(
    keys,
    count,
    bound,
    low,
    high,
    peak,
    BLOCK: tl.constexpr,
    COUNTS: tl.constexpr,
):
    """Return the smallest listed key with less than a bound above it, and how much there is.

    It lies in [low, high], and nothing lies above high. What lies above is a weight, or a
    number of tokens if COUNTS.
    """
    found = tl.full((), 0, tl.int64)
    while low < high:
        middle = low + (high - low) // 2
        sums = tl.zeros((BLOCK,), tl.int64)
        # The listed keys around the middle: only there the sum changes.
        below = tl.full((BLOCK,), -0x80000000, tl.int64)
        beyond = tl.full((BLOCK,), 0x7FFFFFFF, tl.int64)
        for start in range(0, count, BLOCK):
            places = start + tl.arange(0, BLOCK)
            inside = places < count
            # Where nothing is listed, some key whose weight is at most the peak's.
            here = tl.load(keys + places, mask=inside, other=high).to(tl.int64)
            is_above = inside & (here > middle)
            if COUNTS:
                sums += is_above.to(tl.int64)
            else:
                # weigh(from_key(here), peak), without calls.
                bits = tl.where(here < 0, here ^ 0x7FFFFFFF, here).to(tl.int32)
                scaled = bits.to(tl.float32, bitcast=True)
                shares = tl.where(scaled == peak, 1.0, tl.exp(scaled - peak))
                sums += tl.where(is_above, (shares * ONE).to(tl.int64), 0)
            beyond = tl.minimum(beyond, tl.where(is_above, here, 0x7FFFFFFF))
            is_below = inside & (here <= middle)
            below = tl.maximum(below, tl.where(is_below, here, -0x80000000))
        above = tl.sum(sums, 0)
        if above < bound:
            high = tl.max(below, 0)
            found = above
        else:
            low = tl.min(beyond, 0)
    return high, found


@triton.jit
def sum_above(keys, count, key, peak, BLOCK: tl.constexpr):
    """Return the weight of listed tokens whose key is larger."""
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, count, BLOCK):
        places = start + tl.arange(0, BLOCK)
        here = tl.load(keys + places, mask=places < count, other=key).to(tl.int64)
        total += tl.where(here > key, weigh(from_key(here), peak), 0)
    return tl.sum(total, 0)


@triton.jit
def race_listed(
    keys,
    tokens,
    count,
    key,
    num_equal,
    settings,
    BLOCK: tl.constexpr,
):
    """Return the winner of the listed tokens with larger keys, and the first with this key."""
    values = tl.full((BLOCK,), float("-inf"), tl.float32)
    winners = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    before = tl.full((), 0, tl.int64)
    for start in range(0, count, BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < count
        here = tl.load(keys + places, mask=inside, other=0).to(tl.int64)
        token = tl.load(tokens + places, mask=inside, other=0)
        is_equal = (inside & (here == key)).to(tl.int64)
        is_kept = (is_equal > 0) & (before + tl.cumsum(is_equal, 0) <= num_equal)
        is_kept = is_kept | (inside & (here > key))
        low, high = read_key(settings)
        value = add_noise(from_key(here), is_kept, token, low, high)
        # Tokens are listed in the order of the vocabulary, so the first of equals stays.
        is_larger = value > values
        values = tl.where(is_larger, value, values)
        winners = tl.where(is_larger, token, winners)
        before += tl.sum(is_equal, 0)
    _, winner = find_first(values, winners, 0x7FFFFFFF)
    return winner


@triton.jit
def draw_from_listed(
    keys,
    tokens,
    counts,
    sums,
    settings,
    row,
    peak,
    VOCABULARY: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draw one of the tokens that top-k and top-p leave.

    Args:
      settings: of the row.
    """
    top_k = tl.load(settings + TOP_K).to(tl.int64)
    top_p = tl.load(settings + TOP_P)
    level, count, weight, total = choose_level(
        counts, sums, row, top_k, top_p, VOCABULARY, NUM_PARTS, WIDTH, LEVELS
    )
    low, high = to_key(find_lowest(peak, level, LEVELS)), to_key(peak)
    # The weight of the top_k tokens, of which top_p is a share.
    kept = tl.where(top_k < VOCABULARY, weight, total)
    if top_k < count:
        low, num_above = find_key(keys, count, top_k, low, high, peak, BLOCK, True)
        above = sum_above(keys, count, low, peak, BLOCK)
        kept = above + (top_k - num_above) * weigh(from_key(low), peak)
    # The weight of the tokens up to the one that reaches the share.
    needed = take_share(top_p, kept)
    key, above = find_key(keys, count, needed, low, high, peak, BLOCK, False)
    each = tl.maximum(weigh(from_key(key), peak), 1)
    num_equal = tl.cdiv(needed - above, each)
    return race_listed(keys, tokens, count, key, num_equal, settings, BLOCK)


@may_follow
@triton.jit
def draw(
    settings,
    places,
    slots,
    last_tokens,
    peaks,
    best,
    raced,
    counts,
    sums,
    keys,
    listed,
    chosen,
    VOCABULARY: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_PLACES: tl.constexpr,
):
    """Choose the token of one row; the grid is (rows,).

    Args:
      places, slots, last_tokens, chosen: see keep_token
    """
    follow()
    row = tl.program_id(0).to(tl.int64)
    settings += row * SETTINGS
    if has_token(places, row, HAS_PLACES):
        way = tl.load(settings + WAY)
        token = tl.full((), 0, tl.int32)
        if way == CUT:
            temperature = tl.load(settings + TEMPERATURE).to(tl.float32)
            token = draw_from_listed(
                keys + row * VOCABULARY,
                listed + row * VOCABULARY,
                counts,
                sums,
                settings,
                row,
                read_peak(peaks, row, temperature, NUM_PARTS, WIDTH),
                VOCABULARY,
                NUM_PARTS,
                WIDTH,
                LEVELS,
                BLOCK,
            )
        else:
            parts = tl.arange(0, WIDTH)
            inside, sources = parts < NUM_PARTS, row * NUM_PARTS + parts
            found = tl.load(peaks + sources, mask=inside, other=float("-inf"))
            if way == ALL:
                found = tl.load(raced + sources, mask=inside, other=float("-inf"))
            tokens = tl.load(best + sources, mask=inside, other=VOCABULARY)
            # Parts are in the order of the vocabulary, so the smallest token is the first.
            _, token = find_first(found, tokens, VOCABULARY)
        keep_token(
            token, row, places, slots, last_tokens, chosen, VOCABULARY, HAS_PLACES
        )
