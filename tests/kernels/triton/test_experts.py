"""The kernels of experts compute what torch computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from interpreter import require_triton
import pytest
import torch
from torch import Tensor
from torch.nn import functional

require_triton()

from trioserve.kernels.stored import (  # noqa: E402
    StoredWeights,
    quantise,
    store,
)
from trioserve.kernels.triton.adapted_pairs import (  # noqa: E402
    PairChanges,
    lay_out_pairs,
)
from trioserve.kernels.triton.adapters import Change, count_columns  # noqa: E402
from trioserve.kernels.triton.experts import (  # noqa: E402
    Choices,
    Experts,
    Router,
    sum_outputs,
)
from trioserve.kernels.triton.matrices import (  # noqa: E402
    Matrices,
    hold,
    hold_stored,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

ROUTER = Router(
    num_experts=6,
    num_chosen=3,
    renormalizes=True,
    num_groups=1,
    num_chosen_groups=1,
    num_ranked=1,
    has_sigmoid=False,
    scale=1.0,
    biases=None,
    choice_bias=None,
    expert_scales=None,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=chance).to(DEVICE)


def is_close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual.float(), expected.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_sigmoid", [False, True])
def test_the_best_experts_are_chosen_and_weighed(has_sigmoid: bool) -> None:
    router = replace(ROUTER, has_sigmoid=has_sigmoid, scale=2.5, biases=draw(6, seed=1))
    scores, slots = draw(5, 6), torch.tensor([2, 0, -1, 1, 4], device=DEVICE)
    choices = router.choose(scores, slots)
    scores = scores + router.biases
    numbers = scores.sigmoid() if has_sigmoid else scores.softmax(-1)
    expected, chosen = numbers.topk(3)
    expected = 2.5 * expected / expected.sum(-1, keepdim=True)
    chosen[2] = 6
    assert torch.equal(choices.experts.long(), chosen)
    real = slots >= 0
    assert is_close(choices.weights[real], expected[real])


@pytest.mark.parametrize("num_ranked", [1, 2])
def test_experts_come_from_the_best_groups(num_ranked: int) -> None:
    """With a bias that only chooses, and factors of experts."""
    router = replace(
        ROUTER,
        num_experts=15,
        num_groups=5,
        num_chosen_groups=2,
        num_ranked=num_ranked,
        renormalizes=False,
        choice_bias=0.1 * draw(15, seed=1),
        expert_scales=draw(15, seed=2),
    )
    scores = draw(7, 15, seed=3)
    choices = router.choose(scores, torch.zeros(7, dtype=torch.int64, device=DEVICE))
    weights = scores.softmax(-1)
    ranks = (weights + router.choice_bias).unflatten(1, (5, 3))
    groups = ranks.topk(num_ranked).values.sum(-1).topk(2).indices
    is_open = torch.zeros(7, 5, dtype=torch.bool, device=DEVICE).scatter(
        1, groups, True
    )
    ranks = ranks.masked_fill(~is_open[..., None], -torch.inf).flatten(1)
    chosen = ranks.topk(3).indices
    assert torch.equal(choices.experts.long(), chosen)
    expected = weights.gather(1, chosen) * router.expert_scales[chosen]
    assert is_close(choices.weights, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scores_that_are_no_numbers_choose_some_experts() -> None:
    scores = torch.full((2, 6), torch.nan, device=DEVICE)
    choices = ROUTER.choose(scores, torch.zeros(2, dtype=torch.int64, device=DEVICE))
    assert choices.experts.max() < 6


def make_experts(
    num_experts: int,
    hidden: int,
    inner: int,
    *,
    has_gate: bool = True,
    activation: str = "silu",
    dtype: torch.dtype = torch.float32,
) -> Experts:
    has_biases = activation == "clamped"
    num_rows = 2 * inner if has_gate else inner
    return Experts(
        first=hold(
            (draw(num_experts, num_rows, hidden, seed=1) / hidden**0.5).to(dtype)
        ),
        first_bias=draw(num_experts, num_rows, seed=2) if has_biases else None,
        second=hold((draw(num_experts, hidden, inner, seed=3) / inner**0.5).to(dtype)),
        second_bias=draw(num_experts, hidden, seed=4) if has_biases else None,
        has_gate=has_gate,
        activation=activation,
        slope=1.702,
        limit=0.7,
    )


def compute(experts: Experts, given: Tensor, choices: Choices) -> Tensor:
    """Run experts pair by pair; returns (num_tokens, num_chosen, hidden_size)."""
    output = torch.zeros(*choices.experts.shape, given.shape[1], device=DEVICE)
    for token, chosen in enumerate(choices.experts.tolist()):
        for place, expert in enumerate(chosen):
            if expert == experts.first.num_experts:
                continue
            inner = experts.first.codes[expert] @ given[token]
            if experts.first_bias is not None:
                inner += experts.first_bias[expert].float()
            inner = activate(experts, inner)
            own = experts.second.codes[expert] @ inner
            if experts.second_bias is not None:
                own += experts.second_bias[expert].float()
            output[token, place] = choices.weights[token, place] * own
    return output


def activate(experts: Experts, inner: Tensor) -> Tensor:
    if not experts.has_gate:
        return functional.relu(inner).square()
    gates, numbers = inner.chunk(2)
    if experts.activation == "silu":
        return functional.silu(gates) * numbers
    gates = gates.clamp(max=experts.limit)
    numbers = numbers.clamp(-experts.limit, experts.limit)
    return (numbers + 1) * gates * torch.sigmoid(experts.slope * gates)


def choose_some(num_tokens: int, num_chosen: int, num_experts: int) -> Choices:
    """Let tokens choose experts, but expert 1 is never chosen, and one token is padding."""
    ranks = draw(num_tokens, num_experts, seed=5)
    ranks[:, 1] = -torch.inf
    chosen = ranks.topk(num_chosen).indices.int()
    chosen[num_tokens // 2] = num_experts
    return Choices(
        experts=chosen, weights=draw(num_tokens, num_chosen, seed=6).sigmoid()
    )


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize(
    ("has_gate", "activation"), [(True, "silu"), (True, "clamped"), (False, "relu2")]
)
def test_each_pair_gets_the_output_of_its_expert(
    rows: int, has_gate: bool, activation: str
) -> None:
    """Neither sizes of weights nor numbers of pairs are multiples of a block."""
    experts = make_experts(4, 40, 70, has_gate=has_gate, activation=activation)
    given = draw(23, 40, seed=7)
    choices = choose_some(23, 2, 4)
    actual = experts.run(given, choices, rows)
    real = choices.experts < 4
    assert is_close(actual[real], compute(experts, given, choices)[real])


def test_many_pairs_are_grouped() -> None:
    experts = make_experts(3, 32, 32)
    given = draw(600, 32, seed=7)
    choices = choose_some(600, 2, 3)
    actual = experts.run(given, choices)
    real = choices.experts < 3
    assert is_close(actual[real], compute(experts, given, choices)[real])


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("format", ["int8", "int4", "fp8", "mxfp4"])
def test_weights_stay_in_few_bits(format: str, rows: int) -> None:
    plain = make_experts(3, 96, 64)
    kept = [make_stored(each.codes, format) for each in (plain.first, plain.second)]
    first, second = (hold_stored(each, 3) for each in kept)
    experts = replace(plain, first=first, second=second)
    restored = [
        hold(each.restore(torch.float32).unflatten(0, (3, -1))) for each in kept
    ]
    plain = replace(plain, first=restored[0], second=restored[1])
    given, choices = draw(5, 96, seed=7), choose_some(5, 2, 3)
    actual = experts.run(given, choices, rows)
    real = choices.experts < 3
    assert is_close(actual[real], compute(plain, given, choices)[real])


def make_stored(weights: Tensor, format: str) -> StoredWeights:
    """Store weights of all experts, whose numbers mean nothing in four bits."""
    weights = weights.flatten(0, 1)
    if format in ("int8", "fp8"):
        return quantise(weights, format)
    num_outputs, num_inputs = weights.shape
    shape = num_outputs, num_inputs // 32
    scales, zeros = draw(*shape, seed=8) / 100, draw(*shape, seed=9)
    if format == "mxfp4":
        scales, zeros = 124 + 2 * zeros.abs().clamp(max=1), None
        scales = scales.to(torch.uint8)
    else:
        zeros = (8 + zeros).clamp(0, 15).round()
    codes = (16 * draw(num_outputs, num_inputs).sigmoid()).to(torch.uint8)
    return store(codes, scales, format=format, zeros=zeros, group=32)


# Of adapters, by their slots; the last one has more ranks than a program takes at a time.
RANKS = 0, 3, 20


@dataclass(frozen=True)
class Changed:
    """Changes of plain weights.

    Args:
      weights: with the change of each slot.
      held: what the table points to.
    """

    changes: PairChanges
    weights: Sequence[Matrices]
    held: Sequence[Change]


def change(weights: Matrices, slots: Tensor, seed: int) -> Changed:
    """Make changes of chance; the last adapter leaves the first expert as it is."""
    num_experts, num_outputs, num_inputs = weights.codes.shape
    dtype = weights.codes.dtype
    lines = torch.zeros(len(RANKS), count_columns(3), dtype=torch.int64)
    changed, held = [weights], []
    for slot, rank in enumerate(RANKS[1:], 1):
        a = draw(num_experts, rank, num_inputs, seed=seed + slot) / num_inputs**0.5
        b = draw(num_experts, num_outputs, rank, seed=seed - slot) / rank**0.5
        matrices: list[tuple[Tensor, Tensor] | None] = [*zip(a.cpu(), b.cpu())]
        if slot == len(RANKS) - 1:
            matrices[0], b[0] = None, 0.0
        held.append(lay_out_pairs(matrices, None, dtype, DEVICE))
        lines[slot] = torch.tensor(held[-1].make_line(lines.shape[1]))
        changed.append(hold((weights.codes.float() + b @ a).to(dtype)))
    changes = PairChanges(
        table=lines.to(DEVICE), slots=slots.int(), width=32, num_cores=99
    )
    return Changed(changes, changed, held)


@pytest.mark.parametrize(
    ("rows", "num_tokens", "has_gate", "activation"),
    [(1, 5, True, "clamped"), (16, 17, True, "clamped"), (16, 17, False, "relu2")],
)
def test_each_pair_gets_the_change_of_its_adapter(
    rows: int, num_tokens: int, has_gate: bool, activation: str
) -> None:
    """A block has pairs of all adapters; inputs are enough for two splits."""
    experts = make_experts(3, 520, 40, has_gate=has_gate, activation=activation)
    given = draw(num_tokens, 520, seed=7)
    choices = choose_some(num_tokens, 2, 3)
    slots = torch.arange(num_tokens, device=DEVICE) % len(RANKS)
    first = change(experts.first, slots, 20)
    second = change(experts.second, slots, 30)
    actual = experts.run(given, choices, rows, (first.changes, second.changes))
    real = choices.experts < 3
    for slot, own in enumerate(zip(first.weights, second.weights)):
        changed = replace(experts, first=own[0], second=own[1])
        chosen = real & (slots == slot)[:, None]
        assert is_close(actual[chosen], compute(changed, given, choices)[chosen])
    chosen = real & (slots == 0)[:, None]
    assert torch.equal(actual[chosen], experts.run(given, choices, rows)[chosen])


@pytest.mark.parametrize("has_gates", [False, True])
def test_outputs_are_added_up(has_gates: bool) -> None:
    parts, shared, gates = draw(3, 4, 11), draw(3, 11, seed=1), draw(3, 1, seed=2)
    assert is_close(sum_outputs(parts), parts.sum(1))
    weighed = gates.sigmoid() * shared if has_gates else shared
    actual = sum_outputs(parts, shared, gates if has_gates else None)
    assert is_close(actual, parts.sum(1) + weighed)


# Of Qwen3-30B-A3B, Mixtral 8x7B and gpt-oss-20b.
REAL_SIZES = pytest.mark.parametrize(
    ("num_experts", "num_chosen", "hidden", "inner"),
    [(128, 8, 2048, 768), (8, 2, 4096, 14_336), (32, 4, 2880, 2880)],
)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@REAL_SIZES
@pytest.mark.parametrize("num_tokens", [1, 5, 64, 2048])
def test_sizes_of_real_models(
    num_tokens: int, num_experts: int, num_chosen: int, hidden: int, inner: int
) -> None:
    """Against torch's grouped product."""
    experts = make_experts(num_experts, hidden, inner, dtype=torch.bfloat16)
    first, second = experts.first.codes, experts.second.codes
    given = draw(num_tokens, hidden, seed=7).bfloat16()
    chosen = draw(num_tokens, num_experts, seed=5).topk(num_chosen).indices
    choices = Choices(
        experts=chosen.int(), weights=draw(num_tokens, num_chosen, seed=6).sigmoid()
    )
    places, order = chosen.flatten().sort(stable=True)
    every = torch.arange(num_experts, device=DEVICE)
    ends = torch.searchsorted(places, every, right=True).int()
    grouped = given[order // num_chosen]
    product = torch._grouped_mm(grouped, first.transpose(1, 2), ends)
    gates, numbers = product.chunk(2, dim=1)
    inner_states = functional.silu(gates) * numbers
    product = torch._grouped_mm(inner_states, second.transpose(1, 2), ends)
    expected = torch.empty_like(product)
    expected[order] = product * choices.weights.flatten()[order, None].bfloat16()
    actual = experts.run(given, choices).flatten(0, 1)
    error = (actual.float() - expected.float()).norm() / expected.float().norm()
    assert error < 1e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@REAL_SIZES
@pytest.mark.parametrize("num_tokens", [3, 64, 2048])
def test_adapters_at_sizes_of_real_models(
    num_tokens: int, num_experts: int, num_chosen: int, hidden: int, inner: int
) -> None:
    """As weights with the changes in them give; rounding of weights is the difference."""
    experts = make_experts(num_experts, hidden, inner, dtype=torch.bfloat16)
    given = draw(num_tokens, hidden, seed=7).bfloat16()
    choices = choose_some(num_tokens, num_chosen, num_experts)
    # Tokens with the same adapter lie side by side.
    slots = (torch.arange(num_tokens, device=DEVICE) * len(RANKS)) // num_tokens
    first = change(experts.first, slots, 20)
    second = change(experts.second, slots, 30)
    actual = experts.run(given, choices, None, (first.changes, second.changes)).float()
    real = choices.experts < num_experts
    for slot, own in enumerate(zip(first.weights, second.weights)):
        changed = replace(experts, first=own[0], second=own[1])
        chosen = real & (slots == slot)[:, None]
        if not chosen.any():
            continue
        expected = changed.run(given, choices).float()[chosen]
        error = (actual[chosen] - expected).norm() / expected.norm()
        assert error < 2e-2
