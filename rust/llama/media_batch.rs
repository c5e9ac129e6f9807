//! Vectors in place of tokens → llama.cpp's arrays. What llama.cpp would end the process for is refused here.

use llama_cpp_sys_2 as sys;

use crate::engine::runner::{KvSeqId, MediaRows, Plan};
use crate::llama::positions::Positions;

/// What a decode of vectors may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) n_seq_max: usize,
    pub(super) n_rows: usize,
    /// Numbers of a vector.
    pub(super) n_embd: usize,
    /// Positions of a row: 4 where the model counts rows and columns.
    pub(super) n_positions: usize,
    /// Whether each row is put out, for its vector; otherwise none is.
    pub(super) puts_out: bool,
}

/// The arrays of a `llama_batch` of vectors.
#[derive(Debug)]
pub(super) struct MediaBatch {
    bounds: Bounds,
    vectors: Vec<f32>,
    /// Of the rows in time, then those of the next dimension.
    positions: Vec<sys::llama_pos>,
    ids: Vec<sys::llama_seq_id>,
    wants_logits: Vec<i8>,
    n_ids: Vec<i32>,
    id_pointers: Vec<*mut sys::llama_seq_id>,
}

impl MediaBatch {
    pub(super) fn new(bounds: Bounds) -> Self {
        let (vectors, positions, ids) = (Vec::new(), Vec::new(), Vec::new());
        Self { bounds, vectors, positions, ids, wants_logits: Vec::new(), n_ids: Vec::new(), id_pointers: Vec::new() }
    }

    /// Takes the rows of `group`, where sequence `i` holds `n_held[i]` places, which have the positions `positions[i]`.
    ///
    /// # Errors
    /// Names the first rule that is broken.
    pub(super) fn fill(
        &mut self,
        plan: &Plan,
        group: &[MediaRows],
        n_held: &[u32],
        positions: &[Positions],
    ) -> Result<(), String> {
        let Bounds { n_seq_max, n_rows, n_embd, n_positions, puts_out } = self.bounds;
        self.vectors.clear();
        self.ids.clear();
        let mut dimensions = [const { Vec::new() }; 4];
        for MediaRows { rows, media, start } in group {
            let of_medium = plan.rows.get(rows.clone()).filter(|rows| !rows.is_empty());
            let of_medium = of_medium.ok_or_else(|| format!("rows {rows:?} of a medium are none of the plan's"))?;
            let KvSeqId(id) = of_medium[0].sequence;
            let held = *n_held.get(usize::from(id)).ok_or_else(|| format!("a medium belongs to sequence {id} of {n_seq_max}"))?;
            let is_one = (held..).zip(of_medium).all(|(place, row)| row.sequence.0 == id && row.position == place);
            if !is_one || of_medium.iter().any(|row| row.wants_logits != puts_out) {
                let logits = if puts_out { "to be put out" } else { "without logits" };
                return Err(format!("the rows of a medium do not go on at {held} of sequence {id} {logits}"));
            }
            let (n, all, begun, start) = (rows.len(), media.n_tokens() as usize, *start, *start as usize);
            if start + n > all || (media.sees_ahead() && n != all) {
                return Err(format!("{n} places from {start} on of a medium of {all} cannot be computed by themselves"));
            }
            let vectors = media.vectors().filter(|vectors| vectors.len() == all * n_embd);
            let vectors = vectors.ok_or_else(|| format!("a medium has not {all} vectors of {n_embd} numbers"))?;
            self.vectors.extend_from_slice(&vectors[start * n_embd..(start + n) * n_embd]);
            self.ids.resize(self.ids.len() + n, i32::from(id));
            let positions = &positions[usize::from(id)];
            let first = positions.at(held);
            // Its own positions go on from where it begins.
            match media.positions(positions.at(held.saturating_sub(begun))) {
                Some(own) if own.len() == all => {
                    for (dimension, positions) in dimensions.iter_mut().enumerate() {
                        positions.extend(own[start..start + n].iter().map(|position| position[dimension].cast_signed()));
                    }
                }
                Some(own) => return Err(format!("a medium of {all} places has {} positions", own.len())),
                None => {
                    let last = first + u32::try_from(n).map_err(|_| "a medium is too long")?;
                    for positions in &mut dimensions {
                        positions.extend((first..last).map(u32::cast_signed));
                    }
                }
            }
        }
        if self.ids.len() > n_rows {
            return Err(format!("{} places of media are more than the {n_rows} rows of one decode", self.ids.len()));
        }
        self.positions.clear();
        dimensions[..n_positions].iter().for_each(|positions| self.positions.extend(positions));
        self.wants_logits.clear();
        self.wants_logits.resize(self.ids.len(), i8::from(puts_out));
        self.n_ids.resize(self.ids.len(), 1);
        Ok(())
    }

    /// The ids of the rows, one per row.
    pub(super) fn ids(&self) -> &[sys::llama_seq_id] {
        &self.ids
    }

    /// The arrays as llama.cpp takes them; valid until the batch is changed or moved. llama.cpp only reads them.
    pub(super) fn as_raw(&mut self) -> sys::llama_batch {
        self.id_pointers.clear();
        self.id_pointers.extend(self.ids.iter_mut().map(std::ptr::from_mut));
        sys::llama_batch {
            n_tokens: i32::try_from(self.ids.len()).expect("at most n_rows, which is a 32-bit number"),
            token: std::ptr::null_mut(),
            embd: self.vectors.as_mut_ptr(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.n_ids.as_mut_ptr(),
            seq_id: self.id_pointers.as_mut_ptr(),
            logits: self.wants_logits.as_mut_ptr(),
        }
    }
}
