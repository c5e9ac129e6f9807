"""Responses that are sent while they are generated: formats, fairness, slow clients, and streams that can be resumed.

A client that reads slowly is detected in three places, from the engine outwards:

- `rust/engine/output/slow_consumers.rs`: the response does not read its events. A stream with too many unread events is not
  computed further until half of them have been read; other streams continue. Without any progress for `SLOW_CONSUMER_TIMEOUT`
  it ends with `SlowConsumerError`.
- `client_timeouts.py`: the response waits in `send`, because the buffers of the connection are full. After `--timeout` the
  client counts as disconnected, and its generation is cancelled. Bodies that arrive too slowly are refused here as well.
- `weft/serving/connections.py`: the response is complete, but the client's system does not acknowledge its end. The connection
  is closed.

A recorded stream (`recording.py`) does not depend on its client: it continues for a grace period without a reader, and its
buffer drops the oldest bytes.
"""
