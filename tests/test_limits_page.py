"""Each row of the page of limits has the numbers of the code."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from litestar.status_codes import HTTP_413_REQUEST_ENTITY_TOO_LARGE

import weft
from weft import completion
from weft.chat import sandbox, template_terms
from weft.chat.answer.source import MAX_HELD
from weft.chat.answer.values import MAX_DEPTH
from weft.chat.request_options import MAX_TOOL_BYTES, MAX_TOOLS
from weft.documents import Limits
from weft.drawing import figure
from weft.errors import AnswerTooLargeError
from weft.fields.meta import field_meta
from weft.server import executor, json_request, keyed_lock, memory_budget
from weft.server.anthropic import translate as anthropic
from weft.server.compat import prompt_files
from weft.server.documents_api import document_routes, feed, node_routes
from weft.server.documents_api import schemas as documents_schemas
from weft.server.errors import (
    AnswersTooLargeError,
    BodiesTooLargeError,
    BodyTimeoutError,
    OffsetLostError,
    StreamsFullError,
    TextsWaitingError,
    describe,
)
from weft.server.inference import embedding, request_builder
from weft.server.media import fetching, files, reader
from weft.server.model import auto_pinner
from weft.server.request_fields.branches import MAX_BRANCHES
from weft.server.request_fields.paths import MAX_NESTED, MAX_PATH_CHARACTERS, MAX_PATHS
from weft.server.requests_api import translate as requests_api
from weft.server.responses import items, store, translate
from weft.server.responses import service as responses_service
from weft.server.score_api import scoring
from weft.server.streaming import client_timeouts, fair_scheduler, recording
from weft.server.streaming import responses as streamed
from weft.serving import endpoint
from weft.settings import MAX_THREADS_HTTP, volatile
from weft.tree import tree

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
CPUS = field_meta(weft.EngineConfig)["cpus"]


def constant(file: str, name: str) -> int:
    """Value of a constant of the crate."""
    source = (ROOT / "rust" / file).read_text(encoding="utf-8")
    found = re.search(rf"\bconst {name}: \w+ = ([^;]+);", source)
    assert found is not None, f"{file} has no {name}"
    expression = re.sub(r"Duration::from_(?:secs|millis)\((\d+)\)", r"\1", found[1])
    return int(eval(expression, {}))


def range_of(name: str) -> list[float]:
    """Bounds of a request's field, without their signs."""
    about = field_meta(weft.Request)[name]
    return [abs(about.low), about.high]


CONFIG, BACKLOG, VECTORS = "config/mod.rs", "engine/output/slow_consumers.rs", "embedding/queue.rs"
WAKES = "engine/output/wake_handle.rs"
REQUEST, SAMPLING = "request/mod.rs", "request/sampling.rs"
GRAMMAR, SCHEMA, KEPT = "grammar/mod.rs", "grammar/schema/mod.rs", "llama/vocabulary/grammar.rs"
SPECULATION = "engine/features/speculation/mod.rs"
DIVERSITY = "request/diversity.rs"
TRIGGERS, THOUGHT, STEERING = "grammar/lazy/triggers.rs", "request/reasoning.rs", "python/output_rules.rs"

