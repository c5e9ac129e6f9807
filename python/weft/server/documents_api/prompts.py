"""Prompts of branches: the tokens of a path, and text that must be tokenized. Blocks while it tokenizes."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
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

BytesOf = Callable[[int], bytes]
"""Returns the bytes of a token."""

MAX_CHARACTER = 4
"""Maximum bytes of a character."""


class Prompt(NamedTuple):
    """The prompt of branches."""

    tokens: Sequence[int]
    n_retokenized: int
    """Nodes with tokens of another model."""
    start: list[Span]
    """Tokens of the text with which each new node begins."""
    start_text: str
    lead: bytes
    """Bytes of an incomplete character at its end, whose other bytes the branches write."""


class Source(NamedTuple):
    """Parts of a prompt."""

    path: Sequence[Stored]
    """Nodes whose text is continued, from the top, or after `front`."""
    at: int
    """Bytes of the last node's text that belong to the prompt."""
    front: Sequence[Piece] | None
    """Text and tokens in place of all other nodes."""
    append: Sequence[Piece]
    parse_special: bool

    @property
    def size(self) -> int:
        """Characters and tokens, an estimate for the cost of tokenizing."""
        return sum(len(each.node.text) for each in self.path) + sum(map(_size, self.front or ()))


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
    bytes_of = _bytes_of(model)
    appended: list[int] = []
    for each in source.append:
        appended += [each] if isinstance(each, int) else model.tokenize_on(each, parse_special=False)
    _check_tokens(model, appended, "append")
    given, n_retokenized = _given(source, digest, appended, bytes_of)
    tokens: list[int] = []
    for piece in _joined(given):
        if isinstance(piece, int):
            tokens.append(piece)
        elif tokens:
            tokens += model.tokenize_on(piece, parse_special=source.parse_special)
        else:
            tokens += model.tokenize(piece, parse_special=source.parse_special)
    if source.front is None and model.adds_bos and tokens and tokens[0] != model.bos_token and model.bos_token is not None:
        tokens.insert(0, model.bos_token)
    if not tokens:
        raise InvalidRequestError("prompt", "there is no text to continue; write some first")
    _check_tokens(model, tokens, "prompt")
    start, start_text, lead = _start(appended, _incomplete(tokens, len(tokens), bytes_of), bytes_of)
    return Prompt(TokenIds([*tokens, *appended]), n_retokenized, start, start_text, lead)


def _given(source: Source, digest: str, appended: Sequence[int], bytes_of: BytesOf) -> tuple[list[int | bytes], int]:
    """Returns the tokens of a source, with bytes in place of unknown ones, and the number of nodes of another model."""
    given: list[int | bytes] = [each if isinstance(each, int) else each.encode() for each in source.front or ()]
    ends: list[int] = []
    n_retokenized = 0
    for nth, each in enumerate(source.path, 1):
        is_known = each.digest == digest
        n_retokenized += bool(each.spans) and not is_known
        data, spans = each.node.text.encode(), each.spans if is_known else []
        if nth == len(source.path) and source.at < len(data):
            spans = token_spans.split(spans, source.at)[0]
            data = data[: source.at]
        ends.append(len(given) + len(spans))
        given += prompt_pieces(data.decode(), spans)
    checked = len(given)
    for end in reversed(ends):
        checked = _drop_incomplete(given, min(end, checked), appended, bytes_of)
    return given, n_retokenized


def _drop_incomplete(given: list[int | bytes], end: int, appended: Sequence[int], bytes_of: BytesOf) -> int:
    """Drops the tokens of an incomplete character before an index, unless the next ones complete it.

    The text has no such character: a branch has ended inside it.

    Returns:
        The index of the first dropped token, or else `end`.
    """
    lead = _incomplete(given, end, bytes_of)
    if not lead:
        return end
    data = lead
    for piece in chain(islice(given, end, None), appended):
        data += _data(piece, bytes_of)
        if len(data) >= MAX_CHARACTER:
            break
    text, rest = token_spans.decode(data[:MAX_CHARACTER])
    if text.encode() + rest == data[:MAX_CHARACTER]:
        return end
    n_bytes = len(lead)
    while n_bytes > 0:
        end -= 1
        own = _data(given[end], bytes_of)
        kept = own[: max(len(own) - n_bytes, 0)]
        n_bytes -= len(own)
        given[end : end + 1] = [kept] if kept else []
    return end


