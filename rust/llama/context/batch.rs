//! Converts a [`Plan`] to llama.cpp's batch, after checking every rule whose violation makes llama.cpp end the process.

use llama_cpp_sys_2 as sys;

use crate::engine::runner::{DecodeError, KvSeqId, MediaRows, Plan, Row};
use crate::llama::context::sequence::KvSequence;
use crate::request::{Token, is_in_vocabulary};

#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchBounds {
    pub(crate) n_vocab: usize,
    pub(crate) n_rows: usize,
    pub(crate) n_outputs: usize,
    /// True if rows are passed to llama.cpp in order of their ids. A recurrent memory computes only rows of consecutive ids
    /// together (`llama_batch_allocr::split_equal`); each break of that order costs one more pass over the weights.
    pub(crate) is_by_id: bool,
}

/// The arrays of a `llama_batch` other than its tokens or embeddings, with one element per row but for `positions`.
#[derive(Debug, Default)]
pub(crate) struct RowArrays {
    /// The positions of all rows, in one dimension after the other.
    pub(crate) positions: Vec<sys::llama_pos>,
    pub(crate) ids: Vec<sys::llama_seq_id>,
    pub(crate) wants_logits: Vec<i8>,
    /// Always one per row: llama.cpp couples the sequences of a row that has more.
    n_ids: Vec<i32>,
    id_pointers: Vec<*mut sys::llama_seq_id>,
}

impl RowArrays {
    pub(crate) fn clear(&mut self) {
        self.positions.clear();
        self.ids.clear();
        self.wants_logits.clear();
    }

    /// Returns a batch that is valid until the arrays are changed or moved; llama.cpp only reads it.
    pub(crate) fn as_raw(&mut self, token: *mut sys::llama_token, embd: *mut f32) -> sys::llama_batch {
        self.n_ids.resize(self.ids.len(), 1);
        self.id_pointers.clear();
        self.id_pointers.extend(self.ids.iter_mut().map(std::ptr::from_mut));
        sys::llama_batch {
            n_tokens: i32::try_from(self.ids.len()).expect("n_rows is at most n_ctx, which is a 32-bit number"),
            token,
            embd,
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.n_ids.as_mut_ptr(),
            seq_id: self.id_pointers.as_mut_ptr(),
            logits: self.wants_logits.as_mut_ptr(),
        }
    }
}

pub(crate) struct Batch {
    bounds: BatchBounds,
    order: Vec<usize>,
    /// The index in llama.cpp's batch of each row of the plan.
    batch_indices: Vec<usize>,
    tokens: Vec<sys::llama_token>,
    rows: RowArrays,
    seq_lens_after: Vec<u32>,
}

impl Batch {
    pub(crate) fn new(bounds: BatchBounds) -> Self {
        Self {
            bounds,
            order: Vec::new(),
            batch_indices: Vec::new(),
            tokens: Vec::new(),
            rows: RowArrays::default(),
            seq_lens_after: Vec::new(),
        }
    }

    /// Takes the token rows of `plan`. After an error, which names the first row that breaks a rule, the batch is empty.
    pub(crate) fn fill(&mut self, plan: &Plan, sequences: &[KvSequence]) -> Result<(), DecodeError> {
        self.clear();
        let result = self.try_fill(plan, sequences);
        if result.is_err() {
            self.clear();
        }
        result.map_err(|reason| DecodeError { reason: format!("invalid plan: {reason}") })
    }

