"""Fleet of the replicas of a Ray Serve deployment."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from weft.errors import QueueFullError, WeftError
from weft.ray.errors import NoReplicaError, ReplicaLostError
from weft.ray.fleet import Fleet
from weft.ray.messages import Call, MethodCall, ReplicaReport, Sent
from weft.ray.router_state import router_state

ANSWER_S = 120.0
"""Timeout of a method call, in seconds."""


class RayFleet(Fleet):
    """Fleet behind a Ray Serve handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._app = handle.app_name

    def reports(self) -> Mapping[str, ReplicaReport]:
        """See `Fleet`; available after the first call."""
        return router_state(self._app).reports()

    async def begin(self, call: Call) -> AsyncGenerator[Sent]:
        """See `Fleet`."""
        messages = self._handle.options(method_name="generate", stream=True).remote(call)
        try:
            async for message in messages:
                yield message
        except Exception as error:  # noqa: BLE001 (see `call_replica`)
            raise ours(error) from None
        finally:
            messages.cancel()

    async def call_replica(self, replica_id: str | None, method: str, *given: object) -> Any:  # noqa: ANN401 (see `Fleet`)
        """See `Fleet`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._handle.options(method_name="answer").remote(MethodCall(method, given, replica_id))
        except TimeoutError:
            raise NoReplicaError(ANSWER_S) from None
        except Exception as error:  # noqa: BLE001 (all of Ray's exceptions are converted)
            raise ours(error) from None
        return _raised(answer)

    async def call_replicas(self, method: str, *given: object) -> list[Any]:
        """See `Fleet`."""
        answers = self._handle.broadcast("answer", MethodCall(method, given))
        try:
            results = await answers.results_async(timeout_s=ANSWER_S, return_exceptions=True)
        except TimeoutError:
            raise NoReplicaError(ANSWER_S) from None
        return [_raised(one) for one in results if not isinstance(one, RayActorError)]

    def remember(self, replica_id: str, tokens: Sequence[int], salt: bytes) -> None:
        """See `Fleet`."""
        router_state(self._app).remember(replica_id, tokens, salt)


def ours(error: Exception) -> Exception:
    """Converts an exception of Ray."""
    if isinstance(error, RayTaskError):
        # An unexpected error of the replica, or a WeftError that it passed on.
        return error.cause if isinstance(error.cause, WeftError) else error
    if isinstance(error, BackPressureError):
        return QueueFullError(error.num_queued_requests)
    if isinstance(error, DeploymentUnavailableError):
        return NoReplicaError(0.0)
    if isinstance(error, RayActorError | TaskCancelledError | ReplicaUnavailableError):
        return ReplicaLostError("")
    return error


def _raised(answer: Any) -> Any:  # noqa: ANN401 (any result)
    if isinstance(answer, Exception):
        raise answer
    return answer
