"""The replicas, as whoever speaks for them sees them: the one seam to what places and reaches them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from weft.ray.messages import Call, Sent, Told

__all__ = ["Fleet"]


class Fleet(Protocol):
    """Replicas of one model, each of which answers what `weft.ray.replica.Replica` has methods for."""

    def told(self) -> Mapping[str, Told]:
        """What each replica that lives told last, in the order of their coming."""

    def begin(self, call: Call) -> AsyncGenerator[Sent]:
        """Sends a call to the best replica. Closing the generator cancels it there.

        Raises:
            ReplicaLost: The replica has died.
        """

    async def ask(self, replica_id: str | None, question: str, *given: object) -> Any:  # noqa: ANN401 (what the question gives)
        """What a method of one replica gives; None asks any.

        Raises:
            ReplicaLost: The replica has died, or there is none of that name.
            NoReplica: None has answered in time.
            WeftError: What the method raises.
        """

    async def ask_all(self, question: str, *given: object) -> list[Any]:
        """What a method of each replica gives; those that died meanwhile are left out.

        Raises:
            WeftError: What the method raises of the first that it does.
        """

    def remember(self, replica_id: str, tokens: Sequence[int], salt: bytes) -> None:
        """A replica holds these tokens now, though it has not told yet."""
