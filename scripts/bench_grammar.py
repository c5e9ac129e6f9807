"""Compares the cost of grammars with llguidance: microseconds per token mask and per accepted token.

Writes a byte-level vocabulary of 128,000 tokens and documents that follow JSON schemas and a GBNF grammar, lets
`cargo bench --bench grammar` walk through the documents token by token, and does the same with llguidance if it is installed
(`pip install llguidance numpy`). Nothing else needs llguidance. Run it in the root of the repository:

    python scripts/bench_grammar.py

Each round starts a new matcher, whose caches are empty, as a new request does. Figures are means over the tokens of a
document in the best round, since other programs on the machine only make rounds slower. A mask of ours is written into a row
of float32 logits, one of llguidance into a bitmask that is still to be applied. The calls of llguidance include the overhead
of Python, less than 1 µs each.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent

N_VOCAB = 128_000
"""Size of the vocabulary, the end token included, which is the last."""

LONGEST = 16
"""Most bytes of a token."""

N_ROUNDS = 11
"""Rounds of each document."""

PIECE = re.compile(rb" ?[A-Za-z\x80-\xff]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9\x80-\xff]+|\s+")
"""Pieces that tokens do not cross, similar to those of GPT-2."""

SOURCES = ("*.md", "*.py", "*.rs")
"""Files of the repository whose n-grams become tokens."""

JSON_GRAMMAR = r"""root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

TEXT: dict[str, Any] = {"type": "string"}


def object_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of an object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


PERSON = object_of(
    {
        "name": TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": TEXT,
        "active": {"type": "boolean"},
        "notes": TEXT,
    }
)

ORDER = object_of(
    {
        "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "date": {"type": "string", "format": "date"},
        "status": {"enum": ["open", "paid", "shipped", "returned"]},
        "customer": PERSON,
        "items": {"type": "array", "items": object_of({"article": TEXT, "price": {"type": "number"}}), "minItems": 1},
    }
)

TREE = {"$ref": "#/$defs/node", "$defs": {"node": object_of({"value": TEXT, "children": {"type": "array"}})}}
TREE["$defs"]["node"]["properties"]["children"]["items"] = {"$ref": "#/$defs/node"}  # type: ignore[index]


def person(nth: int) -> dict[str, Any]:
    """Returns an instance of `PERSON`."""
    notes = "Prefers deliveries in the morning; the bell does not work, so please call before you arrive. " * 2
    return {"name": f"Maria Kowalski {nth}", "age": 30 + nth, "email": f"m{nth}@example.com", "active": True, "notes": notes}


def order(nth: int) -> dict[str, Any]:
    """Returns an instance of `ORDER`."""
    items = [{"article": f"coffee filter no. {size}", "price": 3.5 * size} for size in range(1, 5)]
    return {"id": f"ABC-{1000 + nth}", "date": "2024-02-29", "status": "shipped", "customer": person(nth), "items": items}


def tree(depth: int) -> dict[str, Any]:
    """Returns an instance of `TREE`."""
    return {"value": f"a node at depth {depth}", "children": [tree(depth - 1), tree(depth - 1)] if depth > 0 else []}


class Case(NamedTuple):
    """A grammar, and a document that follows it."""

    name: str
    kind: str
    """`schema` or `gbnf`."""
    grammar: str
    document: Any


CASES = (
    Case("flat object", "schema", json.dumps(PERSON), person(1)),
    Case("orders", "schema", json.dumps({"type": "array", "items": ORDER}), [order(nth) for nth in range(4)]),
    Case("recursive tree", "schema", json.dumps(TREE), tree(4)),
    Case("any object", "schema", json.dumps({"type": "object"}), {"orders": [order(nth) for nth in range(4)]}),
    Case("JSON in GBNF", "gbnf", JSON_GRAMMAR, {"orders": [order(nth) for nth in range(4)]}),
)


def vocabulary() -> list[bytes]:
    """Returns all 256 bytes, the most frequent n-grams of the repository's sources, and the empty text of the end token."""
    listed = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pieces = Counter[bytes]()
    for path in filter(None, listed.split("\0")):
        pieces.update(PIECE.findall((ROOT / path).read_bytes()))
    n_grams = Counter[bytes]()
    for piece, count in pieces.items():
        for start in range(len(piece)):
            for end in range(start + 2, min(start + LONGEST, len(piece)) + 1):
                n_grams[piece[start:end]] += count
    bytes_alone = [bytes([byte]) for byte in range(256)]
    frequent = sorted(n_grams, key=lambda n_gram: (-n_grams[n_gram], n_gram))[: N_VOCAB - 257]
    tokens = [*bytes_alone, *frequent, b""]
    if len(tokens) < N_VOCAB:
        sys.exit(f"the sources have only {len(tokens)} different n-grams; {N_VOCAB} are needed")
    return tokens


