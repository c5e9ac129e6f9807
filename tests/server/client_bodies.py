"""What existing clients send, as data: each body with all the fields that its client sends, those of other servers among them."""

from typing import NamedTuple

from tests.server.matchers import Json

__all__ = ["OPEN_WEBUI", "OPEN_WEBUI_TITLE", "SCHEMA", "SENT", "SILLYTAVERN", "Sent"]


class Sent(NamedTuple):
    """One body, and where it is sent."""

    route: str
    body: Json


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}

SILLYTAVERN: dict[str, Json] = {
    "prompt": "The dog is called Rex.\nUser: Hello!\nRex:",
    "model": "",
    "max_new_tokens": 12,
    "max_tokens": 12,
    "logprobs": 10,
    "temperature": 0.75,
    "top_p": 0.9,
    "typical_p": 0.95,
    "typical": 0.95,
    "sampler_seed": 42,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.25,
    "presence_penalty": 0.5,
    "top_k": 30,
    "skew": 0,
    "min_tokens": 0,
    "add_bos_token": True,
    "dynamic_temperature": True,
    "dynatemp_low": 0.5,
    "dynatemp_high": 1,
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 3,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_sequence_breakers": ["\n", ":", '"', "*", "Rex"],
    "dry_penalty_last_n": 100,
    "max_tokens_second": 0,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"],
    "stopping_strings": ["\nUser:", "\nRex:"],
    "stop": ["\nUser:", "\nRex:"],
    "truncation_length": 4096,
    "ban_eos_token": True,
    "skip_special_tokens": True,
    "include_reasoning": True,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 2,
    "mirostat_tau": 4,
    "mirostat_eta": 0.2,
    "custom_token_bans": "65",
    "banned_strings": [],
    "api_type": "llamacpp",
    "api_server": "http://127.0.0.1:8080/",
    "xtc_threshold": 0.2,
    "xtc_probability": 0.5,
    "nsigma": 1.5,
    "top_n_sigma": 1.5,
    "min_keep": 1,
    "adaptive_target": 0.4,
    "adaptive_decay": 0.8,
    "rep_pen": 1.2,
    "rep_pen_range": 200,
    "repetition_penalty_range": 200,
    "seed": 42,
    "guidance_scale": 1,
    "negative_prompt": "",
    "repeat_penalty": 1.2,
    "repeat_last_n": 200,
    "n_predict": 12,
    "num_predict": 12,
    "num_ctx": 4096,
    "mirostat": 2,
    "ignore_eos": True,
    "n_probs": 10,
    "rep_pen_slope": 1,
    "n": 1,
    "logit_bias": [[66, 1.5], [65, False]],
    "grammar": "",
    "cache_prompt": True,
    "stream": True,
}
"""SillyTavern's llama.cpp backend (`public/scripts/textgen-settings.js`), every slider moved, with fields of other backends."""

OPEN_WEBUI: dict[str, Json] = {
    "stream": True,
    "model": "storyteller",
    "messages": [
        {"role": "system", "content": "You tell short stories."},
        {"role": "user", "content": "Tell me of a dog."},
        {"role": "assistant", "content": "There was a dog."},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ],
    "stream_options": {"include_usage": True},
    "temperature": 0.75,
    "top_p": 0.9,
    "min_p": 0.1,
    "top_k": 30,
    "max_tokens": 12,
    "frequency_penalty": 0.25,
    "presence_penalty": 0.5,
    "repeat_penalty": 1.2,
    "repeat_last_n": 200,
    "mirostat": 1,
    "mirostat_tau": 4,
    "mirostat_eta": 0.2,
    "tfs_z": 0.9,
    "seed": 42,
    "stop": ["User:", "\n\n"],
    "logit_bias": {"66": 5, "65": -100},
    "num_ctx": 4096,
    "keep_alive": "5m",
}
"""Open WebUI's chat over an OpenAI connection (`backend/open_webui/utils/payload.py`), every parameter set."""

OPEN_WEBUI_TITLE = {
    "model": "storyteller",
    "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title.\n### Output:\nJSON"}],
    "stream": False,
    "max_tokens": 12,
}
"""What it asks for on its own when a chat begins."""

