"""Options of the engine: cache, scheduler and pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidConfig
from .checks import Size, check_at_least, check_seconds, parse_bytes

# Order in which requests are served; see SchedulerConfig.
SchedulingPolicy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Memory of keys and values, and how requests share it.

    Args:
      kv_cache_memory: Memory for the KV cache, as 2GiB or 512MiB; by default
        --kv-cache-fraction of the memory that is free on the device once the model is
        loaded. Each stage of a pipeline takes this much. The server refuses a size that
        cannot hold a sequence of 512 tokens.
      kv_cache_fraction: Fraction of the free memory that the KV cache takes; by default
        0.9 on a GPU and 0.25 on a CPU, because other programs share a CPU's memory.
        Limits of a container and of `ulimit -v` count. On a GPU the largest step and the
        graphs are tried first, and the KV cache takes what they leave of this fraction;
        the stages of a pipeline do not try them.
      block_size: Tokens in one KV block. Prefixes are shared in whole blocks.
      prefix_caching: Keep the blocks of finished requests and share them by content. If
        layers keep states, these are copied at some borders of blocks, as often as
        sequences may run at once.
    """

    kv_cache_memory: Size | None = None
    kv_cache_fraction: float | None = None
    block_size: int = 16
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        check_at_least("block_size", self.block_size, 1)
        if self.kv_cache_memory is not None:
            parse_bytes("kv_cache_memory", self.kv_cache_memory)
        if self.kv_cache_fraction is not None and not 0 < self.kv_cache_fraction <= 1:
            raise InvalidConfig(
                "kv_cache_fraction", "must be greater than 0, and 1 at most"
            )

    def count_checkpoints(self, max_num_seqs: int) -> int:
        """Return how many copies of states there are for so many running sequences."""
        return max_num_seqs if self.prefix_caching else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step, and of the requests that wait for steps.

    Args:
      max_num_seqs: Sequences that run at once. They are fewer if layers keep states that
        would take more than half of the KV cache's memory.
      max_num_batched_tokens: Most tokens that one step computes; longer prompts are cut
        into chunks. The default is 2048 on a GPU and 512 on a CPU, where a step of 2048
        tokens takes seconds. For models that pool it is 16384 and 2048.
      max_step_seconds: Longest step that computes a prompt or that requests share, in
        seconds. To keep it, chunks of long prompts shrink, and the sequences of a
        request with many sequences take turns. If prompts wait, three quarters of the
        time are theirs. The step exceeds its limit if one token for each request takes
        more than the last quarter; it then takes up to four times as long as these
        tokens. The default is 0.1 on a GPU (a guess; it was never measured there) and
        0.25 on a CPU, where decoding alone takes 0.03 to 0.3. inf sets no limit.
      max_queued_requests: Most sequences that may wait; further requests are answered
        429. A request counts once for each of its sequences or texts. One request may
        take half of the free places, or more if all of its sequences can run at once.
      max_queued_tokens: Most prompt tokens that may wait; further requests are answered
        429. These are the tokens of requests without a first token, and of texts that
        were not read. They are estimated before a prompt is tokenized. By default there
        is no limit, and a request that nothing waits before has none.
      scheduling_policy: Order in which requests are served. fcfs serves them in the
        order of their arrival and refuses a request with a priority. priority takes
        priorities from -100 to 100 and serves lower ones first; one level is worth 10
        seconds of waiting (for models that pool, 65,536 tokens), so every request is
        served in the end.
      async_scheduling: Plan and launch the next step while the device runs this one.
        The tokens of this one are not known yet then. On a GPU, two steps are launched
        ahead while steps take up to 5 ms. Models that pool do not need it.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int | None = None
    max_step_seconds: float | None = None
    max_queued_requests: int = 4096
    max_queued_tokens: int | None = None
    scheduling_policy: SchedulingPolicy = "fcfs"
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        check_at_least("max_num_seqs", self.max_num_seqs, 1)
        check_at_least("max_queued_requests", self.max_queued_requests, 0)
        check_at_least("max_queued_tokens", self.max_queued_tokens, 1)
        if self.max_step_seconds is not None and not self.max_step_seconds > 0:
            raise InvalidConfig("max_step_seconds", "must be greater than 0")
        # Every running sequence must be able to decode in each step.
        check_at_least(
            "max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Processes that share a model.

    Args:
      tensor_parallel_size: Processes that share each layer of the model. Heads, columns,
        rows and the vocabulary are split. If there are GPUs, each process has its own.
        With a pipeline, each stage has so many processes.
      pipeline_parallel_size: Stages that share the model's layers, each in its own
        process. If there are GPUs, each stage has its own. torchrun starts the stages
        of other machines.
      step_timeout: Longest time for a step of a pipeline, in seconds. A step that takes
        longer ends the engine.
      restart_stages: Start a pipeline again if one of its stages dies or hangs. Without
        it the server ends. All stages start again, at most three times in ten minutes.
        Open requests fail, and new ones are answered 503 until the stages are ready.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    step_timeout: float = 300.0
    restart_stages: bool = False

    def __post_init__(self) -> None:
        check_at_least("tensor_parallel_size", self.tensor_parallel_size, 1)
        check_at_least("pipeline_parallel_size", self.pipeline_parallel_size, 1)
        check_seconds("step_timeout", self.step_timeout)
        if self.restart_stages and self.world_size == 1:
            raise InvalidConfig("restart_stages", "there are no stages")

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepConfig:
    """Sleep of an engine that nobody needs.

    Args:
      sleep_idle_seconds: Time without work until the engine gives memory back, in seconds.
        The next request that needs the model wakes it, and waits meanwhile; probes,
        /metrics and /v1/models do not. By default the engine never sleeps by itself.
      sleep_level: Memory that an idle engine gives back. 1 gives back the KV cache, and
        keeps the weights where they are. 2 gives back the weights, too, and loads the
        model again. Pipelines, shards and models that pool have level 2 alone.
    """

    sleep_idle_seconds: float | None = None
    sleep_level: int = 2

    def __post_init__(self) -> None:
        if self.sleep_idle_seconds is not None:
            check_seconds("sleep_idle_seconds", self.sleep_idle_seconds)
        if self.sleep_level not in (1, 2):
            raise InvalidConfig(
                "sleep_level", f"must be 1 or 2, got {self.sleep_level}"
            )
        if self.sleep_level == 1 and self.sleep_idle_seconds is None:
            raise InvalidConfig("sleep_level", "needs --sleep-idle-seconds")
