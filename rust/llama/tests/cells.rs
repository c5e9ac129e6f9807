//! Tests which cells llama.cpp assigns. The engine models this, to know the cost of a decode and the cells that a token frees.

use std::collections::BTreeSet;

use super::runner::{prompt, try_start};
use super::state::cells_of;
use crate::engine::runner::{KvSeqId, Plan, Runner};
use crate::llama::LlamaRunner;
use crate::llama::context::batch::rows_of;

const N_CELLS: usize = 256;
const N_IDS: u16 = 10;

/// The rule: each row of a decode, and each position of a restored or relocated state in order, takes the lowest free cell.
///
/// llama.cpp's `find_slot` is next fit from a `head`, but `head` never passes a free cell: a search takes every free cell that it
/// meets and leaves `head` after the last of them, and a freed cell below lowers `head`.
struct Cells(Vec<Option<(u32, BTreeSet<u16>)>>);

impl Cells {
    fn take(&mut self, id: u16, position: u32) {
        let free = self.0.iter_mut().find(|cell| cell.is_none()).expect("there is a free cell");
        *free = Some((position, BTreeSet::from([id])));
    }

    fn share(&mut self, from: u16, to: u16, n_tokens: u32) {
        for (position, owners) in self.0.iter_mut().flatten() {
            if *position < n_tokens && owners.contains(&from) {
                owners.insert(to);
            }
        }
    }

    fn remove(&mut self, id: u16, from: u32, to: u32) {
        for cell in &mut self.0 {
            if let Some((position, owners)) = cell
                && (from..to).contains(position)
            {
                owners.remove(&id);
            }
            cell.take_if(|(_, owners)| owners.is_empty());
        }
    }

    fn seq_len(&self, id: u16) -> u32 {
        u32::try_from(self.0.iter().flatten().filter(|(_, owners)| owners.contains(&id)).count()).expect("small")
    }

    fn n_free(&self) -> u32 {
        u32::try_from(self.0.iter().filter(|cell| cell.is_none()).count()).expect("small")
    }

    /// Returns the owners of the cell of `id` at `position`.
    fn owners(&self, id: u16, position: u32) -> &BTreeSet<u16> {
        let found = self.0.iter().flatten().find(|(cell_position, owners)| *cell_position == position && owners.contains(&id));
        &found.expect("the sequence has the token").1
    }

    fn to_list(&self) -> Vec<(u32, Vec<u32>)> {
        let used = self.0.iter().flatten();
        used.map(|(position, owners)| (*position, owners.iter().copied().map(u32::from).collect())).collect()
    }
}

#[test]
fn tokens_take_the_lowest_free_cells() {
    let (mut runner, limits) = try_start(|config| config.n_ctx = Some(256)).expect("the demo model runs");
    assert_eq!(limits.n_ctx as usize, N_CELLS);
    let mut random_state = 1_u64;
    let mut random = |n: u32| {
        random_state = random_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((random_state >> 33) % u64::from(n.max(1))).expect("below n")
    };
    let mut cells = Cells((0..N_CELLS).map(|_| None).collect());
    let tokens = prompt(64);
    let mut saved = Vec::new();
    let mut n_done = [0; 7];
    for _ in 0..3_000 {
        let id = u16::try_from(random(u32::from(N_IDS))).expect("few");
        let (sequence, seq_len) = (KvSeqId(id), cells.seq_len(id));
        let action = random(7) as usize;
        n_done[action] += 1;
        match action {
            // Several ids in one decode, their rows in sequence.
            0 => {
                let mut plan = Plan::default();
                for id in [id, (id + 1) % N_IDS, (id + 5) % N_IDS] {
                    let n = random(12).min(cells.n_free());
                    plan.rows.extend(rows_of(KvSeqId(id), cells.seq_len(id), &tokens[..n as usize]).rows);
                    (0..n).for_each(|_| cells.take(id, cells.seq_len(id)));
                }
                if !plan.rows.is_empty() {
                    runner.decode(&plan).expect("there are free cells");
                }
            }
            1 if cells.seq_len((id + 3) % N_IDS) == 0 => {
                let n_tokens = random(seq_len + 1);
                runner.fork(sequence, KvSeqId((id + 3) % N_IDS), n_tokens);
                cells.share(id, (id + 3) % N_IDS, n_tokens);
            }
            2 => {
                let n_kept = random(seq_len + 1);
                assert!(runner.truncate(sequence, n_kept));
                cells.remove(id, n_kept, u32::MAX);
            }
            3 => {
                runner.drop_sequence(sequence);
                cells.remove(id, 0, u32::MAX);
            }
            4 if seq_len > 0 => {
                let start = random(seq_len);
                let range = start..start + 1 + random(seq_len - start);
                saved.push((range.clone(), runner.save(sequence, range).expect("the sequence has the token")));
            }
            5 => {
                let fits = |(range, _): &(std::ops::Range<u32>, _)| {
                    range.contains(&seq_len) && range.end - range.start <= cells.n_free()
                };
                if let Some((range, state)) = saved.iter().rev().find(|state| fits(state)) {
                    let part = seq_len..seq_len + 1 + random(range.end - seq_len);
                    runner.restore(sequence, state, part.clone()).expect("there are free cells");
                    // The whole state temporarily occupies cells.
                    range.clone().for_each(|position| cells.take(N_IDS, position));
                    cells
                        .0
                        .iter_mut()
                        .flatten()
                        .filter(|(cell_position, owners)| part.contains(cell_position) && owners.contains(&N_IDS))
                        .for_each(|(_, owners)| {
                            owners.insert(id);
                        });
                    cells.remove(N_IDS, 0, u32::MAX);
                }
            }
            6 if seq_len > 0 => {
                let (start, mut end) = (random(seq_len), seq_len);
                let owners = cells.owners(id, start).clone();
                end = (start..end).find(|&position| *cells.owners(id, position) != owners).unwrap_or(end);
                let ids: Vec<_> = owners.iter().map(|&id| KvSeqId(id)).collect();
                runner.relocate(&ids, start..end).expect("its own cells are free");
                for &id in &owners {
                    cells.remove(id, start, end);
                }
                for position in start..end {
                    cells.take(N_IDS, position);
                    let moved = cells.0.iter_mut().flatten().find(|(_, owners)| owners.contains(&N_IDS));
                    moved.expect("a cell was just taken").1.clone_from(&owners);
                }
            }
            _ => {}
        }
        assert_eq!(cells_of(&mut runner), cells.to_list(), "after action {action} on {id}");
    }
    assert!(n_done.iter().all(|&n| n > 300), "{n_done:?}");
    check_lengths(&runner, &cells);
}

fn check_lengths(runner: &LlamaRunner, cells: &Cells) {
    for id in 0..N_IDS {
        assert_eq!(runner.context.seq_len(KvSeqId(id)), cells.seq_len(id), "sequence {id}");
    }
}
