"""Metrics of `/metrics`: llama-server's under its names, and Weft's own.

The counters belong to the engine, so they are collected at each scrape instead of being kept in a registry.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from weft import EmbeddingStats, Histogram, MediaStats, SpeculationStats, Stats
from weft.server.executor import Purpose
from weft.server.inference.usage_counters import UsageCounters
from weft.server.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4"

STAGES = ("receive", "admit", "plan", "decode", "sample", "detokenize", "publish", "offload", "reload")
"""Stages of a step in `StepTimes`."""

LONGEST = "llamacpp:n_tokens_max"
"""A maximum, which llama-server exposes as a counter without the suffix of counters."""


class _Collector(Collector):
    """Passes collected metrics to the library's writer."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics."""
        return self._metrics


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Returns metrics in the Prometheus text format, version 0.0.4."""
    return generate_latest(_Collector(metrics)).replace(f" {LONGEST}_total ".encode(), f" {LONGEST} ".encode())


def collect(service: Service) -> list[Metric]:
    """Returns the metrics of the engine, of finished branches, and of refusals.

    While the model is unloaded, gauges of the engine are 0, and its counters and histograms keep their values.
    """
    engine = service.snapshot(of_engine)
    if not service.engine.is_running:
        engine = [gauge(each.name, each.documentation, 0) if each.type == "gauge" else each for each in engine]
    refused = counter(
        "weft:refused_total",
        "Connections and requests that were refused, and responses that were interrupted, by reason.",
        {str(reason): n for reason, n in service.refusals.counts.items()},
        label="reason",
    )
    return [*engine, *of_branches(service.usage_counters), refused]


def of_engine(service: Service) -> list[Metric]:
    """Returns the engine's metrics as of its last step. Counters continue from before the model was unloaded."""
    engine = service.engine
    stats = engine.stats()
    stages = {stage: getattr(stats.times, stage).total_seconds() for stage in STAGES}
    metrics = [
        *_llamacpp_metrics(stats),
        *_histograms(stats),
        *_prompts(stats),
        *_speculation(stats.speculation),
        counter("weft:adapter_changes_total", "Decodes with other adapters than the previous one.", stats.n_adapter_changes),
        gauge("weft:adapter_bytes", "Size of all loaded adapters, in bytes.", sum(each.n_bytes for each in engine.adapters)),
        *_device_cache(stats),
        *_host_cache(stats),
        counter("weft:step_seconds_total", "Seconds of the worker thread, by stage of a step.", stages, label="stage"),
        *_embeddings(engine.embedding_stats()),
        *_media(engine.model.media_stats(), service.executor.size(Purpose.MEDIA)),
    ]
    before = service.previous_snapshot(of_engine)
    if before is not None:
        metrics = [_continued(now, then) for now, then in zip(metrics, before[:-1], strict=True)]
    # Counted per process, not per engine.
    calls = {"attention": stats.n_kernel_attentions, "products": stats.n_kernel_products}
    return [*metrics, counter("weft:kernel_calls_total", "Operations computed by Weft's own kernels.", calls, label="kernel")]


