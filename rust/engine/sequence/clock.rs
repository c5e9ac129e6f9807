//! When a sequence started, and when it drew its tokens.

use std::time::{Duration, Instant};

/// What a sequence's times are made of.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    first_token: Option<Instant>,
    last_token: Instant,
}

impl Clock {
    /// Of a sequence that starts in a slot now.
    pub(crate) fn new(now: Instant) -> Self {
        Self { started: now, first_token: None, last_token: now }
    }

    /// A token was drawn.
    pub(crate) fn draw(&mut self, now: Instant) {
        self.first_token.get_or_insert(now);
        self.last_token = now;
    }

    /// The prompt is computed, and no token is drawn.
    pub(crate) fn end(&mut self, now: Instant) {
        self.last_token = now;
    }

    /// From the start to the first token.
    pub(crate) fn before_tokens(&self) -> Duration {
        self.first_token.unwrap_or(self.last_token) - self.started
    }

    /// From the first token to the last.
    pub(crate) fn predicted(&self) -> Duration {
        self.first_token.map_or(Duration::ZERO, |first| self.last_token - first)
    }

    pub(crate) fn since_start(&self, now: Instant) -> Duration {
        now - self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompts_time_ends_and_the_predictions_begins_with_the_first_token() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = Clock::new(start);
        assert_eq!((clock.before_tokens(), clock.predicted()), (Duration::ZERO, Duration::ZERO));
        clock.draw(at(30));
        assert_eq!((clock.before_tokens(), clock.predicted()), (Duration::from_millis(30), Duration::ZERO));
        clock.draw(at(40));
        clock.draw(at(55));
        assert_eq!((clock.before_tokens(), clock.predicted()), (Duration::from_millis(30), Duration::from_millis(25)));
        assert_eq!(clock.since_start(at(60)), Duration::from_millis(60));
    }

    #[test]
    fn without_a_token_all_of_the_time_is_the_prompts() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        clock.end(start + Duration::from_millis(20));
        assert_eq!((clock.before_tokens(), clock.predicted()), (Duration::from_millis(20), Duration::ZERO));
    }
}