LLAMA_PAGE: dict[str, Json] = {
    "messages": [
        {"role": "system", "content": "You tell short stories."},
        {"role": "user", "content": "Tell me of a dog."},
        {"role": "assistant", "content": "There was a dog.", "reasoning_content": "Which dog?"},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ],
    "stream": True,
    "return_progress": True,
    "sse_ping_interval": 1,
    "model": "storyteller",
    "reasoning_format": "auto",
    "reasoning_control": True,
    "temperature": 0.8,
    "max_tokens": 12,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "typ_p": 1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "samplers": ["top_k", "typ_p", "top_p", "min_p", "temperature"],
    "backend_sampling": False,
    "timings_per_token": True,
}
"""llama-server's page (`tools/server/webui/src/lib/services/chat.service.ts`), every setting sent."""

LLAMA_PAGE_2024: dict[str, Json] = {
    "n_predict": 12,
    "temperature": 0.7,
    "repeat_last_n": 256,
    "repeat_penalty": 1.18,
    "penalize_nl": False,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "tfs_z": 1.0,
    "typical_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "grammar": "",
    "n_probs": 3,
    "min_keep": 0,
    "image_data": [],
    "cache_prompt": True,
    "api_key": "",
    "slot_id": -1,
    "stop": ["</s>", "Llama:", "User:"],
    "prompt": "This is a conversation between User and Llama, a friendly chatbot.\n\nUser: Hello!\nLlama:",
    "stream": True,
}
"""llama-server's page of 2024 (`examples/server/public/index.html`)."""

OPENAI_CHAT: dict[str, Json] = {
    "model": "any",
    "messages": [
        {"role": "system", "content": "You tell stories."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Tell me one about a dog."}]},
    ],
    "n": 2,
    "max_completion_tokens": 12,
    "temperature": 0.9,
    "top_p": 0.9,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "seed": 7,
    "stop": ["zebra", "\n\n"],
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"66": 5, "65": -100},
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "tools": [],
    "user": "ann",
}
"""The `openai` package's `chat.completions.create`, with the parameters that a storyteller can follow."""

OPENAI_PARSE: dict[str, Json] = {
    "model": "any",
    "messages": [{"role": "user", "content": "Which pet, and how old?"}],
    "max_tokens": 24,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "Pet",
            "strict": True,
            "schema": {
                "title": "Pet",
                "type": "object",
                "$defs": {"Age": {"enum": [1, 2, 3], "type": "integer"}},
                "properties": {
                    "kind": {"enum": ["dog", "cat"], "type": "string"},
                    "age": {"$ref": "#/$defs/Age"},
                    "names": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
                    "born": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[0-9]{4}$"}]},
                },
                "required": ["kind", "age"],
                "additionalProperties": False,
            },
        },
    },
    "stream": False,
}
"""Its `chat.completions.parse`, which makes a schema of a class."""

OPENAI_COMPLETION: dict[str, Json] = {
    "model": "any",
    "prompt": ["Once upon a time,", "A cow says"],
    "n": 2,
    "best_of": 1,
    "max_tokens": 8,
    "echo": True,
    "logprobs": 2,
    "suffix": None,
    "seed": 1,
    "stop": "zebra",
    "logit_bias": {"66": 1},
    "stream": True,
    "stream_options": {"include_usage": True},
    "user": "ann",
}
"""Its `completions.create`."""

LANGCHAIN: dict[str, Json] = {
    "messages": [{"content": "You tell stories.", "role": "system"}, {"content": "Tell me one.", "role": "user"}],
    "model": "any",
    "frequency_penalty": 0.0,
    "logprobs": False,
    "max_completion_tokens": 12,
    "n": 1,
    "presence_penalty": 0.0,
    "seed": 3,
    "stop": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.7,
    "top_p": 1.0,
    "reasoning_effort": None,
    "extra_headers": {},
    "extra_query": {},
}
"""langchain's `ChatOpenAI`, nulls included."""

LLAMA_INDEX: dict[str, Json] = {
    "prompt": "Once upon a time,",
    "model": "any",
    "temperature": 0.1,
    "max_tokens": 8,
    "context_window": 3900,
    "generate_kwargs": {"top_k": 5},
    "stream": False,
    "timeout": 60.0,
    "max_retries": 3,
    "additional_kwargs": {},
}
"""llama-index's `OpenAILike`, with what its users pass on."""

