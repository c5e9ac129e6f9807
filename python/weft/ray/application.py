"""The application of Ray Serve: an ingress that speaks HTTP and cuts texts into tokens, and the replicas behind it."""

import difflib
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from weft.config import EngineConfig
from weft.errors import InvalidConfig
from weft.ray.handles import RayFleet
from weft.ray.messages import Call, Question, Sent
from weft.ray.remote import RemoteEngine
from weft.ray.replica import Replica
from weft.ray.scaling import wanted
from weft.settings import Settings, table

__all__ = ["app", "build", "policy"]

TOLD_EVERY_S = 1.0
"""How often replicas tell what they hold."""

MAX_ONGOING = 4_096
"""Requests that one process takes at a time. A replica's engine has a queue of its own, which knows whose prompts are shared."""

HEALTH_EVERY_S = 2.0
"""How often a replica is asked whether it is well."""

ANSWERS_WITHIN_S = 5.0
"""Seconds within which it has to answer; Ray ends it when it has not done so three times, one after the other."""

SCALE_EVERY_S = 2.0
"""How often replicas tell how busy they are, where their number follows that."""


class ReplicaActor:
    """A replica, as Ray Serve calls it."""

    async def __init__(self, model: str | None, config: EngineConfig, key: bytes) -> None:  # type: ignore[misc]  # As Ray has it.
        self._replica = Replica(serve.get_replica_context().replica_id.unique_id, model, config, key)
        await self._replica.start()

    async def generate(self, call: Call) -> AsyncGenerator[Sent]:
        """The answer to a call."""
        async with aclosing(self._replica.generate(call)) as messages:
            async for message in messages:
                yield message

    async def answer(self, question: Question) -> Any:  # noqa: ANN401 (what is asked)
        """The answer to a question."""
        return await self._replica.answer(question)

    async def record_routing_stats(self) -> dict[str, Any]:
        """What the routers are told."""
        return {"told": await self._replica.told()}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What decides on how many replicas there are."""
        return self._replica.pressure()

    async def check_health(self) -> None:
        """Raises where the engine's worker has died."""
        self._replica.check_health()

    async def __del__(self) -> None:
        """Called by Ray when the replica has ended what it wrote."""
        await self._replica.close()


@serve.ingress()
class Ingress:
    """Speaks HTTP for the replicas."""

    def __init__(self, replicas: DeploymentHandle, settings: Settings, key: bytes) -> None:
        self._engine = RemoteEngine(RayFleet(replicas), settings.model, settings.engine, key)
        self._settings = settings

    def __serve_build_asgi_app__(self) -> Any:  # noqa: ANN401 (Ray calls it so)
        """The application that serves one engine, over what stands for all of them."""
        from weft.server import create_app  # noqa: PLC0415 (all of HTTP)

        return create_app(self._engine, self._settings)


