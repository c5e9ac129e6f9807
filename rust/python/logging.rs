//! Forwarding of `tracing` events to Python's `logging`: ours to the logger `weft`, llama.cpp's to `weft.llama_cpp`.
//!
//! Events come from any thread. The engine's worker must not take the GIL: a bounded channel passes them to a thread that does.

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

/// Maximum number of queued lines; further ones are dropped. A load at the most verbose level writes some hundreds.
const MAX_LINES: usize = 4096;

/// Minimum level that is forwarded, in the numbers of `logging`.
static THRESHOLD: AtomicU8 = AtomicU8::new(30);

/// Adopts the current effective level of the logger `weft`.
///
/// Called when a model is loaded or an engine is started: a query for each line would take the GIL.
pub(super) fn follow(py: Python<'_>) -> PyResult<()> {
    static INSTALLED: Once = Once::new();
    let level: u64 = logger(py, "weft")?.call_method0("getEffectiveLevel")?.extract()?;
    THRESHOLD.store(u8::try_from(level).unwrap_or(u8::MAX), Ordering::Relaxed);
    // An existing subscriber belongs to a program that embeds this crate and has its own logging.
    INSTALLED.call_once(|| drop(tracing::subscriber::set_global_default(ToPython)));
    Ok(())
}

fn logger<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("logging")?.call_method1("getLogger", (name,))
}

/// Returns the number of a level in `logging`, which has no name for `TRACE`.
fn logging_level(level: Level) -> u8 {
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

/// Created with the first line, so that a process that was forked before has its own thread.
fn lines() -> &'static SyncSender<Line> {
    static LINES: OnceLock<SyncSender<Line>> = OnceLock::new();
    LINES.get_or_init(|| {
        let (sender, receiver) = mpsc::sync_channel(MAX_LINES);
        // Without the thread, the channel is closed and lines are dropped: nothing is left to report the failure to.
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
        // The interpreter is shutting down.
        if logged.is_none() {
            return;
        }
    }
}

struct ToPython;

impl Subscriber for ToPython {
    fn register_callsite(&self, _metadata: &'static Metadata<'static>) -> Interest {
        // The threshold can change.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && logging_level(*metadata.level()) >= THRESHOLD.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = LogMessage(String::new());
        event.record(&mut text);
        let metadata = event.metadata();
        let logger = if metadata.target() == "llama.cpp" { "weft.llama_cpp" } else { "weft" };
        // If the channel is full, nothing has taken the GIL for thousands of lines, and this thread must not wait for it.
        drop(lines().try_send(Line { logger, level: logging_level(*metadata.level()), text: text.0 }));
    }

    // This crate opens no spans, and `enabled` rejects all.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// The message of an event, followed by its other fields.
struct LogMessage(String);

impl Visit for LogMessage {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        written.expect("a string takes all that is written");
    }
}
