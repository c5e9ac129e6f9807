"""Metrics of `/metrics`: llama-server's with its names, and Weft's own."""

from collections.abc import Iterable

from weft import EmbeddingStats, MediaStats, Stats
from weft.server.prometheus import Family, counter, gauge
from weft.server.refusals import Refusals
from weft.server.run.executor import Purpose
from weft.server.run.service import Service
from weft.server.run.usage_counters import UsageCounters

__all__ = ["families", "of_engine", "without_engine"]

PHASES = {
    "receive": "receive",
    "place": "admit",
    "plan": "plan",
    "decode": "decode",
    "sample": "sample",
    "text": "detokenize",
    "emit": "publish",
    "spill": "offload",
    "restore": "reload",
}
"""Label of each phase of a step, and its name in `StepTimes`."""


def of_engine(service: Service) -> list[Family]:
    """Returns the engine's metrics as of its last step. Counters continue from before the model was unloaded."""
    engine = service.engine
    stats = engine.stats()
    families = [
        *_llamacpp_metrics(stats),
        *_prompts(stats),
        counter("weft:adapter_changes_total", "Decodes with other adapters than the one before.", stats.n_adapter_changes),
        gauge("weft:adapter_bytes", "Bytes of all adapters that are loaded.", sum(each.n_bytes for each in engine.adapters)),
        *_pool(stats),
        *_store(stats),
        _step_seconds(stats),
        *_vectors(engine.embedding_stats()),
        *_media(engine.model.media_stats(), service.executor.size(Purpose.MEDIA)),
    ]
    before = service.previous_snapshot(of_engine)
    if before is not None:
        families = [now.after(then) for now, then in zip(families, before[:-1], strict=True)]
    # Counted per process, not per engine.
    return [*families, _kernel_calls(stats)]


def without_engine(of_engine: Iterable[Family]) -> list[Family]:
    """Returns the metrics while the model is unloaded: counters keep their values, gauges are 0."""
    return [family if family.kind == "counter" else gauge(family.name, family.help, 0) for family in of_engine]


def families(of_engine: Iterable[Family], usage_counters: UsageCounters, refusals: Refusals) -> list[Family]:
    """Returns the metrics of the engine, of finished branches, and of refusals."""
    return [*of_engine, *_finished(usage_counters), *_speculation(), _refused(refusals)]


def _llamacpp_metrics(stats: Stats) -> list[Family]:
    n_processing = sum(slot.is_processing for slot in stats.slots)
    return [
        counter("llamacpp:prompt_tokens_total", "Prompt tokens computed.", stats.n_computed),
        counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens found computed.", stats.n_cached),
        counter("llamacpp:tokens_predicted_total", "Tokens drawn.", stats.n_predicted),
        counter("llamacpp:n_decode_total", "Decodes.", stats.n_decodes),
        gauge(
            "llamacpp:n_busy_slots_per_decode",
            "Average number of busy slots, over all decodes.",
            stats.n_busy / max(stats.n_decodes, 1),
        ),
        gauge("llamacpp:requests_processing", "Completions that are being written.", n_processing),
        gauge("llamacpp:requests_deferred", "Requests that wait for their first slot.", stats.n_waiting),
        gauge("llamacpp:kv_cache_usage_ratio", "Used part of the KV cache, 0 to 1.", stats.n_cells_used / stats.n_cells),
        gauge("llamacpp:kv_cache_tokens", "Used cells of the KV cache.", stats.n_cells_used),
    ]


def _finished(usage_counters: UsageCounters) -> list[Family]:
    prompt_s, predicted_s = usage_counters.prompt_ms / 1000, usage_counters.predicted_ms / 1000
    return [
        counter("llamacpp:prompt_seconds_total", "Seconds to the first token, over all finished completions.", prompt_s),
        counter(
            "llamacpp:tokens_predicted_seconds_total",
            "Seconds from first to last token, over all finished completions.",
            predicted_s,
        ),
        gauge("llamacpp:prompt_tokens_seconds", "Average prompt tokens computed per second.", usage_counters.prompt_per_second),
        gauge(
            "llamacpp:predicted_tokens_seconds",
            "Average tokens drawn per second of one completion.",
            usage_counters.predicted_per_second,
        ),
        # Not a sum, but monotonic, and llama-server exposes it as a counter.
        counter(
            "llamacpp:n_tokens_max",
            "Tokens of the longest finished completion, its prompt included.",
            usage_counters.n_tokens_max,
        ),
        counter(
            "weft:unread_tool_calls_total",
            "What looked like a tool call and was none, told as content.",
            usage_counters.n_malformed_calls,
        ),
    ]


def _speculation() -> list[Family]:
    """Speculative decoding does not exist; dashboards for llama-server divide by these."""
    return [
        counter("llamacpp:spec_decode_num_drafts_total", "Times that tokens were guessed ahead: never.", 0),
        counter("llamacpp:spec_decode_num_draft_tokens_total", "Tokens guessed ahead: none.", 0),
        counter("llamacpp:spec_decode_num_accepted_tokens_total", "Of these, tokens that were right: none.", 0),
    ]


