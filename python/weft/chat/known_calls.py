"""What holds answers to the calls that they may make, written once for chats that have the same tools."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

import msgspec

from weft.chat.answer.form import FamilyForm
from weft.chat.answer.gbnf import Rules
from weft.chat.answer.tools import ToolUse

__all__ = ["MAX_KEPT_BYTES", "KnownCalls", "write"]

MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Most bytes of tools and of their rules that are kept, about; the tools of one chat are kept in any case."""

_NONE = ToolUse(())


class KnownCalls:
    """The calls that chats of one model's template could make lately. Threads may share it."""

    def __init__(self) -> None:
        """None is known yet."""
        self._lock = Lock()
        self._kept: OrderedDict[bytes, tuple[Rules, str | None]] = OrderedDict()
        self._n_bytes = 0

    @property
    def n_bytes(self) -> int:
        """Of what is kept, about."""
        return self._n_bytes

    def write(self, form: FamilyForm, control_tokens: Mapping[str, int]) -> tuple[Rules, str | None]:
        """As `write` does, where the family and the control tokens are the same each time.

        Raises:
            InvalidRequest: the schema of a tool is none, or cannot be held to.
        """
        use = form.use or _NONE
        key = msgspec.json.encode((use.is_parallel, use.tools))
        with self._lock:
            written = self._kept.get(key)
            if written is not None:
                self._kept.move_to_end(key)
        if written is None:
            # Writing takes its time, and whoever has other tools need not wait for it.
            written = write(form, control_tokens)
            self._keep(key, written)
        rules, calls = written
        return rules.copy(), calls

    def _keep(self, key: bytes, written: tuple[Rules, str | None]) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = written
            self._n_bytes += _n_bytes(key, written[0])
            while self._n_bytes > MAX_KEPT_BYTES and len(self._kept) > 1:
                oldest, (rules, _) = self._kept.popitem(last=False)
                self._n_bytes -= _n_bytes(oldest, rules)


def write(form: FamilyForm, control_tokens: Mapping[str, int]) -> tuple[Rules, str | None]:
    """The rules of the calls that answers of a form may make, and what they begin with; None where there are no tools.

    Raises:
        InvalidRequest: the schema of a tool is none, or cannot be held to.
    """
    use = form.use or _NONE
    rules = Rules(use.tools, control_tokens, is_parallel=use.is_parallel)
    return rules, form.write(rules) if use.tools else None


def _n_bytes(key: bytes, rules: Rules) -> int:
    # The tools are there twice, as they are and as the key.
    return 2 * len(key) + rules.n_characters
