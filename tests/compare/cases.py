"""What both servers are asked."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.compare.exchange import Case

__all__ = ["cases"]

Json = Any

END = 4
"""The demo model's token that ends a turn."""
PROMPT = "Once upon a time,"
GREEDY: Mapping[str, Json] = {"temperature": 0, "n_predict": 12, "cache_prompt": False}
USER = [{"role": "user", "content": "What does a cow say?"}]
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
SCHEMA = {"type": "object", "properties": {"animal": {"enum": ["cow", "dog"]}}, "required": ["animal"]}
GRAMMAR = 'root ::= " there" " was" [a-z ]*'
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two digits.",
        "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}}, "required": ["a", "b"]},
    },
}
TOLD = {
    "type": "function",
    "function": {
        "name": "tell",
        "description": "Tells who is there.",
        "parameters": {"type": "object", "properties": {"animal": {"enum": ["cow", "dog"]}}},
    },
}
LONG = "tell me more about the small red fox " * 400
"""More tokens than the context has."""

COMPLETIONS: Mapping[str, Json] = {
    "greedy": {},
    "one token": {"n_predict": 1},
    "no token": {"n_predict": 0},
    "max_tokens": {"n_predict": None, "max_tokens": 5},
    "a stop word": {"stop": [" there"]},
    "a stop word of several tokens": {"stop": ["was a"]},
    "a story to its end": {
        "prompt": "<|im_start|>user\nWhat does a cow say?<|im_end|>\n<|im_start|>assistant\n",
        "n_predict": 60,
    },
    "probabilities": {"n_probs": 3, "n_predict": 4},
    "probabilities after the samplers": {
        "n_probs": 3,
        "n_predict": 4,
        "post_sampling_probs": True,
        "temperature": 0.8,
        "seed": 1,
    },
    "one probability": {"n_probs": 1, "n_predict": 4},
    "tokens": {"return_tokens": True},
    "timings of each token": {"timings_per_token": True, "n_predict": 3},
    "progress": {"return_progress": True, "n_predict": 3},
    "progress and timings": {"return_progress": True, "timings_per_token": True, "n_predict": 3},
    "ignore_eos": {"ignore_eos": True},
    "biases in a list": {"logit_bias": [[300, 2.5], [301, False]]},
    "biases by name": {"logit_bias": {"300": 2.5}},
    "bias of a text": {"logit_bias": [[" there", -2.0]]},
    "a seed": {"temperature": 0.8, "seed": 42},
    "a grammar": {"grammar": GRAMMAR},
    "a schema": {"json_schema": SCHEMA, "n_predict": 30},
    "two completions": {"n": 2, "n_predict": 4},
    "tokens for a prompt": {"prompt": [1, 300, 301, 302]},
    "tokens and texts for a prompt": {"prompt": [1, "Once upon", 300]},
    "several prompts": {"prompt": [PROMPT, "The fox"], "n_predict": 4},
    "an empty prompt": {"prompt": "", "n_predict": 4},
    "letters of several bytes": {"prompt": "Ünïcödé ☃ and 🦊", "n_predict": 6},
    "chosen fields": {"response_fields": ["content", "generation_settings/n_predict", "timings"], "n_predict": 3},
    "samplers by name": {"samplers": ["top_k", "temperature"], "n_predict": 3},
    "samplers by letter": {"samplers": "kt", "n_predict": 3},
    "every sampler's number": {
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.9,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.0,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repeat_last_n": 32,
        "dry_multiplier": 0.5,
        "dynatemp_range": 0.1,
        "min_keep": 1,
        "n_keep": 2,
        "n_discard": 1,
        "t_max_predict_ms": 100000,
        "seed": 5,
        "n_predict": 3,
    },
    "mirostat": {"mirostat": 2, "mirostat_tau": 4.0, "temperature": 0.5, "seed": 3, "n_predict": 3},
    "a slot": {"id_slot": 1, "n_predict": 3},
    "no adapters": {"lora": [], "n_predict": 3},
    "a cached prompt": {"cache_prompt": True, "n_predict": 3},
    "the same prompt again": {"cache_prompt": True, "n_predict": 3},
    "numbers out of their range": {"top_p": 1.5, "min_p": -1.0, "n_predict": 3},
}
"""Bodies of `/completion` beside [`GREEDY`]; each is asked for whole and streamed."""

