"""What a start does not import: each case is a fresh interpreter that says which modules it has."""

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

HEAVY = frozenset(
    {
        "asyncio",
        "granian",
        "httpx2",
        "huggingface_hub",
        "jinja2",
        "litestar",
        "msgspec",
        "weft._native",
        "weft.engine",
        "weft.server",
    }
)


def modules_after(code: str) -> set[str]:
    """The modules of an interpreter that has run `code`."""
    told = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=25)
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("code", "without"),
    [
        pytest.param("import weft", HEAVY, id="import"),
        pytest.param("import weft; weft.DEMO_MODEL, weft.QueueFullError", HEAVY, id="light names"),
        pytest.param("import weft; weft.Engine", HEAVY - {"asyncio", "msgspec", "weft._native", "weft.engine"}, id="engine"),
        pytest.param(
            "import weft.cli.main\ntry: weft.cli.main.main(['--version'])\nexcept SystemExit: pass",
            HEAVY | {"weft.cli.arguments", "weft.settings"},
            id="version",
        ),
        # Settings know the defaults of a request, which is a struct of msgspec's.
        pytest.param(
            "import weft.cli.main; weft.cli.main.parse([], {})", HEAVY - {"msgspec"} | {"difflib", "tomllib"}, id="command line"
        ),
        pytest.param("import weft.serving.serve", HEAVY - {"asyncio", "granian", "msgspec"}, id="supervisor"),
        pytest.param(
            "import weft.serving.worker",
            {"httpx2", "huggingface_hub", "jinja2", "litestar", "weft.server"},
            id="worker until the model is being loaded",
        ),
    ],
)
def test_start_does_without(code: str, without: Iterable[str]) -> None:
    assert modules_after(code) & set(without) == set()


def test_engine_does_not_look_for_a_tune_file_before_there_is_a_model() -> None:
    assert modules_after("import weft; weft.Engine") & {"platformdirs", "importlib.metadata"} == set()


def test_jinja_is_loaded_once_the_server_runs() -> None:
    code = "import weft.serving.worker, weft.server; weft.server.create_app(weft.Engine())"
    assert "jinja2" not in modules_after(code)


def test_model_is_loaded_while_http_is_imported_and_ready_is_said_when_the_server_listens() -> None:
    code = """
import asyncio, socket
from multiprocessing import Pipe
from weft.serving import local_engine, worker
from weft.serving.listening import Address
from weft.serving.endpoint import Endpoint
from weft.settings import Settings

class Engine(local_engine.Engine):
    async def start(self):
        print("loading with" if "weft.server" in sys.modules else "loading without", "HTTP")
        await super().start()

local_engine.Engine = Engine
worker._stop_on_request = lambda *_: None
worker.Connections.wrap = lambda _, app: app
asyncio.set_event_loop(loop := asyncio.new_event_loop())
ours, theirs = Pipe()
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
app = worker.application(Settings(), [Endpoint(Address(*listener.getsockname()), "", 64, {})], theirs)

async def serve():
    async with app.lifespan():
        while not app.service.engine.is_running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        print(repr(app.service.lifecycle.refusal()))
        listener.listen()
        while app.service.lifecycle.refusal() is not None:
            await asyncio.sleep(0.01)

loop.run_until_complete(serve())
print([ours.recv(), ours.recv()])
"""
    ran = subprocess.run([sys.executable, "-c", "import sys\n" + code], capture_output=True, text=True, check=True, timeout=25)
    assert ran.stdout.splitlines() == ["loading without HTTP", "StillLoadingError('Loading model')", "['loading', 'ready']"]


def test_empty_pool_takes_no_memory() -> None:
    code = """
import asyncio, os, weft

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main():
    before = resident_bytes()
    async with weft.Engine(n_slots=1, n_ctx=262_144) as engine:
        empty = resident_bytes()
        completion = await engine.complete("Once upon a time,", max_tokens=8, temperature=0)
        print(engine.limits.n_ctx, empty - before, resident_bytes() - empty, repr(completion.text))

asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=25)
    n_ctx, loaded, used, text = ran.stdout.split(maxsplit=3)
    # 1,536 bytes a token: the whole pool is 384 MiB.
    assert int(n_ctx) == 262_144
    assert int(loaded) < 96 * 2**20
    assert int(used) < 32 * 2**20
    assert text.strip() != "''"