EVAL_LIKELIHOOD: dict[str, Json] = {
    "model": "any",
    "prompt": [[300, 301, 302, 303, 304], [300, 301, 305]],
    "temperature": 0,
    "max_tokens": 1,
    "logprobs": 1,
    "seed": 1234,
    "echo": True,
}
EVAL_GENERATE: dict[str, Json] = {
    "prompt": ["Question: how old is the dog?\nAnswer:"],
    "model": "any",
    "max_tokens": 12,
    "temperature": 0,
    "stop": ["Question:", "</s>"],
    "seed": 1234,
}
EVAL_GGUF: dict[str, Json] = {
    "prompt": "Once upon a time, there was",
    "logprobs": 10,
    "temperature": 0.0,
    "max_tokens": 1,
    "echo": True,
    "stop": ["\n"],
}
EVAL_CHAT: dict[str, Json] = {
    "messages": [{"role": "user", "content": "Question: how old is the dog?", "type": "text"}],
    "model": "any",
    "max_tokens": 12,
    "temperature": 0,
    "stop": ["\n\n"],
    "seed": 1234,
}
"""lm-evaluation-harness (`lm_eval/models/openai_completions.py` and `gguf.py`)."""

SILLYTAVERN_CHAT: dict[str, Json] = {
    "messages": [
        {"role": "system", "content": "Write Rex's next reply."},
        {"role": "assistant", "content": "Hello!", "name": "Rex"},
        {"role": "user", "content": "Hi, Rex."},
    ],
    "model": "storyteller",
    "temperature": 1,
    "max_tokens": 12,
    "stream": True,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "top_p": 1,
    "top_k": 40,
    "stop": ["\nUser:"],
    "logit_bias": {},
    "seed": 42,
    "n": 2,
}
"""SillyTavern's custom source of chats (`src/endpoints/backends/chat-completions.js`)."""

README_CURL: dict[str, Json] = {"prompt": "Building a website can be done in 10 simple steps:", "n_predict": 12}
README_MIXED: dict[str, Json] = {
    "prompt": [[12, 34, 56, 78], "The cat", [12, "string", 56, 78], {"prompt_string": "A cow says", "multimodal_data": []}],
    "n_predict": 4,
    "return_tokens": True,
    "response_fields": ["content", "generation_settings/n_predict", "timings"],
    "post_sampling_probs": True,
    "n_probs": 2,
    "samplers": "top_k;typ_p;temperature",
    "logit_bias": [[1504, 1.0], [1505, False], ["Hello", -0.5]],
    "lora": [],
    "t_max_predict_ms": 0,
    "n_indent": 0,
    "id_slot": -1,
    "n_keep": 0,
}
README_GRAMMAR: dict[str, Json] = {
    "prompt": "My dog is",
    "n_predict": 12,
    "grammar": 'root ::= word ("," [ \\t]* word)* "."\nword ::= [a-z]{2,9} # a comment\n',
    "mirostat": 2,
    "stream": True,
}
README_SCHEMA: dict[str, Json] = {
    "prompt": "My dog is",
    "n_predict": 24,
    "n": 2,
    "json_schema": {
        "items": {"anyOf": [{"$ref": "#/definitions/a"}, {"const": 2}, {"type": "number", "minimum": -5, "maximum": 10.5}]},
        "definitions": {"a": {"type": "object", "properties": {"b": {"type": "string", "format": "date"}}}},
        "minItems": 1,
        "maxItems": 3,
        "type": "array",
    },
}
"""What llama-server's README shows (`tools/server/README.md`)."""

SEED_EVENTS: dict[str, Json] = {
    "prompt": "Once upon a time,",
    "n": 3,
    "max_tokens": 8,
    "stream": True,
    "event_format": "srb",
}
"""A client of single-request batching."""

ANTHROPIC: Json = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 24,
    "stream": True,
    "system": [
        {"type": "text", "text": "You help with code."},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "5m"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is in a.txt?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I have to look.", "signature": "c2lnbmVk"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_01", "name": "read", "input": {"path": "a.txt", "lines": [1, 2]}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "a dog", "is_error": False}]},
    ],
    "metadata": {"user_id": "user_1"},
    "stop_sequences": ["END"],
}
"""Anthropic's own, in the middle of work with tools."""

OLLAMA_CHAT: Json = {
    "model": "storyteller",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in a.txt?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "read", "arguments": {"path": "a.txt"}}}]},
        {"role": "tool", "content": "a dog", "tool_name": "read"},
    ],
    "options": {"temperature": 0.5, "num_predict": 12, "num_ctx": 256, "stop": ["END"], "seed": 3},
    "keep_alive": "5m",
    "think": False,
}

OLLAMA_PROMPT: Json = {
    "model": "storyteller",
    "prompt": "Tell me a story.",
    "system": "Be brief.",
    "context": [1, 300, 301],
    "format": "json",
    "options": {"num_predict": 12, "top_k": 20, "top_p": 0.9, "repeat_penalty": 1.1},
    "logprobs": True,
    "top_logprobs": 2,
}

