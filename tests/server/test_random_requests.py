"""Random requests against the OpenAPI document: whatever is sent, the server answers, and nothing is left running.

`WEFT_RANDOM_REQUESTS` sets how many there are (about 400; `make fuzz` sends 10,000).
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient
from schemathesis.core import NotSet

import weft
from tests.helpers import wait_until
from tests.server.matchers import Json
from weft.server import create_app
from weft.settings import Settings

N_REQUESTS = int(os.environ.get("WEFT_RANDOM_REQUESTS", "400"))

MOST_FIELDS = 4
"""A body with more fields than this is next to never valid, so that what is behind the checks would not be reached."""

PROMPTS = ["Once upon a time,", "The cat", [1, 2, 3], ["The cat", "The dog"]]
MESSAGES = [[{"role": "user", "content": "Tell me a story."}], [{"role": "system", "content": "Be brief."}]]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[TestClient[Any], weft.Engine]]:
    """A server with everything switched on, whose completions are short unless they are told otherwise."""
    engine = weft.Engine(n_slots=4, n_ctx=512, kv_unified=True, n_threads=1)
    app = create_app(engine, Settings(metrics=True, props_endpoint=True, n_predict=8))
    with TestClient(app, raise_server_exceptions=False) as client:
        while client.get("/health").status_code != 200:
            pass
        yield client, engine


def with_few_fields(body: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """A body with a few of the fields that were made up, and mostly with a prompt that is none of those."""
    names = data.draw(st.lists(st.sampled_from(sorted(body)), max_size=MOST_FIELDS, unique=True)) if body else []
    kept = {name: body[name] for name in names}
    if data.draw(st.integers(0, 9)):
        kept |= {"prompt": data.draw(st.sampled_from(PROMPTS)), "messages": data.draw(st.sampled_from(MESSAGES))}
        kept |= {"content": "The cat", "tokens": [1, 2]}
    # A completion of hundreds of branches is valid, and takes minutes.
    return {name: min(value, 8) if name in ("n", "n_cmpl") and isinstance(value, int) else value for name, value in kept.items()}


def says_that_it_is_off(path: str, error: Json) -> bool:
    """Whether an error of this path says that something is not there."""
    if path.startswith("/api/"):
        return isinstance(error, str)
    return bool(error["type"] == ("invalid_request_error" if path.startswith("/v1/messages") else "not_supported_error"))


@pytest.mark.timeout(3600)
def test_every_random_request_is_answered(running: tuple[TestClient[Any], weft.Engine]) -> None:
    client, engine = running
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    operations = [cast("Any", result).ok() for result in schema.get_all_operations()]
    bound = settings(
        max_examples=max(N_REQUESTS // len(operations), 1),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    statuses: Counter[tuple[str, int]] = Counter()

    def send(operation: Any) -> None:  # noqa: ANN401 (schemathesis does not type its operations)
        modes = [schemathesis.GenerationMode.POSITIVE]
        if operation.body or operation.query or operation.path_parameters:
            modes.append(schemathesis.GenerationMode.NEGATIVE)
        cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

        @bound
        @given(case=cases, data=st.data())
        def run(case: Any, data: st.DataObject) -> None:  # noqa: ANN401
            if isinstance(case.body, dict) and data.draw(st.booleans()):
                case.body = with_few_fields(case.body, data)
            response = client.request(
                case.method,
                case.formatted_path,
                # The stream of events has no end of its own.
                params={**(case.query or {}), **({"max_s": 0.01} if case.path == "/documents/events" else {})},
                headers={"content-type": "application/json"} if case.path.startswith("/documents") else None,
                content=None if isinstance(case.body, NotSet) else json.dumps(case.body, default=repr),
            )
            is_off = response.status_code == 501 and says_that_it_is_off(case.formatted_path, response.json()["error"])
            assert response.status_code < 500 or is_off, (
                operation.label,
                case.formatted_path,
                case.query,
                case.body,
                response.text,
            )
            statuses[operation.label, response.status_code] += 1

        run()

    for operation in operations:
        send(operation)
    # Otherwise nothing but refusals was seen.
    for route in ("POST /completion", "POST /v1/completions"):
        assert statuses[route, 200] >= statuses.total() // 500, statuses
    asyncio.run(wait_until(lambda: engine.stats().n_waiting == 0 and all(slot.request_id is None for slot in engine.slots)))
