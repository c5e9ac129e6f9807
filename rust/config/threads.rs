//! Processors, polling and priority of threads.

use super::MAX_THREADS;
use crate::error::{Error, Result};

/// Maximum of [`Threads::poll`].
const MAX_POLL: u32 = 100;

/// Processors of a decode's threads, their polling and their priority.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads {
    /// Processors by the system's numbers, each below [`MAX_THREADS`]; empty is all that this process may use.
    pub cpus: Vec<u32>,
    /// Binds each thread to one processor, in order; excess threads wrap around. If false, threads are bound to one processor
    /// each only if there are as many processors, or as many of their cores, as threads.
    pub is_strict: bool,
    /// OS scheduling priority.
    pub priority: ThreadPriority,
    /// How long threads poll for work before they sleep, 0 to 100; 1 is some milliseconds, `None` is the default of the code
    /// that starts them.
    pub poll: Option<u32>,
}

impl Threads {
    /// # Errors
    /// [`Error::InvalidConfig`] for the number that is out of range.
    pub fn validate(&self, names: &ThreadParamNames) -> Result<()> {
        if let Some(cpu) = self.cpus.iter().find(|cpu| **cpu >= MAX_THREADS) {
            let message = format!("{} has processor {cpu}; each must be below {MAX_THREADS}", names.cpus);
            return Err(Error::InvalidConfig { param: names.cpus, message });
        }
        match self.poll {
            Some(poll) if poll > MAX_POLL => {
                let message = format!("{} is {poll}; it must be 0 to {MAX_POLL}", names.poll);
                Err(Error::InvalidConfig { param: names.poll, message })
            }
            _ => Ok(()),
        }
    }
}

/// Parameter names of a group of threads, for errors.
#[derive(Debug, Clone, Copy)]
pub struct ThreadParamNames {
    /// Name of [`Threads::cpus`].
    pub cpus: &'static str,
    /// Name of [`Threads::poll`].
    pub poll: &'static str,
}

impl ThreadParamNames {
    /// Names for a decode without rows of prompts.
    pub const DECODING: Self = Self { cpus: "cpus", poll: "poll" };
    /// Names for a decode with rows of prompts.
    pub const PROMPTS: Self = Self { cpus: "cpus_batch", poll: "poll_batch" };
}

/// OS scheduling priority of threads; llama.cpp's numbers are −1 to 3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThreadPriority {
    /// Background work.
    Low,
    /// The default priority, except that threads that answer requests have priority over these.
    #[default]
    Normal,
    /// Above threads of default priority.
    Medium,
    /// Above [`ThreadPriority::Medium`].
    High,
    /// Above [`ThreadPriority::High`].
    Realtime,
}

impl ThreadPriority {
    /// Parses llama.cpp's number of a priority.
    #[must_use]
    pub fn numbered(number: i32) -> Option<Self> {
        match number {
            -1 => Some(Self::Low),
            0 => Some(Self::Normal),
            1 => Some(Self::Medium),
            2 => Some(Self::High),
            3 => Some(Self::Realtime),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_polls_out_of_range_are_rejected_by_name() {
        let rejected_param = |threads: Threads, names: &ThreadParamNames| match threads.validate(names) {
            Err(Error::InvalidConfig { param, .. }) => param,
            other => panic!("{other:?}"),
        };
        let far = Threads { cpus: vec![0, 512], ..Threads::default() };
        assert_eq!(rejected_param(far.clone(), &ThreadParamNames::DECODING), "cpus");
        assert_eq!(rejected_param(far, &ThreadParamNames::PROMPTS), "cpus_batch");
        let long = Threads { poll: Some(101), ..Threads::default() };
        assert_eq!(rejected_param(long.clone(), &ThreadParamNames::DECODING), "poll");
        assert_eq!(rejected_param(long, &ThreadParamNames::PROMPTS), "poll_batch");
        let most = Threads { cpus: vec![511], poll: Some(100), is_strict: true, priority: ThreadPriority::Low };
        assert_eq!(most.validate(&ThreadParamNames::DECODING), Ok(()));
    }

    #[test]
    fn priorities_have_llama_cpps_numbers() {
        assert_eq!(
            [-2, -1, 0, 1, 2, 3, 4].map(ThreadPriority::numbered),
            [
                None,
                Some(ThreadPriority::Low),
                Some(ThreadPriority::Normal),
                Some(ThreadPriority::Medium),
                Some(ThreadPriority::High),
                Some(ThreadPriority::Realtime),
                None,
            ]
        );
    }
}
