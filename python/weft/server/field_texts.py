"""Meanings of request fields in the OpenAPI document."""

from weft.sampling_fields import parameter_meta

__all__ = ["field_text"]


def field_text(body: str, field: str) -> str | None:
    """Returns the meaning of a field.

    Args:
        body: Name of the struct of a request's body.
        field: Name of the field in JSON.
    """
    meta = parameter_meta().get(field)
    return _OF_BODY.get(body, {}).get(field) or _COMMON.get(field) or (None if meta is None else meta.text)


_COMMON = {
    "add_generation_prompt": "end the prompt with the beginning of the assistant's turn",
    "best_of": "completions to generate, of which the `n` with the highest mean log-probability are returned; not for streams",
    "beam_width": "beam search with this many beams, 2 to the number of slots; the `n` best texts are returned",
    "branches": "options of each completion, at most 256 objects, in place of `n`",
    "cache_prompt": "`false` computes the whole prompt and uses no cached prefix",
    "chat_template_kwargs": "variables of the chat template",
    "continue_final_message": "continue a last message of the assistant in place of answering it",
    "conversation": "conversation that the response continues and is added to",
    "distinct": "begin each of the `n` completions with a different token",
    "diverse": "how to diversify the `n` completions: `arithmetic` or `beam`",
    "echo": "begin the text with the prompt; with `logprobs`, report the log-probabilities of its tokens too",
    "embd_normalize": "-1: none; 0: the largest number fills 16 bits; 1: taxicab norm; 2: Euclidean norm; more: p-norm",
    "enable_thinking": "enable reasoning, if the chat template supports it",
    "encoding_format": "`float`, or `base64` of 32-bit floats in little-endian order",
    "explain_cache": "report which prompt tokens had to be computed, and why",
    "format": "`json`, or a JSON schema that the text must match",
    "generation_prompt": "end of the prompt that begins the answer",
    "grammar": "GBNF grammar that every completion must match",
    "grammar_lazy": "activate the grammar only when one of `grammar_triggers` matches",
    "grammar_triggers": "triggers of a lazy grammar",
    "id_slot": "preferred slot",
    "instructions": "system message of this response only",
    "json_schema": "JSON schema that every completion must match",
    "keep_alive": "seconds, or a text such as `5m`, until an idle model may be unloaded; applies with `--sleep-idle-seconds`",
    "length_penalty": "exponent of the length in a beam search's ranking, -10 to 10; 0 ranks by the sum of log-probabilities",
    "lora": 'active adapters, as `[{"id": 0, "scale": 1.0}]`; others are inactive',
    "max_completion_tokens": "maximum tokens of a completion; has priority over `max_tokens`",
    "max_output_tokens": "maximum tokens of the response, reasoning included",
    "max_token_gap_ms": "maximum gap between two tokens while prompts of other requests are computed, 1 to 60,000 milliseconds",
    "max_tokens": "maximum tokens of a completion",
    "messages": "the chat, oldest message first; each has `role` and `content`",
    "metadata": "texts that are stored with the object: at most 16",
    "model": "ignored: the server has one model",
    "n": "number of completions, 1 to 256; the prompt is computed once for all of them",
    "n_cmpl": "another name of `n`",
    "n_discard": "tokens that a context shift drops; 0 is half of those after `n_keep`",
    "n_indent": "ends a completion at a line that is indented by less",
    "n_keep": "tokens at the beginning that a context shift keeps",
    "n_predict": "maximum tokens of a completion; -1 is no limit, 0 only computes the prompt",
    "n_probs": "number of most likely tokens to report for each token",
    "options": "sampling options with Ollama's names, such as `num_predict`, `temperature`, `seed` and `stop`",
    "parallel_tool_calls": "`false` allows one call at most",
    "penalty_prompt": "tokens that the penalties use in place of the prompt",
    "post_sampling_probs": "report probabilities after the samplers, not those of the model",
    "preserved_tokens": "texts of single tokens that are included in the output, even if they are control or end tokens",
    "previous_response_id": "response that this one continues",
    "priority": "scheduling priority, -100 to 100; higher is first",
    "prompt": "text, token ids, a list that mixes both, or a list of prompts",
    "reasoning_budget_message": "text that ends reasoning whose budget is used up",
    "reasoning_budget_tokens": "maximum tokens of reasoning; below 0 is no limit",
    "reasoning_effort": "variable of the chat template; `none` disables reasoning",
    "reasoning_format": "where reasoning goes: `none`, `deepseek`, `deepseek-legacy` or `auto`",
    "response_fields": "fields of the response to return, such as `content` or `generation_settings/seed`; at most 256",
    "response_format": "`text`, `json_object`, or `json_schema` with its schema",
    "return_progress": "report the progress of the prompt's computation in a stream",
    "return_tokens": "return the token ids",
    "samplers": "sampler chain, in order: names in a list or with `;` between them, or their letters",
    "seed": "completion `i` samples with `seed + i`; -1 is random",
    "sse_ping_interval": "seconds of silence after which a stream sends a comment",
    "stop": "strings that end a completion; the text ends before them",
    "stop_sequences": "strings that end the answer",
    "store": "keep the response in the server's memory",
    "stream": "send the answer as a stream of events",
    "stream_options": '`{"include_usage": true}` adds the token counts as the last chunk',
    "suffix": "text after the completion, for models that fill gaps",
    "suffix_prompt": "text or token ids after the prompt, for one branch",
    "system": "system message",
    "system_prompt": "text that precedes the prompts of all clients from now on; the server computes it once",
    "t_max_predict_ms": "ends a completion at its first newline after this many milliseconds",
    "think": "enable reasoning, or its effort: `low`, `medium`, `high` or `max`",
    "thinking_budget_tokens": "another name of `reasoning_budget_tokens`",
    "timings_per_token": "report timings in each event",
    "tool_choice": "`none`, `auto`, `required`, or the function to call",
    "tools": "functions that the model may call, at most 128",
    "top_logprobs": "number of most likely tokens to report for each token; requires `logprobs`",
    "verbose": "include llama-server's own response",
}
"""Meanings that hold in every body with the field."""

