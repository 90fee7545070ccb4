"""The table of all metrics that GET /metrics shows.

To add a metric, add a row to the table of its source below, and the same row to
docs/operations.rst. A row has the metric's name and meaning with its unit, and reads it
from the source: the statistics() or counters() of a room, or RequestCounts for numbers
that the HTTP side counts itself. A new source needs its own table; METRICS lists the
table, and _collect reads it.

A metric that vLLM also has uses vLLM's name after the prefix, so that vLLM's dashboards
need only another prefix. Metrics of vLLM that this server cannot fill are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric as Family

from .._version import __version__
from ..engine import TensorEngine, TokenEngine
from ..frontend import PoolingEngine, TextEngine
from ..observe import (
    SLOW_STEP_SECONDS,
    CounterMetric,
    Distribution,
    GaugeMetric,
    HistogramMetric,
    Offender,
    Rows,
    StallStatistics,
    collect_rows,
    render_families,
)
from ..render import PoolingRenderer, Renderer
from ..render.images.renderer import ImageRenderer
from ..render.structure import StructureCompiler
from ..render.workers.processes import TemplateProcesses
from .request_counts import RequestCounts
from .state import ServerState

_SLOW = f"task steps longer than {1000 * SLOW_STEP_SECONDS:g} ms"


def _read_offenders(
    read: Callable[[Offender], float],
) -> Callable[[StallStatistics], Mapping[tuple[str, ...], float]]:
    # Labels are a few names of functions, and never texts of clients.
    return lambda seen: {(each.name,): read(each) for each in seen.offenders}


def _describe(state: ServerState) -> Mapping[tuple[str, ...], float]:
    if state.engine is None:
        return {}
    info = state.engine.info
    return {(__version__, info.name, info.kernels): 1}


SERVER: Rows[ServerState] = (
    GaugeMetric(
        "trioserve_info",
        "Always 1; the labels describe the server.",
        lambda state: _describe(state),
        ("version", "model", "kernels"),
    ),
    GaugeMetric(
        "trioserve_http_requests_active",
        "HTTP requests that are being answered.",
        lambda state: state.lifecycle.num_active,
    ),
    GaugeMetric(
        "trioserve_http_bodies_bytes",
        "Bytes of request bodies in memory.",
        lambda state: state.bodies.num_bytes,
    ),
    CounterMetric(
        "trioserve_http_bodies_refused_total",
        "Request bodies refused because all bodies together took too much memory.",
        lambda state: state.bodies.num_refused,
    ),
    GaugeMetric(
        "trioserve_responses_stored",
        "Stored responses of /v1/responses, including those that still run.",
        lambda state: state.responses.statistics().num_responses,
    ),
    GaugeMetric(
        "trioserve_responses_stored_bytes",
        "Bytes of stored responses.",
        lambda state: state.responses.statistics().num_bytes,
    ),
    CounterMetric(
        "trioserve_responses_dropped_total",
        "Stored responses that were dropped: for their age, or for the memory of newer "
        "ones.",
        lambda state: {(k,): n for k, n in state.responses.dropped.items()},
        ("reason",),
    ),
    GaugeMetric(
        "trioserve_responses_background",
        "Responses that are being generated in the background.",
        lambda state: state.background.num_running,
    ),
    CounterMetric(
        "trioserve_responses_background_refused_total",
        "Responses refused because too many ran in the background.",
        lambda state: state.background.num_refused,
    ),
    GaugeMetric(
        "trioserve_engine_stalled_seconds",
        "Seconds since the last sign of progress of the running step; about 1 at most "
        "without a step.",
        lambda state: state.stalled_seconds,
    ),
)

LOOP: Rows[StallStatistics] = (
    HistogramMetric(
        "trioserve_event_loop_turn_seconds",
        "Seconds between two checks of the sockets by the event loop.",
        lambda seen: Distribution.of_durations(seen.turns),
    ),
    HistogramMetric(
        "trioserve_task_step_seconds",
        "Seconds for which a task ran before other tasks could run.",
        lambda seen: Distribution.of_durations(seen.steps),
    ),
    CounterMetric(
        "trioserve_slow_task_steps_total",
        f"Number of {_SLOW}, for the tasks with the longest ones.",
        _read_offenders(lambda each: each.num_steps),
        ("task",),
    ),
    CounterMetric(
        "trioserve_slow_task_seconds_total",
        f"Seconds of all {_SLOW}, for the tasks with the longest ones.",
        _read_offenders(lambda each: each.total_seconds),
        ("task",),
    ),
    GaugeMetric(
        "trioserve_slow_task_longest_seconds",
        f"Seconds of the longest of the {_SLOW}, for the tasks with the longest ones.",
        _read_offenders(lambda each: each.longest_seconds),
        ("task",),
    ),
)

REQUESTS: Rows[RequestCounts] = (
    CounterMetric(
        "trioserve_http_requests_total",
        "HTTP requests answered, by path and status.",
        lambda counts: counts.answered,
        ("handler", "status"),
    ),
    CounterMetric(
        "trioserve_requests_cancelled_total",
        "Requests whose client closed the connection before the end of the answer, by "
        "phase.",
        lambda counts: counts.cancelled,
        ("phase",),
    ),
    HistogramMetric(
        "trioserve_e2e_request_latency_seconds",
        "Seconds from the arrival of a request to the end of its answer.",
        lambda counts: counts.latency.statistics(),
    ),
)

GENERATION_REQUESTS: Rows[RequestCounts] = (
    CounterMetric(
        "trioserve_request_success_total",
        "Finished sequences, by the reason of their end: stop or length.",
        lambda counts: counts.finished,
        ("finished_reason",),
    ),
    HistogramMetric(
        "trioserve_time_to_first_token_seconds",
        "Seconds from the arrival of a request to the first token of each sequence.",
        lambda counts: counts.time_to_first_token.statistics(),
    ),
    HistogramMetric(
        "trioserve_inter_token_latency_seconds",
        "Seconds between two chunks of each sequence, divided by the tokens of the "
        "second one.",
        lambda counts: counts.inter_token_latency.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_time_per_output_token_seconds",
        "Mean seconds from one token of each sequence to the next, without the first "
        "token.",
        lambda counts: counts.time_per_output_token.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_queue_time_seconds",
        "Seconds for which a request waited in the engine's queue.",
        lambda counts: counts.queue_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_prefill_time_seconds",
        "Seconds from a request's first step to its first token.",
        lambda counts: counts.prefill_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_decode_time_seconds",
        "Seconds from a request's first token to its last one.",
        lambda counts: counts.decode_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_inference_time_seconds",
        "Seconds from a request's first step to its last token.",
        lambda counts: counts.inference_time.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_prompt_tokens",
        "Prompt tokens of a request, in all its prompts together.",
        lambda counts: counts.prompt_tokens.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_generation_tokens",
        "Generated tokens of a request, in all its sequences together.",
        lambda counts: counts.generation_tokens.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_params_n",
        "Number of sequences for each prompt of a request.",
        lambda counts: counts.params_n.statistics(),
    ),
    HistogramMetric(
        "trioserve_request_params_max_tokens",
        "Limit on the tokens of a sequence, for requests that set a limit.",
        lambda counts: counts.params_max_tokens.statistics(),
    ),
)


def _count_requests(engine: TokenEngine | TensorEngine) -> int:
    if isinstance(engine, TensorEngine):
        return engine.statistics().num_requests
    return engine.statistics().num_streams


def _count_prompt_tokens(engine: TokenEngine | TensorEngine) -> int:
    if isinstance(engine, TensorEngine):
        return engine.counters().num_input_tokens
    return engine.counters().num_prompt_tokens


ENGINE: Rows[TokenEngine | TensorEngine] = (
    GaugeMetric(
        "trioserve_num_requests_open",
        "Requests in the engine; one with many sequences or texts counts once.",
        _count_requests,
    ),
    GaugeMetric(
        "trioserve_num_requests_running",
        "Sequences, or texts to be pooled, that have begun on the device.",
        lambda engine: engine.statistics().scheduler.num_running,
    ),
    GaugeMetric(
        "trioserve_num_requests_waiting",
        "Sequences, or texts to be pooled, that wait for their turn on the device.",
        lambda engine: engine.statistics().scheduler.num_waiting,
    ),
    CounterMetric(
        "trioserve_prompt_tokens_total",
        "Prompt tokens, including those found in the prefix cache, counted once for each "
        "sequence.",
        _count_prompt_tokens,
    ),
    CounterMetric(
        "trioserve_steps_total",
        "Steps of the device.",
        lambda engine: engine.counters().num_steps,
    ),
    CounterMetric(
        "trioserve_step_seconds_total",
        "Seconds for which the device was busy with steps.",
        lambda engine: engine.counters().step_seconds,
    ),
)


def _find_kv_usage(engine: TokenEngine) -> float:
    scheduler = engine.statistics().scheduler
    return scheduler.num_used_blocks / scheduler.num_blocks


GENERATION: Rows[TokenEngine] = (
    GaugeMetric(
        "trioserve_steps_in_flight",
        "Steps that the device works on or will begin next.",
        lambda engine: engine.statistics().scheduler.num_steps_in_flight,
    ),
    GaugeMetric(
        "trioserve_kv_cache_usage_perc",
        "Part of the KV cache that running sequences hold; 1 is all of it.",
        _find_kv_usage,
    ),
    GaugeMetric(
        "trioserve_kv_cache_blocks",
        "Blocks of the KV cache.",
        lambda engine: engine.statistics().scheduler.num_blocks,
    ),
    GaugeMetric(
        "trioserve_kv_cache_used_blocks",
        "Blocks of the KV cache that running sequences hold.",
        lambda engine: engine.statistics().scheduler.num_used_blocks,
    ),
    GaugeMetric(
        "trioserve_prefix_cache_blocks",
        "Blocks of the KV cache whose content new sequences can share.",
        lambda engine: engine.counters().num_cached_blocks,
    ),
    CounterMetric(
        "trioserve_prefix_cache_queries_total",
        "Prompt tokens that were looked up in the prefix cache, counted once for each "
        "sequence.",
        lambda engine: engine.counters().num_prefix_queried_tokens,
    ),
    CounterMetric(
        "trioserve_prefix_cache_hits_total",
        "Prompt tokens that were found in the prefix cache, counted once for each "
        "sequence.",
        lambda engine: engine.counters().num_prefix_hit_tokens,
    ),
    CounterMetric(
        "trioserve_generation_tokens_total",
        "Tokens generated.",
        lambda engine: engine.counters().num_sampled_tokens,
    ),
    CounterMetric(
        "trioserve_computed_tokens_total",
        "Tokens that the model computed: prompts, output, and both again after a "
        "preemption.",
        lambda engine: engine.counters().num_computed_tokens,
    ),
    CounterMetric(
        "trioserve_num_preemptions_total",
        "Times that a running sequence lost its blocks and had to wait again.",
        lambda engine: engine.counters().num_preemptions,
    ),
)


POOLING: Rows[TensorEngine] = (
    CounterMetric(
        "trioserve_pooling_texts_total",
        "Texts read; a chunk of a long text counts as one.",
        lambda engine: engine.counters().num_inputs,
    ),
    GaugeMetric(
        "trioserve_pooling_texts_reserved",
        "Texts for which open requests have reserved places.",
        lambda engine: engine.statistics().num_reserved,
    ),
    GaugeMetric(
        "trioserve_pooling_results_kept",
        "Results kept on the device for a later comparison.",
        lambda engine: engine.statistics().scheduler.num_kept,
    ),
    GaugeMetric(
        "trioserve_pooling_results_to_release",
        "Kept results that the next step will release.",
        lambda engine: engine.statistics().scheduler.num_releases,
    ),
)

RENDERER: Rows[Renderer | PoolingRenderer] = (
    GaugeMetric(
        "trioserve_renderer_requests",
        "Requests that are being converted to tokens, or wait for that.",
        lambda renderer: renderer.room.statistics().num_requests,
    ),
    GaugeMetric(
        "trioserve_renderer_characters",
        "Characters of text in those requests.",
        lambda renderer: renderer.room.statistics().num_characters,
    ),
    CounterMetric(
        "trioserve_renderer_requests_refused_total",
        "Requests refused because too many requests or too much text waited for the "
        "renderer.",
        lambda renderer: renderer.room.counters().refused,
    ),
    GaugeMetric(
        "trioserve_renderer_workers",
        "Renderer threads that may work at once.",
        lambda renderer: renderer.workers.statistics().workers,
    ),
    GaugeMetric(
        "trioserve_renderer_workers_busy",
        "Renderer threads that are working.",
        lambda renderer: renderer.workers.statistics().busy,
    ),
    GaugeMetric(
        "trioserve_renderer_calls_waiting",
        "Calls that wait for a renderer thread.",
        lambda renderer: renderer.workers.statistics().waiting,
    ),
    GaugeMetric(
        "trioserve_renderer_threads_abandoned",
        "Renderer threads that still run a call whose request is gone.",
        lambda renderer: renderer.workers.statistics().abandoned,
    ),
)

STRUCTURES: Rows[StructureCompiler] = (
    CounterMetric(
        "trioserve_structure_cache_hits_total",
        "Forms of structured output that had been compiled for an earlier request.",
        lambda structures: structures.num_hits,
    ),
    CounterMetric(
        "trioserve_structure_cache_misses_total",
        "Forms of structured output that had to be compiled.",
        lambda structures: structures.num_misses,
    ),
)

TEMPLATES: Rows[TemplateProcesses] = (
    GaugeMetric(
        "trioserve_template_processes",
        "Processes for chat templates that may work at once.",
        lambda processes: processes.statistics().processes,
    ),
    GaugeMetric(
        "trioserve_template_processes_busy",
        "Processes for chat templates that are working.",
        lambda processes: processes.statistics().busy,
    ),
    GaugeMetric(
        "trioserve_template_calls_waiting",
        "Chat templates that wait for a process.",
        lambda processes: processes.statistics().waiting,
    ),
    CounterMetric(
        "trioserve_template_processes_killed_total",
        "Processes killed because a chat template did not end.",
        lambda processes: processes.num_killed,
    ),
)

IMAGES: Rows[ImageRenderer] = (
    CounterMetric(
        "trioserve_mm_cache_queries_total",
        "Images looked up in the cache of prepared images.",
        lambda images: images.counters().hits + images.counters().misses,
    ),
    CounterMetric(
        "trioserve_mm_cache_hits_total",
        "Images found in the cache of prepared images.",
        lambda images: images.counters().hits,
    ),
    GaugeMetric(
        "trioserve_mm_cache_images",
        "Images in the cache of prepared images.",
        lambda images: images.statistics().entries,
    ),
    GaugeMetric(
        "trioserve_mm_cache_bytes",
        "Bytes of the images in the cache of prepared images.",
        lambda images: images.statistics().num_bytes,
    ),
    GaugeMetric(
        "trioserve_images_bytes",
        "Bytes of all prepared images in memory: in the cache, a request or a step.",
        lambda images: images.num_held_bytes,
    ),
    GaugeMetric(
        "trioserve_media_workers",
        "Threads that may load and decode images at once.",
        lambda images: images.statistics().media.workers,
    ),
    GaugeMetric(
        "trioserve_media_workers_busy",
        "Threads that load and decode images.",
        lambda images: images.statistics().media.busy,
    ),
    GaugeMetric(
        "trioserve_media_calls_waiting",
        "Images that wait for a thread to load or decode them.",
        lambda images: images.statistics().media.waiting,
    ),
    GaugeMetric(
        "trioserve_media_threads_abandoned",
        "Threads that still load or decode an image whose request is gone.",
        lambda images: images.statistics().media.abandoned,
    ),
    GaugeMetric(
        "trioserve_image_processor_busy",
        "1 while the thread that prepares images for the model works, else 0.",
        lambda images: images.statistics().processing.busy,
    ),
    GaugeMetric(
        "trioserve_image_processor_calls_waiting",
        "Images that wait to be prepared for the model.",
        lambda images: images.statistics().processing.waiting,
    ),
    GaugeMetric(
        "trioserve_image_processor_threads_abandoned",
        "Threads that still prepare an image whose request is gone.",
        lambda images: images.statistics().processing.abandoned,
    ),
)

METRICS: Rows[Any] = (
    *(*SERVER, *LOOP, *REQUESTS, *GENERATION_REQUESTS),
    *(*ENGINE, *GENERATION, *POOLING),
    *(*RENDERER, *STRUCTURES, *TEMPLATES, *IMAGES),
)


def render_metrics(state: ServerState) -> bytes:
    """Return the text that Prometheus reads."""
    return render_families(_collect(state))


def _collect(state: ServerState) -> Iterator[Family]:
    yield from collect_rows(SERVER, state)
    yield from collect_rows(LOOP, state.loop_stall.statistics())
    yield from collect_rows(REQUESTS, state.counts)
    if state.engine is not None:
        yield from _collect_engine(state.engine, state.counts)
        yield from _collect_renderer(state.engine.renderer)


def _collect_engine(
    engine: TextEngine | PoolingEngine, counts: RequestCounts
) -> Iterator[Family]:
    yield from collect_rows(ENGINE, engine.engine)
    if isinstance(engine, PoolingEngine):
        yield from collect_rows(POOLING, engine.engine)
    else:
        yield from collect_rows(GENERATION, engine.engine)
        yield from collect_rows(GENERATION_REQUESTS, counts)


def _collect_renderer(renderer: Renderer | PoolingRenderer) -> Iterator[Family]:
    yield from collect_rows(RENDERER, renderer)
    if isinstance(renderer, Renderer):
        yield from collect_rows(STRUCTURES, renderer.structures)
    if renderer.chats.processes is not None:
        yield from collect_rows(TEMPLATES, renderer.chats.processes)
    if renderer.images is not None:
        yield from collect_rows(IMAGES, renderer.images)
