//! llama.cpp's `common_speculative`.

use std::ffi::{c_char, c_void};

use llama_cpp_sys_2 as sys;

use crate::config::DraftKind;
use crate::llama::logging;
use crate::request::Token;

owned_pointer!(struct DrafterPointer(c_void), freed by weft_drafter_free);

/// Must be dropped before the contexts that it was created with, and is used on their thread.
pub(super) struct Drafter(DrafterPointer);

/// In the layout of `weft_drafter_params`.
#[repr(C)]
pub(super) struct DrafterParams {
    /// See [`number_of`].
    pub(super) kind: i32,
    pub(super) max_draft: i32,
    pub(super) min_p: f32,
    /// `llama_n_seq_max` of the draft context.
    pub(super) n_seq: u32,
    pub(super) target: *mut sys::llama_context,
    pub(super) draft: *mut sys::llama_context,
}

/// A sequence to draft for, in the layout of `weft_draft_request`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct DrafterRequest {
    pub(super) id: i32,
    pub(super) token: Token,
    pub(super) position: i32,
    pub(super) max_draft: i32,
}

/// Returns llama.cpp's number of a kind of drafts (`common_speculative_type`).
pub(super) fn number_of(kind: DraftKind) -> i32 {
    match kind {
        DraftKind::Simple => 1,
        DraftKind::Eagle3 => 2,
        DraftKind::Mtp => 3,
        DraftKind::DFlash => 4,
        DraftKind::DSpark => 5,
    }
}

impl Drafter {
    /// # Safety
    /// The contexts are alive, outlive the drafter, and passed [`check`](super::checks::check).
    pub(super) unsafe fn new(params: &DrafterParams) -> Result<Self, String> {
        // SAFETY: the caller guarantees the contexts; the message has the given size.
        let (pointer, text) = logging::with_exception_text(|message, n| unsafe { weft_drafter_new(params, message, n) });
        let reason = if text.is_empty() { "llama.cpp gave no reason".to_owned() } else { text };
        std::ptr::NonNull::new(pointer).map(|pointer| Self(DrafterPointer(pointer))).ok_or(reason)
    }

    pub(super) fn max_draft(&self) -> u32 {
        // SAFETY: the drafter is alive.
        unsafe { weft_drafter_n_max(self.as_ptr()) }.max(0).unsigned_abs()
    }

    /// Passes rows to the draft context: of the target's last decode, in its order, unless the drafts are a model's own.
    pub(super) fn process(&mut self, tokens: &[Token], positions: &[i32], ids: &[i32]) -> Result<(), String> {
        assert!(tokens.len() == ids.len() && positions.len() >= ids.len(), "a row has a token, a position and an id");
        let (n, tokens, positions, ids) = (ids.len(), tokens.as_ptr(), positions.as_ptr(), ids.as_ptr());
        // SAFETY: the drafter is alive, the lists have `n` elements and are only read, and the message has the given size.
        let call =
            |message, n_message| unsafe { weft_drafter_process(self.as_ptr(), n, tokens, positions, ids, message, n_message) };
        checked(call)
    }

    pub(super) fn draft(&mut self, requests: &[DrafterRequest]) -> Result<Vec<Vec<Token>>, String> {
        let max_draft = self.max_draft() as usize;
        let (mut tokens, mut lengths) = (vec![0; max_draft * requests.len()], vec![0; requests.len()]);
        let (into, n_into) = (tokens.as_mut_ptr(), lengths.as_mut_ptr());
        // SAFETY: the drafter is alive; `tokens` has room for `max_draft` tokens of each request; the message has the given size.
        checked(|message, n_message| unsafe {
            weft_drafter_draft(self.as_ptr(), requests.len(), requests.as_ptr(), into, max_draft, n_into, message, n_message)
        })?;
        let drafts = tokens.chunks(max_draft.max(1)).zip(lengths).map(|(tokens, length)| tokens[..length].to_vec());
        Ok(drafts.collect())
    }

    /// The target accepted `n` of the tokens after the first of the rows of `id` that were processed last. Returns false if the
    /// drafter, which has drafted nothing for `id` yet, does not follow.
    pub(super) fn accept(&mut self, id: i32, n: u16) -> bool {
        // SAFETY: the drafter is alive, and the id in range.
        unsafe { weft_drafter_accept(self.as_ptr(), id, n) }
    }

    fn as_ptr(&self) -> *mut c_void {
        self.0.0.as_ptr()
    }
}

fn checked(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<(), String> {
    let ((code, text), errors) = logging::errors_during(|| logging::with_exception_text(call));
    match code {
        0 => Ok(()),
        -1 => Err(text),
        _ => Err(logging::reason_or_default(&errors)),
    }
}

unsafe extern "C" {
    fn weft_drafter_new(params: *const DrafterParams, message: *mut c_char, n_message_bytes: usize) -> *mut c_void;
    fn weft_drafter_free(drafter: *mut c_void);
    fn weft_drafter_n_max(drafter: *const c_void) -> i32;
    fn weft_drafter_process(
        drafter: *mut c_void,
        n: usize,
        tokens: *const i32,
        positions: *const i32,
        ids: *const i32,
        message: *mut c_char,
        n_message_bytes: usize,
    ) -> i32;
    fn weft_drafter_draft(
        drafter: *mut c_void,
        n: usize,
        requests: *const DrafterRequest,
        tokens: *mut i32,
        max_draft: usize,
        lengths: *mut usize,
        message: *mut c_char,
        n_message_bytes: usize,
    ) -> i32;
    fn weft_drafter_accept(drafter: *mut c_void, id: i32, n: u16) -> bool;
}
