"""Cache of the grammar rules for tool calls, so that chats with the same tools write them once."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

import msgspec

from weft.chat.answer.form import ChatForm
from weft.chat.answer.gbnf import Rules

MAX_CACHE_BYTES = 4 * 1024 * 1024
"""Approximate limit of the cached tools and rules, in bytes. The most recent entry is kept even if it is larger."""


class CallGrammarCache:
    """Least recently used cache of call grammars, for one chat template and one vocabulary. It may be shared between threads."""

    def __init__(self) -> None:
        """Creates an empty cache."""
        self._lock = Lock()
        self._entries: OrderedDict[bytes, tuple[Rules, str | None]] = OrderedDict()
        self._n_bytes = 0

    @property
    def n_bytes(self) -> int:
        """Approximate size of the cached entries, in bytes."""
        return self._n_bytes

    def rules(self, form: ChatForm, control_tokens: Mapping[str, int]) -> tuple[Rules, str | None]:
        """Returns the result of `write_rules`, from the cache if it has the same tools.

        The key contains only the tools: the format and the control tokens must be the same in each call.

        Raises:
            InvalidRequestError: The schema of a tool is invalid, or cannot be enforced.
        """
        key = msgspec.json.encode((form.use.is_parallel, form.use.tools))
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is None:
            # Writing rules is slow; without the lock, chats with other tools do not wait for it.
            entry = write_rules(form, control_tokens)
            self._insert(key, entry)
        rules, calls = entry
        return rules.copy(), calls

    def _insert(self, key: bytes, entry: tuple[Rules, str | None]) -> None:
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = entry
            self._n_bytes += _n_bytes(key, entry[0])
            while self._n_bytes > MAX_CACHE_BYTES and len(self._entries) > 1:
                oldest, (rules, _) = self._entries.popitem(last=False)
                self._n_bytes -= _n_bytes(oldest, rules)


def write_rules(form: ChatForm, control_tokens: Mapping[str, int]) -> tuple[Rules, str | None]:
    """Writes the grammar rules of the calls that answers may contain.

    Returns:
        The rules, and the expression that matches a block of calls; None if there are no tools.

    Raises:
        InvalidRequestError: The schema of a tool is invalid, or cannot be enforced.
    """
    rules = Rules(form.use.tools, control_tokens, is_parallel=form.use.is_parallel)
    return rules, form.write(rules) if form.use.tools else None


def _n_bytes(key: bytes, rules: Rules) -> int:
    # The tools are in memory twice: in the rules, and encoded as the key.
    return 2 * len(key) + rules.n_characters
