"""Interface of the remote engine to its replicas, independent of how they are placed and reached."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from weft.ray.messages import Call, ReplicaReport, Sent


class Fleet(Protocol):
    """Replicas of one model, each with the methods of `weft.ray.replica.Replica`."""

    def reports(self) -> Mapping[str, ReplicaReport]:
        """Returns the last report of each live replica, in the order of their appearance."""

    def begin(self, call: Call) -> AsyncGenerator[Sent]:
        """Sends a call to the best replica. Closing the generator cancels the call.

        Raises:
            ReplicaLostError: The replica has died.
        """

    async def call_replica(self, replica_id: str | None, method: str, *given: object) -> Any:  # noqa: ANN401 (the method's result)
        """Returns the result of a method of one replica; `replica_id` None is any.

        Raises:
            ReplicaLostError: The replica has died, or does not exist.
            NoReplicaError: No replica responded in time.
            WeftError: Any error of the method.
        """

    async def call_replicas(self, method: str, *given: object) -> list[Any]:
        """Returns the results of a method of each replica, except replicas that died meanwhile.

        Raises:
            WeftError: The first error of the method.
        """

    def remember(self, replica_id: str, tokens: Sequence[int], salt: bytes) -> None:
        """Records that a replica has these tokens cached, before its next report."""
