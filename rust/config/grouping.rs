//! Self-extend: at which places of a text older tokens are given positions in groups.
//!
//! From "LLM Maybe `LongLM`: Self-Extend LLM Context Window Without Tuning", Jin et al., 2024, <https://arxiv.org/abs/2401.01325>, as
//! llama.cpp's tools do it: whenever a text has grown by `width` tokens, `width` more of its oldest take one position for each `n`
//! of them, and what follows moves up. So the newest `width` tokens and more keep positions of their own, and a text takes fewer
//! positions than it has tokens.

/// How the tokens of a sequence are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Tokens that share a position; at least 2.
    pub n: u32,
    /// Tokens that are grouped at once, a multiple of `n`.
    pub width: u32,
    /// A prompt is grouped at multiples of this alone: what llama.cpp's tools compute at once of it.
    pub n_batch: u32,
}

impl Grouping {
    /// How many of the first tokens are grouped when the one at `place` is computed, of a text that begins with a prompt of
    /// `n_prompt` tokens. A multiple of `width`.
    #[must_use]
    pub fn n_grouped(&self, place: u32, n_prompt: u32) -> u32 {
        let at = if place < n_prompt { place - place % self.n_batch } else { place };
        at - at % self.width
    }

    /// The first place at which some are; `u32::MAX` is beyond every text.
    #[must_use]
    pub fn first(&self, n_prompt: u32) -> u32 {
        let in_prompt = self.width.div_ceil(self.n_batch).saturating_mul(self.n_batch);
        if in_prompt < n_prompt { in_prompt } else { n_prompt.max(self.width) }
    }

    /// How many tokens may be computed from `place` on until more are grouped.
    #[must_use]
    pub fn n_until_next(&self, place: u32, n_prompt: u32) -> u32 {
        let to_multiple = |of: u32| of - place % of;
        if place < n_prompt { to_multiple(self.n_batch).min(n_prompt - place) } else { to_multiple(self.width) }
    }

    /// The most tokens of a text, written token by token, whose positions are all below `n_positions`.
    #[must_use]
    pub fn n_tokens_within(&self, n_positions: u32) -> u32 {
        let Some(n_older) = n_positions.checked_sub(self.width) else { return n_positions };
        let n_groups = n_older / (self.width / self.n) + 1;
        n_positions.saturating_add(n_groups.saturating_mul(self.width - self.width / self.n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What llama.cpp's tool does, whose names these are: how many tokens are grouped when each place is computed, and its position.
    fn by_the_tool(grouping: Grouping, n_prompt: u32, n_tokens: u32) -> Vec<(u32, u32)> {
        let Grouping { n: ga_n, width: ga_w, n_batch } = grouping;
        let (mut n_past, mut ga_i, mut n_grouped) = (0, 0, 0);
        let mut computed = Vec::new();
        while computed.len() < n_tokens as usize {
            let at = u32::try_from(computed.len()).expect("few");
            while n_past >= ga_i + ga_w {
                n_past -= (ga_w / ga_n) * (ga_n - 1);
                ga_i += ga_w / ga_n;
                n_grouped += ga_w;
            }
            let n_rows = if at < n_prompt { n_batch.min(n_prompt - at) } else { 1 };
            computed.extend((0..n_rows).map(|row| (n_grouped, n_past + row)));
            n_past += n_rows;
        }
        computed.truncate(n_tokens as usize);
        computed
    }

    #[test]
    fn tokens_are_grouped_where_llama_cpps_tool_does() {
        for (n, width, n_batch, n_prompt) in
            [(2, 8, 32, 100), (4, 8, 5, 33), (4, 64, 32, 50), (4, 64, 32, 500), (3, 9, 100, 100), (2, 8, 16, 16), (8, 8, 1, 40)]
        {
            let grouping = Grouping { n, width, n_batch };
            let expected = by_the_tool(grouping, n_prompt, 700);
            let mut until = 0;
            for (place, &(n_grouped, position)) in (0..).zip(&expected) {
                let found = grouping.n_grouped(place, n_prompt);
                assert_eq!(found, n_grouped, "{grouping:?}, a prompt of {n_prompt}: at {place}");
                assert_eq!(place - found + found / n, position, "{grouping:?}, a prompt of {n_prompt}: at {place}");
                if place == until {
                    until += grouping.n_until_next(place, n_prompt);
                } else {
                    assert_eq!(n_grouped, expected[place as usize - 1].0, "nothing is grouped on the way, at {place}");
                }
            }
            let first = expected.iter().position(|&(n_grouped, _)| n_grouped > 0).expect("the text is long enough");
            assert_eq!(grouping.first(n_prompt) as usize, first, "{grouping:?}, a prompt of {n_prompt}");
        }
    }

    #[test]
    fn a_text_may_be_longer_than_its_positions_are_many() {
        for (n, width, n_positions) in [(4, 512, 1024), (2, 8, 30), (4, 8, 31), (8, 64, 64), (2, 64, 60)] {
            let grouping = Grouping { n, width, n_batch: 2048 };
            let computed = by_the_tool(grouping, 1, 8 * n_positions);
            let n_tokens = computed.iter().position(|&(_, position)| position >= n_positions);
            assert_eq!(Some(grouping.n_tokens_within(n_positions) as usize), n_tokens, "{grouping:?}, {n_positions} positions");
        }
    }
}
