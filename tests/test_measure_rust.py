"""scripts/measure_rust.py counts code outside tests."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "measure_rust.py"

LIB = """\
//! The crate.

/* A block /* in a block */
   that ends here. */
pub mod engine;
#[cfg(test)]
mod checks;
#[cfg(any(test, feature = "fake"))]
pub mod fake;

/// A quote: "
pub const URL: &str = "http://not-a-comment"; // A comment behind code.
const TEXT: &str = r#"
// Not a comment: "pub fn"
"#;
const QUOTES: [char; 2] = ['\\'', '"'];
pub(crate) const fn id<'a>(text: &'a str) -> &'a str { text }
"""

ENGINE = """\
pub struct Core<R> {
    pub(super) queue: Queue,
}

impl<R: Runner> Core<R> {
    pub(super) fn step(&mut self) {}
    fn is_busy(&self) -> bool { true }
}

impl Queue {
    fn move_to(&mut self, slots: &mut Slots) {}
    fn of(&mut self, slots: &Slots) {}
}

fn admit<R: Runner>(core: &mut Core<R>, n: usize) {}
fn look<R: Runner>(core: &Core<R>) {}
fn run<R: Runner>(runner: &mut R, queue: &mut Queue) {}

#[cfg(test)]
#[allow(dead_code)]
mod tests {
    pub fn tested(core: &mut Core<FakeRunner>) {}
}
"""


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    (tmp_path / "engine").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "lib.rs").write_text(LIB, encoding="utf-8")
    (tmp_path / "engine" / "mod.rs").write_text(ENGINE, encoding="utf-8")
    for name in ("checks.rs", "fake.rs", "tests/more.rs"):
        (tmp_path / name).write_text("pub fn test() {}\n", encoding="utf-8")
    runpy.run_path(str(SCRIPT))["main"](["--root", str(tmp_path), "--core", "Core", "--owners", "Queue", "Slots", "Runner"])
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_lines_and_items_are_counted_outside_tests(printed: list[list[str]]) -> None:
    head, *rows = printed
    assert head == ["folder", "code", "comments", "blank", "pub", "pub(…)"]
    assert rows[:3] == [[".", "7", "4", "2", "2", "1"], ["engine", "14", "0", "4", "1", "1"], ["total", "21", "4", "6", "3", "2"]]


def test_functions_that_take_shared_state_are_counted(printed: list[list[str]]) -> None:
    assert " ".join(printed[-2]) == "that take &mut Core: 2; &Core: 1; either: 3"
    assert " ".join(printed[-1]).endswith("mutably: 4 (2 of them name each)")


def test_the_default_names_are_those_of_the_crate(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT))["main"]([])
    assert "that take &mut Worker: " in capsys.readouterr().out


def test_a_name_that_the_crate_does_not_mention_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT))["main"](["--owners", "Mailbox"])
    assert "does not mention Mailbox" in capsys.readouterr().err
