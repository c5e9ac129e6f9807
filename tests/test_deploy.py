"""What one deploys with: each file says only what there is, and what it promises of itself is in it."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from litestar.testing import AsyncTestClient
from prometheus_client.parser import text_string_to_metric_families

import weft
from tests.server.conftest import answers
from weft.cli.main import parse
from weft.cli.spellings import all_spellings
from weft.installed.levels import LEVELS
from weft.server import create_app
from weft.settings import Settings, table

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
IMAGES = [ROOT / "Dockerfile", DEPLOY / "Dockerfile.cuda"]
VARIABLES = {flag.env for flag in table().values() if flag.env} | {"HF_TOKEN"}


def yaml_of(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.yaml.decode(path.read_bytes())
    return read


def instructions(path: Path) -> list[tuple[str, str]]:
    """Of a Dockerfile, its lines put together."""
    text = re.sub(r"(?m)^\s*#.*\n", "", path.read_text()).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def last_stage(path: Path) -> dict[str, str]:
    """What the image that is run is made of; of several equal instructions the last."""
    lines = instructions(path)
    return dict(lines[max(n for n, (word, _) in enumerate(lines) if word == "FROM") :])


def environment(path: Path) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(last_stage(path)["ENV"]))


@pytest.fixture(params=IMAGES, ids=lambda path: path.name)
def image(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_an_image_runs_our_command_and_no_shell(image: Path) -> None:
    stage = last_stage(image)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    [command] = json.loads(stage["ENTRYPOINT"])
    assert command in scripts
    assert "CMD" not in stage, "without a model it serves the demo model"


def test_an_image_runs_as_nobody_that_the_machine_knows(image: Path) -> None:
    user, _, group = last_stage(image)["USER"].partition(":")
    assert int(user) > 1_000
    assert int(group) > 1_000


def test_an_image_writes_only_into_its_volume(image: Path) -> None:
    stage, variables = last_stage(image), environment(image)
    volume = stage["VOLUME"]
    assert stage["WORKDIR"] == volume
    for name in ("HOME", "XDG_CACHE_HOME"):
        assert Path(variables[name]).is_relative_to(volume)
    assert f"--owner={stage['USER'].split(':')[0]}" in stage["RUN"]
    assert stage["RUN"].endswith(volume)


def test_an_image_sets_what_the_server_reads(image: Path) -> None:
    variables = {name: value for name, value in environment(image).items() if name.startswith("LLAMA_ARG_")}
    settings, warnings = parse([], variables)
    assert (settings.hosts, settings.port, warnings) == (("0.0.0.0",), int(last_stage(image)["EXPOSE"]), ())


def test_an_image_asks_after_its_health_by_a_file_that_it_has(image: Path) -> None:
    said = re.search(r"CMD (\[.*\])$", last_stage(image)["HEALTHCHECK"])
    assert said is not None
    _, script = json.loads(said[1])
    assert last_stage(image)["COPY"] == f"deploy/healthcheck.py {script}"


def exit_code(port: int) -> int:
    """The exit code of the check in a container where the server listens at this port."""
    command = [sys.executable, str(DEPLOY / "healthcheck.py")]
    return subprocess.run(command, env={"LLAMA_ARG_PORT": str(port)}, timeout=20, check=False).returncode


@pytest.fixture
def answering() -> Iterator[tuple[int, dict[str, int]]]:
    """A server's port, and what it answers."""
    answers = {"/health": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.get(self.path, 404))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is its)
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port, answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_check_passes_only_where_the_server_is_ready(answering: tuple[int, dict[str, int]]) -> None:
    port, answers = answering
    assert exit_code(port) == 0
    answers["/health"] = 503
    assert exit_code(port) == 1


def test_the_check_fails_where_nobody_listens() -> None:
    assert exit_code(9) == 1


def test_images_are_not_built_of_what_was_compiled_here() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".venv", "target", "**/*.so"} <= set(ignored)
    assert not any(line.startswith("dist") for line in ignored), "the wheels are there"


def test_what_is_composed_mounts_files_that_there_are() -> None:
    composed = yaml_of(DEPLOY / "compose.yaml")
    mounts = [mount.split(":")[0] for service in composed["services"].values() for mount in service["volumes"]]
    files = [mount for mount in mounts if mount.startswith(".")]
    assert files
    assert [file for file in files if not (DEPLOY / file).is_file()] == []
    assert set(mounts) - set(files) == set(composed["volumes"])


def test_what_is_composed_sets_what_the_server_reads() -> None:
    service = yaml_of(DEPLOY / "compose.yaml")["services"]["weft"]
    assert set(service["environment"]) <= VARIABLES
    settings, warnings = parse([], {"LLAMA_ARG_ENDPOINT_METRICS": service["environment"]["LLAMA_ARG_ENDPOINT_METRICS"]})
    assert settings.metrics
    assert warnings == ()
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]


def test_an_empty_variable_of_what_is_composed_is_none() -> None:
    service = yaml_of(DEPLOY / "compose.yaml")["services"]["weft"]
    empty = {name: "" for name, value in service["environment"].items() if value.endswith(":-}")}
    assert len(empty) == 2
    assert parse([], empty) == parse([], {})