OPENAI: Mapping[str, Json] = {
    "greedy": {},
    "a stop word": {"stop": " there"},
    "log-probabilities": {"logprobs": 2, "max_tokens": 4},
    "two choices": {"n": 2, "max_tokens": 4},
    "several prompts": {"prompt": [PROMPT, "The fox"], "max_tokens": 4},
    "echo": {"echo": True, "max_tokens": 4},
    "a seed": {"temperature": 0.8, "seed": 42},
    "usage": {"stream_options": {"include_usage": True}, "max_tokens": 4},
    "timings of each token": {"timings_per_token": True, "max_tokens": 3},
    "progress": {"return_progress": True, "max_tokens": 3},
    "llama-server's own answer": {"verbose": True, "max_tokens": 3},
    "tokens": {"return_tokens": True, "max_tokens": 3},
}
"""Bodies of `/v1/completions`."""

CHATS: Mapping[str, Json] = {
    "greedy": {},
    "a system's message": {"messages": [SYSTEM, *USER]},
    "three turns": {"messages": [*USER, {"role": "assistant", "content": "Moo."}, {"role": "user", "content": "And a dog?"}]},
    "parts of a message": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What does a cow say?"}]}]},
    "cut off": {"max_tokens": 3},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 3},
    "a stop word": {"stop": ["o"]},
    "log-probabilities": {"logprobs": True, "top_logprobs": 2, "max_tokens": 3},
    "log-probabilities alone": {"logprobs": True, "max_tokens": 3},
    "two choices": {"n": 2, "max_tokens": 4},
    "usage": {"stream_options": {"include_usage": True}},
    "an object": {"response_format": {"type": "json_object"}, "max_tokens": 20},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}},
    "a word of a schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "cow", "schema": {"const": "cow"}}}
    },
    "timings of each token": {"timings_per_token": True, "max_tokens": 3},
    "progress": {"return_progress": True, "max_tokens": 3},
    "progress and timings": {"return_progress": True, "timings_per_token": True, "max_tokens": 3},
    "llama-server's own answer": {"verbose": True, "max_tokens": 3},
    "a partial answer": {"messages": [*USER, {"role": "assistant", "content": "The cow"}]},
    "a partial answer to continue": {
        "messages": [*USER, {"role": "assistant", "content": "The cow"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "ignore_eos": {"ignore_eos": True, "max_tokens": 5},
    "a seed": {"temperature": 0.8, "seed": 42},
    "tokens": {"return_tokens": True, "max_tokens": 3},
}
"""Bodies of `/v1/chat/completions`, to the demo model with its own template."""

TOOLS: Mapping[str, Json] = {
    "a tool that must be called": {"tools": [TOOL], "tool_choice": "required"},
    "a tool that may be called": {"tools": [TOOL], "max_tokens": 8},
    "a tool that may not be called": {"tools": [TOOL], "tool_choice": "none", "max_tokens": 8},
    "a tool's result": {
        "messages": [
            *USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":3}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
        ],
        "tools": [TOOL],
        "max_tokens": 8,
    },
    "no thoughts": {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 8},
    "thoughts as they stand": {"reasoning_format": "none", "max_tokens": 8},
    "llama-server's own answer": {"verbose": True, "max_tokens": 3},
    "no tools": {"tools": [], "max_tokens": 8},
}
"""Bodies of `/v1/chat/completions`, to the demo model with a template for tools and thoughts."""

CALLS: Mapping[str, Json] = {
    "a tool": {"tool_choice": "required"},
    "one of two tools": {"tools": [TOLD, TOOL], "tool_choice": "required"},
    "one call and no more": {"tool_choice": "required", "parallel_tool_calls": False},
    "a tool that is named": {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    "one of two that is named": {"tools": [TOLD, TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
    "a tool that may be called": {},
    "two choices": {"tool_choice": "required", "n": 2},
    "a call that is cut off": {"tool_choice": "required", "max_tokens": 34},
    "log-probabilities": {"tool_choice": "required", "logprobs": True, "top_logprobs": 2},
    "usage": {"tool_choice": "required", "stream_options": {"include_usage": True}},
}
"""Bodies of `/v1/chat/completions`, to the demo model with a template whose calls begin with a brace, as no other answer does: so
one token decides that the model calls."""

INFILLS: Mapping[str, Json] = {
    "both sides": {"input_prefix": "Once upon a time, there was a ", "input_suffix": " who lived in a house."},
    "a beginning": {"input_prefix": "Once", "input_suffix": ".", "prompt": " upon"},
    "other files": {"input_prefix": "A", "input_suffix": "B", "input_extra": [{"filename": "a.txt", "text": "The fox."}]},
}

TOKENIZED: Mapping[str, Json] = {
    "a text": {"content": "Once upon a time"},
    "with the tokens that begin it": {"content": "Once upon a time", "add_special": True},
    "with pieces": {"content": "Once ☃", "with_pieces": True},
    "a special token": {"content": "<|im_start|>user"},
    "a special token that is text": {"content": "<|im_start|>user", "parse_special": False},
    "tokens and texts": {"content": [300, "Once", 301]},
    "an empty text": {"content": ""},
    "nothing": {},
}

REFUSED: Mapping[str, Json] = {
    "no prompt": {"n_predict": 3},
    "a number for a prompt": {"prompt": 3.5},
    "an empty list for a prompt": {"prompt": []},
    "a text for a number": {"prompt": PROMPT, "n_predict": "many"},
    "a text for a temperature": {"prompt": PROMPT, "temperature": "hot"},
    "a number for a switch": {"prompt": PROMPT, "stream": 1},
    "a broken grammar": {"prompt": PROMPT, "grammar": "root ::= ("},
    "a broken schema": {"prompt": PROMPT, "json_schema": {"type": "nonsense"}},
    "a text that is too long": {"prompt": LONG, "n_predict": 3},
    "a text that is too long, streamed": {"prompt": LONG, "n_predict": 3, "stream": True},
    "too many completions": {"prompt": PROMPT, "n": 99, "n_predict": 1},
    "a token outside of the vocabulary": {"prompt": [1, 99999999], "n_predict": 1},
    "an unknown slot": {"prompt": PROMPT, "id_slot": 77, "n_predict": 1},
    "an unknown adapter": {"prompt": PROMPT, "lora": [{"id": 7, "scale": 1.0}], "n_predict": 1},
    "an unknown sampler": {"prompt": PROMPT, "samplers": ["nonsense"], "n_predict": 1, "temperature": 0},
    "a count below zero": {"prompt": PROMPT, "n_predict": -5},
    "no list of adapters": {"prompt": PROMPT, "lora": "none", "n_predict": 1},
}
"""Bodies of `/completion` that are wrong."""

CHATS_REFUSED: Mapping[str, Json] = {
    "no messages": {"max_tokens": 3},
    "a text for messages": {"messages": "Hello"},
    "an empty list of messages": {"messages": []},
    "a message without a role": {"messages": [{"content": "Hello"}]},
    "a message without content": {"messages": [{"role": "user"}]},
    "a number for content": {"messages": [{"role": "user", "content": 5}]},
    "a part of no kind": {"messages": [{"role": "user", "content": [{"type": "smell", "smell": "roses"}]}]},
    "an image without a projector": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    },
    "an unknown format": {"messages": USER, "response_format": {"type": "xml"}},
    "an unknown choice of tools": {"messages": USER, "tools": [TOOL], "tool_choice": "perhaps"},
    "a grammar beside tools": {"messages": USER, "tools": [TOOL], "grammar": GRAMMAR},
    "likely tokens without log-probabilities": {"messages": USER, "top_logprobs": 2, "max_tokens": 2},
    "a text that is too long": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2},
    "two partial answers": {"messages": [*USER, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}]},
}


MESSAGES: Mapping[str, Json] = {
    "greedy": {},
    "a system's message": {"system": "You are a helpful assistant."},
    "blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What does a cow say?"}]}]},
    "cut off": {"max_tokens": 3},
    "a stop sequence": {"stop_sequences": ["o"]},
}
"""Bodies of `/v1/messages`."""

