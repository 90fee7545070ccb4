"""Estimates of the time until a request is answered, from measured speeds and open work.

    queue     waits until enough sequences have ended for a free slot, and until the prompts
              before it are computed; other clients are before it by their weights, and a
              client below its share of the slots takes one from them
    first     its own prompt, and a step for its first token
    total     its other tokens, one a step, while prompts of later requests take a part of
              each step

The speeds come from the scheduler's cost model (scheduler/step_cost.py). A limit like
max_tokens is a bound and no forecast: most clients send a large one, or none, and the model
ends its answers long before it. So an answer counts as long as past answers were on average.
Before there are enough of them, it counts as long as the open ones are so far.

Sequences that run at once share each step, so later requests slow down earlier ones. By how
much depends on the prompts that arrive (OfferedPrompts): without them, the first forecasts
of a burst would let in several times as many requests as can be answered in time.

Forecasts err on the side of less time: prompts that wait count as computed without pauses,
and the sequences of one request as one in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from ...scheduler.generation.shared_queue import HELD_WORK
from ...scheduler.step_cost import StepRates
from ...types.client import Client
from ..backlog import MIN_STEPS, Forecast
from ..peer_work import PeerWork
from .backlog import Backlog

# The largest part of the time that prompts take from streams: PROMPT_SHARE of
# scheduler/generation/time_share.py.
_MAX_PROMPT_SHARE = 0.75

# Prompts of this age count half as much as prompts of now. With 5 and with 10 seconds, as
# many requests of a simulated overload were answered in time.
_HALF_LIFE_SECONDS = 5.0
_DECAY = math.log(2) / _HALF_LIFE_SECONDS

# After so many seconds, less than a thousandth is left of a refused prompt.
_FORGOTTEN_SECONDS = 10 * _HALF_LIFE_SECONDS

# With more clients than slots, a sequence keeps its slot until it has decoded as much work as
# its context (scheduler/generation/client_preemption.py). That takes at most so many tokens.
_TURN_TOKENS = 1 / HELD_WORK

# Sums of weights are not exact.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The size of a request, as far as it is known.

    Args:
      num_prompt_tokens: of all prompts; the sequences of a prompt share them.
      num_prompts: they are taken to have the same length.
      min_tokens, max_tokens: bounds of the tokens of each sequence.
      client: the one that it belongs to.
    """

    num_prompt_tokens: int
    num_prompts: int = 1
    num_sequences: int = 1
    min_tokens: int = 1
    max_tokens: float = math.inf
    client: Client = Client()

    @property
    def mean_prompt_tokens(self) -> int:
        return self.num_prompt_tokens // self.num_prompts


class OfferedPrompts:
    """Measures the part of the device's time that the arriving prompts ask for.

    Refused prompts count for their own client only: they cost it nothing, so they must not
    make the forecasts of others later.

    Attributes:
      total: the seconds of all prompts that were taken so far, without the peers' prompts.
    """

    def __init__(self) -> None:
        self._now: float | None = None
        self._taken = 0.0
        self._seconds = 0.0
        self.total = 0.0
        # The time of each client's last refused request, and the work of its refused ones.
        # The client that was refused last is the last one.
        self._refused: dict[str, tuple[float, float]] = {}

    def note_taken(self, now: float, seconds: float) -> None:
        """Count a request whose prompts take so many seconds of the device."""
        self.total += seconds
        self.note_elsewhere(now, seconds)

    def note_elsewhere(self, now: float, seconds: float) -> None:
        """Count prompts of a peer."""
        self._advance(now)
        self._taken += seconds

    def note_refused(self, now: float, seconds: float, client: str) -> None:
        """Count a refused request of a client."""
        self._advance(now)
        asked = self._measure_refused(now, client) + seconds
        self._refused.pop(client, None)
        self._refused[client] = now, asked
        # Names of clients may change for ever.
        while now - self._refused[first := next(iter(self._refused))][0] > (
            _FORGOTTEN_SECONDS
        ):
            del self._refused[first]

    def find_share(self, now: float, client: str) -> float:
        """Return the asked seconds per second; more than 1 if there is no time for all.

        Args:
          client: whose refused requests count.
        """
        self._advance(now)
        asked = self._taken + self._measure_refused(now, client)
        return asked / self._seconds if self._seconds else 0.0

    def _measure_refused(self, now: float, client: str) -> float:
        since, asked = self._refused.get(client, (now, 0.0))
        return asked * math.exp(-_DECAY * (now - since))

    def _advance(self, now: float) -> None:
        kept = math.exp(-_DECAY * (now - (now if self._now is None else self._now)))
        self._taken *= kept
        self._seconds = self._seconds * kept + (1.0 - kept) / _DECAY
        self._now = now


@dataclass(frozen=True, slots=True)
class _Waits:
    """The waits of a request for slots, in seconds: of its first and of its last sequence.

    A sequence that runs by turns waits for its later turns, too.
    """

    first: float
    last: float


