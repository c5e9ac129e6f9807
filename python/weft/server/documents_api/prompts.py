"""Prompts of branches: the tokens of a path, and text that must be tokenized. Blocks while it tokenizes."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from weft import InvalidRequestError
from weft._native import Model, TokenIds
from weft.documents import spans as token_spans
from weft.documents.nodes import Stored
from weft.documents.records import Span
from weft.documents.spans import prompt_pieces
from weft.errors import DocumentConflictError
from weft.server.documents_api.schemas import MAX_ALTERNATIVES, ContinueBody, TextPosition
from weft.server.inference.submission import Piece, Submission
from weft.server.request_fields import requests
from weft.server.request_fields.fields import WRITING_NAMES, CompletionFields
from weft.server.request_fields.fields import Prompt as FieldPrompt
from weft.server.request_fields.prompts import pieces
from weft.settings import Settings


class Prompt(NamedTuple):
    """The prompt of branches."""

    tokens: Sequence[int]
    n_retokenized: int
    """Nodes with tokens of another model."""
    start: list[Span]
    """Tokens of the text with which each new node begins."""
    start_text: str


class Source(NamedTuple):
    """What a prompt is made of."""

    path: Sequence[Stored]
    """Nodes from the top to the node whose text is continued."""
    at: int
    """Bytes of the last node's text that belong to the prompt."""
    override: Sequence[Piece] | None
    """Text and tokens in place of those of the path."""
    append: Sequence[Piece]
    parse_special: bool

    @property
    def size(self) -> int:
        """Characters and tokens, an estimate for the cost of tokenizing."""
        return sum(len(each.node.text) for each in self.path) if self.override is None else sum(map(_size, self.override))


def position(stored: Stored, at: TextPosition | None) -> int:
    """Returns the byte offset of a position in a node's text.

    Raises:
        InvalidRequestError: It is outside the text, or is given in both units or none.
    """
    text = stored.node.text
    match at:
        case None:
            return len(text.encode())
        case TextPosition(token=int(token), character=None):
            if not 0 <= token <= len(stored.spans):
                raise InvalidRequestError("at", f"at is token {token}; the node has {len(stored.spans)} tokens")
            return token_spans.byte_of_token(text, stored.spans, token)
        case TextPosition(token=None, character=int(character)):
            if not 0 <= character <= len(text):
                raise InvalidRequestError("at", f"at is character {character}; the text has {len(text)} characters")
            return token_spans.byte_of_character(text, character)
        case _:
            raise InvalidRequestError("at", "at must have either token or character")


def make(model: Model, source: Source, digest: str) -> Prompt:
    """Returns the prompt of branches for a model, whose digest is given."""
    given: list[int | bytes] = []
    n_retokenized = 0
    if source.override is not None:
        given = [each if isinstance(each, int) else each.encode() for each in source.override]
    else:
        for nth, each in enumerate(source.path, 1):
            is_known = each.digest == digest
            n_retokenized += bool(each.spans) and not is_known
            text, spans = each.node.text, each.spans if is_known else []
            if nth == len(source.path):
                spans = token_spans.split(spans, source.at)[0]
                text = text.encode()[: source.at].decode()
            given += prompt_pieces(text, spans)
    tokens: list[int] = []
    for piece in _joined(given):
        if isinstance(piece, int):
            tokens.append(piece)
        elif tokens:
            tokens += model.tokenize_on(piece, parse_special=source.parse_special)
        else:
            tokens += model.tokenize(piece, parse_special=source.parse_special)
    if source.override is None and model.adds_bos and tokens and tokens[0] != model.bos_token and model.bos_token is not None:
        tokens.insert(0, model.bos_token)
    if not tokens:
        raise InvalidRequestError("prompt", "there is no text to continue; write some first")
    _check_tokens(model, tokens, "prompt")
    start, start_text = _start(model, source.append)
    tokens += [span.token for span in start if span.token is not None]
    return Prompt(TokenIds(tokens), n_retokenized, start, start_text)


