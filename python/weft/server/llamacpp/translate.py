"""llama-server's dialect: a body becomes requests, events become its frames and its objects. No I/O here."""

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from weft import Engine, Finished, InvalidRequest, Model, PrefixFile, Request, Stats, Token
from weft.server import body, sse
from weft.server.generation import Generation
from weft.server.llamacpp.schemas import (
    CompletionBody,
    CompletionEvent,
    CompletionResult,
    DefaultSettings,
    GenerationSettings,
    NextToken,
    Properties,
    RestoreTimings,
    SaveTimings,
    Slot,
    SlotActionBody,
    SlotRestored,
    SlotSaved,
    TokenizeBody,
    TokenizeResult,
    TokenPiece,
)
from weft.server.report import TokenLogprobs, timings, token_logprobs
from weft.server.submission import Piece, Submission
from weft.settings import Settings

__all__ = [
    "Action",
    "Results",
    "SlotAction",
    "Stream",
    "blame",
    "content",
    "generation_settings",
    "properties",
    "restored",
    "saved",
    "slot_action",
    "slots",
    "submission",
    "tokens",
]

STOP_TYPES = {"end": "eos", "stop": "word", "length": "limit", "context_full": "limit"}


def submission(data: CompletionBody, settings: Settings) -> Submission:
    """What a body asks for."""
    body.refuse_unsupported(data)
    return body.submission(data, settings, n_probs=body.first_given(data, "n_probs", "logprobs"))


def generation_settings(request: Request, *, seed: int, stream: bool) -> GenerationSettings:
    """The settings of one branch, by llama-server's names; a limit of -1 is none."""
    limit = -1 if request.max_tokens is None else request.max_tokens
    return GenerationSettings(
        seed=seed,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        repeat_last_n=request.repeat_last_n,
        repeat_penalty=request.repeat_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        stop=list(request.stop),
        max_tokens=limit,
        n_predict=limit,
        ignore_eos=request.ignore_eos,
        stream=stream,
        # JSON has no infinity: a banned token is `false`, as it is in a request.
        logit_bias=[{"token": token, "bias": bias if bias > float("-inf") else False} for token, bias in request.logit_bias],
        n_probs=request.n_probs,
        samplers=body.SAMPLERS,
    )


class _Branches:
    """Numbers the branches over all prompts and describes the finished ones."""

    def __init__(self, generation: Generation, engine: Engine, model: str, *, stream: bool) -> None:
        self.n = generation.requests[0].n
        self.generation = generation
        self.n_prompt = [stream_of_prompt.n_prompt for stream_of_prompt in generation.streams]
        self._engine = engine
        self._model = model
        self._stream = stream
        self._prompts: dict[int, str] = {}

    def result(
        self,
        prompt: int,
        finished: Finished,
        *,
        content: str,
        tokens: list[int],
        has_new_line: bool,
        probabilities: list[TokenLogprobs] | msgspec.UnsetType = msgspec.UNSET,
    ) -> CompletionResult:
        request, usage = self.generation.requests[prompt], finished.usage
        seed = (self.generation.streams[prompt].seed + finished.index) % 2**32
        return CompletionResult(
            index=prompt * self.n + finished.index,
            content=content,
            tokens=tokens,
            id_slot=finished.slot,
            stop=True,
            model=self._model,
            tokens_predicted=usage.n_predicted,
            tokens_evaluated=usage.n_prompt,
            generation_settings=generation_settings(request, seed=seed, stream=self._stream),
            prompt=self._prompt_text(prompt),
            has_new_line=has_new_line,
            truncated=finished.reason == "context_full",
            stop_type=STOP_TYPES[finished.reason],
            stopping_word=finished.stop or "",
            # The last token that was drawn was never fed back, so it is in no cell.
            tokens_cached=usage.n_prompt + max(usage.n_predicted - 1, 0),
            timings=timings([usage]),
            completion_probabilities=probabilities,
        )

    def _prompt_text(self, prompt: int) -> str:
        """The prompt as the model saw it, special tokens included; the same for all branches of a prompt."""
        if prompt not in self._prompts:
            tokens = self.generation.requests[prompt].prompt
            self._prompts[prompt] = tokens if isinstance(tokens, str) else self._engine.detokenize(tokens)
        return self._prompts[prompt]


class Stream:
    """One event per token, and one with `"stop": true` at the end of each branch."""

    def __init__(self, generation: Generation, engine: Engine, model: str) -> None:
        self._branches = _Branches(generation, engine, model, stream=True)
        self._with_new_line: set[int] = set()

    def frames(self, prompt: int, events: Sequence[Token | Finished]) -> bytes:
        """The frames of events of one prompt, in order."""
        return b"".join([sse.frame(self._event(prompt, event)) for event in events])

    def _event(self, prompt: int, event: Token | Finished) -> CompletionEvent | CompletionResult:
        index = prompt * self._branches.n + event.index
        if isinstance(event, Finished):
            has_new_line = index in self._with_new_line
            return self._branches.result(prompt, event, content="", tokens=[], has_new_line=has_new_line)
        if "\n" in event.text:
            self._with_new_line.add(index)
        probabilities = msgspec.UNSET if event.logprobs is None else [token_logprobs(event.logprobs)]
        return CompletionEvent(
            index=index,
            content=event.text,
            tokens=[event.token],
            stop=False,
            id_slot=event.slot,
            tokens_predicted=event.n_predicted,
            tokens_evaluated=self._branches.n_prompt[prompt],
            completion_probabilities=probabilities,
        )

    def end(self) -> bytes:
        """Nothing: the last branch's own end is the stream's."""
        return b""


