"""How long the server waits for a client that does not send, or does not read."""

import asyncio
import logging

from litestar.types import HTTPReceiveMessage, Message, Receive, Send

from weft.server.errors import BodyTimeoutError

__all__ = ["Patience"]

logger = logging.getLogger(__name__)

CANCEL_S = 1.0
"""More than whoever hears that the client has left needs to cancel the answer."""


class Patience:
    """The two ends of one request, each with a limit to every single wait for the client.

    A body of which nothing arrives for `timeout_s` seconds is answered 408. A client that reads nothing for so long counts as
    one that has left: `receive` says so, and what is still to be sent goes nowhere. Whoever writes the answer has only that
    one end to know. (A client reads nothing where the connection's buffers are full, of some megabytes.)
    """

    def __init__(self, receive: Receive, send: Send, timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._timeout_s = timeout_s
        self._is_body_read = False
        self._has_left = False
        self._waiting: asyncio.Timeout | None = None

    async def receive(self) -> HTTPReceiveMessage:
        """The next part of the body, or that the client has left.

        Raises:
            BodyTimeoutError: nothing more of the body has arrived.
        """
        if self._has_left:
            return {"type": "http.disconnect"}
        try:
            async with asyncio.timeout(None if self._is_body_read else self._timeout_s) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            if self._is_body_read:
                return {"type": "http.disconnect"}
            raise BodyTimeoutError(self._timeout_s) from None
        finally:
            self._waiting = None
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._is_body_read = True
        return message  # type: ignore[return-value]

    async def send(self, message: Message) -> None:
        """Sends, unless the client has left."""
        if self._has_left:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            logger.info("a client has read nothing for %g s; its answer ends", self._timeout_s)
            await self._leave()

    async def _leave(self) -> None:
        self._has_left = True
        if self._waiting is not None and self._is_body_read:
            self._waiting.reschedule(asyncio.get_running_loop().time())
            # Whoever waits in `receive` is told, and cancels this. To return would be to write on until then, and much has
            # gathered that could be written.
            await asyncio.sleep(CANCEL_S)
