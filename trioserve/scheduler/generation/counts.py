"""Figures of a Scheduler: the present state, and counts since the start."""

from __future__ import annotations

from dataclasses import dataclass

from ...types.ids import SequenceId


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """The present state; equal to a fresh scheduler's when all is done.

    Args:
      num_used_blocks, num_blocks: of the KV cache; those that sequences hold, and all.
      num_used_window_blocks, num_window_blocks: the same of the layers with windows, if
        they have blocks of their own.
    """

    num_running: int
    num_waiting: int
    num_steps_in_flight: int
    num_used_blocks: int
    num_blocks: int
    num_used_window_blocks: int = 0
    num_window_blocks: int = 0

    @property
    def kv_usage(self) -> float:
        """The part of the KV cache that sequences hold; of its fuller pool."""
        usage = self.num_used_blocks / self.num_blocks
        if not self.num_window_blocks:
            return usage
        return max(usage, self.num_used_window_blocks / self.num_window_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSequence:
    """The things that a sequence holds.

    Args:
      num_blocks: blocks in its tables, which it may share with others.
      has_slot: it runs.
    """

    sequence_id: SequenceId
    request_id: str
    num_blocks: int
    has_slot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerHoldings:
    """The things that a scheduler holds at present.

    Args:
      num_lost_blocks, num_lost_slots: those that are not free, though no sequence holds
        them; 0 unless there is a defect.
    """

    sequences: tuple[HeldSequence, ...]
    num_lost_blocks: int = 0
    num_lost_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerCounters:
    """Counts since the start; see the table of metrics in docs/metrics.rst."""

    num_steps: int = 0
    num_preemptions: int = 0
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    num_sampled_tokens: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_cached_blocks: int = 0
    step_seconds: float = 0.0
