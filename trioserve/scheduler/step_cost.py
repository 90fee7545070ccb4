"""The duration of steps, predicted from measured ones.

    seconds = fixed + sum over rows of
              (row + token * n + context * c + pair * n * (c + n / 2))

n is the number of tokens that a row computes, and c the number that its sequence has
already. The last two terms are attention: a row reads the keys and values of its context
once, and each of its tokens is compared with each token before it. One core needs 0.44 s for
512 tokens at the beginning of a prompt, and 2.0 s for 512 tokens after 7,000 others
(SmolLM2-135M).

The coefficients minimise the squared relative errors of past steps. Each step counts 2 %
less than the one after it. Three rules make the predictions robust:

* No coefficient is negative: more work never saves time.
* A step that took much longer than predicted counts as twice the prediction. So a step
  that lost the CPU to another program changes little. If steps really cost more, the
  next ones raise the prediction again.
* Predictions are multiplied by the slowness of the last few steps (Slowness). On a shared
  CPU many steps in a row are slow.

Nothing is assumed before the first measurement. A prediction is not trusted far from
measured sizes: a step may have twice the tokens of the largest one so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
import math
import operator

# The weight of a step halves after 34 others: enough steps to average noise, and few enough
# to follow a machine on which other programs start and stop.
_KEPT = 0.98

# After this many steps, a long step may be an exception.
_NUM_FIRST_STEPS = 8
_MAX_RATIO = 2.0

# Rounds of coordinate descent after each step; learning a step takes 0.025 ms with them. The
# first predictions for many rows were wrong by 12 % with one round, and by 3 % with three;
# with more than five they follow the noise.
_NUM_ROUNDS = 3

# Limits of a step relative to the largest measured one: in tokens, and in pairs of tokens,
# which grow with the square.
_MAX_TOKENS_RATIO = 2
_MAX_PAIRS_RATIO = 4

# In a step with so many tokens of prompts, these cost much more than its rows. A guess.
_ENOUGH_TOKENS = 64

# Brings the five terms of ordinary steps to the same magnitude.
_SCALES = (1.0, 1 / 8, 1 / 64, 1 / 4096, 1 / 65_536)

# A sum of squares below this is only rounding errors: there are no recent measurements.
_MIN_SQUARES = 1e-12

# Weight of the last step in the mean, which so follows a change within four steps. In a
# simulation of a CPU that is 2.5 times slower for a dozen steps now and then, one step in ten
# exceeded its target by 81 % or more without the slowness, and by 7 % with it.
_SLOWNESS_RATE = 0.25

# A higher ratio may be due to a wrong prediction.
_MAX_SLOWNESS = 4.0

# In a simulation, a device became three times slower while three times as many requests came
# as it had been able to answer. Of those that came later, 77 were taken and then late without
# the slowness, and 1 with it. The median of five steps let in as many; where steps varied by a
# fifth, it refused twice as many requests that would have been in time.
_NUM_SLOW_STEPS = 3


@dataclass(slots=True)
class StepSize:
    """The part of a step's work that determines its duration."""

    num_rows: int = 0
    num_tokens: int = 0
    num_context: int = 0
    num_pairs: float = 0.0

    def add_row(self, context: int, num_tokens: int) -> None:
        self.num_rows += 1
        self.num_tokens += num_tokens
        self.num_context += context
        self.num_pairs += num_tokens * (context + num_tokens / 2)

    def add_decoding(self, num_rows: int, context: int) -> None:
        """Add rows of one token each; `context` is the sum over all rows."""
        self.num_rows += num_rows
        self.num_tokens += num_rows
        self.num_context += context
        self.num_pairs += context + num_rows / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRates:
    """The coefficients of the formula above, in seconds, for forecasts.

    Args:
      num_steps: steps that were measured; with 0 the other numbers mean nothing.
      num_chunk_tokens: the most tokens of prompts in one of these steps.
    """

    num_steps: int = 0
    num_chunk_tokens: int = 0
    fixed: float = 0.0
    row: float = 0.0
    token: float = 0.0
    context: float = 0.0
    pair: float = 0.0

    def predict_decoding(self, num_rows: int, context: int) -> float:
        """Return the seconds from one token of all sequences to the next.

        Args:
          num_rows: sequences.
          context: tokens that they have already, all together.
        """
        per_row = self.row + self.token + self.pair / 2
        return self.fixed + per_row * num_rows + (self.context + self.pair) * context

    @property
    def _has_chunks(self) -> bool:
        """True if enough tokens of prompts were measured."""
        return self.num_chunk_tokens >= _ENOUGH_TOKENS

    @property
    def trusted_token(self) -> float:
        """The seconds of a token of a prompt; 0 if not enough were measured."""
        return self.token if self._has_chunks else 0.0

    def predict_prompt(self, num_tokens: float, num_cached: float = 0) -> float:
        """Return the seconds that a prompt adds to the steps that compute it.

        Tokens beyond twice the measured number add nothing, unless that number was enough
        to tell the cost of a token from the cost of a row.

        Args:
          num_cached: tokens of it that are not computed.
        """
        num_computed = num_tokens - num_cached
        if not self._has_chunks:
            limit = 1 + _MAX_TOKENS_RATIO * self.num_chunk_tokens
            num_computed = min(num_computed, limit)
        num_pairs = num_computed * (num_cached + num_computed / 2)
        return self.row + self.token * num_computed + self.pair * num_pairs


