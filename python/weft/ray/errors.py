"""What can go wrong between processes."""

from weft.errors import EngineStopped

__all__ = ["NoReplica", "ReplicaLost"]


class ReplicaLost(EngineStopped):
    """The replica that wrote an answer is gone. What it wrote before was right; the request may be sent again."""

    def __init__(self, replica_id: str, n_tries: int = 1) -> None:
        self.replica_id = replica_id
        """Which one; empty where it was not known yet."""
        self.n_tries = n_tries
        """How many replicas the request was sent to."""
        super().__init__(replica_id, n_tries)

    def __str__(self) -> str:
        others = "" if self.n_tries == 1 else f", the last of {self.n_tries} that were tried,"
        return f"the replica {self.replica_id or 'that was chosen'}{others} has died; send the request again"


class NoReplica(EngineStopped):
    """No replica took the request in time: none runs, or all of them are full."""

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s
        """How long it waited, in seconds."""
        super().__init__(waited_s)

    def __str__(self) -> str:
        return f"no replica took the request within {self.waited_s:g} s; try again later"