BOUNDS: dict[str, Callable[[], list[float]]] = {
    "prefixes pinned by `cache_control` on `/v1/messages`": lambda: [
        auto_pinner.MAX_AUTO_PINS,
        *sorted(set(anthropic.TTLS_S.values())),
    ],
    "slots: branches that run concurrently, `-np`": lambda: [constant(CONFIG, "DEFAULT_SLOTS"), constant(CONFIG, "MAX_SLOTS")],
    "KV cache, `-c`": lambda: [constant("config/limits.rs", "DEFAULT_MAX_CELLS")],
    "completions of a request, `n`, and entries of `branches`": lambda: [field_meta(weft.Request)["n"].high],
    "branches in an answer of `GET /requests/{id}`": lambda: [requests_api.MAX_REPORTED],
    "branches of one stream, forks included": lambda: [constant(REQUEST, "MAX_COMPLETIONS")],
    "state of ended branches that can still be forked, while their streams exist; the oldest streams lose theirs first": lambda: [
        constant("engine/output/fork.rs", "MAX_ENDED_BYTES") >> 20
    ],
    "tokens that forks copy in one step; further forks wait for the next step": lambda: [
        constant("engine/features/forks/request.rs", "MAX_COPIED_TOKENS"),
        constant("engine/features/forks/request.rs", "REPLAY_COST"),
    ],
    "stop strings": lambda: [
        constant(REQUEST, "MAX_STOPS"),
        constant(REQUEST, "MAX_STOP_BYTES"),
    ],
    "drafted tokens of a completion in one step, `max_draft` and `speculative.n_max`": lambda: [
        constant("request/speculation.rs", "MAX_DRAFT")
    ],
    "texts from which [speculative decoding](../guides/speculation.md) drafts; the least recently used are dropped": lambda: [
        constant(SPECULATION, "MAX_INDEX_BYTES") >> 20
    ],
    "prompt tokens that one step adds to these texts": lambda: [constant(SPECULATION, "MAX_INDEXED")],
    "LoRA adapters, `--lora`": lambda: [constant(CONFIG, "MAX_ADAPTERS")],
    "samplers in the chain": lambda: [constant(SAMPLING, "MAX_SAMPLERS")],
    "sequence breakers of DRY": lambda: [
        constant(SAMPLING, "MAX_BREAKERS"),
        constant(SAMPLING, "MAX_BREAKER_BYTES"),
    ],
    "a grammar": lambda: [
        constant(GRAMMAR, "MAX_BYTES") >> 20,
        constant(GRAMMAR, "MAX_ELEMENTS"),
        constant(GRAMMAR, "MAX_DEPTH"),
    ],
    "triggers of a lazy grammar": lambda: [
        constant(TRIGGERS, "MAX_TRIGGERS"),
        constant(TRIGGERS, "MAX_TRIGGER_BYTES"),
        constant(TRIGGERS, "MAX_COMPILED_BYTES") >> 10,
        constant("grammar/lazy/mod.rs", "MAX_REACH"),
    ],
    "`preserved_tokens`": lambda: [constant(REQUEST, "MAX_PRESERVED"), constant(STEERING, "MAX_PRESERVED_BYTES")],
    "markers that begin reasoning, and markers that end it": lambda: [
        constant(THOUGHT, "MAX_MARKERS"),
        constant(THOUGHT, "MAX_MARKER_BYTES"),
        constant(STEERING, "MAX_MESSAGE_BYTES"),
        constant(THOUGHT, "MAX_CLOSING"),
    ],
    "a JSON schema": lambda: [
        constant(SCHEMA, "MAX_SCHEMA_BYTES") >> 10,
        constant(SCHEMA, "MAX_SCHEMA_DEPTH"),
        constant(SCHEMA, "MAX_SCHEMA_PARTS"),
        constant(SCHEMA, "MAX_PROPERTIES"),
    ],
    "texts that wait to be embedded": lambda: [constant(VECTORS, "MAX_TOKENS"), describe(weft.QueueFullError(1)).code],
    "embeddings of one request": lambda: [constant(VECTORS, "MAX_NUMBERS"), embedding.MAX_TEXTS],
    "one text, `-ub`": lambda: [
        constant("embedding/shape.rs", "DEFAULT_LONGEST"),
        describe(weft.InvalidRequestError("input", "too long")).code,
    ],
    "context for embeddings": lambda: [constant("embedding/shape.rs", "FILL")],
    "cached prefixes of texts": lambda: [constant("embedding/prefix_cache.rs", "MAX_KEPT")],
    "compiled grammars": lambda: [
        constant(KEPT, "MAX_GRAMMARS"),
        constant(KEPT, "MAX_CACHED_BYTES") >> 20,
    ],
    "a key or text of `--override-kv`, and a pattern of `--override-tensor`": lambda: [
        constant("config/overrides.rs", "MAX_BYTES"),
        constant("config/overrides.rs", "MAX_PATTERN_BYTES"),
    ],
    "CPUs in `-C` and `-Cr`": lambda: [int(CPUS.low), int(CPUS.high)],
    "threads for connections, `--threads-http`": lambda: [1, MAX_THREADS_HTTP],
    "prompt files of `--compat stream` in the user's cache folder": lambda: [
        prompt_files.MAX_FILES,
        prompt_files.MAX_BYTES >> 30,
    ],
    "checkpoints at the ends of a prompt's turns": lambda: [constant(REQUEST, "MAX_CHECKPOINTS")],
    "checkpoints along a prompt of a recurrent or hybrid model, `--ctx-checkpoints`": lambda: [
        weft.EngineConfig().ctx_checkpoints,
        1,
        constant("engine/scheduler/checkpoints.rs", "HOST_CACHE_PARTS"),
    ],
    "checkpoints along a prompt of a sliding-window model, `--ctx-checkpoints`": lambda: [
        weft.EngineConfig().ctx_checkpoints,
        constant("engine/scheduler/checkpoints.rs", "MIN_WINDOW_DISTANCE"),
        1,
        constant("engine/scheduler/checkpoints.rs", "HOST_CACHE_PARTS"),
    ],
    "one rendering of a chat template": lambda: [sandbox.MAX_STEPS, int(sandbox.MAX_WORK_S), template_terms.MAX_SIZE >> 20],
    "texts that wait to be tokenized, rendered or detokenized": lambda: [
        *(executor.MAX_WAITING >> 20, executor.VERY_LONG_TEXT >> 10),
        describe(TextsWaitingError("much waits")).code,
    ],
    "waiting requests of `/cache` and `/prefixes`, and of slot actions": lambda: [
        keyed_lock.MAX_LOCK_REQUESTS,
        describe(TextsWaitingError("much waits")).code,
    ],
    "history for `explain_cache`: requests, and evicted ranges": lambda: [
        constant("engine/features/explanations/history.rs", "MAX_HISTORY_TOKENS"),
        constant("engine/features/explanations/history.rs", "MAX_HISTORY_REQUESTS"),
        constant("cache/eviction_log.rs", "MAX_EVICTED_RUNS"),
    ],
    "tokens of chat answers, to recognize them in later prompts": lambda: [
        constant("engine/features/transcripts.rs", "MAX_TRANSCRIPT_TOKENS"),
        constant("engine/features/transcripts.rs", "MAX_TRANSCRIPTS"),
    ],
    "`--volatile-prompt-lines`": lambda: [volatile.MAX_RULES, volatile.MAX_PATTERN, volatile.MAX_WAYS],
    "host cache, `--cache-ram`": lambda: [constant("config/limits.rs", "DEFAULT_HOST_CACHE_BYTES") >> 20],
    "a request's body, `--max-body`": lambda: [
        json_request.BASE_BYTES >> 20,
        json_request.BYTES_PER_TOKEN,
        json_request.BYTES_PER_BIAS,
        json_request.MEDIA_BYTES >> 20,
        HTTP_413_REQUEST_ENTITY_TOO_LARGE,
    ],
    "a body of a route that answers without the model, such as an import of a document": lambda: [
        json_request.BYTES_WITHOUT_MODEL >> 20,
    ],
    "all bodies that are being received or decoded": lambda: [
        *(json_request.MAX_TOGETHER_BYTES >> 20, json_request.LARGE_BODY >> 10, describe(BodiesTooLargeError(1)).code),
    ],
    "files of one request": lambda: [files.MAX_FILES, reader.MAX_BYTES >> 20],
    "an image, and the ratio of its sides": lambda: [
        constant("llama/media/media_file.rs", "MAX_PIXELS"),
        constant("llama/media/media_file.rs", "MAX_RATIO"),
    ],
    "an audio file": lambda: [constant("llama/media/media_file.rs", "MAX_SECONDS")],
    "decoded files and their encodings in use": lambda: [
        constant("llama/media/mod.rs", "MAX_LOADED_BYTES") >> 20,
        describe(weft.QueueFullError(1)).code,
    ],
    "cached encodings": lambda: [constant("llama/media/encoder.rs", "MAX_KEPT_BYTES") >> 20],
    "tokens of an image, `--image-min-tokens` and `--image-max-tokens`": lambda: [
        constant("config/model_config.rs", "MAX_IMAGE_TOKENS")
    ],
    "a file fetched from another host": lambda: [
        *(reader.MAX_FETCHED >> 20, int(reader.FETCH_S), fetching.MAX_REDIRECTS, reader.MAX_FETCHES),
        describe(TextsWaitingError("much waits")).code,
    ],
    "files that wait to be decoded": lambda: [
        *(executor.MAX_WAITING >> 20, executor.VERY_LONG_TEXT >> 10),
        describe(TextsWaitingError("much waits")).code,
    ],
    "JSON values in a body of more than 64 KiB, without lists of token ids and biases": lambda: [
        constant("python/body.rs", "MAX_VALUES"),
        constant("python/body.rs", "MAX_DEPTH"),
    ],
    "`tools` of a chat": lambda: [MAX_TOOLS, MAX_TOOL_BYTES >> 10],
    "text held back while it may be a tool call": lambda: [MAX_HELD],
    "nesting of the arguments of a tool call": lambda: [MAX_DEPTH],
    "`response_fields`": lambda: [MAX_PATHS, MAX_PATH_CHARACTERS, MAX_NESTED],
    "log-probabilities of prompts, `echo` with `logprobs`": lambda: [request_builder.MAX_PROMPT_LOGPROBS],
    "`POST /score`": lambda: [scoring.MAX_CONTINUATIONS, scoring.MAX_SCORED],
    "cached log-probabilities of prompts, with the most likely token at each position": lambda: [
        constant("engine/features/prompt_logprobs/cache.rs", "MAX_CACHED_TOKENS"),
    ],
    "an answer without `stream`, and all such answers together": lambda: [
        *(memory_budget.MAX_ANSWER_BYTES >> 20, describe(AnswerTooLargeError(1)).code),
        *(memory_budget.MAX_TOGETHER_BYTES >> 20, memory_budget.SMALL_BYTES >> 20, describe(AnswersTooLargeError(1)).code),
    ],
    "a resumable stream: with the header `X-Conversation-Id`, or of a background response": lambda: [
        *(recording.MAX_BYTES >> 20, int(recording.KEPT_S), describe(OffsetLostError(0, 1)).code, int(recording.GRACE_S)),
    ],
    "all resumable streams": lambda: [
        *(
            recording.MAX_STREAMS,
            describe(StreamsFullError(1)).code,
            recording.MAX_TOGETHER_BYTES >> 20,
            recording.OWN_BYTES >> 10,
        ),
    ],
    "stored responses and conversations": lambda: [
        *(store.MAX_KEPT, store.MAX_KEPT_BYTES >> 20, responses_service.MAX_ONE_BYTES >> 20),
    ],
    "items of a body on `/v1/responses`, and `metadata`": lambda: [items.MAX_ITEMS, *translate.MAX_METADATA],
    "an answer of `Engine.complete` or `Engine.chat`, `max_bytes`": lambda: [completion.MAX_BYTES >> 20],
    "a `weft.Tree`, `max_nodes` and `max_bytes`, and prefixes saved with it": lambda: [
        *(tree.MAX_NODES, tree.MAX_BYTES >> 20, tree.MAX_CACHE_FILES),
    ],
    "documents of an API key, and nodes of one: `--documents-max-documents`, `--documents-max-nodes`": lambda: [
        *(Limits().max_documents, Limits().max_nodes, describe(weft.DocumentsFullError(1, "nodes")).code),
    ],
    "bytes of all documents of an API key: `--documents-max-bytes`": lambda: [
        Limits().max_bytes >> 20,
        describe(weft.DocumentsFullError(1, "bytes")).code,
    ],
    "alternatives of a token in a document, `n_probs`": lambda: [documents_schemas.MAX_ALTERNATIVES],
    "buffered events of `GET /documents/events`, for each API key": lambda: [feed.MAX_FEED_BYTES >> 20],
    "nodes in an answer of `GET /documents/{id}/nodes`, and matches of a search": lambda: [
        *(node_routes.MAX_PAGE, document_routes.MAX_HITS),
    ],
    "nodes in a picture of `GET /cache` or a `weft.Tree`": lambda: [figure.DEFAULT_DRAWN, figure.MAX_DRAWN],
    "one write to a client, and the work on a stream before other tasks run": lambda: [
        streamed.MAX_WRITE_BYTES >> 10,
        round(1000 * fair_scheduler.SLICE_S),
    ],
    "connections, and connections of one address": lambda: [endpoint.MAX_CONNECTIONS],
    "the head of a request": lambda: [endpoint.HEAD_BYTES >> 10, endpoint.HEAD_S],
    "a body's speed": lambda: [
        client_timeouts.BODY_BYTES_PER_S,
        client_timeouts.BODY_GRACE_S,
        client_timeouts.BODY_SAVED_S,
        describe(BodyTimeoutError("slow")).code,
    ],
    "concurrent requests of one HTTP/2 connection": lambda: [endpoint.N_STREAMS],
    "requests that wait for a slot, `--max-queue`": lambda: [
        weft.EngineConfig().max_queue,
        describe(weft.QueueFullError(1)).code,
    ],
    "unread events of a stream": lambda: [
        constant(BACKLOG, "MAX_EVENTS_BEHIND"),
        constant(BACKLOG, "MAX_BYTES_BEHIND") >> 20,
        constant(CONFIG, "SLOW_CONSUMER_TIMEOUT"),
    ],
    "delay of a token after its step, so that the event loop wakes once for several streams": lambda: [
        constant(WAKES, "WAKE_INTERVAL"),
        constant(WAKES, "STREAMS_PER_INTERVAL"),
        constant(WAKES, "MAX_WAKE_INTERVAL"),
    ],
    "`beam_width`, and `length_penalty`": lambda: [
        constant(DIVERSITY, "MIN_BEAMS"),
        *range_of("length_penalty"),
    ],
    "`priority`": lambda: [
        *range_of("priority"),
        constant("engine/scheduler/scheduling_key.rs", "STARTS_PER_PRIORITY"),
    ],
    "`max_token_gap_ms`": lambda: range_of("max_token_gap_ms"),
    "a run of letters, digits, white space or other characters, in vocabularies such as `gpt-4o` and `tekken`": lambda: [
        constant("llama/vocabulary/splitter.rs", "MAX_RUN"),
        400,
        *(constant("llama/vocabulary/splitter.rs", name) for name in ("STACK_BYTES_PER_CHARACTER", "MAX_SLOW_RUN")),
    ],
    "one decode, `-ub`": lambda: [constant("config/compute.rs", "DEFAULT_UBATCH")],
    "99th percentile of the gaps of a running stream while prompts are computed, `--max-token-gap`": lambda: [
        constant("config/engine_config.rs", name) for name in ("IN_TOKENS", "LEAST", "USUAL")
    ],
}
"""Numbers of each row, from the code that applies them."""

