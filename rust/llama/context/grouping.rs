//! Gives groups of tokens one position (self-extend), by rotating the keys in the device cache.

use std::ops::Range;

use llama_cpp_sys_2 as sys;

use crate::engine::runner::{DecodeError, KvSeqId};
use crate::llama::context::{batch::rows_of, raw_context::RawContext};
use crate::request::Token;

impl RawContext {
    pub(crate) fn n_grouped(&self, id: KvSeqId) -> u32 {
        self.positions(id).n_grouped()
    }

    /// Gives each `n` tokens of `range` of `id` one position, and the tokens after `range` the positions that follow. `range`
    /// must start where the grouped tokens end. The next decode rotates the keys, in a pass over all cells.
    pub(crate) fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        let (n_grouped, seq_len) = (self.n_grouped(id), self.seq_len(id));
        assert!(
            range.start == n_grouped && range.end <= seq_len,
            "cannot group tokens {range:?} of {seq_len}, of which the first {n_grouped} are grouped"
        );
        assert!(range.start.is_multiple_of(n) && range.end.is_multiple_of(n), "{range:?} is not divisible into groups of {n}");
        let signed = u32::cast_signed;
        let (first, n_fewer, n_fewer_then) = (range.start / n, range.start - range.start / n, range.end - range.end / n);
        let (memory, raw_id) = (self.memory(), self.checked(id));
        // SAFETY: the id is in range, and [`RawContext::try_group`] found that the memory can rotate its keys. Temporarily,
        // positions equal token indices, as in llama.cpp's tools.
        unsafe {
            sys::llama_memory_seq_add(memory, raw_id, signed(first), -1, signed(n_fewer));
            // One call per token: `llama_memory_seq_div` would rotate the keys in the other direction, and moves of longer ranges
            // change the distance of only two neighbours. All in this step: otherwise later decodes scan all keys again.
            for index in range.clone() {
                sys::llama_memory_seq_add(memory, raw_id, signed(index), signed(index) + 1, signed(index / n) - signed(index));
            }
            sys::llama_memory_seq_add(memory, raw_id, signed(range.end), -1, -signed(n_fewer_then));
        }
        self.sequence_mut(id).positions.group(range.end, n);
    }

    /// Checks that rotating keys to other positions changes no bit of the keys that stay. `id` is empty before and after.
    pub(crate) fn try_group(&mut self, id: KvSeqId, token: Token) -> Result<(), String> {
        // SAFETY: the memory is alive.
        if !unsafe { sys::llama_memory_can_shift(self.memory()) } {
            return Err("the KV cache of this model cannot shift positions".to_owned());
        }
        let failed = |error: DecodeError| error.reason;
        self.decode(&rows_of(id, 0, &[token, token, token])).map_err(failed)?;
        let before = self.read_state(id).map_err(|error| error.to_string())?;
        // SAFETY: the id is in range, and the memory can rotate its keys: here by a total of zero.
        unsafe {
            sys::llama_memory_seq_add(self.memory(), self.checked(id), 2, -1, 1);
            sys::llama_memory_seq_add(self.memory(), self.checked(id), 3, -1, -1);
        }
        self.decode(&rows_of(id, 3, &[token])).map_err(failed)?;
        assert!(self.truncate(id, 3), "a KV cache that shifts positions can be truncated");
        let after = self.read_state(id).map_err(|error| error.to_string())?;
        self.clear();
        if before == after { Ok(()) } else { Err("with YaRN, grouping would change the keys of other tokens".to_owned()) }
    }
}
