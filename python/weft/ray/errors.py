"""Errors of communication with replicas."""

from weft.errors import EngineStoppedError


class ReplicaLostError(EngineStoppedError):
    """The replica that generated a response has died. The text received before is valid; the request may be sent again."""

    def __init__(self, replica_id: str, n_tries: int = 1) -> None:
        self.replica_id = replica_id
        """Id of the replica; empty if unknown."""
        self.n_tries = n_tries
        """Number of replicas that the request was sent to."""
        super().__init__(replica_id, n_tries)

    def __str__(self) -> str:
        others = "" if self.n_tries == 1 else f", the last of {self.n_tries} that were tried,"
        return f"the replica {self.replica_id or 'that was chosen'}{others} has died; retry the request"


class NoReplicaError(EngineStoppedError):
    """No replica accepted the request in time: none is running, or all are full."""

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s
        """Waiting time in seconds."""
        super().__init__(waited_s)

    def __str__(self) -> str:
        return f"no replica accepted the request within {self.waited_s:g} s; try again later"
