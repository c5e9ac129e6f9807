"""Replicas in this process, in the place of those that Ray reaches."""

import asyncio
import pickle
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from weft.errors import WeftError
from weft.ray.errors import ReplicaLostError
from weft.ray.messages import Call, MethodCall, ReplicaReport, Sent, unpacked
from weft.ray.prefix_routing import Candidate, Router
from weft.ray.replica import Replica

__all__ = ["KEY", "LocalFleet"]

KEY = b"a secret of these tests"


class LocalFleet:
    """A fleet whose messages are pickled as if they went to another process, and whose replicas can be made to die."""

    def __init__(self, replicas: Mapping[str, Replica]) -> None:
        self.replicas = dict(replicas)
        self.calls: list[tuple[str, Call]] = []
        """What was sent, and where."""
        self.dying: dict[str, int] = {}
        """Replicas that die after so many messages of a call more."""
        self.deaf: set[str] = set()
        """Replicas that never answer."""
        self.still: set[str] = set()
        """Replicas that stand still from now on."""
        self.spoken = asyncio.Event()
        """Until it is set, events are held back; other messages are not."""
        self.spoken.set()
        self._reports: dict[str, ReplicaReport] = {}
        self._router = Router(seed=1)

    async def look(self) -> None:
        """Asks each replica what it holds, as Ray does once a second."""
        self._reports = {name: _sent(await replica.report()) for name, replica in self.replicas.items()}

    def reports(self) -> Mapping[str, ReplicaReport]:
        """As of `Fleet`."""
        return {name: report for name, report in self._reports.items() if name in self.replicas}

    async def begin(self, call: Call) -> AsyncGenerator[Sent]:
        """As of `Fleet`."""
        name = self._choose(call)
        self.calls.append((name, call))
        if name in self.deaf:
            await asyncio.Event().wait()
        answer = self.replicas[name].generate(_sent(call))
        try:
            async for message in answer:
                if name in self.still:
                    await asyncio.Event().wait()
                if isinstance(message, list) and message:
                    await self.spoken.wait()
                if name in self.dying:
                    self.dying[name] -= 1
                    if self.dying[name] < 0:
                        self.replicas.pop(name, None)
                        raise ReplicaLostError(name)
                yield _sent(message)
        finally:
            await answer.aclose()

    def _choose(self, call: Call) -> str:
        if call.only is not None:
            return call.only
        candidates = [Candidate(name, self._reports[name].digest if name in self._reports else None, 0) for name in self.replicas]
        tokens = unpacked(call.tokens)
        ranked = self._router.choose(tokens, candidates, now=time.time(), salt=call.salt)
        best = min(ranked, key=lambda name: name in call.avoid)
        self._router.sent(best, tokens, now=time.time(), salt=call.salt)
        return best

    async def call_replica(self, replica_id: str | None, method: str, *given: object) -> Any:  # noqa: ANN401 (as there)
        """As of `Fleet`."""
        name = next(iter(self.replicas)) if replica_id is None else replica_id
        # As over Ray, whoever gets what is for another says so.
        reached = self.replicas.get(name) or next(iter(self.replicas.values()))
        answer = _sent(await reached.answer(_sent(MethodCall(method, given, replica_id))))
        if isinstance(answer, WeftError):
            raise answer
        return answer

    async def call_replicas(self, method: str, *given: object) -> list[Any]:
        """As of `Fleet`."""
        return [await self.call_replica(name, method, *given) for name in self.replicas]

    def remember(self, replica_id: str, tokens: Sequence[int], salt: bytes) -> None:
        """As of `Fleet`."""
        self._router.wrote(replica_id, tokens, now=time.time(), salt=salt)


def _sent(message: Any) -> Any:  # noqa: ANN401 (whatever is sent)
    return pickle.loads(pickle.dumps(message))
