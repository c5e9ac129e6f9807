"""Ray Serve application: an ingress for HTTP and tokenization, and engine replicas."""

import difflib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from weft.config import EngineConfig
from weft.errors import InvalidConfigError
from weft.ray.handles import RayFleet
from weft.ray.remote import RemoteEngine
from weft.ray.replica import Replica
from weft.ray.scaling import wanted
from weft.settings import Settings, table

REPORT_INTERVAL_S = 1.0
"""Interval of the replicas' reports, in seconds."""

MAX_ONGOING = 4_096
"""Maximum concurrent requests per process. A replica's engine has its own queue, which considers shared prefixes."""

HEALTH_EVERY_S = 2.0
"""Interval of health checks, in seconds."""

ANSWERS_WITHIN_S = 5.0
"""Timeout of a health check, in seconds; Ray stops a replica after three consecutive failures."""

SCALE_EVERY_S = 2.0
"""Interval of load reports for autoscaling, in seconds."""


class ReplicaActor(Replica):
    """A replica as an actor of Ray Serve, which also calls its `check_health`."""

    async def __init__(self, model: str | None, config: EngineConfig, key: bytes) -> None:  # type: ignore[misc]  # As in Ray.
        super().__init__(serve.get_replica_context().replica_id.unique_id, model, config, key)
        await self.start()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Returns the report for routers."""
        return {"report": await self.report()}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the load for the autoscaling policy."""
        return self.pressure()

    async def __del__(self) -> None:
        """Closes the engine; called by Ray after the last response."""
        await self.close()


@serve.ingress()
class Ingress:
    """HTTP front end of the replicas."""

    def __init__(self, replicas: DeploymentHandle, settings: Settings, key: bytes) -> None:
        self._engine = RemoteEngine(RayFleet(replicas), settings.model, settings.engine, key)
        self._settings = settings

    def __serve_build_asgi_app__(self) -> Any:  # noqa: ANN401 (Ray's method name)
        """Creates the HTTP application over a `RemoteEngine`."""
        from weft.server import create_app  # noqa: PLC0415 (imports all of HTTP)

        return create_app(self._engine, replace(self._settings, documents=False))


def policy(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Autoscaling policy for Ray: returns the number of replicas for the current load. Ray applies its delays."""
    metrics = context.aggregated_metrics or {}
    n = wanted(context.current_num_replicas, {name: list(shares.values()) for name, shares in metrics.items()})
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
    **settings: Any,  # noqa: ANN401 (the type depends on the setting)
) -> Any:  # noqa: ANN401 (Ray's `Application`, which has no types)
    """Creates the application: an ingress, and replicas of one model.

        serve.run(weft.ray.build(model="model.gguf", replicas=4, num_cpus=8, n_slots=16))

    Args:
        model: Path of a GGUF file on every machine; None is the demo model.
        replicas: Number of replicas; "2-8" or a pair is a range for autoscaling, from 0.
        num_cpus: Processors that Ray reserves per replica; also the default of `n_threads`, at least 1.
        num_gpus: GPUs that Ray reserves per replica.
        drain_s: Seconds that a replica has to complete its responses when it is to be stopped.
        up_after_s: Seconds of higher demand before replicas are added.
        down_after_s: Seconds of lower demand before replicas are removed.
        **settings: Settings of the engines and of the server, by their names in `weft.toml` with `_` between words, or of
            `EngineConfig`; strings are parsed as on the command line.

    Raises:
        TypeError: There is no setting of that name; the message suggests the nearest.
        InvalidConfigError: A setting is out of range, or not supported with replicas.
    """
    cpus, gpus, drain = float(num_cpus), float(num_gpus), float(drain_s)
    parsed = _settings(model, settings, cpus)
    key = secrets.token_bytes(32)
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
    common = {
        "max_ongoing_requests": MAX_ONGOING,
        "graceful_shutdown_timeout_s": drain,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": HEALTH_EVERY_S,
    }
    replica = serve.deployment(
        ReplicaActor,
        name="replica",
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        health_check_timeout_s=ANSWERS_WITHIN_S,
        request_router_config=RequestRouterConfig(
            request_router_class="weft.ray.router:PrefixRouter", request_routing_stats_period_s=REPORT_INTERVAL_S
        ),
        **common,
        **number,
    )
    ingress = serve.deployment(Ingress, name="ingress", ray_actor_options={"num_cpus": min(cpus, 1.0)}, **common)
    return ingress.bind(replica.bind(parsed.model, parsed.engine, key), parsed, key)


def app(args: Mapping[str, Any]) -> Any:  # noqa: ANN401 (as above)
    """Creates the application from `serve run weft.ray:app model=model.gguf replicas=4`; see `build` for the arguments."""
    return build(**args)


def _settings(model: str | None, given: Mapping[str, Any], cpus: float) -> Settings:
    rows = table()
    for name in given:
        if name not in rows:
            near = difflib.get_close_matches(name, rows, n=1)
            raise TypeError(f"unknown setting {name!r}; {f'did you mean {near[0]}?' if near else 'see the reference of flags'}")
    values = {name: rows[name].parse(value) if isinstance(value, str) else value for name, value in given.items()}
    if not {"n_threads", "n_threads_batch"} & values.keys():
        values["n_threads"] = max(int(cpus), 1)
    settings = Settings.of({"model": model, **values})
    for name, why in _NOT_HERE.items():
        if name in values:
            raise InvalidConfigError(name, f"{name} does not apply to replicas: {why}")
    return settings


_FILES = "replicas read a local file, which must exist on every machine"
_ADDRESS = "Ray Serve listens, see `serve start --http-host`"
_STATES = "the file would be on the machine of one replica"
_NOT_HERE = {
    **dict.fromkeys(("hf_repo", "hf_file", "docker_repo", "model_url", "mmproj_url", "draft_hf_repo"), _FILES),
    **dict.fromkeys(("hosts", "port", "reuse_port", "threads_http", "ssl_key_file", "ssl_cert_file"), _ADDRESS),
    **dict.fromkeys(("slot_save_path", "restore_prompt"), _STATES),
    **dict.fromkeys(("documents", "documents_path"), "each ingress would have a file of its own"),
    "mmproj": "images and audio are not sent to replicas",
    "sleep_idle_s": "the number of replicas follows the load, down to 0",
}
"""Settings of a single server that do not apply to replicas, with the reason."""


def _range(replicas: int | str | tuple[int, int]) -> tuple[int, int]:
    try:
        if isinstance(replicas, str):
            first, _, second = replicas.partition("-")
            low, high = int(first), int(second or first)
        else:
            low, high = (replicas, replicas) if isinstance(replicas, int) else replicas
        is_range = 0 <= low <= high and high > 0
    except (TypeError, ValueError):
        is_range = False
    if not is_range:
        message = f"replicas is {replicas!r}; it must be a number, or a range such as 2-8"
        raise InvalidConfigError("replicas", message)
    return low, high