class Results:
    """The whole answer: one object, or a list of them in order of `index` where there are several."""

    def __init__(self, generation: Generation, engine: Engine, model: str, *, with_tokens: bool) -> None:
        self._branches = _Branches(generation, engine, model, stream=False)
        self._with_tokens = with_tokens
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[int]] = {}
        self._probabilities: dict[int, list[TokenLogprobs]] = {}
        self._results: list[CompletionResult] = []

    def add(self, prompt: int, events: Sequence[Token | Finished]) -> None:
        """Takes events of one prompt, in order."""
        for event in events:
            index = prompt * self._branches.n + event.index
            if isinstance(event, Finished):
                self._results.append(self._result(prompt, index, event))
                continue
            self._texts.setdefault(index, []).append(event.text)
            if self._with_tokens:
                self._tokens.setdefault(index, []).append(event.token)
            if event.logprobs is not None:
                self._probabilities.setdefault(index, []).append(token_logprobs(event.logprobs))

    def _result(self, prompt: int, index: int, finished: Finished) -> CompletionResult:
        content = "".join(self._texts.pop(index, []))
        return self._branches.result(
            prompt,
            finished,
            content=content,
            tokens=self._tokens.pop(index, []),
            has_new_line="\n" in content,
            probabilities=self._probabilities.pop(index, msgspec.UNSET),
        )

    def body(self) -> bytes:
        """The JSON, once every branch has finished."""
        results = sorted(self._results, key=lambda result: result.index)
        return msgspec.json.encode(results[0] if len(results) == 1 else results)


def slots(stats: Stats, n_ctx: int) -> list[Slot]:
    """What each slot does; `n_ctx` is the context of one."""
    return [
        Slot(id=slot.id, n_ctx=n_ctx, speculative=False, is_processing=False)
        if slot.request_id is None
        else Slot(
            id=slot.id,
            n_ctx=n_ctx,
            speculative=False,
            is_processing=True,
            id_task=slot.request_id,
            n_prompt_tokens=slot.n_prompt,
            n_prompt_tokens_processed=slot.n_computed,
            n_prompt_tokens_cache=slot.n_cached,
            next_token=[NextToken(has_next_token=True, n_remain=_n_remain(slot.n_remaining), n_decoded=slot.n_predicted)],
        )
        for slot in stats.slots
    ]


def _n_remain(n_remaining: int | None) -> int:
    return -1 if n_remaining is None else n_remaining


class Action(StrEnum):
    """What can be done with a slot."""

    SAVE = "save"
    RESTORE = "restore"
    ERASE = "erase"


class SlotAction(msgspec.Struct, frozen=True):
    """What is to be done with a slot."""

    slot: int
    action: Action
    filename: str | None


def slot_action(id_slot: str, action: str | None, data: SlotActionBody | None) -> SlotAction:
    """What a call of `/slots/{id_slot}` asks for; which slots and files there are is not looked at."""
    if re.fullmatch("[0-9]{1,9}", id_slot) is None:
        raise InvalidRequest("id_slot", f"{id_slot!r} is no number of a slot")
    if action not in list(Action):
        raise InvalidRequest("action", f"the action is {action!r}; it must be one of {', '.join(Action)}")
    return SlotAction(int(id_slot), Action(action), None if data is None else data.filename)


def blame(error: InvalidRequest) -> InvalidRequest:
    """The same error, by llama-server's name for a slot."""
    return InvalidRequest("id_slot", error.message) if error.param == "slot" else error


def saved(asked: SlotAction, file: PrefixFile) -> SlotSaved:
    """What was saved."""
    return SlotSaved(asked.slot, asked.filename or "", file.n_tokens, file.n_bytes, SaveTimings(file.ms))


def restored(asked: SlotAction, file: PrefixFile) -> SlotRestored:
    """What was restored."""
    return SlotRestored(asked.slot, asked.filename or "", file.n_tokens, file.n_bytes, RestoreTimings(file.ms))


def properties(engine: Engine, settings: Settings, name: str, build: str) -> Properties:
    """The server and its model, for `/props`."""
    model, limits = engine.model, engine.limits
    request = body.template(CompletionBody(), settings)
    seed = body.RANDOM_SEED if request.seed is None else request.seed
    return Properties(
        default_generation_settings=DefaultSettings(
            params=generation_settings(request, seed=seed, stream=False), n_ctx=limits.n_ctx_slot
        ),
        total_slots=limits.n_slots,
        n_ctx=limits.n_ctx,
        model_alias=name,
        model_path=model.path,
        modalities={"vision": False, "audio": False},
        chat_template=model.chat_template or "",
        bos_token=_spelling(model, model.bos_token),
        eos_token=_spelling(model, model.eos_token),
        build_info=build,
        is_sleeping=False,
        endpoint_slots=True,
        endpoint_props=False,
        endpoint_metrics=settings.metrics,
        compute=engine.choice.summary,
    )


def _spelling(model: Model, token: int | None) -> str:
    return "" if token is None else model.token_bytes(token).decode(errors="replace")


def content(data: TokenizeBody, n_vocab: int) -> list[Piece]:
    """What is to be tokenized; tokens may stand in it, of a vocabulary of `n_vocab` pieces."""
    if data.content is None:
        raise InvalidRequest("content", "content must be given")
    if isinstance(data.content, str):
        return [data.content]
    for element in data.content:
        if isinstance(element, int) and not 0 <= element < n_vocab:
            raise InvalidRequest("content", f"token {element} is outside of the vocabulary of {n_vocab} pieces")
    return data.content


def tokens(ids: Sequence[int], model: Model, *, with_pieces: bool) -> TokenizeResult:
    """Tokens, with what they stand for where that is asked for."""
    return TokenizeResult([TokenPiece(token, _piece(model.token_bytes(token))) for token in ids] if with_pieces else ids)


def _piece(data: bytes) -> str | list[int]:
    """What a token stands for: text, or its bytes where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
