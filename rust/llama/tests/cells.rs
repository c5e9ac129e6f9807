//! Where llama.cpp puts tokens. The engine keeps the same books, to know what a decode will cost and what freeing a token frees.

use std::collections::BTreeSet;

use super::runner::{prompt, try_start};
use super::state::cells_of;
use crate::engine::runner::{KvSeqId, Plan, Runner};
use crate::llama::LlamaRunner;
use crate::llama::batch::rows_of;

const N_CELLS: usize = 256;
const N_IDS: u16 = 10;

/// The rule: each row of a decode, and each position of a restored or relocated piece in its order, takes the lowest free cell.
///
/// llama.cpp's `find_slot` is next fit from a `head`, but `head` never passes a free cell: a search takes every free cell that it
/// meets and leaves `head` behind the last of them, and a freed cell below pulls `head` down.
struct Cells(Vec<Option<(u32, BTreeSet<u16>)>>);

impl Cells {
    fn take(&mut self, id: u16, position: u32) {
        let free = self.0.iter_mut().find(|cell| cell.is_none()).expect("room was made");
        *free = Some((position, BTreeSet::from([id])));
    }

    fn share(&mut self, from: u16, to: u16, n_tokens: u32) {
        for (position, owners) in self.0.iter_mut().flatten() {
            if *position < n_tokens && owners.contains(&from) {
                owners.insert(to);
            }
        }
    }

    fn forget(&mut self, id: u16, from: u32, to: u32) {
        for cell in &mut self.0 {
            if let Some((position, owners)) = cell
                && (from..to).contains(position)
            {
                owners.remove(&id);
            }
            cell.take_if(|(_, owners)| owners.is_empty());
        }
    }

    fn n_held(&self, id: u16) -> u32 {
        u32::try_from(self.0.iter().flatten().filter(|(_, owners)| owners.contains(&id)).count()).expect("small")
    }

    fn n_free(&self) -> u32 {
        u32::try_from(self.0.iter().filter(|cell| cell.is_none()).count()).expect("small")
    }

    /// Who has the cell of `id` at `position`.
    fn owners(&self, id: u16, position: u32) -> &BTreeSet<u16> {
        let found = self.0.iter().flatten().find(|(at, owners)| *at == position && owners.contains(&id));
        &found.expect("it is held").1
    }

    fn in_order(&self) -> Vec<(u32, Vec<u32>)> {
        let used = self.0.iter().flatten();
        used.map(|(position, owners)| (*position, owners.iter().copied().map(u32::from).collect())).collect()
    }
}

#[test]
fn tokens_take_the_lowest_free_cells() {
    let (mut runner, limits) = try_start(|config| config.n_ctx = Some(256)).expect("the demo model runs");
    assert_eq!(limits.n_ctx as usize, N_CELLS);
    let mut state = 1_u64;
    let mut random = |n: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((state >> 33) % u64::from(n.max(1))).expect("below n")
    };
    let mut cells = Cells((0..N_CELLS).map(|_| None).collect());
    let tokens = prompt(64);
    let mut pieces = Vec::new();
    let mut n_done = [0; 7];
    for _ in 0..3_000 {
        let id = u16::try_from(random(u32::from(N_IDS))).expect("few");
        let (sequence, n_held) = (KvSeqId(id), cells.n_held(id));
        let action = random(7) as usize;
        n_done[action] += 1;
        match action {
            // Several ids in one decode, their rows one after another.
            0 => {
                let mut plan = Plan::default();
                for id in [id, (id + 1) % N_IDS, (id + 5) % N_IDS] {
                    let n = random(12).min(cells.n_free());
                    plan.rows.extend(rows_of(KvSeqId(id), cells.n_held(id), &tokens[..n as usize]).rows);
                    (0..n).for_each(|_| cells.take(id, cells.n_held(id)));
                }
                if !plan.rows.is_empty() {
                    runner.decode(&plan).expect("there is room");
                }
            }
            1 if cells.n_held((id + 3) % N_IDS) == 0 => {
                let n_tokens = random(n_held + 1);
                runner.fork(sequence, KvSeqId((id + 3) % N_IDS), n_tokens);
                cells.share(id, (id + 3) % N_IDS, n_tokens);
            }
            2 => {
                let n_kept = random(n_held + 1);
                assert!(runner.truncate(sequence, n_kept));
                cells.forget(id, n_kept, u32::MAX);
            }
            3 => {
                runner.drop_sequence(sequence);
                cells.forget(id, 0, u32::MAX);
            }
            4 if n_held > 0 => {
                let start = random(n_held);
                let range = start..start + 1 + random(n_held - start);
                pieces.push((range.clone(), runner.save(sequence, range).expect("it is held")));
            }
            5 => {
                let fits =
                    |(range, _): &(std::ops::Range<u32>, _)| range.contains(&n_held) && range.end - range.start <= cells.n_free();
                if let Some((range, piece)) = pieces.iter().rev().find(|piece| fits(piece)) {
                    let kept = n_held..n_held + 1 + random(range.end - n_held);
                    runner.restore(sequence, piece, kept.clone()).expect("there is room");
                    // For a moment all of the piece is in the pool.
                    range.clone().for_each(|position| cells.take(N_IDS, position));
                    cells.0.iter_mut().flatten().filter(|(at, owners)| kept.contains(at) && owners.contains(&N_IDS)).for_each(
                        |(_, owners)| {
                            owners.insert(id);
                        },
                    );
                    cells.forget(N_IDS, 0, u32::MAX);
                }
            }
            6 if n_held > 0 => {
                let (start, mut end) = (random(n_held), n_held);
                let owners = cells.owners(id, start).clone();
                end = (start..end).find(|&position| *cells.owners(id, position) != owners).unwrap_or(end);
                let ids: Vec<_> = owners.iter().map(|&id| KvSeqId(id)).collect();
                runner.relocate(&ids, start..end).expect("its own cells are free");
                for &id in &owners {
                    cells.forget(id, start, end);
                }
                for position in start..end {
                    cells.take(N_IDS, position);
                    let moved = cells.0.iter_mut().flatten().find(|(_, owners)| owners.contains(&N_IDS));
                    moved.expect("it was just taken").1.clone_from(&owners);
                }
            }
            _ => {}
        }
        assert_eq!(cells_of(&mut runner), cells.in_order(), "after action {action} on {id}");
    }
    assert!(n_done.iter().all(|&n| n > 300), "{n_done:?}");
    check_held(&runner, &cells);
}

fn check_held(runner: &LlamaRunner, cells: &Cells) {
    for id in 0..N_IDS {
        assert_eq!(runner.context.n_held(KvSeqId(id)), cells.n_held(id), "sequence {id}");
    }
}