RESPONSES: Mapping[str, Json] = {
    "a text": {},
    "a list": {"input": [{"role": "user", "content": "What does a cow say?"}]},
    "instructions": {"instructions": "You are a helpful assistant."},
    "cut off": {"max_output_tokens": 3},
}
"""Bodies of `/v1/responses`."""


def cases() -> list[Case]:
    """All of them, in the order in which they are asked."""
    return [*_completions(), *_chats(), *_texts(), *_about(), *_refused(), *_doors(), *_vectors()]


def _both(server: str, path: str, common: Json, bodies: Mapping[str, Json]) -> Iterator[Case]:
    for about, body in bodies.items():
        asked = {name: value for name, value in {**common, **body}.items() if value is not None}
        yield Case(server, "POST", path, about, asked)
        yield Case(server, "POST", path, f"{about}, streamed", {**asked, "stream": True})


def _completions() -> Iterator[Case]:
    yield from _both("plain", "/completion", {"prompt": PROMPT, **GREEDY}, COMPLETIONS)
    asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "cache_prompt": False}
    yield from _both("plain", "/v1/completions", asked, OPENAI)
    yield from _both("plain", "/infill", GREEDY, INFILLS)
    yield Case("plain", "POST", "/completions", "its other name", {"prompt": PROMPT, **GREEDY})