def _prompts(stats: Stats) -> list[Family]:
    sources = {
        "computed": stats.n_computed,
        "pool": stats.n_cached - stats.n_reloaded - stats.n_awaited,
        "store": stats.n_reloaded,
        "awaited": stats.n_awaited,
    }
    about = "Prompt tokens by where they came from; awaited ones were still being computed by another request."
    return [
        counter("weft:prompt_tokens_total", about, sources, label="source"),
        counter("weft:branches_started_total", "Branches of requests that got a slot.", stats.branches.n_started),
        counter("weft:branches_forked_total", "Branches that were forked from others.", stats.branches.n_forked),
        counter("weft:branches_cancelled_total", "Branches that were cancelled on their own.", stats.branches.n_cancelled),
        counter(
            "weft:branch_tokens_computed_total",
            "Prompt tokens computed for branches that are not the first of their request, and for forks.",
            stats.branches.n_computed,
        ),
        counter("weft:branch_tokens_shared_total", "Prompt tokens that these found computed.", stats.branches.n_shared),
        counter("weft:preempted_total", "Times that a completion gave up its slot for an older one.", stats.n_preempted),
    ]


def _pool(stats: Stats) -> list[Family]:
    return [
        gauge("weft:cells", "Cells of the KV cache.", stats.n_cells),
        gauge("weft:cells_used", "Cells that hold something.", stats.n_cells_used),
        gauge("weft:cells_idle", "Cells that only idle prefixes hold.", stats.n_cells_idle),
        gauge("weft:cells_reached", "The highest used cell, plus one: what a decode looks through.", stats.n_cells_reached),
        gauge("weft:sequence_ids", "Sequence ids.", stats.n_ids),
        gauge("weft:sequence_ids_used", "Sequence ids that hold something.", stats.n_ids_used),
        gauge("weft:pinned_prefixes", "Prefixes that are pinned.", stats.n_pinned),
        gauge("weft:pinned_bytes", "Bytes that they take, each counted by itself.", stats.n_pinned_bytes),
    ]


def _store(stats: Stats) -> list[Family]:
    store = stats.host_cache
    limit = float("inf") if store.max_bytes is None else store.max_bytes
    return [
        gauge("weft:store_bytes", "Bytes of the host memory that holds what is cached beside the cells.", store.n_bytes),
        gauge("weft:store_limit_bytes", "Most bytes of it.", limit),
        gauge("weft:store_pieces", "Pieces in it.", store.n_entries),
        counter("weft:tokens_saved_total", "Tokens copied from cells into host memory.", store.n_offloaded),
        counter("weft:tokens_restored_total", "Tokens copied back into cells.", store.n_reloaded),
        counter(
            "weft:tokens_forgotten_total",
            "Cached tokens forgotten, for want of room or as dearer to copy than to compute.",
            store.n_evicted,
        ),
        counter("weft:tokens_relocated_total", "Tokens moved to lower cells.", store.n_relocated),
    ]


def _step_seconds(stats: Stats) -> Family:
    seconds = {label: getattr(stats.times, phase).total_seconds() for label, phase in PHASES.items()}
    return counter("weft:step_seconds_total", "Seconds of the engine's thread, by part of a step.", seconds, label="part")


def _kernel_calls(stats: Stats) -> Family:
    calls = {"attention": stats.n_kernel_attentions, "products": stats.n_kernel_products}
    return counter("weft:kernel_calls_total", "Operations that Weft's own kernels computed.", calls, label="kernel")


def _vectors(vectors: EmbeddingStats) -> list[Family]:
    sources = {"computed": vectors.n_computed, "shared": vectors.n_tokens - vectors.n_computed}
    about = "Tokens of texts whose vectors were made, by where they came from; shared ones begin several texts."
    return [
        counter("weft:vectors_texts_total", "Texts whose vectors were made.", vectors.n_texts),
        counter("weft:vectors_tokens_total", about, sources, label="source"),
        counter("weft:vectors_batches_total", "Batches that they were computed in.", vectors.n_batches),
        gauge("weft:vectors_tokens_waiting", "Tokens of texts that wait for their vectors.", vectors.n_waiting),
        gauge("weft:vectors_context_bytes", "Bytes of the context for vectors; 0 until it is needed.", vectors.n_bytes),
    ]


def _media(media: MediaStats, n_files_bytes: int) -> list[Family]:
    sources = {"encoded": media.n_encoded, "kept": media.n_reused}
    about = "Pictures, tiles of them, and sounds, by where their vectors came from: from the projector, or from before."
    return [
        counter("weft:media_total", about, sources, label="source"),
        counter("weft:media_encode_seconds_total", "Seconds that the projector took.", media.encode_s),
        gauge("weft:media_bytes", "Bytes of vectors of pictures and sounds that are kept.", media.n_kept_bytes),
        gauge(
            "weft:media_waiting_bytes",
            "Bytes of pictures and sounds that wait to be decoded or encoded, or are.",
            n_files_bytes + media.n_waiting_bytes,
        ),
        gauge("weft:projector_bytes", "Bytes of the projector's weights; 0 until it is loaded.", media.n_projector_bytes),
    ]


def _refused(refusals: Refusals) -> Family:
    counts = {str(reason): n for reason, n in refusals.counts.items()}
    about = "Connections and requests that were refused, and answers that were cut off, by reason."
    return counter("weft:refused_total", about, counts, label="reason")