def _incomplete(given: Sequence[int | bytes], end: int, bytes_of: BytesOf) -> bytes:
    """Returns the bytes of an incomplete character before an index. Control tokens end a text."""
    data = b""
    while end > 0 and len(data) < MAX_CHARACTER and (own := _data(given[end - 1], bytes_of)):
        data = own + data
        end -= 1
    return token_spans.decode(data[1 - MAX_CHARACTER :])[1]


def _data(piece: int | bytes, bytes_of: BytesOf) -> bytes:
    return piece if isinstance(piece, bytes) else bytes_of(piece)


def _bytes_of(model: Model) -> BytesOf:
    """Returns a function that returns the bytes of tokens. Control tokens and invalid ids have none."""
    hidden = frozenset(model.control_tokens())
    n_vocab = model.n_vocab
    return lambda token: model.token_bytes(token) if 0 <= token < n_vocab and token not in hidden else b""


def _start(tokens: Sequence[int], lead: bytes, bytes_of: BytesOf) -> tuple[list[Span], str, bytes]:
    """Returns the tokens and the text of the beginning of new nodes, and the bytes of an incomplete character at its end.

    Args:
        tokens: The tokens.
        lead: Bytes of an incomplete character before them.
        bytes_of: Returns the bytes of a token.
    """
    builder = token_spans.SpanBuilder(lead)
    text, rest = token_spans.decode(lead + b"".join(map(bytes_of, tokens)))
    builder.add_text(text)
    for token in tokens:
        builder.add(bytes_of(token), token, None, (), "")
    return builder.finish(None), text, rest


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
    """Returns the parts of the prompt of a body.

    Raises:
        InvalidRequestError: A position or a text is invalid.
    """
    front = None if body.prompt is None else _pieces(body.prompt)
    at = position(path[-1], body.at)
    return Source(path if front is None else [], at, front, pieces(body.append or ""), body.parse_special)


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


_OWN_NAMES = ("parse_special", "until")


def parameters(body: ContinueBody, index: int, seed: int) -> dict[str, Any]:
    """Returns the fields of one branch of a body, with which it can be resumed; not its prompt, which may be long."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(ContinueBody)}
    shared = {
        names[name]: value
        for name in (*WRITING_NAMES, *_OWN_NAMES)
        if name not in ("n", "branches", "seed") and (value := getattr(body, name)) not in (None, False)
    }
    own = body.branches[index] if body.branches else {}
    return msgspec.to_builtins({**shared, **own, "seed": seed})  # type: ignore[no-any-return]


def resumed(path: Sequence[Stored], prompt: FieldPrompt | None) -> tuple[ContinueBody, Source]:
    """Returns the body that continues the branch of an interrupted node, and the parts of its prompt.

    Args:
        path: Nodes from the top to the interrupted one.
        prompt: Text or tokens in place of the nodes above the interrupted one.

    Raises:
        DocumentConflictError: The node is not interrupted.
        InvalidRequestError: Its parameters, which may have been imported, or the prompt are invalid.
    """
    stored = path[-1]
    if stored.node.state != "interrupted":
        raise DocumentConflictError(f"node {stored.node.id} is {stored.node.state}; only an interrupted node can be resumed")
    try:
        body = msgspec.convert(stored.node.parameters or {}, ContinueBody, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError("parameters", f"the parameters of node {stored.node.id} are invalid: {error}") from None
    n_written = sum(span.token is not None for span in stored.spans)
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        if (limit := getattr(body, name)) is not None and limit >= 0:
            setattr(body, name, max(limit - n_written, 1))
    source = source_of(body, path)
    return body, source if prompt is None else source._replace(path=[stored], front=_pieces(prompt))


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, str) else 1