def _chats() -> Iterator[Case]:
    asked = {"messages": USER, "temperature": 0, "max_tokens": 40, "cache_prompt": False}
    yield from _both("plain", "/v1/chat/completions", asked, CHATS)
    yield Case("plain", "POST", "/chat/completions", "its other name", asked)
    for case in _both("tools", "/v1/chat/completions", {**asked, "max_tokens": 60}, TOOLS):
        yield Case(case.server, case.method, case.path, f"a template for tools: {case.about}", case.body)
    # An end before all else, where it may come; then a brace; then what ends values before blanks.
    biases = [[END, 90.0], ["{", 60.0], *([mark, 30.0] for mark in [*'}":,', "name"])]
    calling = {**asked, "max_tokens": 80, "tools": [TOOL], "logit_bias": biases}
    for case in _both("calls", "/v1/chat/completions", calling, CALLS):
        yield Case(case.server, case.method, case.path, f"a model that calls: {case.about}", case.body)
    yield from _both("plain", "/v1/messages", {"messages": USER, "temperature": 0, "max_tokens": 40}, MESSAGES)
    asked = {"input": "What does a cow say?", "temperature": 0, "max_output_tokens": 40}
    yield from _both("plain", "/v1/responses", asked, RESPONSES)
    yield Case("plain", "POST", "/v1/messages/count_tokens", "a count", {"messages": USER})
    yield Case("plain", "POST", "/v1/responses/input_tokens", "a count", {"input": "What does a cow say?"})
    yield Case("plain", "POST", "/v1/messages", "no messages", {"max_tokens": 3})
    yield Case("plain", "POST", "/v1/messages", "no max_tokens", {"messages": USER})
    yield Case("plain", "POST", "/v1/responses", "no input", {"max_output_tokens": 3})
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        yield Case("plain", "POST", path, "a count", {"messages": USER})
    verbose = {"max_tokens": 3, "temperature": 0, "cache_prompt": False}
    yield from _both("verbose", "/v1/chat/completions", verbose, {"a verbose server": {"messages": USER}})
    yield from _both("verbose", "/v1/completions", verbose, {"a verbose server": {"prompt": PROMPT}})
    yield from _both("verbose", "/completion", verbose, {"a verbose server": {"prompt": PROMPT}})


def _texts() -> Iterator[Case]:
    for about, body in TOKENIZED.items():
        yield Case("plain", "POST", "/tokenize", about, body)
    yield Case("plain", "POST", "/detokenize", "tokens", {"tokens": [300, 301, 302]})
    yield Case("plain", "POST", "/detokenize", "no tokens", {"tokens": []})
    yield Case("plain", "POST", "/detokenize", "nothing", {})
    for server in ("plain", "tools"):
        for about, body in {
            "a chat": {"messages": [SYSTEM, *USER]},
            "without a beginning of the answer": {"messages": USER, "add_generation_prompt": False},
            "a partial answer": {"messages": [*USER, {"role": "assistant", "content": "The"}]},
            "tools": {"messages": USER, "tools": [TOOL]},
            "no thoughts": {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}},
        }.items():
            yield Case(server, "POST", "/apply-template", f"{about}, {server}", body)


