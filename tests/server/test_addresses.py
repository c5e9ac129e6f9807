"""Where a server listens: several addresses, unix sockets, TLS; one process and one engine behind all."""

import asyncio
import os
import re
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.certificates import CERTIFICATE, KEY
from tests.helpers import names_in, wait_until
from tests.server.live import LiveServer, free_port
from tests.server.test_disconnect import ENDLESS


def everywhere(server: LiveServer, path: Path) -> list[httpx.AsyncClient]:
    """A client at each of three addresses."""
    hosts = (f"http://127.0.0.1:{server.port}", f"http://[::1]:{server.port}")
    clients = [httpx.AsyncClient(base_url=url, timeout=20) for url in hosts]
    return [*clients, httpx.AsyncClient(base_url="http://x", transport=httpx.AsyncHTTPTransport(uds=str(path)), timeout=20)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("socket") / "weft.sock"


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory, path: Path) -> AsyncIterator[LiveServer]:
    """A server at two hosts and a unix socket."""
    log = tmp_path_factory.mktemp("addresses") / "log"
    with LiveServer(log, "-np", "4", "--kv-unified", "--host", f"127.0.0.1,::1,{path}") as server:
        await server.ready()
        yield server
        assert "ERROR" not in server.log
    assert names_in(path.parent) == []


async def test_it_says_where_it_can_be_reached(server: LiveServer, path: Path) -> None:
    await wait_until(lambda: "ready" in server.log)
    [line] = re.findall("ready after .*", server.log)
    assert line.endswith(f"; http://127.0.0.1:{server.port}, http://[::1]:{server.port}, unix:{path}")


async def test_every_address_leads_to_the_same_engine(server: LiveServer, path: Path) -> None:
    for client in everywhere(server, path):
        async with client, client.stream("POST", "/completion", json=ENDLESS | {"stream": True}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await wait_until(lambda: len(server.busy_slots()) == 4)
        # Leaving is heard at every address.
        await wait_until(lambda: server.busy_slots() == [], 2)
    assert len(server.worker_ids()) == 1


async def test_a_worker_that_is_started_again_listens_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "weft.sock"
    with LiveServer(tmp_path / "log", "-np", "1", "--host", f"127.0.0.1,::1,{path}") as server:
        await server.ready()
        crashed = server.worker_id()
        os.kill(crashed, signal.SIGKILL)
        await wait_until(lambda: crashed not in server.worker_ids())
        await server.ready()
        for client in everywhere(server, path):
            async with client:
                assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("first", ["127.0.0.1", "socket"])
async def test_a_signal_ends_streams_at_every_address_within_two_seconds(tmp_path: Path, first: str) -> None:
    path = tmp_path / "weft.sock"
    hosts = ["127.0.0.1", "::1", str(path)] if first == "127.0.0.1" else [str(path), "127.0.0.1", "::1"]
    with LiveServer(tmp_path / "log", "-np", "3", "--kv-unified", "--host", ",".join(hosts)) as server:
        await server.ready()
        async with AsyncExitStack() as clients:
            asking = []
            for client in everywhere(server, path):
                await clients.enter_async_context(client)
                asking.append(asyncio.create_task(client.post("/completion", json=ENDLESS | {"n": 1, "stream": True})))
            await wait_until(lambda: len(server.busy_slots()) == 3)
            signalled = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            answers = await asyncio.gather(*asking)
            await wait_until(lambda: server.process.poll() is not None)
            assert time.monotonic() - signalled < 2
    assert ["the engine has stopped" in answer.text for answer in answers] == [True] * 3
    assert server.process.returncode == 0
    assert names_in(tmp_path) == ["log"]


async def test_of_several_addresses_one_that_is_taken_ends_it(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "one", "-np", "1", "--host", "::1") as one:
        await wait_until(lambda: "serving" in one.log)
        with LiveServer(tmp_path / "two", "-np", "1", "--host", "127.0.0.1,::1", port=one.port) as two:
            assert two.process.wait(20) == 1
    assert re.fullmatch(rf".* ERROR cannot listen on ::1:{one.port}: Address already in use\n", two.log)


async def test_two_servers_share_a_port_where_both_say_so(tmp_path: Path) -> None:
    port = free_port()
    with (
        LiveServer(tmp_path / "one", "-np", "1", "-a", "one", "--reuse-port", port=port) as one,
        LiveServer(tmp_path / "two", "-np", "1", "-a", "two", "--reuse-port", port=port) as two,
    ):
        await wait_until(lambda: "ready" in one.log and "ready" in two.log, 120)

        def served() -> set[str]:
            # Each on a new connection: the kernel shares those out.
            return {one.get("/v1/models")["data"][0]["id"] for _ in range(20)}

        await wait_until(lambda: served() == {"one", "two"})


async def test_tls_shows_the_certificate_on_http_1_and_2(tmp_path: Path) -> None:
    path = tmp_path / "weft.sock"
    flags = ("-np", "1", "--ssl-key-file", KEY, "--ssl-cert-file", CERTIFICATE, "--host", f"127.0.0.1,{path}")
    with LiveServer(tmp_path / "log", *flags) as server:
        await wait_until(lambda: "ready" in server.log, 120)
        trust = ssl.create_default_context(cafile=CERTIFICATE)
        url = f"https://127.0.0.1:{server.port}"
        for http2, version in ((False, "HTTP/1.1"), (True, "HTTP/2")):
            async with httpx.AsyncClient(verify=trust, http2=http2) as client:
                answer = await client.post(f"{url}/completion", json={"prompt": "Once", "n_predict": 2, "stream": True})
            assert (answer.status_code, answer.http_version) == (200, version)
        transport = httpx.AsyncHTTPTransport(uds=str(path), verify=trust)
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.get("https://localhost/health")).status_code == 200
        trust.maximum_version = ssl.TLSVersion.TLSv1_2
        async with httpx.AsyncClient(verify=trust) as client:
            assert (await client.get(f"{url}/health")).status_code == 200
        async with httpx.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(f"{url}/health")
            with pytest.raises(httpx.TransportError):
                await stranger.get(f"http://127.0.0.1:{server.port}/health")
    assert f"; {url}, unix:{path}\n" in server.log


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--api-key-file", "empty"), "ERROR --api-key-file: empty has no key; write one on each line"),
        (("--ssl-key-file", "empty"), "ERROR --ssl-key-file is given without a certificate; give both, or neither"),
        (("--ssl-key-file", "empty", "--ssl-cert-file", "empty"), "ERROR --ssl-cert-file: cannot use empty with the key empty: "),
        (("--api-key-file", "missing"), "missing"),
        (("--ssl-key-file", "missing", "--ssl-cert-file", "missing"), "missing"),
    ],
    ids=["no keys", "half of TLS", "no certificate", "keys missing", "certificate missing"],
)
def test_files_that_cannot_be_used_end_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry))
    (tmp_path / "empty").touch()
    with LiveServer(tmp_path / "log", *flags) as server:
        assert server.process.wait(20) != 0
    assert reason in server.log.splitlines()[-1]
    assert "Traceback" not in server.log