def tokenize(text: bytes, ids: dict[bytes, int]) -> list[int]:
    """Splits a text into the longest tokens, from its start on."""
    tokens, at = [], 0
    while at < len(text):
        length = next(n for n in range(LONGEST, 0, -1) if text[at : at + n] in ids and at + n <= len(text))
        tokens.append(ids[text[at : at + length]])
        at += length
    return tokens


class Cost(NamedTuple):
    """Microseconds."""

    compile: float
    mask: float
    slowest_mask: float
    accept: float
    """Without a mask before it."""


def ours(tokens: list[bytes], documents: list[list[int]]) -> list[Cost]:
    """Measures this repository's grammars."""
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder)
        (cases / "vocabulary").write_text("".join(f"{token.hex()}\n" for token in tokens))
        for nth, (case, document) in enumerate(zip(CASES, documents, strict=True)):
            (cases / f"{nth}.{case.kind}").write_text(case.grammar)
            (cases / f"{nth}.tokens").write_text(" ".join(map(str, document)))
        command = ["cargo", "bench", "--locked", "--no-default-features", "--bench", "grammar"]
        environment = os.environ | {"WEFT_GRAMMAR_CASES": folder, "WEFT_GRAMMAR_ROUNDS": str(N_ROUNDS)}
        answer = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [Cost(*map(float, line.split())) for line in answer.splitlines()]


def llguidance(tokens: list[bytes], documents: list[list[int]]) -> list[Cost] | None:
    """Measures llguidance; None if it is not installed."""
    try:
        from llguidance import (  # type: ignore[import-not-found]  # noqa: PLC0415
            LLMatcher,
            LLTokenizer,
            TokenizerWrapper,
            gbnf_to_lark,
            numpy,
        )
    except ImportError:
        return None
    ids = {token: number for number, token in enumerate(tokens)}

    class Vocabulary:
        eos_token_id = N_VOCAB - 1
        bos_token_id = None
        special_token_ids = (eos_token_id,)

        def __init__(self) -> None:
            self.tokens = [*tokens[:-1], b"</s>"]

        def __call__(self, text: bytes) -> list[int]:
            return tokenize(text, ids)

    tokenizer = LLTokenizer(TokenizerWrapper(Vocabulary()))
    bitmask = numpy.allocate_token_bitmask(1, N_VOCAB)

    def round_of(case: Case, document: list[int]) -> Cost:
        started = time.perf_counter()
        is_schema = case.kind == "schema"
        read = LLMatcher.grammar_from_json_schema if is_schema else gbnf_to_lark.any_to_lark
        grammar = read(case.grammar)
        matcher = LLMatcher(tokenizer, grammar)
        compiled = time.perf_counter() - started
        if matcher.is_error():
            sys.exit(f"llguidance refuses {case.name}: {matcher.get_error()}")
        masks = []
        for token in document:
            started = time.perf_counter()
            numpy.fill_next_token_bitmask(matcher, bitmask)
            masks.append(time.perf_counter() - started)
            if not bitmask[0, token // 32] >> (token % 32) & 1 or not matcher.consume_token(token):
                sys.exit(f"llguidance does not allow {tokens[token]!r} in {case.name}: {matcher.get_error()}")
        matcher = LLMatcher(tokenizer, grammar)
        started = time.perf_counter()
        for token in document:
            matcher.consume_token(token)
        accepted = time.perf_counter() - started
        return Cost(*(s * 1e6 for s in (compiled, statistics.fmean(masks), max(masks), accepted / len(document))))

    def best(rounds: list[Cost]) -> Cost:
        return Cost(*map(min, zip(*rounds, strict=True)))

    return [best([round_of(case, document) for _ in range(N_ROUNDS)]) for case, document in zip(CASES, documents, strict=True)]


def main() -> None:
    """Prints a table of both."""
    tokens = vocabulary()
    ids = {token: number for number, token in enumerate(tokens[:-1])}
    spelt = [json.dumps(case.document, separators=(",", ":")).encode() for case in CASES]
    documents = [tokenize(text, ids) for text in spelt]
    sides = {"weft": ours(tokens, documents), "llguidance": llguidance(tokens, documents)}
    print(f"{'µs':16}{'tokens':>7}  {'side':11}{'compile':>9}{'mask':>9}{'slowest':>9}{'accept':>9}")
    for nth, (case, document) in enumerate(zip(CASES, documents, strict=True)):
        for side, costs in sides.items():
            if costs is not None:
                cells = "".join(f"{value:9.1f}" for value in costs[nth])
                print(f"{case.name:16}{len(document):7}  {side:11}{cells}")
    if sides["llguidance"] is None:
        print("llguidance is not installed: pip install llguidance numpy")


if __name__ == "__main__":
    main()