def test_services_ask_each_other_by_names_and_ports_that_there_are() -> None:
    services = yaml_of(DEPLOY / "compose.yaml")["services"]
    port = last_stage(ROOT / "Dockerfile")["EXPOSE"]
    [scraped] = yaml_of(DEPLOY / "prometheus.yml")["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"weft:{port}"]}]
    assert services["open-webui"]["environment"]["OPENAI_API_BASE_URL"] == f"http://weft:{port}/v1"
    [source] = yaml_of(DEPLOY / "grafana" / "datasource.yml")["datasources"]
    assert source["url"].split(":")[1].strip("/") in services
    [provider] = yaml_of(DEPLOY / "grafana" / "dashboards.yml")["providers"]
    mounts = [mount.split(":") for mount in services["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/weft.json" in [to for _, to, *_ in mounts]


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((DEPLOY / "grafana" / "weft.json").read_text())
    return board


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def shown() -> set[str]:
    """The metrics of the dashboard."""
    return {name for query in queries() for name in re.findall(r"\b(?:weft|llamacpp):\w+", query)}


def documented() -> set[str]:
    """The metrics in queries and alerts of the page about monitoring."""
    page = (ROOT / "docs" / "guides" / "monitoring.md").read_text()
    return set(re.findall(r"\b(?:weft|llamacpp):\w+", page)) - {"llamacpp:requests"}


async def test_the_dashboard_and_the_page_about_monitoring_show_metrics_that_there_are() -> None:
    async with AsyncTestClient(create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1), Settings(metrics=True))) as client:
        await answers(client, 200)
        told = (await client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(told)}
    names = {sample.name: set(sample.labels) for family in families.values() for sample in family.samples}
    assert shown() <= names.keys()
    assert documented() <= names.keys()
    for query in queries():
        for label in re.findall(r"sum by \((\w+)\)", query):
            [metric] = re.findall(r"\b(?:weft|llamacpp):\w+", query)
            assert label in names[metric], query


def test_the_dashboard_shows_every_metric_of_the_page() -> None:
    rows = re.findall(r"(?m)^\| (`weft:.*?`) \|", (ROOT / "docs" / "reference" / "metrics.md").read_text())
    named = {name for row in rows for name in re.findall(r"`(weft:\w+)", row)}
    assert len(named) > 20
    assert named - {name.removesuffix("_bucket") for name in shown()} == set()


def test_the_dashboard_asks_the_source_that_is_provisioned() -> None:
    [source] = yaml_of(DEPLOY / "grafana" / "datasource.yml")["datasources"]
    [scraped] = yaml_of(DEPLOY / "prometheus.yml")["scrape_configs"]
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert set(re.findall(r'job="(\w+)"', "".join(queries()))) == {scraped["job_name"]}
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def unit() -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "weft.service")
    return parser


def test_the_unit_starts_our_command_with_flags_that_there_are() -> None:
    command, *flags = shlex.split(unit()["Service"]["ExecStart"])
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(command).name in scripts
    assert flags
    assert all(flag in all_spellings() for flag in flags)
    settings, warnings = parse(flags, {})
    assert settings.metrics
    assert warnings == ()


def test_variables_that_the_unit_tells_of_are_read() -> None:
    named = set(re.findall(r"LLAMA_ARG_\w+", (DEPLOY / "weft.service").read_text()))
    assert named
    assert named <= VARIABLES


@pytest.mark.parametrize(
    "setting",
    [
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "MemoryDenyWriteExecute=yes",
        "PrivateDevices=yes",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "CapabilityBoundingSet=",
        "RestrictNamespaces=yes",
        "SystemCallArchitectures=native",
    ],
)
def test_the_unit_is_hardened(setting: str) -> None:
    name, _, value = setting.partition("=")
    assert unit()["Service"][name] == value


def test_a_wrong_command_line_is_not_tried_again() -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--no-such-flag"], {})
    assert unit()["Service"]["RestartPreventExitStatus"] == str(ended.value.code)


def workflow() -> dict[str, Any]:
    return yaml_of(ROOT / ".github" / "workflows" / "wheels.yml")


def test_the_workflow_makes_goals_and_runs_scripts_that_there_are() -> None:
    runs = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    dockerfile = (DEPLOY / "Dockerfile.wheels").read_text()
    said = "\n".join([*runs, dockerfile])
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"single-wheel", "wheels"} == set(re.findall(r"\bmake ([a-z-]+)", said)) <= goals
    scripts = set(re.findall(r"python (scripts/\w+\.py)", said))
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_the_workflow_builds_targets_that_there_are() -> None:
    targets = {stage.split(" AS ")[1] for word, stage in instructions(DEPLOY / "Dockerfile.wheels") if word == "FROM"}
    matrix = workflow()["jobs"]["linux"]["strategy"]["matrix"]["include"]
    assert {each["target"] for each in matrix} <= targets
    assert {each["distribution"] for each in matrix} == {"weft-llm", "weft-llm-cuda12", "weft-llm-vulkan"}
    assert [each["arch"] for each in matrix if each["target"] == "cpu"] == list(LEVELS)


def test_actions_of_others_are_pinned_to_what_was_looked_at() -> None:
    used = [step["uses"] for job in workflow()["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


def test_only_what_publishes_may_do_more_than_read() -> None:
    described = workflow()
    assert described["permissions"] == {"contents": "read"}
    assert [name for name, job in described["jobs"].items() if "permissions" in job] == ["publish"]


def test_third_parties_are_those_of_the_lock_file() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "third_party.py"), "--crates"]
    crates = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()
    told = (ROOT / "THIRD_PARTY").read_text()
    assert len(crates) > 50
    assert [crate for crate in crates if f"\n{crate} " not in told] == [], "scripts/third_party.py > THIRD_PARTY"