NOT_COUNTED = {
    "attention scores of llama.cpp's attention without flash attention",
    "scratch memory of Weft's kernels",
    "attention mask of a decode in Weft's kernels",
    "pinned prefixes",
    "an untokenized prompt",
}
"""Rows whose bound is a fraction of something, or the size of a data structure."""


def rows_of_the_page() -> dict[str, str]:
    """Text of each bound, by its name."""
    rows = [line.removeprefix("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return {name: bound for name, bound, *_ in rows if (name, bound) not in (("bound", "default"), ("---", "---"))}


def test_every_row_of_the_page_is_held() -> None:
    assert rows_of_the_page().keys() == BOUNDS.keys() | NOT_COUNTED


@pytest.mark.parametrize("row", BOUNDS)
def test_a_row_has_the_numbers_of_the_code(row: str) -> None:
    numbers = re.findall(r"(?<![\w×])\d[\d,]*", rows_of_the_page()[row])
    assert [int(number.replace(",", "")) for number in numbers] == BOUNDS[row]()


def test_the_bounds_of_a_request_are_the_engines() -> None:
    fields = field_meta(weft.Request)
    assert fields["n"].high == MAX_BRANCHES == constant(REQUEST, "MAX_COMPLETIONS")
    assert fields["priority"].high == -fields["priority"].low == constant(REQUEST, "MAX_PRIORITY")
    assert fields["beam_width"].low == constant(DIVERSITY, "MIN_BEAMS")
    assert fields["length_penalty"].high == -fields["length_penalty"].low == constant(DIVERSITY, "MAX_LENGTH_PENALTY")
    assert fields["max_token_gap_ms"].high == constant(REQUEST, "LONGEST_GAP") * 1_000
    assert fields["logprobs"].high == fields["prompt_logprobs"].high == constant(SAMPLING, "MAX_PROBS")
    settings = field_meta(weft.EngineConfig)
    assert settings["n_slots"].high == constant(CONFIG, "MAX_SLOTS")
    assert settings["cpus"].high + 1 == settings["cpus_batch"].high + 1 == constant(CONFIG, "MAX_THREADS")
    assert settings["poll"].high == settings["poll_batch"].high == constant("config/threads.rs", "MAX_POLL")
    assert settings["n_threads"].high == settings["n_threads_batch"].high == constant(CONFIG, "MAX_THREADS")
