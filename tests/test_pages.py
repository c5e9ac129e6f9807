"""Each code fence of the README and of the documentation's pages works as its tag states (tests/pages.py)."""

import asyncio
import contextlib
import importlib.util
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import weft
from tests.adapters import write_adapter
from tests.clients import actor
from tests.engine.tiny_encoders import write_tiny_encoder
from tests.engine.tiny_projectors import Size, png_of, wav_of, write_projector
from tests.helpers import prompt_of
from tests.pages import ROOT, Fence, fences, pages_with_tags, value_of
from tests.server.live import LiveServer, environ
from tests.yaml_schemas import check_yaml
from weft.cli.commands import COMMANDS
from weft.cli.main import parse, parse_command

PAGES = pages_with_tags()
FENCES = [fence for page in PAGES for fence in fences(page)]
TIMEOUT_S = 120


def tagged(verb: str, *arguments: str) -> list[Fence]:
    return [fence for fence in FENCES if fence.verb == verb and (not arguments or fence.argument.split(" ")[0] in arguments)]


def test_every_fence_is_found_and_tagged() -> None:
    assert {page: len(list(fences(page))) for page in PAGES} == {
        page: len(re.findall(r"^ *```\w*", page.read_text(encoding="utf-8"), re.MULTILINE)) // 2 for page in PAGES
    }
    runs = {"", "await", "session", "server", "actor"}
    untagged = [
        str(fence)
        for fence in FENCES
        if not (
            fence.verb == "output"
            or (fence.verb == "file" and fence.argument)
            or (fence.verb == "run" and fence.argument.split(" ")[0] in runs)
            or (fence.verb == "check" and fence.argument in CHECKS)
        )
    ]
    assert untagged == [], "each fence needs a tag of tests/pages.py"