def policy(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Ray's autoscaling policy: how many replicas are wanted, by how busy they are; its delays are Ray's own."""
    told = context.aggregated_metrics or {}
    n = wanted(context.current_num_replicas, {name: list(shares.values()) for name, shares in told.items()})
    return n, {}


def build(
    *,
    model: str | None = None,
    replicas: int | str | tuple[int, int] = 1,
    num_cpus: float | str = 1,
    num_gpus: float | str = 0,
    drain_s: float | str = 600,
    up_after_s: float | str = 30,
    down_after_s: float | str = 600,
    **settings: Any,  # noqa: ANN401 (each of its own type)
) -> Any:  # noqa: ANN401 (Ray's `Application`, which has no types)
    """The application: an ingress, and replicas of one model behind it.

        serve.run(weft.ray.build(model="model.gguf", replicas=4, num_cpus=8, n_slots=16))

    Args:
        model: The GGUF file, at the same path on every machine; None is the demo model.
        replicas: How many; "2-8" or a pair lets their number follow the load, from 0 on.
        num_cpus: What Ray reserves for each. Its threads are as many, from 1 on, where `n_threads` does not say otherwise.
        num_gpus: The same of GPUs.
        drain_s: Seconds that a replica that is to go has to end what it writes.
        up_after_s: Seconds for which more replicas have to be wanted, before there are.
        down_after_s: The same of fewer.
        **settings: Those of the engines and of the server, by the names that `weft.toml` has for them with `_` between words,
            or by those of `EngineConfig`; texts are read as on the command line.

    Raises:
        TypeError: There is no setting of that name; the message has the nearest.
        InvalidConfig: One is out of range, or nothing that replicas can do.
    """
    cpus, gpus, drain = float(num_cpus), float(num_gpus), float(drain_s)
    asked = _settings(model, settings, cpus)
    key = secrets.token_bytes(32)
    actor = {"num_cpus": cpus, "num_gpus": gpus}
    low, high = _range(replicas)
    number: dict[str, Any] = {"num_replicas": low}
    if low != high:
        number = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=low,
                max_replicas=high,
                metrics_interval_s=SCALE_EVERY_S,
                look_back_period_s=max(min(float(up_after_s), 30.0), SCALE_EVERY_S),
                upscale_delay_s=float(up_after_s),
                downscale_delay_s=float(down_after_s),
                policy=AutoscalingPolicy(policy_function="weft.ray.application:policy"),
            )
        }
    replica = serve.deployment(
        ReplicaActor,
        name="replica",
        ray_actor_options=actor,
        max_ongoing_requests=MAX_ONGOING,
        graceful_shutdown_timeout_s=drain,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=HEALTH_EVERY_S,
        health_check_timeout_s=ANSWERS_WITHIN_S,
        request_router_config=RequestRouterConfig(
            request_router_class="weft.ray.router:PrefixRouter", request_routing_stats_period_s=TOLD_EVERY_S
        ),
        **number,
    )
    ingress = serve.deployment(
        Ingress,
        name="ingress",
        ray_actor_options={"num_cpus": min(cpus, 1.0)},
        max_ongoing_requests=MAX_ONGOING,
        graceful_shutdown_timeout_s=drain,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=HEALTH_EVERY_S,
    )
    return ingress.bind(replica.bind(asked.model, asked.engine, key), asked, key)


def app(args: Mapping[str, Any]) -> Any:  # noqa: ANN401 (as above)
    """`serve run weft.ray:app model=model.gguf replicas=4`: what `build` makes of these arguments."""
    return build(**args)


def _settings(model: str | None, given: Mapping[str, Any], cpus: float) -> Settings:
    rows = table()
    for name in given:
        if name not in rows:
            near = difflib.get_close_matches(name, rows, n=1)
            raise TypeError(f"there is no setting {name!r}; {f'did you mean {near[0]}?' if near else 'see docs/flags.md'}")
    values = {name: rows[name].parse(value) if isinstance(value, str) else value for name, value in given.items()}
    if not {"n_threads", "n_threads_batch"} & values.keys():
        values["n_threads"] = max(int(cpus), 1)
    settings = Settings.of({"model": model, **values})
    for name, why in _NOT_HERE.items():
        if name in values:
            raise InvalidConfig(name, f"{name} is nothing that replicas do: {why}")
    return settings


_FILES = "they read a file that is on every machine"
_ADDRESS = "Ray Serve listens, see `serve start --http-host`"
_STATES = "the file would be on whichever machine has written it"
_NOT_HERE = {
    **dict.fromkeys(("hf_repo", "hf_file", "docker_repo", "model_url", "mmproj_url"), _FILES),
    **dict.fromkeys(("hosts", "port", "reuse_port", "threads_http", "ssl_key_file", "ssl_cert_file"), _ADDRESS),
    **dict.fromkeys(("slot_save_path", "restore_prompt"), _STATES),
    "mmproj": "pictures and sounds are not sent to them",
    "sleep_idle_s": "how many there are follows the load, from 0 on",
}
"""Settings of one server that many replicas have no use for, and why."""


def _range(replicas: int | str | tuple[int, int]) -> tuple[int, int]:
    try:
        if isinstance(replicas, str):
            low, _, high = replicas.partition("-")
            return _checked(int(low), int(high or low))
        return _checked(*((replicas, replicas) if isinstance(replicas, int) else replicas))
    except (TypeError, ValueError):
        message = f"replicas is {replicas!r}; it must be a number, or two like 2-8, of which the second is the greater"
        raise InvalidConfig("replicas", message) from None


def _checked(low: int, high: int) -> tuple[int, int]:
    if not 0 <= low <= high or high == 0:
        raise ValueError
    return low, high
