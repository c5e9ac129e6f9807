"""Metrics of `/metrics`: llama-server's under its names, and Weft's own.

The counters belong to the engine, so they are collected at each scrape instead of being kept in a registry. The help texts and
the labels are in `metrics.json`; the functions of this module return values by name.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import msgspec
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from weft import Histogram, Stats
from weft.server.executor import Purpose
from weft.server.inference.usage_counters import UsageCounters
from weft.server.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4"

STAGES = ("receive", "admit", "plan", "decode", "sample", "detokenize", "publish", "offload", "reload")
"""Stages of a step in `StepTimes`."""

LONGEST = "llamacpp:n_tokens_max"
"""A maximum, which llama-server exposes as a counter without the suffix of counters."""

Values = Mapping[str, float | Histogram | Mapping[str, float]]
"""Values by name of the metric. A mapping has one value for each value of the label."""


class _Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    help: dict[str, str]
    labels: dict[str, str]
    """Names of labels."""


_TEXTS = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Texts)


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
        engine = [metric(each.name, 0) if each.type == "gauge" else each for each in engine]
    refused = {"weft:refused_total": {str(reason): n for reason, n in service.refusals.counts.items()}}
    return [*engine, *of_branches(service.usage_counters), *_metrics(refused)]


def of_engine(service: Service) -> list[Metric]:
    """Returns the engine's metrics as of its last step. Counters continue from before the model was unloaded."""
    engine = service.engine
    stats, embeddings, media = engine.stats(), engine.embedding_stats(), engine.model.media_stats()
    values: Values = {
        **_of_steps(stats),
        **_of_cache(stats),
        "weft:adapter_bytes": sum(each.n_bytes for each in engine.adapters),
        "weft:embedding_texts_total": embeddings.n_texts,
        "weft:embedding_tokens_total": {"computed": embeddings.n_computed, "shared": embeddings.n_tokens - embeddings.n_computed},
        "weft:embedding_batches_total": embeddings.n_batches,
        "weft:embedding_tokens_waiting": embeddings.n_waiting,
        "weft:embedding_context_bytes": embeddings.n_bytes,
        "weft:media_total": {"encoded": media.n_encoded, "cached": media.n_reused},
        "weft:media_encode_seconds_total": media.encode_s,
        "weft:media_bytes": media.n_kept_bytes,
        "weft:media_waiting_bytes": service.executor.size(Purpose.MEDIA) + media.n_waiting_bytes,
        "weft:projector_bytes": media.n_projector_bytes,
    }
    metrics = _metrics(values)
    before = service.previous_snapshot(of_engine)
    if before is not None:
        metrics = [_continued(now, then) for now, then in zip(metrics, before[:-1], strict=True)]
    # Counted per process, not per engine.
    calls = {"attention": stats.n_kernel_attentions, "products": stats.n_kernel_products}
    return [*metrics, metric("weft:kernel_calls_total", calls)]


def _metrics(values: Values) -> list[Metric]:
    return [metric(name, value) for name, value in values.items()]


def metric(name: str, value: float | Histogram | Mapping[str, float]) -> Metric:
    """Returns a metric: a histogram, a counter if the name ends in `_total`, or a gauge."""
    text = _TEXTS.help[name]
    # Those of replicas are plain copies.
    if not isinstance(value, int | float | Mapping):
        n, buckets = 0, []
        for bound, of_bucket in value.buckets:
            n += of_bucket
            buckets.append((str(bound), n))
        return HistogramMetricFamily(name, text, [*buckets, ("+Inf", value.n)], value.sum)
    if name == LONGEST:
        longest = Metric(name, text, "counter")
        longest.add_sample(name, {}, cast("float", value))
        return longest
    if isinstance(value, Mapping):
        counter = CounterMetricFamily(name, text, labels=[_TEXTS.labels[name]])
        for label_value, of_label in value.items():
            counter.add_metric([label_value], of_label)
        return counter
    return CounterMetricFamily(name, text, value) if name.endswith("_total") else GaugeMetricFamily(name, text, value)


def _continued(now: Metric, before: Metric) -> Metric:
    """Returns a metric with the counts of `before` added. Gauges are returned unchanged."""
    if now.type == "gauge":
        return now
    total = Metric(now.name, now.documentation, now.type)
    for sample, then in zip(now.samples, before.samples, strict=True):
        total.add_sample(sample.name, sample.labels, sample.value + then.value)
    return total