_EMBEDDED_TEXT = "text, token ids, or a list of these; at most 2,048 texts"
_SERVERS_ADAPTERS = "refused: the server's adapter set is used"

_OF_BODY = {
    "CreateChatCompletion": {"logprobs": "report the log-probability of each token"},
    "CreateCompletion": {"logprobs": "number of most likely tokens to report for each token"},
    "CompletionBody": {"logprobs": "number of most likely tokens to report for each token"},
    "InfillBody": {
        "input_prefix": "text before the gap; its beginning is cut if it is too long",
        "input_suffix": "text after the gap; its end is cut if it is too long",
        "input_extra": 'parts of other files, as `[{"filename": …, "text": …}]`',
        "prompt": "text of the gap that exists already",
    },
    "TokenizeBody": {
        "content": "text, or a list of texts and token ids",
        "add_special": "add the tokens that begin a prompt",
        "parse_special": "parse the names of control tokens",
        "with_pieces": "return the text of each token too",
        "prompt": "vLLM's name of `content`",
        "add_special_tokens": "vLLM's name of `add_special`",
    },
    "DetokenizeBody": {"tokens": "token ids"},
    "EmbeddingBody": {"content": _EMBEDDED_TEXT, "input": "OpenAI's name of `content`", "lora": _SERVERS_ADAPTERS},
    "CreateEmbedding": {
        "input": _EMBEDDED_TEXT,
        "dimensions": "dimensions to keep; the embedding is normalized again",
        "lora": _SERVERS_ADAPTERS,
    },
    "RerankBody": {
        "query": "text to which the documents are compared",
        "documents": "texts, or objects with `text`",
        "top_n": "maximum number of results",
        "return_documents": "return the text of each result",
        "texts": "TEI's name of `documents`; the response has TEI's format",
        "return_text": "TEI's name of `return_documents`",
        "truncate": "refused if true: texts are never cut",
        "lora": _SERVERS_ADAPTERS,
    },
    "SlotActionBody": {"filename": "name of the file, without folders; required to save and to restore"},
    "StreamsLookup": {"conversation_ids": "ids to search, at most 1,024"},
    "CreateResponse": {"input": "text of the user, or items: messages, function calls and their outputs"},
    "EmbedBody": {"input": "text, or a list of texts"},
    "EmbeddingsBody": {"prompt": "text"},
    "GenerateBody": {
        "raw": "use the prompt unchanged, without the chat template",
        "images": "images in base64",
        "suffix": "text after the gap",
    },
    "StreamBody": {
        "prompt": "text that is continued",
        "num_predict": "maximum tokens, 32 by default",
        "temp": "temperature",
        "n_batch": "maximum prompt tokens of one step",
        "cache": "positive: number of the file that stores the computed prompt",
    },
    "PinBody": {"prompt": "text or token ids to compute and pin"},
    "ScoreBody": {
        "prompt": "text, or a list of texts and token ids",
        "continuations": "what may follow the prompt, each a text or a list; at most 4,096",
        "tasks": "several prompts, each with its continuations, in place of both",
        "n_probs": "number of most likely tokens to report at each position",
        "tokens": "`false` returns the sums without their tokens",
    },
}
"""Meanings that hold in one body. They precede the common ones."""