    fn try_fill(&mut self, plan: &Plan, sequences: &[KvSequence]) -> Result<(), String> {
        let BatchBounds { n_vocab, n_rows, n_outputs, is_by_id } = self.bounds;
        if plan.rows.is_empty() {
            return Err("it has no rows".to_owned());
        }
        let mut end = 0;
        for MediaRows { rows, .. } in &plan.media {
            self.order.extend(end..rows.start);
            end = rows.end;
        }
        self.order.extend(end..plan.rows.len());
        if self.order.len() > n_rows {
            return Err(format!("it has {} rows; a decode has at most {n_rows}", self.order.len()));
        }
        let n_wanted = plan.rows.iter().filter(|row| row.wants_logits).count();
        if n_wanted > n_outputs {
            return Err(format!("{n_wanted} rows request logits; at most {n_outputs} rows of a decode may"));
        }
        self.seq_lens_after.extend(sequences.iter().map(|sequence| sequence.len));
        if is_by_id {
            self.order.sort_by_key(|&i| plan.rows[i].sequence);
        }
        self.batch_indices.resize(plan.rows.len(), usize::MAX);
        for (index, &i) in self.order.iter().enumerate() {
            let row = plan.rows[i];
            self.batch_indices[i] = index;
            let KvSeqId(id) = row.sequence;
            let Some(sequence) = sequences.get(usize::from(id)) else {
                return Err(format!("row {i} belongs to sequence {id}; sequence ids must be below {}", sequences.len()));
            };
            if !is_in_vocabulary(row.token, n_vocab) {
                return Err(format!("row {i} has token {}, which is not in the vocabulary ({n_vocab} tokens)", row.token));
            }
            let next = &mut self.seq_lens_after[usize::from(id)];
            if row.position != *next {
                return Err(format!("row {i} is at position {} of sequence {id}, whose next position is {next}", row.position));
            }
            let position = sequence.positions.at(row.position);
            let position =
                i32::try_from(position).map_err(|_| format!("row {i} is at position {position}, beyond the limit of 2³¹ - 1"))?;
            *next += 1;
            self.tokens.push(row.token);
            self.rows.positions.push(position);
            self.rows.ids.push(i32::from(id));
            self.rows.wants_logits.push(i8::from(row.wants_logits));
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.order.clear();
        self.batch_indices.clear();
        self.tokens.clear();
        self.rows.clear();
        self.seq_lens_after.clear();
    }

    /// Returns the index in llama.cpp's batch of the plan's row `row`, if that row is in the batch and wants logits.
    pub(crate) fn output(&self, row: usize) -> Option<usize> {
        self.batch_indices.get(row).copied().filter(|&index| self.rows.wants_logits.get(index).is_some_and(|&wants| wants != 0))
    }

    pub(crate) fn seq_lens_after(&self) -> &[u32] {
        &self.seq_lens_after
    }

    pub(crate) fn ids(&self) -> &[sys::llama_seq_id] {
        &self.rows.ids
    }

    pub(crate) fn rows(&self) -> (&[sys::llama_token], &[sys::llama_pos], &[sys::llama_seq_id]) {
        (&self.tokens, &self.rows.positions, &self.rows.ids)
    }

    pub(crate) fn as_raw(&mut self) -> sys::llama_batch {
        self.rows.as_raw(self.tokens.as_mut_ptr(), std::ptr::null_mut())
    }
}

/// Returns a plan with rows that continue `sequence` at `position`; only the last one wants logits.
pub(crate) fn rows_of(sequence: KvSeqId, position: u32, tokens: &[Token]) -> Plan {
    let rows = (position..).zip(tokens).enumerate().map(|(i, (position, &token))| Row {
        sequence,
        token,
        position,
        wants_logits: i + 1 == tokens.len(),
    });
    Plan { rows: rows.collect(), ..Plan::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: BatchBounds = BatchBounds { n_vocab: 10, n_rows: 4, n_outputs: 1, is_by_id: false };

    /// The first has three tokens, the second none.
    fn sequences() -> [KvSequence; 2] {
        [3, 0].map(|len| KvSequence { len, ..KvSequence::default() })
    }

    fn refusal(plan: &Plan) -> String {
        let mut batch = Batch::new(BOUNDS);
        let error = batch.fill(plan, &sequences()).expect_err("the plan breaks a rule");
        assert_eq!(batch.tokens.len(), 0, "a refused plan leaves the batch empty");
        error.reason
    }

    #[test]
    fn a_batch_mixes_rows_of_several_sequences() {
        let mut batch = Batch::new(BOUNDS);
        let mut plan = rows_of(KvSeqId(0), 3, &[1, 2]);
        plan.rows[1].wants_logits = false;
        plan.rows.insert(1, rows_of(KvSeqId(1), 0, &[9]).rows[0]);
        batch.fill(&plan, &sequences()).expect("the plan is valid");
        assert_eq!(batch.seq_lens_after(), [5, 1]);
        assert_eq!((batch.tokens.as_slice(), batch.ids()), (&[1, 9, 2][..], &[0, 1, 0][..]));
        assert_eq!([0, 1, 3].map(|row| batch.output(row)), [None, Some(1), None]);
        assert_eq!(batch.as_raw().n_tokens, 3);
    }

    #[test]
    fn a_recurrent_memory_gets_rows_sorted_by_sequence_id() {
        let mut batch = Batch::new(BatchBounds { n_outputs: 2, is_by_id: true, ..BOUNDS });
        let rows = [rows_of(KvSeqId(1), 0, &[7, 8]).rows, rows_of(KvSeqId(0), 3, &[1, 2]).rows].concat();
        batch.fill(&Plan { rows, ..Plan::default() }, &sequences()).expect("the plan is valid");
        assert_eq!((batch.tokens.as_slice(), batch.ids()), (&[1, 2, 7, 8][..], &[0, 0, 1, 1][..]));
        assert_eq!([0, 1, 2, 3].map(|row| batch.output(row)), [None, Some(3), None, Some(1)], "rows keep the plan's numbers");
    }

    #[test]
    fn an_error_names_the_rule_that_a_plan_breaks() {
        let id = KvSeqId;
        assert!(refusal(&Plan::default()).contains("no rows"));
        assert!(refusal(&rows_of(id(0), 3, &[0; 5])).contains("5 rows"));
        assert!(refusal(&rows_of(id(2), 0, &[0])).contains("sequence 2"));
        assert!(refusal(&rows_of(id(0), 3, &[10])).contains("token 10"));
        assert!(refusal(&rows_of(id(0), 3, &[-1])).contains("token -1"));
        assert!(refusal(&rows_of(id(0), 4, &[0])).contains("position 4"));
        assert!(refusal(&rows_of(id(0), 2, &[0])).contains("next position is 3"));
        let mut gap = rows_of(id(1), 0, &[0, 0]);
        gap.rows[1].position = 2;
        assert!(refusal(&gap).contains("position 2"));
        let mut two_outputs = rows_of(id(1), 0, &[0, 0]);
        two_outputs.rows[0].wants_logits = true;
        assert!(refusal(&two_outputs).contains("2 rows request logits"));
    }
}