def _of_steps(stats: Stats) -> Values:
    """Returns the metrics of requests, branches and steps. The histograms are in vLLM's buckets and under its names."""
    branches, histograms, speculation = stats.branches, stats.histograms, stats.speculation
    drafts = speculation.sources
    return {
        "llamacpp:prompt_tokens_total": stats.n_computed,
        "llamacpp:prompt_tokens_cached_total": stats.n_cached,
        "llamacpp:tokens_predicted_total": stats.n_predicted,
        "llamacpp:n_decode_total": stats.n_decodes,
        "llamacpp:n_busy_slots_per_decode": stats.n_busy / max(stats.n_decodes, 1),
        "llamacpp:requests_processing": sum(slot.is_processing for slot in stats.slots),
        "llamacpp:requests_deferred": stats.n_waiting,
        "weft:time_to_first_token_seconds": histograms.time_to_first_token,
        "weft:inter_token_latency_seconds": histograms.inter_token_latency,
        "weft:request_queue_time_seconds": histograms.queue_time,
        "weft:e2e_request_latency_seconds": histograms.end_to_end_latency,
        "weft:request_prompt_tokens": histograms.prompt_tokens,
        "weft:request_generation_tokens": histograms.generation_tokens,
        "weft:prompt_tokens_total": {
            "computed": stats.n_computed,
            "device_cache": stats.n_cached - stats.n_reloaded - stats.n_awaited,
            "host_cache": stats.n_reloaded,
            "awaited": stats.n_awaited,
        },
        "weft:branches_started_total": branches.n_started,
        "weft:branches_forked_total": branches.n_forked,
        "weft:branches_cancelled_total": branches.n_cancelled,
        "weft:branch_tokens_computed_total": branches.n_computed,
        "weft:branch_tokens_shared_total": branches.n_shared,
        "weft:preemptions_total": stats.n_preempted,
        "llamacpp:spec_decode_num_drafts_total": sum(each.n_drafts for each in drafts.values()),
        "llamacpp:spec_decode_num_draft_tokens_total": sum(each.n_drafted for each in drafts.values()),
        "llamacpp:spec_decode_num_accepted_tokens_total": sum(each.n_accepted for each in drafts.values()),
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total": {str(at): n for at, n in enumerate(speculation.n_accepted_at)},
        "weft:draft_tokens_total": {source: each.n_drafted for source, each in drafts.items()},
        "weft:draft_tokens_accepted_total": {source: each.n_accepted for source, each in drafts.items()},
        "weft:draft_seconds_total": {source: each.time.total_seconds() for source, each in drafts.items()},
        "weft:adapter_changes_total": stats.n_adapter_changes,
        "weft:step_seconds_total": {stage: getattr(stats.times, stage).total_seconds() for stage in STAGES},
    }


def _of_cache(stats: Stats) -> Values:
    """Returns the metrics of the device cache and the host cache."""
    cache = stats.host_cache
    return {
        "llamacpp:kv_cache_usage_ratio": stats.n_cells_used / stats.n_cells,
        "llamacpp:kv_cache_tokens": stats.n_cells_used,
        "weft:cells": stats.n_cells,
        "weft:cells_used": stats.n_cells_used,
        "weft:cells_idle": stats.n_cells_idle,
        "weft:cells_reached": stats.n_cells_reached,
        "weft:sequence_ids": stats.n_ids,
        "weft:sequence_ids_used": stats.n_ids_used,
        "weft:pinned_prefixes": stats.n_pinned,
        "weft:pinned_bytes": stats.n_pinned_bytes,
        "weft:host_cache_bytes": cache.n_bytes,
        "weft:host_cache_limit_bytes": float("inf") if cache.max_bytes is None else cache.max_bytes,
        "weft:host_cache_entries": cache.n_entries,
        "weft:tokens_offloaded_total": cache.n_offloaded,
        "weft:tokens_reloaded_total": cache.n_reloaded,
        "weft:tokens_evicted_total": cache.n_evicted,
        "weft:tokens_relocated_total": cache.n_relocated,
    }


def of_branches(usage_counters: UsageCounters) -> list[Metric]:
    """Returns the metrics of finished branches."""
    values: Values = {
        "llamacpp:prompt_seconds_total": usage_counters.prompt_ms / 1000,
        "llamacpp:tokens_predicted_seconds_total": usage_counters.predicted_ms / 1000,
        "llamacpp:prompt_tokens_seconds": usage_counters.prompt_per_second,
        "llamacpp:predicted_tokens_seconds": usage_counters.predicted_per_second,
        LONGEST: usage_counters.n_tokens_max,
        "weft:malformed_tool_calls_total": usage_counters.n_malformed_calls,
    }
    return _metrics(values)