CODEX: dict[str, Json] = {
    "model": "any",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Ask before you write."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is here?"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "weft-thought-QSBsaXN0Lg=="},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.txt","metadata":{"exit_code":0}}'},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read it."}]},
    ],
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199e6f1-7a32-7ed0-8e0f-000000000000",
    "max_output_tokens": 8,
}

OPENAI_AGENTS: dict[str, Json] = {
    "model": "any",
    "input": [{"role": "user", "content": "Hello!"}],
    "instructions": "Be short.",
    "include": [],
    "metadata": {"trace": "a"},
    "store": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "truncation": "disabled",
    "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}},
    "max_output_tokens": 12,
}

SENT: dict[str, Sent] = {
    "sillytavern": Sent("/completion", SILLYTAVERN),
    "sillytavern's chat": Sent("/v1/chat/completions", SILLYTAVERN_CHAT),
    "open webui": Sent("/v1/chat/completions", OPEN_WEBUI),
    "open webui's title": Sent("/chat/completions", OPEN_WEBUI_TITLE),
    "llama-server's page": Sent("/v1/chat/completions", LLAMA_PAGE),
    "llama-server's page of 2024": Sent("/completion", LLAMA_PAGE_2024),
    "openai's chat": Sent("/v1/chat/completions", OPENAI_CHAT),
    "openai's parse": Sent("/v1/chat/completions", OPENAI_PARSE),
    "openai's completion": Sent("/v1/completions", OPENAI_COMPLETION),
    "langchain": Sent("/v1/chat/completions", LANGCHAIN),
    "llama-index": Sent("/v1/completions", LLAMA_INDEX),
    "lm-eval's likelihood": Sent("/v1/completions", EVAL_LIKELIHOOD),
    "lm-eval's generation": Sent("/v1/completions", EVAL_GENERATE),
    "lm-eval's gguf": Sent("/v1/completions", EVAL_GGUF),
    "lm-eval's chat": Sent("/v1/chat/completions", EVAL_CHAT),
    "lm-eval's tokenizer": Sent("/tokenize", {"prompt": "Question: how old?", "add_special_tokens": False}),
    "curl": Sent("/completion", README_CURL),
    "curl with mixed prompts": Sent("/completion", README_MIXED),
    "curl with a grammar": Sent("/completion", README_GRAMMAR),
    "curl with a schema": Sent("/completion", README_SCHEMA),
    "curl's tokens": Sent(
        "/tokenize", {"content": "Hello world <s>", "add_special": True, "parse_special": False, "with_pieces": True}
    ),
    "curl's text of tokens": Sent("/detokenize", {"tokens": [198, 1504, 300]}),
    "curl's template": Sent("/apply-template", {"messages": LLAMA_PAGE["messages"], "chat_template_kwargs": {"a": [1]}}),
    "a page's properties": Sent("/props", {"chat_template": "{{ messages }}"}),
    "single-request batching": Sent("/v1/completions", SEED_EVENTS),
    "codex": Sent("/v1/responses", CODEX),
    "openai's agents": Sent("/v1/responses", OPENAI_AGENTS),
    "openai's count": Sent("/v1/responses/input_tokens", {"input": CODEX["input"], "instructions": "Be short.", "model": "a"}),
    "openai's conversation": Sent("/v1/conversations", {"items": CODEX["input"], "metadata": {"topic": "files"}}),
    "a page that looks for its streams": Sent("/v1/streams/lookup", {"conversation_ids": ["one", "two::model"]}),
    "a pinned prefix": Sent(
        "/prefixes", {"prompt": "You are a kind storyteller. Your stories are short, and they always end well."}
    ),
    "a saved slot": Sent("/slots/0?action=save", {"filename": "saved.bin"}),
    "a restored slot": Sent("/slots/1?action=restore", {"filename": "saved.bin"}),
    "an erased slot": Sent("/slots/2?action=erase", {}),
    "anthropic's client": Sent("/v1/messages", ANTHROPIC),
    "anthropic's count": Sent(
        "/v1/messages/count_tokens", {name: value for name, value in ANTHROPIC.items() if name not in ("max_tokens", "stream")}
    ),
    "ollama's chat": Sent("/api/chat", OLLAMA_CHAT),
    "ollama's prompt": Sent("/api/generate", OLLAMA_PROMPT),
    "ollama's vectors": Sent("/api/embed", {"model": "storyteller", "input": ["a fox", "a dog"], "dimensions": 8}),
    "ollama's model": Sent("/api/show", {"model": "storyteller", "verbose": True}),
}