def _about() -> Iterator[Case]:
    for path in ("/health", "/v1/health", "/props", "/slots", "/v1/models", "/models", "/metrics", "/lora-adapters"):
        yield Case("plain", "GET", path, "an idle server")
    yield Case("tools", "GET", "/props", "a template for tools")
    yield Case("plain", "GET", "/slots?fail_on_no_slot=1", "a slot is idle")
    yield Case("plain", "POST", "/props", "nothing", {})
    yield Case("plain", "POST", "/lora-adapters", "nothing", [])
    held = {"prompt": PROMPT, "n_predict": 3, "temperature": 0, "id_slot": 0}
    yield Case("plain", "POST", "/completion", "the prompt of a slot", held)
    yield Case("plain", "POST", "/slots/0?action=save", "no name", {})
    yield Case("plain", "POST", "/slots/0?action=save", "a file", {"filename": "compared.bin"})
    yield Case("plain", "POST", "/slots/0?action=restore", "a file", {"filename": "compared.bin"})
    yield Case("plain", "POST", "/slots/0?action=erase", "an idle slot", {})
    yield Case("plain", "POST", "/slots/0?action=restore", "no such file", {"filename": "nowhere.bin"})
    yield Case("plain", "POST", "/slots/0?action=burn", "no such action", {})
    yield Case("plain", "POST", "/slots/99?action=erase", "no such slot", {})
    yield Case("plain", "POST", "/slots/zero?action=erase", "no number", {})
    yield Case("locked", "GET", "/slots", "a disabled endpoint", headers=_key("right"))
    yield Case("locked", "GET", "/metrics", "a disabled endpoint", headers=_key("right"))
    yield Case("locked", "POST", "/props", "a disabled endpoint", {}, headers=_key("right"))
    yield Case("locked", "POST", "/slots/0?action=erase", "a disabled endpoint", {}, headers=_key("right"))


def _refused() -> Iterator[Case]:
    for about, body in REFUSED.items():
        yield Case("plain", "POST", "/completion", about, {**GREEDY, **body})
    for about, body in CHATS_REFUSED.items():
        yield Case("plain", "POST", "/v1/chat/completions", about, body)
    for path in ("/completion", "/v1/completions", "/v1/chat/completions", "/tokenize", "/apply-template"):
        yield Case("plain", "POST", path, "broken JSON", b'{"prompt": "a')
        yield Case("plain", "POST", path, "an empty body", b"")
        yield Case("plain", "POST", path, "a list", [1, 2])
    yield Case("plain", "POST", "/v1/completions", "no prompt", {"max_tokens": 3})
    yield Case("plain", "POST", "/v1/completions", "too many log-probabilities", {"prompt": PROMPT, "logprobs": 99, **GREEDY})
    yield Case("plain", "POST", "/infill", "no prefix or suffix", {"n_predict": 3})
    yield Case("plain", "POST", "/infill", "a number for a side", {"input_prefix": 5, "input_suffix": "a"})
    yield Case("plain", "POST", "/infill", "other files that are no list", {**INFILLS["both sides"], "input_extra": "a"})
    yield Case("plain", "POST", "/tokenize", "a number", {"content": 5.5})
    yield Case("plain", "POST", "/detokenize", "a text", {"tokens": "abc"})
    yield Case("plain", "POST", "/apply-template", "no messages", {})
    yield Case("plain", "POST", "/embedding", "a text generation server", {"content": "a"})
    yield Case("plain", "POST", "/v1/embeddings", "a text generation server", {"input": "a"})
    yield Case("plain", "POST", "/rerank", "a text generation server", {"query": "a", "documents": ["b"]})
    yield Case("plain", "POST", "/completion", "a body of another kind", b"prompt=a", {"content-type": "text/plain"})
    yield Case(
        "plain",
        "POST",
        "/completion",
        "JSON of no kind",
        b'{"prompt": "a", "n_predict": 1, "temperature": 0, "cache_prompt": false}',
        {"content-type": "text/plain"},
    )
    for method, path in (
        *(("GET", "/nowhere"), ("POST", "/nowhere"), ("GET", "/completion"), ("POST", "/health"), ("DELETE", "/props")),
        *(("PUT", "/completion"), ("GET", "/tokenize"), ("GET", "/v1/nowhere"), ("PATCH", "/slots")),
    ):
        yield Case("plain", method, path, "no such route", {} if method in ("POST", "PUT") else None)


