//! Self-extend: older tokens of a long text share positions in groups.
//!
//! "LLM Maybe `LongLM`: Self-Extend LLM Context Window Without Tuning", Jin et al., 2024, <https://arxiv.org/abs/2401.01325>,
//! with the schedule of llama.cpp's tools: whenever a text has grown by `width` tokens, the next `width` of its oldest ones are
//! grouped, `n` to a position, and later positions move down.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Tokens that share a position; at least 2.
    pub n: u32,
    /// Tokens that are grouped together, a multiple of `n`.
    pub width: u32,
    /// Batch size: in a prompt, grouping happens at multiples of it only, as in llama.cpp's tools.
    pub n_batch: u32,
}

impl Grouping {
    /// Returns the number of leading tokens that are grouped when the token at `index` is computed: a multiple of `width`.
    pub(crate) fn n_grouped(&self, index: u32, n_prompt: u32) -> u32 {
        let counted = if index < n_prompt { index - index % self.n_batch } else { index };
        counted - counted % self.width
    }

    /// Returns the first index at which tokens are grouped; `u32::MAX` is beyond every text.
    pub fn first(&self, n_prompt: u32) -> u32 {
        let in_prompt = self.width.div_ceil(self.n_batch).saturating_mul(self.n_batch);
        if in_prompt < n_prompt { in_prompt } else { n_prompt.max(self.width) }
    }

    /// Returns the number of tokens from `index` on that are computed before the next ones are grouped.
    pub(crate) fn n_until_next(&self, index: u32, n_prompt: u32) -> u32 {
        let to_multiple = |of: u32| of - index % of;
        if index < n_prompt { to_multiple(self.n_batch).min(n_prompt - index) } else { to_multiple(self.width) }
    }

    /// Returns the maximum length of a text whose positions are all below `n_positions`.
    pub(crate) fn n_tokens_within(&self, n_positions: u32) -> u32 {
        let Some(n_groupable) = n_positions.checked_sub(self.width) else { return n_positions };
        let n_groups = n_groupable / (self.width / self.n) + 1;
        n_positions.saturating_add(n_groups.saturating_mul(self.width - self.width / self.n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes llama.cpp's schedule, in its tool's variable names: the number of grouped tokens when each token is computed,
    /// and its position.
    fn llama_cpp_schedule(grouping: Grouping, n_prompt: u32, n_tokens: u32) -> Vec<(u32, u32)> {
        let Grouping { n: ga_n, width: ga_w, n_batch } = grouping;
        let (mut n_past, mut ga_i, mut n_grouped) = (0, 0, 0);
        let mut computed = Vec::new();
        while computed.len() < n_tokens as usize {
            let position = u32::try_from(computed.len()).expect("few");
            while n_past >= ga_i + ga_w {
                n_past -= (ga_w / ga_n) * (ga_n - 1);
                ga_i += ga_w / ga_n;
                n_grouped += ga_w;
            }
            let n_rows = if position < n_prompt { n_batch.min(n_prompt - position) } else { 1 };
            computed.extend((0..n_rows).map(|row| (n_grouped, n_past + row)));
            n_past += n_rows;
        }
        computed.truncate(n_tokens as usize);
        computed
    }

    #[test]
    fn grouping_follows_llama_cpps_schedule() {
        for (n, width, n_batch, n_prompt) in
            [(2, 8, 32, 100), (4, 8, 5, 33), (4, 64, 32, 50), (4, 64, 32, 500), (3, 9, 100, 100), (2, 8, 16, 16), (8, 8, 1, 40)]
        {
            let grouping = Grouping { n, width, n_batch };
            let expected = llama_cpp_schedule(grouping, n_prompt, 700);
            let mut until = 0;
            for (index, &(n_grouped, position)) in (0..).zip(&expected) {
                let found = grouping.n_grouped(index, n_prompt);
                assert_eq!(found, n_grouped, "{grouping:?}, a prompt of {n_prompt}: at {index}");
                assert_eq!(index - found + found / n, position, "{grouping:?}, a prompt of {n_prompt}: at {index}");
                if index == until {
                    until += grouping.n_until_next(index, n_prompt);
                } else {
                    assert_eq!(n_grouped, expected[index as usize - 1].0, "nothing is grouped on the way, at {index}");
                }
            }
            let first = expected.iter().position(|&(n_grouped, _)| n_grouped > 0).expect("the text is long enough");
            assert_eq!(grouping.first(n_prompt) as usize, first, "{grouping:?}, a prompt of {n_prompt}");
        }
    }

    #[test]
    fn the_longest_text_within_a_number_of_positions_matches_the_schedule() {
        for (n, width, n_positions) in [(4, 512, 1024), (2, 8, 30), (4, 8, 31), (8, 64, 64), (2, 64, 60)] {
            let grouping = Grouping { n, width, n_batch: 2048 };
            let computed = llama_cpp_schedule(grouping, 1, 8 * n_positions);
            let n_tokens = computed.iter().position(|&(_, position)| position >= n_positions);
            assert_eq!(Some(grouping.n_tokens_within(n_positions) as usize), n_tokens, "{grouping:?}, {n_positions} positions");
        }
    }
}
