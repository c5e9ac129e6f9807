"""What the package exports is what it documents."""

import ast
import inspect
import os
import pydoc
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

import weft
from weft import EngineConfig, Request, RequestOptions, _native, completion, config, engine, errors, events, prefix, request
from weft.engine_options import EngineOptions
from weft.fields.meta import field_meta

ROOT = Path(__file__).parent.parent
OPTIONS: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "option_stubs.py"))
STUB = ast.parse((Path(weft.__file__).parent / "_native.pyi").read_text(encoding="utf-8"))


def stub_classes() -> dict[str, ast.ClassDef]:
    return {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def test_all_is_what_there_is() -> None:
    public = {name for name in dir(weft) if not name.startswith("_") and not inspect.ismodule(getattr(weft, name))}
    assert sorted(public - {"Path", "import_module"}) == sorted(weft.__all__)
    assert len(set(weft.__all__)) == len(weft.__all__)


@pytest.mark.parametrize("name", weft.__all__)
def test_every_name_is_what_its_module_has(name: str) -> None:
    assert getattr(weft, name) is getattr(sys.modules[weft._MODULES[name]], name)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'Engin'"):
        _ = weft.Engin  # type: ignore[attr-defined]


def test_every_public_module_exports_its_part() -> None:
    for module in (completion, config, engine, errors, events, prefix, request):
        assert set(module.__all__) <= vars(module).keys()
    assert set(errors.__all__) < set(weft.__all__)


FUNCTIONS = {
    "use_short_time_slices",
    "devices",
    "trim_allocator",
    "read_body",
    "schema_grammar",
    "lower_priority",
    "plan_memory",
    "trim_heap",
    "tune",
}


def test_the_stub_has_the_classes_of_the_compiled_module() -> None:
    compiled = {name for name, value in vars(_native).items() if inspect.isclass(value)}
    assert stub_classes().keys() == compiled == set(_native.__all__) - FUNCTIONS - {"VERSION"}
    # `weft.Engine` is the one for async Python; tuning and planning are commands; the server reads long lists as one object.
    own = {
        "Biases",
        "BufferUse",
        "MemoryPlan",
        "Cancellation",
        "CompactLogprobs",
        "Engine",
        "Hardware",
        "Timing",
        "TokenIds",
        "Tuning",
        "CompactEmbeddings",
    }
    assert compiled - own < set(weft.__all__)


def test_every_class_of_the_stub_is_final_and_documented() -> None:
    for name, node in stub_classes().items():
        assert [ast.unparse(decorator) for decorator in node.decorator_list] == ["final"], name
        assert ast.get_docstring(node), name
        methods = [method for method in node.body if isinstance(method, ast.FunctionDef) and method.name != "__aiter__"]
        # Of several signatures, the last is documented.
        documented = {method.name for method in methods if ast.get_docstring(method)}
        assert documented == {method.name for method in methods}, name


def test_the_stub_is_what_was_compiled() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "weft._native"], capture_output=True, text=True, timeout=25, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_options_are_the_fields_of_a_request() -> None:
    hints = get_type_hints(Request)
    fields = {field.name: hints[field.name] for field in msgspec.structs.fields(Request) if field.name != "prompt"}
    assert get_type_hints(RequestOptions) == fields


@pytest.mark.parametrize("module", OPTIONS["STUBS"])
def test_the_stubs_of_options_are_up_to_date(module: str) -> None:
    stub = (ROOT / "python" / "weft" / f"{module}.pyi").read_text(encoding="utf-8")
    assert stub == OPTIONS["stub_text"](module), "scripts/option_stubs.py"


def test_options_of_an_engine_are_the_fields_of_its_config() -> None:
    hints = get_type_hints(EngineConfig)
    file = str | os.PathLike[str]
    value = bool | int | float | str
    lists = {
        "devices": Sequence[str] | None,
        "draft_devices": Sequence[str] | None,
        "tensor_split": Sequence[float],
        "lora": Sequence[file | tuple[file, float]],
        "mmproj": file | None,
        "draft_model": file | None,
        "kv_overrides": Mapping[str, value] | Sequence[tuple[str, value]],
        "tensor_overrides": Mapping[str, str] | Sequence[tuple[str, str]],
        "draft_tensor_overrides": Mapping[str, str] | Sequence[tuple[str, str]],
        "cpus": Sequence[int],
        "cpus_batch": Sequence[int] | None,
    }
    assert get_type_hints(EngineOptions) == hints | lists


EVENTS = [weft.Token, weft.Logprob, weft.Logprobs, weft.PromptLogprobs, weft.Progress, weft.Usage, weft.Finished]


@pytest.mark.parametrize("struct", [EngineConfig, Request, weft.Completion, weft.Choice, weft.PrefixFile, *EVENTS])
def test_help_tells_each_field(struct: type[msgspec.Struct]) -> None:
    assert list(field_meta(struct)) == list(struct.__struct_fields__)
    told = pydoc.plain(pydoc.render_doc(struct))
    for name, about in field_meta(struct).items():
        assert f"    {name}: {about.text}" in told


class ReadRecorder:
    """A configuration that records which of its settings are read."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> object:
        self.names.add(name)
        return getattr(self.config, name)


def test_the_compiled_module_reads_every_setting() -> None:
    config: Any = ReadRecorder(EngineConfig(n_ctx=256, n_threads=1))
    _native.Engine(weft.Model.load(weft.DEMO_MODEL, config), config).stop()
    # Tuned settings are read from a file before an engine is created; tests alone fix the cost of drafts.
    assert config.names - {"draft_row_percent"} | {"tuned"} == {*EngineConfig.__struct_fields__}


def test_every_exception_is_ours_and_a_builtin_where_python_has_the_word() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(error, weft.WeftError) for error in classes)
    values = {weft.ContextOverflowError, weft.InvalidConfigError, weft.InvalidRequestError}
    assert {error for error in classes if issubclass(error, ValueError)} == values