def _doors() -> Iterator[Case]:
    """Keys, and pages of other origins."""
    origin = {"origin": "http://page.example"}
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    for path in ("/completion", "/nowhere"):
        yield Case("plain", "OPTIONS", path, "a preflight request", headers=origin | wanted)
    yield Case("plain", "OPTIONS", "/completion", "nobody asks")
    yield Case("plain", "GET", "/health", "a page", headers=origin)
    yield Case("plain", "POST", "/completion", "a page", {"prompt": PROMPT, **GREEDY}, headers=origin)
    yield Case("plain", "POST", "/completion", "a page is refused", {}, headers=origin)
    for path in ("/health", "/v1/models", "/props", "/slots", "/nowhere"):
        yield Case("locked", "GET", path, "no key")
    yield Case("locked", "GET", "/v1/models", "a wrong key", headers=_key("wrong"))
    yield Case("locked", "GET", "/v1/models", "a right key", headers=_key("right"))
    yield Case("locked", "GET", "/v1/models", "a right key, as Anthropic sends it", headers={"x-api-key": "right"})
    yield Case("locked", "OPTIONS", "/v1/models", "a preflight request", headers=origin | wanted)
    yield Case("locked", "GET", "/v1/models", "a page without a key", headers=origin)


def _key(key: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {key}"}


def _vectors() -> Iterator[Case]:
    for path, name in (("/embedding", "content"), ("/embeddings", "input"), ("/v1/embeddings", "input")):
        yield Case("vectors", "POST", path, "a text", {name: "a b c"})
        yield Case("vectors", "POST", path, "two texts", {name: ["a b", "c"]})
        yield Case("vectors", "POST", path, "tokens", {name: [1, 2, 3]})
        yield Case("vectors", "POST", path, "nothing", {})
        yield Case("vectors", "POST", path, "an empty text", {name: ""})
        yield Case("vectors", "POST", path, "a number", {name: 5.5})
    yield Case("vectors", "POST", "/v1/embeddings", "base64", {"input": "a b c", "encoding_format": "base64"})
    yield Case("vectors", "POST", "/v1/embeddings", "no such format", {"input": "a b c", "encoding_format": "hex"})
    yield Case("vectors", "POST", "/v1/embeddings", "a text that is too long", {"input": LONG})
    yield Case("vectors", "POST", "/completion", "an embedding server", {"prompt": "a", "n_predict": 1})
    yield Case("vectors", "GET", "/props", "an embedding server")
    ranked = {"query": "a b", "documents": ["c d", "e", "a b c"]}
    for path in ("/rerank", "/v1/rerank", "/reranking"):
        yield Case("ranks", "POST", path, "three documents", ranked)
    yield Case("ranks", "POST", "/rerank", "the best", {**ranked, "top_n": 1})
    yield Case("ranks", "POST", "/rerank", "with texts", {**ranked, "return_documents": True})
    yield Case("ranks", "POST", "/rerank", "in a bare list", {"query": "a b", "texts": ["c d", "e"]})
    yield Case(
        "ranks", "POST", "/rerank", "in a bare list, with texts", {"query": "a b", "texts": ["c d", "e"], "return_text": True}
    )
    yield Case("ranks", "POST", "/rerank", "no query", {"documents": ["a"]})
    yield Case("ranks", "POST", "/rerank", "no documents", {"query": "a"})
    yield Case("ranks", "POST", "/rerank", "no document in the list", {"query": "a", "documents": []})
    yield Case("ranks", "POST", "/v1/embeddings", "a reranking server", {"input": "a"})