def counter(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    """Returns a counter, whose name ends in `_total`, with one value or one for each value of its label."""
    if not isinstance(value, Mapping):
        return CounterMetricFamily(name, about, value)
    metric = CounterMetricFamily(name, about, labels=[label])
    for label_value, of_label in value.items():
        metric.add_metric([label_value], of_label)
    return metric


def gauge(name: str, about: str, value: float) -> Metric:
    """Returns a gauge."""
    return GaugeMetricFamily(name, about, value)


def histogram(name: str, about: str, value: Histogram) -> Metric:
    """Returns a histogram."""
    n, buckets = 0, []
    for bound, of_bucket in value.buckets:
        n += of_bucket
        buckets.append((str(bound), n))
    return HistogramMetricFamily(name, about, [*buckets, ("+Inf", value.n)], value.sum)


def _continued(now: Metric, before: Metric) -> Metric:
    """Returns a metric with the counts of `before` added. Gauges are returned unchanged."""
    if now.type == "gauge":
        return now
    total = Metric(now.name, now.documentation, now.type)
    for sample, then in zip(now.samples, before.samples, strict=True):
        total.add_sample(sample.name, sample.labels, sample.value + then.value)
    return total


def _llamacpp_metrics(stats: Stats) -> list[Metric]:
    n_processing = sum(slot.is_processing for slot in stats.slots)
    return [
        counter("llamacpp:prompt_tokens_total", "Prompt tokens computed.", stats.n_computed),
        counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens reused from the cache.", stats.n_cached),
        counter("llamacpp:tokens_predicted_total", "Tokens generated.", stats.n_predicted),
        counter("llamacpp:n_decode_total", "Decodes.", stats.n_decodes),
        gauge(
            "llamacpp:n_busy_slots_per_decode",
            "Average number of busy slots, over all decodes.",
            stats.n_busy / max(stats.n_decodes, 1),
        ),
        gauge("llamacpp:requests_processing", "Branches in slots.", n_processing),
        gauge("llamacpp:requests_deferred", "Requests that wait for their first slot.", stats.n_waiting),
        gauge("llamacpp:kv_cache_usage_ratio", "Used part of the KV cache, 0 to 1.", stats.n_cells_used / stats.n_cells),
        gauge("llamacpp:kv_cache_tokens", "Used cells of the KV cache.", stats.n_cells_used),
    ]


_HISTOGRAMS = {
    "time_to_first_token_seconds": "Seconds from a request's submission to the first token of a branch.",
    "inter_token_latency_seconds": "Seconds between two consecutive tokens of a branch.",
    "request_queue_time_seconds": "Seconds from a request's submission until a branch gets a slot.",
    "e2e_request_latency_seconds": "Seconds from a request's submission to the end of a branch that was not cancelled.",
    "request_prompt_tokens": "Prompt tokens of a branch that was not cancelled.",
    "request_generation_tokens": "Tokens generated by a branch that was not cancelled.",
}
"""Distributions of branches, in vLLM's buckets and under its names."""


def _histograms(stats: Stats) -> list[Metric]:
    of = stats.histograms
    values = [of.time_to_first_token, of.inter_token_latency, of.queue_time, of.end_to_end_latency]
    values += [of.prompt_tokens, of.generation_tokens]
    return [histogram(f"weft:{name}", about, value) for (name, about), value in zip(_HISTOGRAMS.items(), values, strict=True)]


def of_branches(usage_counters: UsageCounters) -> list[Metric]:
    """Returns the metrics of finished branches."""
    prompt_s, predicted_s = usage_counters.prompt_ms / 1000, usage_counters.predicted_ms / 1000
    longest = Metric(LONGEST, "Tokens of the longest finished branch, including its prompt.", "counter")
    longest.add_sample(LONGEST, {}, usage_counters.n_tokens_max)
    return [
        counter("llamacpp:prompt_seconds_total", "Seconds from slot to first token, over all finished branches.", prompt_s),
        counter(
            "llamacpp:tokens_predicted_seconds_total",
            "Seconds from first to last token, over all finished branches.",
            predicted_s,
        ),
        gauge("llamacpp:prompt_tokens_seconds", "Average prompt tokens computed per second.", usage_counters.prompt_per_second),
        gauge(
            "llamacpp:predicted_tokens_seconds",
            "Average tokens generated per second by one branch.",
            usage_counters.predicted_per_second,
        ),
        longest,
        counter(
            "weft:malformed_tool_calls_total",
            "Malformed tool calls, which were returned as content.",
            usage_counters.n_malformed_calls,
        ),
    ]


def _prompts(stats: Stats) -> list[Metric]:
    sources = {
        "computed": stats.n_computed,
        "device_cache": stats.n_cached - stats.n_reloaded - stats.n_awaited,
        "host_cache": stats.n_reloaded,
        "awaited": stats.n_awaited,
    }
    about = "Prompt tokens by source; awaited ones were being computed by another request when they were matched."
    branches = stats.branches
    return [
        counter("weft:prompt_tokens_total", about, sources, label="source"),
        counter("weft:branches_started_total", "Branches that were in a slot.", branches.n_started),
        counter("weft:branches_forked_total", "Branches that were forked from others.", branches.n_forked),
        counter("weft:branches_cancelled_total", "Branches that were cancelled individually.", branches.n_cancelled),
        counter(
            "weft:branch_tokens_computed_total",
            "Prompt tokens computed for forks and for all but the first branch of a request.",
            branches.n_computed,
        ),
        counter("weft:branch_tokens_shared_total", "Prompt tokens that these branches reused.", branches.n_shared),
        counter("weft:preemptions_total", "Branches preempted by a more senior one.", stats.n_preempted),
    ]


def _speculation(stats: SpeculationStats) -> list[Metric]:
    sources, drafts = stats.sources, stats.sources.values()
    positions = {str(position): n for position, n in enumerate(stats.n_accepted_at)}
    return [
        counter("llamacpp:spec_decode_num_drafts_total", "Drafts that were verified.", sum(each.n_drafts for each in drafts)),
        counter("llamacpp:spec_decode_num_draft_tokens_total", "Drafted tokens.", sum(each.n_drafted for each in drafts)),
        counter(
            "llamacpp:spec_decode_num_accepted_tokens_total",
            "Drafted tokens that were generated.",
            sum(each.n_accepted for each in drafts),
        ),
        counter(
            "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
            "Drafted tokens that were generated, by position in the draft; the last position counts all further ones.",
            positions,
            label="position",
        ),
        counter(
            "weft:draft_tokens_total",
            "Drafted tokens by source.",
            {source: each.n_drafted for source, each in sources.items()},
            label="source",
        ),
        counter(
            "weft:draft_tokens_accepted_total",
            "Drafted tokens that were generated, by source.",
            {source: each.n_accepted for source, each in sources.items()},
            label="source",
        ),
    ]


def _device_cache(stats: Stats) -> list[Metric]:
    return [
        gauge("weft:cells", "Cells of the device cache.", stats.n_cells),
        gauge("weft:cells_used", "Used cells.", stats.n_cells_used),
        gauge("weft:cells_idle", "Cells that only idle prefixes use.", stats.n_cells_idle),
        gauge("weft:cells_reached", "Highest used cell plus one: the range that each decode scans.", stats.n_cells_reached),
        gauge("weft:sequence_ids", "Sequence ids.", stats.n_ids),
        gauge("weft:sequence_ids_used", "Used sequence ids.", stats.n_ids_used),
        gauge("weft:pinned_prefixes", "Pinned prefixes.", stats.n_pinned),
        gauge("weft:pinned_bytes", "Size of pinned prefixes in bytes, each counted separately.", stats.n_pinned_bytes),
    ]


def _host_cache(stats: Stats) -> list[Metric]:
    cache = stats.host_cache
    limit = float("inf") if cache.max_bytes is None else cache.max_bytes
    return [
        gauge("weft:host_cache_bytes", "Size of the host cache, in bytes.", cache.n_bytes),
        gauge("weft:host_cache_limit_bytes", "Maximum size of the host cache, in bytes.", limit),
        gauge("weft:host_cache_entries", "Entries of the host cache.", cache.n_entries),
        counter("weft:tokens_offloaded_total", "Tokens copied from the device cache to the host cache.", cache.n_offloaded),
        counter("weft:tokens_reloaded_total", "Tokens copied back to the device cache.", cache.n_reloaded),
        counter("weft:tokens_evicted_total", "Cached tokens evicted for lack of space.", cache.n_evicted),
        counter("weft:tokens_relocated_total", "Tokens moved to lower cells.", cache.n_relocated),
    ]


def _embeddings(stats: EmbeddingStats) -> list[Metric]:
    sources = {"computed": stats.n_computed, "shared": stats.n_tokens - stats.n_computed}
    about = "Tokens of embedded texts, by source; shared ones begin several texts."
    return [
        counter("weft:embedding_texts_total", "Texts embedded.", stats.n_texts),
        counter("weft:embedding_tokens_total", about, sources, label="source"),
        counter("weft:embedding_batches_total", "Batches of texts that were embedded together.", stats.n_batches),
        gauge("weft:embedding_tokens_waiting", "Tokens of texts that wait to be embedded.", stats.n_waiting),
        gauge("weft:embedding_context_bytes", "Size of the context for embeddings; 0 until its first use.", stats.n_bytes),
    ]


def _media(media: MediaStats, n_files_bytes: int) -> list[Metric]:
    sources = {"encoded": media.n_encoded, "cached": media.n_reused}
    about = "Images, tiles of images, and audio, by source of their encoding: the projector, or the cache."
    return [
        counter("weft:media_total", about, sources, label="source"),
        counter("weft:media_encode_seconds_total", "Seconds that the projector spent encoding.", media.encode_s),
        gauge("weft:media_bytes", "Size of cached encodings, in bytes.", media.n_kept_bytes),
        gauge(
            "weft:media_waiting_bytes",
            "Bytes of images and audio that are being decoded or encoded, or wait for it.",
            n_files_bytes + media.n_waiting_bytes,
        ),
        gauge("weft:projector_bytes", "Size of the projector's weights; 0 until it is loaded.", media.n_projector_bytes),
    ]
