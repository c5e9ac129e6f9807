"""Schemas of the YAML that pages show: fields that these programs know, and no others.

Fields and types are those of the references of Kubernetes (apps/v1, core/v1) and Prometheus, as far as pages use them.
"""

from typing import Annotated, Literal

import msgspec

__all__ = ["check_yaml"]


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """An object that refuses unknown fields."""


class Snake(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The same, for names with underscores."""


Labels = dict[str, str]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Quantity = Annotated[str, msgspec.Meta(pattern=r"^[0-9.]+(m|[KMGT]i?)?$")]
Duration = Annotated[str, msgspec.Meta(pattern=r"^([0-9]+(ms|[smhdwy]))+$")]


class Metadata(Strict):
    name: Name | None = None
    labels: Labels | None = None


class Selector(Strict):
    match_labels: Labels


class Strategy(Strict):
    type: Literal["Recreate", "RollingUpdate"]


class SeccompProfile(Strict):
    type: Literal["RuntimeDefault", "Unconfined"]


class PodSecurityContext(Strict):
    run_as_non_root: bool
    fs_group: int
    seccomp_profile: SeccompProfile


class Capabilities(Strict):
    drop: list[str]


class SecurityContext(Strict):
    allow_privilege_escalation: bool
    read_only_root_filesystem: bool
    capabilities: Capabilities


class KeyReference(Strict):
    name: Name
    key: str


class ValueSource(Strict):
    secret_key_ref: KeyReference


class Variable(Strict):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Z_][A-Z0-9_]*$")]
    value: str | None = None
    value_from: ValueSource | None = None


class ContainerPort(Strict):
    name: Name
    container_port: Port


class HttpGet(Strict):
    path: str
    port: Name | Port


class Probe(Strict):
    http_get: HttpGet
    period_seconds: int = 10
    timeout_seconds: int = 1
    failure_threshold: int = 3


class Command(Strict):
    command: list[str]


class Handler(Strict):
    exec: Command


class Lifecycle(Strict):
    pre_stop: Handler


class Resources(Strict):
    requests: dict[Literal["cpu", "memory"], Quantity]
    limits: dict[Literal["cpu", "memory"], Quantity]


class VolumeMount(Strict):
    name: Name
    mount_path: str


class Container(Strict):
    name: Name
    image: str
    args: list[str]
    env: list[Variable]
    ports: list[ContainerPort]
    startup_probe: Probe
    readiness_probe: Probe
    liveness_probe: Probe
    lifecycle: Lifecycle
    resources: Resources
    security_context: SecurityContext
    volume_mounts: list[VolumeMount]


class Claim(Strict):
    claim_name: Name


class Volume(Strict):
    name: Name
    persistent_volume_claim: Claim


class PodSpec(Strict):
    termination_grace_period_seconds: int
    security_context: PodSecurityContext
    containers: list[Container]
    volumes: list[Volume]


class Template(Strict):
    metadata: Metadata
    spec: PodSpec


class DeploymentSpec(Strict):
    replicas: int
    strategy: Strategy
    selector: Selector
    template: Template


class Deployment(Strict):
    api_version: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class StaticConfig(Snake):
    targets: list[Annotated[str, msgspec.Meta(pattern=r"^[\w.-]+:[0-9]+$")]]


class Authorization(Snake):
    credentials_file: str


class ScrapeConfig(Snake):
    job_name: str
    static_configs: list[StaticConfig]
    scrape_interval: Duration | None = None
    authorization: Authorization | None = None


class PrometheusConfig(Snake):
    scrape_configs: list[ScrapeConfig]


class AlertingRule(Snake):
    alert: Annotated[str, msgspec.Meta(pattern=r"^\w+$")]
    expr: str
    for_: Duration | None = msgspec.field(default=None, name="for")
    annotations: Labels = {}
    labels: Labels = {}


class RuleGroup(Snake):
    name: str
    rules: list[AlertingRule]


class PrometheusRules(Snake):
    groups: list[RuleGroup]


SCHEMAS = {"apiVersion": Deployment, "scrape_configs": PrometheusConfig, "groups": PrometheusRules}
"""Schemas by their first key."""


def check_yaml(code: str) -> None:
    """Checks a file against the schema of its kind.

    Raises:
        msgspec.ValidationError: It does not match.
        KeyError: Its kind has no schema.
    """
    first = code.partition(":")[0]
    msgspec.yaml.decode(code, type=SCHEMAS[first])
