//! Forwards llama.cpp's log lines to `tracing`, target `llama.cpp`.
//!
//! llama.cpp's "info" is about two hundred lines per load, so it becomes `DEBUG`, and its "debug" `TRACE`. Errors also contain the
//! reason why a call failed: [`errors_during`] collects them.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Once;

use llama_cpp_sys_2 as sys;
use tracing::Level;

#[derive(Default)]
struct ThreadLog {
    line: String,
    level: sys::ggml_log_level,
    errors: Option<Vec<String>>,
}

thread_local! {
    static LOG: RefCell<ThreadLog> = RefCell::default();
}

pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    // SAFETY: `receive` has the required signature, lives forever, and needs no user data.
    INSTALLED.call_once(|| unsafe {
        sys::llama_log_set(Some(receive), std::ptr::null_mut());
        sys::mtmd_helper_log_set(Some(receive), std::ptr::null_mut());
    });
}

pub(super) fn errors_during<T>(call: impl FnOnce() -> T) -> (T, Vec<String>) {
    LOG.with_borrow_mut(|log| log.errors = Some(Vec::new()));
    let result = call();
    let errors = LOG.with_borrow_mut(|log| log.errors.take()).unwrap_or_default();
    (result, errors)
}

fn find_reason(errors: &[String]) -> Option<String> {
    let reasons = errors.iter().map(|line| {
        // Lines begin with the name of the function that logs them.
        let text = line.split_once(": ").map_or(line.as_str(), |(name, text)| if name.contains(' ') { line } else { text });
        text.strip_prefix("error loading model: ").unwrap_or(text).trim()
    });
    // Callers of the failed function only repeat that it failed.
    let (repeats, reasons): (Vec<&str>, Vec<&str>) = reasons.partition(|text| text.contains("failed to load model"));
    let messages = if reasons.is_empty() { repeats } else { reasons };
    (!messages.is_empty()).then(|| messages.join("; "))
}

pub(super) fn explain(words: &str, errors: &[String]) -> String {
    find_reason(errors).map_or_else(|| words.to_owned(), |reason| format!("{words}: {reason}"))
}

pub(super) fn non_null<T>(create: impl FnOnce() -> *mut T) -> Result<NonNull<T>, String> {
    let (pointer, errors) = errors_during(create);
    NonNull::new(pointer).ok_or_else(|| reason_or_default(&errors))
}

pub(super) fn reason_or_default(errors: &[String]) -> String {
    find_reason(errors).unwrap_or_else(|| "llama.cpp gave no reason".to_owned())
}

/// Calls a C++ function that writes the text of an exception to a buffer of the given size.
pub(super) fn with_exception_text<T>(call: impl FnOnce(*mut c_char, usize) -> T) -> (T, String) {
    let mut message = [0_u8; 256];
    let result = call(message.as_mut_ptr().cast(), message.len());
    let text = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy().into_owned();
    (result, text)
}

unsafe extern "C" fn receive(level: sys::ggml_log_level, text: *const c_char, _user_data: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that outlives this call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let mut lines = Vec::new();
    // `Err`: the thread is exiting and its log was destroyed; the line is dropped.
    let _ = LOG.try_with(|log| log.borrow_mut().push(level, &text, &mut lines));
    // Published after the borrow ends, because a subscriber may call back into llama.cpp.
    for (level, line) in lines {
        publish(level, &line);
    }
}

impl ThreadLog {
    fn push(&mut self, level: sys::ggml_log_level, text: &str, lines: &mut Vec<(sys::ggml_log_level, String)>) {
        if level != sys::GGML_LOG_LEVEL_CONT {
            if !self.line.is_empty() {
                self.end_line(lines);
            }
            self.level = level;
        }
        for piece in text.split_inclusive('\n') {
            self.line.push_str(piece.trim_end_matches('\n'));
            if piece.ends_with('\n') {
                self.end_line(lines);
            }
        }
    }

    fn end_line(&mut self, lines: &mut Vec<(sys::ggml_log_level, String)>) {
        let line = std::mem::take(&mut self.line);
        // Progress dots and rulers have no content.
        if line.chars().all(|c| c == '.' || c.is_whitespace()) {
            return;
        }
        if self.level == sys::GGML_LOG_LEVEL_ERROR
            && let Some(errors) = &mut self.errors
        {
            errors.push(line.clone());
        }
        lines.push((self.level, line));
    }
}

fn publish(level: sys::ggml_log_level, line: &str) {
    // llama.cpp compares the whole device cache with the training length, which one of our slots never exceeds.
    // A pooling type that the file does not name is our choice.
    let expected = ["possible training context overflow", "model default pooling_type is"];
    let level = if expected.iter().any(|words| line.contains(words)) { sys::GGML_LOG_LEVEL_INFO } else { level };
    match level {
        sys::GGML_LOG_LEVEL_ERROR => tracing::event!(target: "llama.cpp", Level::ERROR, "{line}"),
        sys::GGML_LOG_LEVEL_WARN => tracing::event!(target: "llama.cpp", Level::WARN, "{line}"),
        sys::GGML_LOG_LEVEL_INFO => tracing::event!(target: "llama.cpp", Level::DEBUG, "{line}"),
        _ => tracing::event!(target: "llama.cpp", Level::TRACE, "{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_lines_and_errors_are_collected() {
        let mut log = ThreadLog { errors: Some(Vec::new()), ..ThreadLog::default() };
        let mut lines = Vec::new();
        log.push(sys::GGML_LOG_LEVEL_ERROR, "no ", &mut lines);
        log.push(sys::GGML_LOG_LEVEL_CONT, "room\nleft", &mut lines);
        log.push(sys::GGML_LOG_LEVEL_WARN, "slow\n", &mut lines);
        log.push(sys::GGML_LOG_LEVEL_CONT, "....\n", &mut lines);
        let texts: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(texts, ["no room", "left", "slow"]);
        assert_eq!(lines[2].0, sys::GGML_LOG_LEVEL_WARN);
        assert_eq!(log.errors.as_deref(), Some(&["no room".to_owned(), "left".to_owned()][..]));
    }
}