class Forecaster:
    """Forecasts the times of requests.

    Args:
      backlog: the open requests.
      num_slots: the most sequences that run at once.
    """

    def __init__(self, backlog: Backlog, num_slots: int) -> None:
        self._backlog = backlog
        self._num_slots = num_slots
        self._offered = OfferedPrompts()

    def note_taken(self, now: float, rates: StepRates, demand: Demand) -> None:
        """Count a request that was taken."""
        self._offered.note_taken(now, self._predict_prompts(rates, demand))

    def describe_work(self) -> PeerWork:
        """Return the open work of this engine, for its peers."""
        return self._backlog.describe_own(self._offered.total)

    def set_peer(self, now: float, number: int, work: PeerWork | None) -> None:
        """Count the present work of a peer; None if it has ended."""
        if work is not None:
            seen = self._backlog.find_peer(number).offered_seconds
            self._offered.note_elsewhere(now, work.offered_seconds - seen)
        self._backlog.set_peer(number, work)

    def note_refused(self, now: float, rates: StepRates, demand: Demand) -> None:
        """Count a request that was refused: at most as one with a usual prompt.

        So prompts too long for their deadlines do not make others of their client late.
        """
        usual = self._predict_usual_prompt(rates)
        asked = min(usual, self._predict_prompts(rates, demand))
        self._offered.note_refused(now, asked, demand.client.name)

    def predict(self, now: float, rates: StepRates, demand: Demand) -> Forecast | None:
        """Forecast the times of a request that comes now.

        Returns:
          None if too few steps were measured, or if no other request is open. Such a
          request costs nobody anything, and its steps correct wrong measurements.
        """
        backlog = self._backlog
        if rates.num_steps < MIN_STEPS or not backlog.num_open_requests:
            return None
        length = max(1.0, backlog.expected_output_tokens)
        own = max(demand.min_tokens, min(length, demand.max_tokens))
        rows, gap = self._predict_gap(rates, demand, length, own)
        prompts = self._predict_prompts(rates, demand)
        usual_prompt = self._predict_usual_prompt(rates)
        num_before, num_tokens_before = self._count_before(demand)
        # Each sequence that ends leaves a slot, and the next one a while later.
        turn = usual_prompt + length * gap / rows
        later_part = min(1.0, max(0.0, own - _TURN_TOKENS) / length)
        next_turn = _TURN_TOKENS * gap * (1 + num_before / rows)
        waits = self._predict_waits(demand, num_before, turn, next_turn, later_part)
        queue = max(
            waits.first,
            rates.trusted_token * num_tokens_before / _MAX_PROMPT_SHARE,
        )
        # All slots that become free are taken again. Then each of these sequences brings a
        # prompt in the time of one answer.
        most = rows * usual_prompt / (rows * usual_prompt + length * gap)
        share = min(
            self._offered.find_share(now, demand.client.name), most, _MAX_PROMPT_SHARE
        )
        first = queue + prompts + gap
        context = demand.num_prompt_tokens + int(demand.num_sequences * own / 2)
        idle_gap = rates.predict_decoding(demand.num_sequences, context)
        return Forecast(
            queue=queue,
            first=first,
            total=first + waits.last - waits.first + (own - 1) * gap / (1 - share),
            alone=prompts + own * idle_gap,
        )

    def _predict_waits(
        self,
        demand: Demand,
        num_before: float,
        turn: float,
        next_turn: float,
        later_part: float,
    ) -> _Waits:
        """Forecast the waits of a request for slots.

        Args:
          num_before: the requests that go before it.
          turn: seconds until a sequence ends, and the next one has its slot.
          next_turn: seconds until its turn, if there are more clients than slots.
          later_part: the answer beyond one turn, in usual answers.
        """
        backlog, client = self._backlog, demand.client
        # Negative if sequences were preempted. At its share, a client waits for its own ones.
        num_free: float = self._num_slots - backlog.num_running
        share = backlog.measure_share(client, self._num_slots)
        num_held = backlog.places.count(client.name)
        # Below its share, it takes slots from others, whoever waits before it.
        if (num_taken := math.floor(share - num_held + _ROUNDING)) > 0:
            num_free = max(num_free, num_before + num_taken)
        first = turn * max(0, num_before + 1 - num_free)
        last = turn * max(0, num_before + demand.num_sequences - num_free)
        if num_taken < 1 and not num_held:
            first = min(first, next_turn)
            last = max(first, last * later_part)
        return _Waits(first, last)

    def _predict_prompts(self, rates: StepRates, demand: Demand) -> float:
        """Return the seconds that the prompts of a request take."""
        num_cached = self._estimate_cached(demand)
        each = rates.predict_prompt(demand.mean_prompt_tokens, num_cached)
        return demand.num_prompts * each

    def _count_before(self, demand: Demand) -> tuple[float, float]:
        """Return the requests, and the tokens to compute, that go before a request."""
        num_cached = demand.num_prompts * self._estimate_cached(demand)
        work = self._backlog.measure_work(
            demand.num_prompt_tokens - num_cached,
            demand.num_sequences,
            demand.mean_prompt_tokens,
        )
        return self._backlog.count_before(demand.client, work)

    def _estimate_cached(self, demand: Demand) -> int:
        """Return the cached tokens of each of its prompts."""
        cached = self._backlog.cached
        return cached.estimate(demand.client.name, demand.mean_prompt_tokens)

    def _predict_usual_prompt(self, rates: StepRates) -> float:
        """Return the seconds that a prompt like the past ones takes."""
        mean = int(self._backlog.mean_prompt_tokens)
        return rates.predict_prompt(mean, self._backlog.cached.estimate_usual(mean))

    def _predict_gap(
        self, rates: StepRates, demand: Demand, length: float, own: float
    ) -> tuple[int, float]:
        """Return the sequences that will run together, and the seconds of their step.

        Args:
          length, own: tokens of a usual answer, and of one of this request.
        """
        backlog, num_new = self._backlog, demand.num_sequences
        rows = backlog.num_running + backlog.num_queued_requests + num_new
        rows = max(1, min(rows, self._num_slots))
        # More than the slots, if some were preempted.
        num_begun = max(1, backlog.num_running)
        num_joining = max(0, rows - backlog.num_running - num_new)
        context = (
            backlog.num_context_tokens * min(1.0, self._num_slots / num_begun)
            + num_joining * (backlog.mean_prompt_tokens + length / 2)
            + num_new * (demand.num_prompt_tokens / demand.num_prompts + own / 2)
        )
        return rows, rates.predict_decoding(rows, int(context))
