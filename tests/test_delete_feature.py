"""scripts/delete_feature.py deletes a feature of the engine with its hook lines, and nothing is left that names it."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "delete_feature.py"))
FEATURES: list[str] = SCRIPT["features"](ROOT)
TYPE = re.compile(r"^\s*pub(?:\([^)]*\))? (?:struct|enum|trait) (\w+)", re.MULTILINE)


def sources(root: Path) -> dict[str, str]:
    """The Rust sources outside tests, without comments."""
    paths = [path for path in sorted((root / "rust").rglob("*.rs")) if "tests" not in path.relative_to(root).parts]
    return {path.relative_to(root).as_posix(): SCRIPT["mask"](path.read_text(encoding="utf-8")) for path in paths}


def types_of(files: dict[str, str], name: str) -> set[str]:
    """The types that only files of the feature define."""
    own = re.compile(rf"rust/engine/features/{name}(\.rs$|/)")
    defined = [(path, match[1]) for path, text in files.items() for match in TYPE.finditer(text)]
    return {of for path, of in defined if own.match(path)} - {of for path, of in defined if not own.match(path)}


def test_every_feature_is_listed_and_declared() -> None:
    text = (ROOT / "rust" / "engine" / "features" / "mod.rs").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^//! \| `(\w+)` \|", text, flags=re.MULTILINE)) == FEATURES
    declared = re.findall(r"^pub\(crate\) mod (\w+);", text, flags=re.MULTILINE)
    assert sorted(declared) == sorted([*FEATURES, "hooks", "state"])


@pytest.mark.parametrize("name", FEATURES)
def test_nothing_that_is_left_names_a_deleted_feature(name: str, tmp_path: Path) -> None:
    SCRIPT["copy"](ROOT, tmp_path)
    types = types_of(sources(tmp_path), name)
    SCRIPT["delete"](tmp_path, name)
    named = re.compile(rf"\bfeatures(?:\.|::){name}\b|\b(?:{'|'.join(sorted(types)) or '$^'})\b")
    assert name not in SCRIPT["features"](tmp_path)
    left = {path: match[0] for path, text in sources(tmp_path).items() if (match := named.search(text))}
    assert left == {}


def test_only_tests_are_marked() -> None:
    marks = {path: list(SCRIPT["marks"](text)) for path, text in texts_of(ROOT).items()}
    assert {name for found in marks.values() for _, names in found for name in names} <= set(FEATURES)
    assert [path for path, found in marks.items() if found and "/tests/" not in path] == []


def texts_of(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in (root / "rust").rglob("*.rs")}


FILES = {
    "rust/engine/mod.rs": "//! | `features/beams` `worker` | files |\nmod features;\n",
    "rust/engine/features/mod.rs": """\
//! | `beams` | search |
//! | `forks` | forks |

pub(crate) mod beams;
pub(crate) mod forks;
""",
    "rust/engine/features/beams.rs": "pub(crate) struct Beam;\n",
    "rust/engine/features/forks.rs": "use crate::engine::features::beams::Beam;\n\npub(crate) struct Fork;\n",
    "rust/engine/features/state.rs": """\
use crate::engine::features::{beams, forks};

pub(crate) struct State {
    /// Of a search.
    pub(crate) beams: Option<Box<beams::Beam>>,
    pub(crate) forks: BTreeMap<u64, forks::Fork>,
}
""",
    "rust/engine/features/hooks.rs": """\
/// After a step.
pub(crate) fn after_step<A, B>(a: &A, b: &B) -> bool {
    let mut is_done = false;
    // First the searches.
    is_done |=
        beams::advance(a, b);
    is_done |= forks::advance(a, b);
    if let Some(beam) = a.beams() {
        beam.end();
    } else {
        stop();
    }
    is_done
}

pub(crate) fn is_busy(a: &A) -> bool {
    any([beams::is_busy(a, a.beams()), a.forks.is_busy()])
}

pub(crate) fn n_rows(a: &A) -> u32 {
    least([beams::n_rows(a)])
}
""",
    "rust/engine/tests/mod.rs": "mod beams;\nmod steps;\n",
    "rust/engine/tests/beams.rs": "",
    "rust/engine/tests/steps.rs": """\
// feature: beams, forks
/// A search and a fork.
#[test]
fn both() {
    run(&[1, 2]);
}

#[test]
fn one() {
    match op {
        // feature: beams
        Op::Search { .. } => search(),
        Op::Fork => fork(), // feature: forks
        _ => {}
    }
}
""",
    "rust/sampling/mod.rs": "mod beams; // feature: beams\nmod draw;\n",
    "rust/sampling/beams.rs": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_feature_goes_with_its_hooks_its_tests_and_what_is_marked(tree: Path) -> None:
    SCRIPT["delete"](tree, "beams")
    assert texts_of(tree) == {
        "rust/engine/mod.rs": "//! | `worker` | files |\nmod features;\n",
        "rust/engine/features/mod.rs": "//! | `forks` | forks |\n\npub(crate) mod forks;\n",
        "rust/engine/features/forks.rs": "pub(crate) struct Fork;\n",
        "rust/engine/features/state.rs": """\
use crate::engine::features::{forks};

pub(crate) struct State {
    pub(crate) forks: BTreeMap<u64, forks::Fork>,
}
""",
        "rust/engine/features/hooks.rs": """\
/// After a step.
pub(crate) fn after_step<A, B>(a: &A, b: &B) -> bool {
    let mut is_done = false;
    is_done |= forks::advance(a, b);
    is_done
}

pub(crate) fn is_busy(a: &A) -> bool {
    any([a.forks.is_busy()])
}

pub(crate) fn n_rows(a: &A) -> u32 {
    least([])
}
""",
        "rust/engine/tests/mod.rs": "mod steps;\n",
        "rust/engine/tests/steps.rs": """\
#[test]
fn one() {
    match op {
        Op::Fork => fork(), // feature: forks
        _ => {}
    }
}
""",
        "rust/sampling/mod.rs": "mod draw;\n",
    }


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        pytest.param("// feature: Beams", "is not of the form", id="name"),
        pytest.param("// feature: beams forks", "is not of the form", id="comma"),
        pytest.param("// feature:beams", "is not of the form", id="space"),
        pytest.param("// feature: beams, pins", "pins is no feature", id="unknown"),
    ],
)
def test_a_malformed_mark_is_refused(tree: Path, mark: str, message: str) -> None:
    (tree / "rust/engine/tests/steps.rs").write_text(f"fn beams() {{}} {mark}\n", encoding="utf-8")
    with pytest.raises(SCRIPT["MarkError"], match=message):
        SCRIPT["delete"](tree, "beams")


def test_a_feature_that_does_not_exist_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        SCRIPT["main"](["--root", str(tree), "--feature", "pins", "--list"])
    assert "pins is no feature; there are beams, forks" in capsys.readouterr().err
