"""Metrics of engines, which generate or pool."""

from __future__ import annotations

from ...engine.generation.engine import TokenEngine
from ...engine.pooling.engine import TensorEngine
from ...frontend import PoolingEngine, TextEngine
from ...observe.exposition import CounterMetric, GaugeMetric, Rows


def _count_requests(engine: TokenEngine | TensorEngine) -> int:
    if isinstance(engine, TensorEngine):
        return engine.statistics().num_requests
    return engine.statistics().num_streams


def _count_prompt_tokens(engine: TokenEngine | TensorEngine) -> int:
    if isinstance(engine, TensorEngine):
        return engine.counters().num_input_tokens
    return engine.counters().num_prompt_tokens


SERVED: Rows[TextEngine | PoolingEngine] = (
    CounterMetric(
        "trioserve_requests_refused_late_total",
        "Requests refused because others would have made them late.",
        lambda served: served.num_refused_late,
    ),
)

ENGINE: Rows[TokenEngine | TensorEngine] = (
    GaugeMetric(
        "trioserve_num_requests_open",
        "Requests in the engine; one with many sequences or texts counts once.",
        _count_requests,
    ),
    GaugeMetric(
        "trioserve_sleep_level",
        "Sleep of the engine: 0 awake, 1 without its KV cache, 2 without the model.",
        lambda engine: engine.sleep_state.level,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_num_requests_running",
        "Sequences, or texts to be pooled, that have begun on the device.",
        lambda engine: engine.statistics().scheduler.num_running,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_num_requests_waiting",
        "Sequences, or texts to be pooled, that wait for their turn on the device.",
        lambda engine: engine.statistics().scheduler.num_waiting,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_num_prompt_tokens_waiting",
        "Prompt tokens of requests without a first token, and of texts that were not read.",
        lambda engine: engine.statistics().num_queued_tokens,
        joins="own",
    ),
    CounterMetric(
        "trioserve_prompt_tokens_total",
        "Prompt tokens, including those found in the prefix cache, counted once for each "
        "sequence.",
        _count_prompt_tokens,
        joins="own",
    ),
    CounterMetric(
        "trioserve_steps_total",
        "Steps of the device.",
        lambda engine: engine.counters().num_steps,
        joins="own",
    ),
    CounterMetric(
        "trioserve_step_seconds_total",
        "Seconds for which the device was busy with steps.",
        lambda engine: engine.counters().step_seconds,
        joins="own",
    ),
)


def _find_kv_usage(engine: TokenEngine) -> float:
    return engine.statistics().scheduler.kv_usage


GENERATION: Rows[TokenEngine] = (
    GaugeMetric(
        "trioserve_steps_in_flight",
        "Steps that the device works on or will begin next.",
        lambda engine: engine.statistics().scheduler.num_steps_in_flight,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_adapters_loaded",
        "Adapters that requests may name.",
        lambda engine: len(engine.adapters),
        joins="own",
    ),
    CounterMetric(
        "trioserve_adapter_requests_total",
        "Requests that used an adapter, for each that is loaded.",
        lambda engine: {(k,): n for k, n in engine.count_adapter_requests().items()},
        ("adapter",),
    ),
    GaugeMetric(
        "trioserve_kv_cache_usage_perc",
        "Part of the KV cache that running sequences hold; 1 is all of it. Of blocks and "
        "window blocks, the larger part.",
        _find_kv_usage,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_kv_cache_blocks",
        "Blocks of the KV cache.",
        lambda engine: engine.statistics().scheduler.num_blocks,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_kv_cache_bytes_per_token",
        "Bytes of the KV cache that a token takes, in all layers. Layers with windows keep "
        "their part for the last tokens alone.",
        lambda engine: engine.info.kv_bytes_per_token,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_kv_cache_used_blocks",
        "Blocks of the KV cache that running sequences hold.",
        lambda engine: engine.statistics().scheduler.num_used_blocks,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_kv_cache_window_blocks",
        "Blocks that layers with windows have for themselves; 0 if there are none.",
        lambda engine: engine.statistics().scheduler.num_window_blocks,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_kv_cache_used_window_blocks",
        "Blocks of layers with windows that running sequences hold.",
        lambda engine: engine.statistics().scheduler.num_used_window_blocks,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_prefix_cache_blocks",
        "Blocks of the KV cache whose content new sequences can share.",
        lambda engine: engine.counters().num_cached_blocks,
        joins="own",
    ),
    CounterMetric(
        "trioserve_prefix_cache_queries_total",
        "Prompt tokens that were looked up in the prefix cache, counted once for each "
        "sequence.",
        lambda engine: engine.counters().num_prefix_queried_tokens,
        joins="own",
    ),
    CounterMetric(
        "trioserve_prefix_cache_hits_total",
        "Prompt tokens that were found in the prefix cache, counted once for each "
        "sequence.",
        lambda engine: engine.counters().num_prefix_hit_tokens,
        joins="own",
    ),
    CounterMetric(
        "trioserve_generation_tokens_total",
        "Tokens generated.",
        lambda engine: engine.counters().num_sampled_tokens,
        joins="own",
    ),
    CounterMetric(
        "trioserve_computed_tokens_total",
        "Tokens that the model computed: prompts, output, and both again after a "
        "preemption.",
        lambda engine: engine.counters().num_computed_tokens,
        joins="own",
    ),
    CounterMetric(
        "trioserve_num_preemptions_total",
        "Times that a running sequence lost its slot and its blocks and had to wait again.",
        lambda engine: engine.counters().num_preemptions,
        joins="own",
    ),
)


POOLING: Rows[TensorEngine] = (
    CounterMetric(
        "trioserve_pooling_texts_total",
        "Texts read; a chunk of a long text counts as one.",
        lambda engine: engine.counters().num_inputs,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_pooling_texts_reserved",
        "Texts for which open requests have reserved places.",
        lambda engine: engine.statistics().num_reserved,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_pooling_results_kept",
        "Results kept on the device for a later comparison.",
        lambda engine: engine.statistics().scheduler.num_kept,
        joins="own",
    ),
    GaugeMetric(
        "trioserve_pooling_results_to_release",
        "Kept results that the next step will release.",
        lambda engine: engine.statistics().scheduler.num_releases,
        joins="own",
    ),
)
