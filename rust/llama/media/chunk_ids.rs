//! Ids of chunks, which the prefix tree matches like tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::request::Token;

const MAX_CHUNK_IDS: usize = 65_536;

/// Exclusive lower bound of all ids.
const LAST_ID: Token = Token::MIN / 2;

/// Lowest used id of all projectors; ids below it are free.
static LOWEST_ID: AtomicI32 = AtomicI32::new(0);

#[derive(Debug, Default)]
pub(super) struct ChunkIds {
    /// Keys: digest of the file, index of the chunk in it, and number of its tokens.
    ids: HashMap<(String, usize, u32), Token>,
}

impl ChunkIds {
    /// Returns the first id of a chunk, whose others follow in descending order; equal for equal chunks of equal files.
    pub(super) fn id(&mut self, digest: &str, index: usize, n_tokens: u32) -> Result<Token, String> {
        let key = (digest.to_owned(), index, n_tokens);
        if let Some(&id) = self.ids.get(&key) {
            return Ok(id);
        }
        let n = Token::try_from(n_tokens).map_err(|_| "it has too many tokens".to_owned())?;
        let next = |lowest: Token| lowest.checked_sub(n + 1).filter(|&next| next > LAST_ID);
        let lowest = LOWEST_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let lowest = lowest.map_err(|_| "this process has used up the ids for media; restart it".to_owned())?;
        if self.ids.len() >= MAX_CHUNK_IDS {
            self.ids.clear();
        }
        self.ids.insert(key, lowest - 1);
        Ok(lowest - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_equal_for_equal_chunks_and_unique_otherwise() {
        let (mut first_ids, mut second_ids) = (ChunkIds::default(), ChunkIds::default());
        let first = first_ids.id("a", 0, 10).expect("ids are left");
        let rest =
            [first_ids.id("a", 1, 10), first_ids.id("b", 0, 10), second_ids.id("a", 0, 10)].map(|id| id.expect("ids are left"));
        assert_eq!(first_ids.id("a", 0, 10), Ok(first));
        let mut ids: Vec<Token> = rest.into_iter().chain([first]).flat_map(|id| (0..10).map(move |offset| id - offset)).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), ids.iter().all(|&id| id < 0)), (40, true));
        for index in 0..MAX_CHUNK_IDS {
            first_ids.id("c", index, 1).expect("ids are left");
        }
        assert!(first_ids.ids.len() <= MAX_CHUNK_IDS, "the table of ids is bounded");
    }
}
