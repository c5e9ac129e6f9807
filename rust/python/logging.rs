//! `tracing` → Python's `logging`: our lines to the logger `weft`, llama.cpp's to `weft.llama_cpp`.
//!
//! Lines come from any thread, the engine's worker among them, which must not take the GIL. So they go through a bounded channel to
//! a thread of their own that does.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Once, OnceLock};
use std::thread;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that may wait to be logged; further ones are lost. A load at the most talkative level makes some hundreds.
const MAX_LINES: usize = 4096;

/// The least level that is forwarded, as `logging` numbers them.
static THRESHOLD: AtomicU8 = AtomicU8::new(30);

/// Forwards what the logger `weft` wants to see, as it is set up now.
///
/// Called where a model is loaded or an engine is started: asking for each line would take the GIL.
///
/// # Errors
/// What `logging` raises.
pub(super) fn follow(py: Python<'_>) -> PyResult<()> {
    static INSTALLED: Once = Once::new();
    let level: u64 = logger(py, "weft")?.call_method0("getEffectiveLevel")?.extract()?;
    THRESHOLD.store(u8::try_from(level).unwrap_or(u8::MAX), Ordering::Relaxed);
    // A subscriber that is there already belongs to a program that has this crate inside and logs as it likes.
    INSTALLED.call_once(|| drop(tracing::subscriber::set_global_default(ToPython)));
    Ok(())
}

fn logger<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("logging")?.call_method1("getLogger", (name,))
}

/// A level as `logging` numbers them; it has no word for our lowest.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

struct Line {
    logger: &'static str,
    level: u8,
    text: String,
}

/// Made with the first line, so that a process that was forked before it has a thread too.
fn lines() -> &'static SyncSender<Line> {
    static LINES: OnceLock<SyncSender<Line>> = OnceLock::new();
    LINES.get_or_init(|| {
        let (sender, receiver) = mpsc::sync_channel(MAX_LINES);
        // Without the thread the channel is closed and lines are lost: there is nowhere left to say so.
        drop(thread::Builder::new().name("weft-log".into()).spawn(move || forward(&receiver)));
        sender
    })
}

fn forward(lines: &Receiver<Line>) {
    for Line { logger: name, level, text } in lines {
        let logged = Python::try_attach(|py| {
            let logged = logger(py, name).and_then(|logger| logger.call_method1("log", (level, "%s", text)));
            if let Err(error) = logged {
                error.write_unraisable(py, None);
            }
        });
        // The interpreter is going.
        if logged.is_none() {
            return;
        }
    }
}

struct ToPython;

impl Subscriber for ToPython {
    fn register_callsite(&self, _metadata: &'static Metadata<'static>) -> Interest {
        // The threshold moves.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(*metadata.level()) >= THRESHOLD.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let metadata = event.metadata();
        let logger = if metadata.target() == "llama.cpp" { "weft.llama_cpp" } else { "weft" };
        // Full: nobody has taken the GIL for thousands of lines, and this thread must not wait for it.
        drop(lines().try_send(Line { logger, level: number(*metadata.level()), text: text.0 }));
    }

    // Nothing here opens a span, and `enabled` lets none through.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// The message of an event, followed by its other fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        written.expect("a string takes all that is written");
    }
}