def _start(model: Model, append: Sequence[Piece]) -> tuple[list[Span], str]:
    """Returns the tokens and the text of the beginning of new nodes."""
    tokens: list[int] = []
    for piece in append:
        tokens += [piece] if isinstance(piece, int) else model.tokenize_on(piece, parse_special=False)
    _check_tokens(model, tokens, "append")
    hidden = frozenset(model.control_tokens()) if tokens else frozenset()
    known = [(token, b"" if token in hidden else model.token_bytes(token)) for token in tokens]
    builder = token_spans.SpanBuilder()
    # A token that ends inside a character leaves the rest of it to the branch.
    text = b"".join(data for _, data in known).decode(errors="replace")
    builder.add_text(text)
    for token, data in known:
        builder.add(data, token, None, (), "")
    return builder.finish(None), text


def _check_tokens(model: Model, tokens: Sequence[int], param: str) -> None:
    for token in tokens:
        if not 0 <= token < model.n_vocab:
            raise InvalidRequestError(param, f"token {token} is not in the vocabulary ({model.n_vocab} tokens)")


def _joined(given: Sequence[int | bytes]) -> Iterator[int | bytes]:
    """Yields the pieces with neighbouring texts joined, so that they are tokenized as one."""
    text = b""
    for piece in given:
        if isinstance(piece, bytes):
            text += piece
            continue
        if text:
            yield text
            text = b""
        yield piece
    if text:
        yield text


def submission(body: ContinueBody, settings: Settings, tokens: Sequence[int]) -> Submission:
    """Returns the request of a body with a prompt.

    Raises:
        InvalidRequestError: A field is invalid.
    """
    fields = CompletionFields(**{name: getattr(body, name) for name in WRITING_NAMES})
    n_probs = 1 if body.n_probs is None else max(body.n_probs, 1)
    if n_probs > MAX_ALTERNATIVES:
        raise InvalidRequestError("n_probs", f"n_probs is {body.n_probs}; a document stores at most {MAX_ALTERNATIVES}")
    fields.stream = True
    fields.prompt = [0]  # Replaced below: a list of tokens would be checked one by one.
    fields.n_probs = n_probs
    made = requests.submission(fields, settings, n_probs=("n_probs", n_probs))
    return msgspec.structs.replace(made, prompts=[tokens])


def source_of(body: ContinueBody, path: Sequence[Stored]) -> Source:
    """Returns what the prompt of a body is made of.

    Raises:
        InvalidRequestError: A position or a text is invalid.
    """
    override = None if body.prompt is None else _pieces(body.prompt)
    return Source(path, position(path[-1], body.at), override, pieces(body.append or ""), body.parse_special)


def _pieces(prompt: FieldPrompt) -> Sequence[Piece]:
    """Returns the pieces of one prompt without media.

    Raises:
        InvalidRequestError: There are several prompts, or media.
    """
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and all(isinstance(each, str | int) for each in prompt):
        return cast("list[Piece]", prompt)
    raise InvalidRequestError("prompt", "prompt must be one text, or a list of texts and tokens, without media")


_OWN_NAMES = ("prompt", "parse_special", "until")


def parameters(body: ContinueBody, index: int, seed: int) -> dict[str, Any]:
    """Returns the fields of one branch of a body, with which it can be resumed."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(ContinueBody)}
    shared = {
        names[name]: value
        for name in (*WRITING_NAMES, *_OWN_NAMES)
        if name not in ("n", "branches", "seed") and (value := getattr(body, name)) not in (None, False)
    }
    own = body.branches[index] if body.branches else {}
    return msgspec.to_builtins({**shared, **own, "seed": seed})  # type: ignore[no-any-return]


def resumed(path: Sequence[Stored]) -> tuple[ContinueBody, Source]:
    """Returns the body that continues the branch of an interrupted node, and what its prompt is made of.

    Raises:
        DocumentConflictError: The node is not interrupted.
    """
    stored = path[-1]
    if stored.node.state != "interrupted":
        raise DocumentConflictError(f"node {stored.node.id} is {stored.node.state}; only an interrupted node can be resumed")
    body = msgspec.convert(stored.node.parameters or {}, ContinueBody, strict=False)
    n_written = sum(span.token is not None for span in stored.spans)
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        if (limit := getattr(body, name)) is not None and limit >= 0:
            setattr(body, name, max(limit - n_written, 1))
    source = source_of(body, path)
    return body, source if source.override is None else source._replace(override=[*source.override, stored.node.text])


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, str) else 1
