//! Times of a sequence.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Clock {
    pub(crate) submitted: Instant,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Instant,
}

impl Clock {
    pub(crate) fn new(submitted: Instant, now: Instant) -> Self {
        Self { submitted, started: now, first_token: None, last_token: now }
    }

    /// Records a token. Returns the time of the previous one, if any.
    pub(crate) fn record_token(&mut self, now: Instant) -> Option<Instant> {
        let last = self.first_token.is_some().then_some(self.last_token);
        self.first_token.get_or_insert(now);
        self.last_token = now;
        last
    }

    pub(crate) fn end_prompt(&mut self, now: Instant) {
        self.last_token = now;
    }

    /// Time from the start to the first token, or to the end of the prompt.
    pub(crate) fn prompt_time(&self) -> Duration {
        self.first_token.unwrap_or(self.last_token) - self.started
    }

    pub(crate) fn generation_time(&self) -> Duration {
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
    fn prompt_time_ends_and_generation_time_begins_with_the_first_token() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = Clock::new(start, start);
        assert_eq!((clock.prompt_time(), clock.generation_time()), (Duration::ZERO, Duration::ZERO));
        assert_eq!(clock.record_token(at(30)), None);
        assert_eq!((clock.prompt_time(), clock.generation_time()), (Duration::from_millis(30), Duration::ZERO));
        assert_eq!(clock.record_token(at(40)), Some(at(30)));
        clock.record_token(at(55));
        assert_eq!((clock.prompt_time(), clock.generation_time()), (Duration::from_millis(30), Duration::from_millis(25)));
        assert_eq!(clock.since_start(at(60)), Duration::from_millis(60));
    }

    #[test]
    fn without_tokens_all_time_is_prompt_time() {
        let start = Instant::now();
        let mut clock = Clock::new(start, start);
        clock.end_prompt(start + Duration::from_millis(20));
        assert_eq!((clock.prompt_time(), clock.generation_time()), (Duration::from_millis(20), Duration::ZERO));
    }
}
