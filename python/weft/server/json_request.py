"""How a body is read: what is wrong with it as a whole is the client's error, and said so."""

from typing import Any

from litestar import Request
from litestar.exceptions import ClientException, InternalServerException, SerializationException

__all__ = ["JsonRequest"]


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is JSON."""

    async def body(self) -> bytes:
        """The bytes of the body.

        Raises:
            ClientException: the client left before it had sent all of it.
        """
        try:
            return await super().body()
        except InternalServerException as error:
            raise ClientException("the body was not sent to its end") from error

    async def json(self) -> Any:  # noqa: ANN401 (any JSON)
        """The value of the body.

        Raises:
            ClientException: it is no JSON, no UTF-8, or nested too deep.
        """
        try:
            return await super().json()
        except UnicodeDecodeError as error:
            raise ClientException(f"the body is no UTF-8: {error.reason}") from error
        except RecursionError as error:
            raise ClientException("the body is nested too deep") from error
        except SerializationException as error:
            raise ClientException(f"the body is no JSON in UTF-8: {error}") from error
