"""Mount Weft in a Litestar application: your routes at `/`, Weft's below `/llm`. It serves until Ctrl-C.

Serves on http://127.0.0.1:8080.
"""

import os

from granian import Granian
from granian.constants import Interfaces
from litestar import Litestar, asgi, get

import weft
from weft.server import create_app

engine = weft.Engine()
llm = create_app(engine)


@get("/")
async def story() -> str:
    """Returns a new story for every request."""
    return (await engine.complete("Once upon a time,", max_tokens=50)).text


app = Litestar([story, asgi("/llm", is_mount=True)(llm)], lifespan=[lambda _: llm.lifespan()])

if __name__ == "__main__":
    Granian("mount_in_litestar:app", interface=Interfaces.ASGI, port=int(os.environ.get("PORT", "8080"))).serve()
