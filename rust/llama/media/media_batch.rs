//! Checks rows of media embeddings, and converts them to llama.cpp's batch.

use llama_cpp_sys_2 as sys;

use crate::engine::runner::{KvSeqId, MediaRows, Plan};
use crate::llama::context::{batch::RowArrays, sequence::KvSequence};

#[derive(Debug, Clone, Copy)]
pub(crate) struct MediaBatchBounds {
    pub(crate) n_rows: usize,
    pub(crate) n_embd: usize,
    /// Positions per row: 4 if the model uses multi-dimensional positions (M-RoPE).
    pub(crate) n_positions: usize,
    /// True if each row is an output, for its embedding; otherwise no row is.
    pub(crate) outputs_all: bool,
}

#[derive(Debug)]
pub(crate) struct MediaBatch {
    bounds: MediaBatchBounds,
    embeddings: Vec<f32>,
    rows: RowArrays,
}

impl MediaBatch {
    pub(crate) fn new(bounds: MediaBatchBounds) -> Self {
        Self { bounds, embeddings: Vec::new(), rows: RowArrays::default() }
    }

    pub(crate) fn fill(&mut self, plan: &Plan, group: &[MediaRows], sequences: &[KvSequence]) -> Result<(), String> {
        let MediaBatchBounds { n_rows, n_embd, n_positions, outputs_all } = self.bounds;
        self.embeddings.clear();
        self.rows.clear();
        let mut dimensions = [const { Vec::new() }; 4];
        for MediaRows { rows, media, start } in group {
            let medium_rows = plan.rows.get(rows.clone()).filter(|rows| !rows.is_empty());
            let medium_rows = medium_rows.ok_or_else(|| format!("rows {rows:?} of a medium are not in the plan"))?;
            let KvSeqId(id) = medium_rows[0].sequence;
            let Some(&KvSequence { len: seq_len, ref positions, .. }) = sequences.get(usize::from(id)) else {
                return Err(format!("a medium belongs to sequence {id}; sequence ids must be below {}", sequences.len()));
            };
            let is_contiguous = (seq_len..).zip(medium_rows).all(|(index, row)| row.sequence.0 == id && row.position == index);
            if !is_contiguous || medium_rows.iter().any(|row| row.wants_logits != outputs_all) {
                let logits = if outputs_all { "request" } else { "do not request" };
                return Err(format!("the rows of a medium must continue sequence {id} at {seq_len} and {logits} logits"));
            }
            let (n, n_total, n_before, start) = (rows.len(), media.n_tokens() as usize, *start, *start as usize);
            if start + n > n_total || (media.sees_ahead() && n != n_total) {
                return Err(format!("positions {start} to {} of a medium of {n_total} cannot be computed separately", start + n));
            }
            let embeddings = media.embeddings().filter(|embeddings| embeddings.len() == n_total * n_embd);
            let embeddings =
                embeddings.ok_or_else(|| format!("a medium does not have {n_total} embeddings of {n_embd} numbers"))?;
            self.embeddings.extend_from_slice(&embeddings[start * n_embd..(start + n) * n_embd]);
            self.rows.ids.resize(self.rows.ids.len() + n, i32::from(id));
            let first = positions.at(seq_len);
            match media.positions(positions.at(seq_len.saturating_sub(n_before))) {
                Some(own) if own.len() == n_total => {
                    for (dimension, positions) in dimensions.iter_mut().enumerate() {
                        positions.extend(own[start..start + n].iter().map(|position| position[dimension].cast_signed()));
                    }
                }
                Some(own) => return Err(format!("a medium of {n_total} tokens has {} positions", own.len())),
                None => {
                    let last = first + u32::try_from(n).map_err(|_| "a medium is too long")?;
                    for positions in &mut dimensions {
                        positions.extend((first..last).map(u32::cast_signed));
                    }
                }
            }
        }
        let n = self.rows.ids.len();
        if n > n_rows {
            return Err(format!("it has {n} rows of media; a decode has at most {n_rows}"));
        }
        dimensions[..n_positions].iter().for_each(|positions| self.rows.positions.extend(positions));
        self.rows.wants_logits.resize(n, i8::from(outputs_all));
        Ok(())
    }

    pub(crate) fn ids(&self) -> &[sys::llama_seq_id] {
        &self.rows.ids
    }

    pub(crate) fn as_raw(&mut self) -> sys::llama_batch {
        self.rows.as_raw(std::ptr::null_mut(), self.embeddings.as_mut_ptr())
    }
}