def printed_by(command: list[str], folder: Path, code: str | None = None) -> str:
    environment = {**environ(), "PYTHONPATH": f"{ROOT / 'python'}", "WEFT_MODEL": str(weft.DEMO_MODEL)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    ran = subprocess.run(
        command, input=code, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return ran.stdout


def write_files(page: str, folder: Path) -> None:
    """Writes the page's files, which its programs import or read."""
    for fence in tagged("file"):
        if fence.page == page:
            (folder / fence.argument).write_text(fence.code, encoding="utf-8")


def write_adapter_of_demo(path: Path) -> None:
    write_adapter(path, seed=path.stem == "clerk", task_name=path.stem)


def invocation() -> list[int]:
    """Returns the tokens that activate an adapter in a prompt of the page."""
    return weft.Model.load(weft.DEMO_MODEL).tokenize("Asked:", add_special=False)


FILES: dict[str, Callable[[Path], object]] = {
    "poet.gguf": write_adapter_of_demo,
    "clerk.gguf": write_adapter_of_demo,
    "activated.gguf": lambda path: write_adapter(path, seed=2, invoked_by=invocation()),
    "mmproj.gguf": lambda path: write_projector(path, "llava", size=Size(n_text=actor.N_EMBD)),
    "mmproj-audio.gguf": lambda path: write_projector(path, "ultravox", size=Size(n_text=actor.N_EMBD)),
    "reranker.gguf": lambda path: write_tiny_encoder("reranker", path),
    "cat.png": lambda path: path.write_bytes(png_of(1)),
    "question.wav": lambda path: path.write_bytes(wav_of(1)),
}
"""Files beside the demo model that pages name: adapters, projectors and a reranker of random weights, an image, and audio."""


def write_named_files(text: str, folder: Path) -> None:
    """Writes those of `FILES` that a text names."""
    for name, write in FILES.items():
        if re.search(rf"(?<![\w-]){re.escape(name)}", text):
            write(folder / name)


def with_demo_model(code: str) -> str:
    return re.sub(r'"([\w./-]+\.gguf)"', lambda found: found[0] if found[1] in FILES else repr(str(weft.DEMO_MODEL)), code)


@pytest.mark.parametrize("fence", tagged("run", ""), ids=str)
def test_a_program_runs(fence: Fence, tmp_path: Path) -> None:
    assert fence.language == "python"
    write_files(fence.page, tmp_path)
    write_named_files(fence.code, tmp_path)
    assert printed_by([sys.executable, "-c", with_demo_model(fence.code)], tmp_path).strip()


PIECES = sorted({(fence.page, fence.argument) for fence in tagged("run", "await")})


@pytest.mark.parametrize(("page", "argument"), PIECES, ids=[f"{page} {argument}" for page, argument in PIECES])
async def test_pieces_of_a_page_run_in_order(page: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_files(page, tmp_path)
    made = weft.Engine(n_slots=8, n_ctx=4096, kv_unified=True, n_threads=1)
    async with actor.ActorEngine() if argument == "await actor" else made as engine:
        names: dict[str, object] = {"asyncio": asyncio, "engine": engine, "msgspec": msgspec, "weft": weft, "__name__": "page"}
        for fence in tagged("run", "await"):
            if (fence.page, fence.argument) == (page, argument):
                with contextlib.redirect_stdout(io.StringIO()):
                    await value_of(with_demo_model(fence.code), names)


@pytest.mark.parametrize("page", sorted({fence.page for fence in tagged("run", "session")}))
async def test_sessions_of_a_page_show_their_values(page: str) -> None:
    async with weft.Engine(n_slots=8, n_ctx=4096, kv_unified=True, n_threads=1) as engine:
        names = {"engine": engine, "weft": weft, "prompt_of_200_tokens": prompt_of(200, "page")}
        for fence in tagged("run", "session"):
            if fence.page == page:
                inputs = re.findall(r"^>>> (.*\n(?:\.\.\. .*\n)*)((?:(?!>>>).*\n)*)", fence.code, re.MULTILINE)
                assert any(shown for _, shown in inputs)
                for code, shown in inputs:
                    value = await value_of(re.sub(r"^\.\.\. ", "", code, flags=re.MULTILINE), names)
                    assert not shown or repr(value) == shown.strip(), f"{fence}: {code}"


SERVED = sorted({(fence.page, fence.argument) for fence in tagged("run", "server", "actor")})


@pytest.mark.parametrize(("page", "start"), SERVED, ids=[f"{page} {start}" for page, start in SERVED])
async def test_programs_and_commands_work_with_a_server(page: str, start: str, tmp_path: Path) -> None:
    kind, *given = shlex.split(start)
    folder = tmp_path / "work"
    folder.mkdir()
    write_files(page, folder)
    served = [fence for fence in tagged("run", kind) if (fence.page, fence.argument) == (page, start)]
    write_named_files(" ".join([start, *(fence.code for fence in served)]), folder)
    given = [re.sub(r"^(?:[\w-]+\.gguf|\.)(?=[:,]|$)", lambda found: str(folder / found[0]), word) for word in given]
    arguments = [*given, *(actor.flags(None) if kind == "actor" else ["-c", "4096"])]
    program = ("-m", "tests.clients.actor") if kind == "actor" else ("-m", "weft")
    with LiveServer(tmp_path / "log", *(given if kind == "actor" else arguments), program=program) as server:
        await server.ready()
        for fence in served:
            code = re.sub(r"http://(?:127\.0\.0\.1|localhost):8080", server.url, fence.code)
            if fence.language == "python":
                printed = printed_by([sys.executable, "-c", code], folder)
            else:
                code = re.sub(r"^\$ ", "", code, flags=re.MULTILINE)
                code = code.replace("curl ", "curl --silent --show-error --fail-with-body ")
                printed = printed_by(["bash", "-e", "-o", "pipefail"], folder, code)
            assert printed.strip() or "DELETE" in code, str(fence)


GOALS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
FREE = {
    *("aider", "caddy", "cd", "claude", "cp", "curl", "docker", "echo", "eval", "export", "git", "grep", "install"),
    *("journalctl", "kubectl", "llama-server", "lm_eval", "mini", "mkdir", "ollama", "openssl", "pip", "python3", "ray"),
    *("serve", "sudo", "systemctl", "vllm"),
}
"""Programs whose arguments are not ours to check; `bash -n` parses their lines."""


CERTIFICATES = ROOT / "tests" / "certificates"
FLAG_FILES = {
    "--api-key-file": str(CERTIFICATES / "one.key"),
    "--ssl-cert-file": str(CERTIFICATES / "one.crt"),
    "--ssl-key-file": str(CERTIFICATES / "one.key"),
}
"""Files that stand in for those of flags."""


def check_commands(code: str) -> None:
    """Checks the syntax of shell commands, the goals given to make and the flags given to weft."""
    code = re.sub(r"^\$ ", "", code, flags=re.MULTILINE)
    parsed = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert parsed.returncode == 0, parsed.stderr
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        words = shlex.split(line, comments=True)
        while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] == "sudo"):
            del words[0]
        match words:
            case ["make", goal, *_]:
                assert goal in GOALS, f"make has no goal {goal}"
            case ["python", "-m", "weft", *arguments] | ["weft", *arguments]:
                check_weft([word for word in arguments if word != "&"])
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module) is not None, module
            case ["python", script, *_] if script.endswith(".py"):
                assert (ROOT / script).exists(), script
            case [program, *_]:
                assert Path(program).name in FREE, f"{program} is not a program that pages call"


