"""Adapter between Ray Serve's request router, whose interface is alpha, and `weft.ray.prefix_routing`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from weft.ray.messages import Call, MethodCall, ReplicaReport, unpacked
from weft.ray.prefix_routing import Candidate, Router
from weft.ray.router_state import RouterState, register_router


class PrefixRouter(RequestRouter):
    """Routes calls by cached prefixes. Ray creates one in each process with a handle, on its own event loop."""

    def initialize_state(self, **_: object) -> None:
        """Initializes the router; called by Ray."""
        self._choosing = Router()
        self._reports: dict[str, ReplicaReport] = {}
        register_router(self._deployment_id.app_name, RouterState(lambda: self._reports, self._remember))

    def _remember(self, replica_id: str, tokens: Sequence[int], salt: bytes) -> None:
        self._event_loop.call_soon_threadsafe(lambda: self._choosing.wrote(replica_id, tokens, now=time.time(), salt=salt))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Records replicas and their reports; called by Ray when any of them changes."""
        super().update_replicas(replicas)
        reports = {replica.replica_id.unique_id: replica.routing_stats.get("report") for replica in replicas}
        self._reports = {name: one for name, one in reports.items() if one is not None}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the replicas in the order in which to try them, each as its own rank; called by Ray."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        message = _message_of(pending_request)
        if message is not None and message.only is not None and message.only in by_name:
            ranked = [message.only]
        else:
            # If the only permitted replica is gone, any other one responds with `ReplicaLostError`.
            ranked = self._ranked(message if isinstance(message, Call) else None, self._candidates(by_name))
        if pending_request is not None:
            # Without this, Ray would retry without a pause until one accepts the request.
            pending_request.routing_context.should_backoff = True
        return [[by_name[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:  # noqa: ARG002, ANN401
        """Records a request that a replica has accepted; called by Ray."""
        call = _message_of(pending_request)
        if isinstance(call, Call):
            self._choosing.sent(replica_id.unique_id, unpacked(call.tokens), now=time.time(), salt=call.salt)

    def _ranked(self, call: Call | None, candidates: Sequence[Candidate]) -> list[str]:
        if call is None:
            return self._choosing.choose(None, candidates, now=time.time())
        tokens = unpacked(call.tokens)
        ranked = self._choosing.choose(tokens, candidates, now=time.time(), salt=call.salt)
        return sorted(ranked, key=lambda name: name in call.avoid)

    def _candidates(self, by_name: Mapping[str, RunningReplica]) -> list[Candidate]:
        digests = {name: report.digest for name, report in self._reports.items()}
        n_ongoing = self.replica_queue_len_cache.get
        return [Candidate(name, digests.get(name), n_ongoing(replica.replica_id) or 0) for name, replica in by_name.items()]


def _message_of(pending_request: PendingRequest | None) -> Call | MethodCall | None:
    """Returns the message in a Ray request."""
    first = pending_request.args[0] if pending_request is not None and pending_request.args else None
    return first if isinstance(first, Call | MethodCall) else None