class Slowness:
    """The ratio of the measured to the predicted time of the last steps.

    Both numbers are at least 1: a prediction that is too high costs little, one that is too
    low makes requests wait.

    Attributes:
      mean: follows the last step at once. It is for the next step, which becomes a little
        shorter if the last one was an exception.
      lasting: slowness of the fastest of the last three steps. It is for forecasts: one slow
        step must not refuse requests.
    """

    def __init__(self) -> None:
        self.mean = 1.0
        self._ratios = deque([1.0], maxlen=_NUM_SLOW_STEPS)

    @property
    def lasting(self) -> float:
        return min(self._ratios)

    def note(self, ratio: float) -> None:
        """Count a step with a ratio of measured to predicted time."""
        ratio = min(max(ratio, 1.0), _MAX_SLOWNESS)
        self._ratios.append(ratio)
        self.mean *= (ratio / self.mean) ** _SLOWNESS_RATE


class StepCost:
    """Predicts the duration of steps from their size."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._largest = StepSize()
        self._num_chunk_tokens = 0
        # Sums over past steps, for the normal equations: products * weights = sums.
        self._products = [[0.0] * 5 for _ in _SCALES]
        self._sums = [0.0] * 5
        self._weights = [0.0] * 5
        self._slowness = Slowness()
        # Fixed, row, token, context, pair: in seconds.
        self._coefficients = [0.0] * 5

    def predict(self, size: StepSize) -> float:
        """Return the seconds of a step; 0 before anything was measured."""
        return self._slowness.mean * _multiply(self._weights, _list_terms(size))

    @property
    def fixed_seconds(self) -> float:
        """Seconds of a step without any row."""
        return self._coefficients[0]

    def list_rates(self, num_stages: int = 1) -> StepRates:
        """Return the learned rates, for a device that stays as slow as in the last steps.

        Without these, requests would be taken at the old speed for a minute or more after a
        device has become slower. After a pause the first steps correct the rates again.

        Args:
          num_stages: stages of the pipeline, which take turns with the sequences.
        """
        slowness = self._slowness.lasting
        fixed, row, token, context, pair = (
            slowness * weight * scale for weight, scale in zip(self._weights, _SCALES)
        )
        return StepRates(
            num_steps=self._num_steps,
            num_chunk_tokens=self._num_chunk_tokens,
            fixed=num_stages * fixed,
            row=row,
            token=token,
            context=context,
            pair=pair,
        )

    def predict_decoding(self, num_rows: int, context: int) -> float:
        """Return the seconds of a step of rows with one token each.

        Args:
          context: tokens that all their sequences together have already.
        """
        size = StepSize()
        size.add_decoding(num_rows, context)
        return self.predict(size)

    def predict_row(self, context: int, num_tokens: int) -> float:
        """Return the seconds that a row adds to a step."""
        _, row, token, read, pair = self._coefficients
        pairs = num_tokens * (context + num_tokens / 2)
        return row + token * num_tokens + read * context + pair * pairs

    def count_tokens(self, context: int, seconds: float, size: StepSize) -> int:
        """Return the most tokens that a row can compute within `seconds`.

        Args:
          context: tokens that its sequence has already.
          size: the size of the step without the row.
        """
        _, row, token, read, pair = self._coefficients
        rest = seconds - row - read * context
        if rest <= 0:
            return 0
        # Solved for n: pair / 2 * n ** 2 + (token + pair * context) * n = rest
        limit = _solve(pair, token + pair * context, rest)
        tokens = _MAX_TOKENS_RATIO * self._largest.num_tokens - size.num_tokens
        pairs = _MAX_PAIRS_RATIO * self._largest.num_pairs - size.num_pairs
        if tokens <= 0 or pairs <= 0:
            return 0
        return int(min(limit, tokens, _solve(1.0, context, pairs)))

    def learn(self, size: StepSize, seconds: float) -> None:
        """Learn from the measured duration of a step."""
        if seconds <= 0 or size.num_rows == 0:
            return
        terms = _list_terms(size)
        predicted = _multiply(self._weights, terms)
        self._num_steps += 1
        if self._num_steps > _NUM_FIRST_STEPS and predicted > 0:
            self._slowness.note(seconds / predicted)
            seconds = min(seconds, _MAX_RATIO * predicted)
        largest = self._largest
        num_chunk_tokens = size.num_tokens - size.num_rows
        self._num_chunk_tokens = max(self._num_chunk_tokens, num_chunk_tokens)
        largest.num_tokens = max(largest.num_tokens, size.num_tokens)
        largest.num_pairs = max(largest.num_pairs, size.num_pairs)
        self._fit([term / seconds for term in terms])
        self._coefficients = [
            self._slowness.mean * weight * scale
            for weight, scale in zip(self._weights, _SCALES)
        ]

    def _fit(self, terms: list[float]) -> None:
        """Add a step to the sums, and bring the weights nearer to their solution.

        The right weights times `terms` are 1. In turn, each weight gets its best value for the
        present others, but none below 0. Nothing is called, because each step pays for it.
        """
        sums, weights = self._sums, self._weights
        for index, products in enumerate(self._products):
            term = terms[index]
            sums[index] = _KEPT * sums[index] + term
            for other, factor in enumerate(terms):
                products[other] = _KEPT * products[other] + term * factor
        for _ in range(_NUM_ROUNDS):
            for index, products in enumerate(self._products):
                if products[index] > _MIN_SQUARES:
                    predicted = sum(map(operator.mul, products, weights))
                    missing = sums[index] - predicted
                    weights[index] = max(
                        0.0, weights[index] + missing / products[index]
                    )


def _list_terms(size: StepSize) -> list[float]:
    """Return the factors of the weights."""
    one, row, token, context, pair = _SCALES
    return [
        one,
        row * size.num_rows,
        token * size.num_tokens,
        context * size.num_context,
        pair * size.num_pairs,
    ]


def _multiply(left: list[float], right: list[float]) -> float:
    products: Iterable[float] = map(operator.mul, left, right)
    return sum(products)


def _solve(square: float, linear: float, rest: float) -> float:
    """Return the positive n with square / 2 * n ** 2 + linear * n = rest.

    Infinity if the equation does not depend on n.
    """
    divisor = linear + math.sqrt(linear * linear + 2 * square * rest)
    return 2 * rest / divisor if divisor > 0 else math.inf