def check_weft(arguments: list[str]) -> None:
    end = next((n for n, word in enumerate(arguments) if word in ("|", ">", "<", "2>")), len(arguments))
    # Files that a page names do not exist here.
    arguments = [FLAG_FILES.get(before, word) for before, word in zip(["", *arguments], arguments[:end], strict=False)]
    if arguments and arguments[0] in COMMANDS:
        (_, warnings), _ = parse_command(arguments[1:], {}, COMMANDS[arguments[0]])
    elif not {"--help", "--help-all", "--version", "--completion", "--list-devices", "-cl"}.intersection(arguments):
        _, warnings = parse(arguments, {})
    else:
        warnings = ()
    assert warnings == (), warnings


def check_nginx(code: str, folder: Path) -> None:
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    text = code if "events" in code else f"events {{}}\nhttp {{\n{code}\n}}\n"
    text = re.sub(
        r"(ssl_certificate(?:_key)?) +\S+;",
        lambda found: f"{found[1]} {CERTIFICATES}/one.{'key' if 'key' in found[1] else 'crt'};",
        text,
    )
    path = folder / "nginx.conf"
    path.write_text(f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n{text}", encoding="utf-8")
    ran = subprocess.run([program, "-t", "-c", str(path)], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert ran.returncode == 0, ran.stderr


def check_systemd(code: str, folder: Path) -> None:
    """Checks a unit, or a drop-in of the unit that Weft ships."""
    path = folder / "page.service"
    unit = code if "ExecStart=" in code else (ROOT / "deploy" / "weft.service").read_text(encoding="utf-8")
    path.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE), encoding="utf-8")
    if unit is not code:
        drop_in = folder / "page.service.d" / "override.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(code, encoding="utf-8")
    ran = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    # What it ignores is an error here; it may report units of this machine, too.
    assert ran.returncode == 0, ran.stderr
    assert str(folder) not in ran.stderr, ran.stderr


def check_caddy(code: str, folder: Path) -> None:
    """Checks that the blocks of a Caddyfile are closed, and all of it where Caddy is installed, which few systems package."""
    assert code.count("{") == code.count("}") > 0
    if (program := shutil.which("caddy")) is not None:
        path = folder / "Caddyfile"
        path.write_text(code, encoding="utf-8")
        command = [program, "adapt", "--config", str(path), "--adapter", "caddyfile"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        assert ran.returncode == 0, ran.stderr


def check_promql(code: str) -> None:
    """Checks that a query names metrics and closes its brackets; tests/test_deploy.py checks that the server has the metrics."""
    assert re.search(r"\b(?:weft|llamacpp):\w+", code)
    for opening, closing in ("()", "[]", "{}"):
        assert code.count(opening) == code.count(closing)


CHECKS: dict[str, Callable[[str, Path], object]] = {
    "commands": lambda code, _: check_commands(code),
    "json": lambda code, _: json.loads(code),
    "toml": lambda code, _: tomllib.loads(code),
    "yaml": lambda code, _: check_yaml(code),
    "python": lambda code, _: compile(code, "page", "exec"),
    "javascript": lambda code, _: subprocess.run(["node", "--input-type=module", "--check"], input=code, text=True, check=True),
    "caddy": check_caddy,
    "nginx": check_nginx,
    "promql": lambda code, _: check_promql(code),
    "systemd": check_systemd,
}


@pytest.mark.parametrize("fence", tagged("check"), ids=str)
def test_what_is_not_run_is_checked(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(fence.page, tmp_path)
    CHECKS[fence.argument](fence.code, tmp_path)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("containerPort: 8080", "containerport: 8080"), ("path: /health", "route: /health"), ("memory: 8Gi", "memory: 8 GiB")],
)
def test_a_manifest_with_a_wrong_field_fails(right: str, wrong: str) -> None:
    [manifest] = [fence.code for fence in tagged("check") if fence.code.startswith("apiVersion")]
    assert right in manifest
    with pytest.raises(msgspec.ValidationError):
        check_yaml(manifest.replace(right, wrong, 1))
