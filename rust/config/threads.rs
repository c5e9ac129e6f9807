//! Where threads compute, how they wait, and who goes first.

use super::MAX_THREADS;
use crate::error::{Error, Result};

/// The longest wait of [`Threads::poll`].
const MAX_POLL: u32 = 100;

/// Which processors the threads of a decode compute on, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads {
    /// Processors by the system's numbers, each below [`MAX_THREADS`]; empty is all that this process may use.
    pub cpus: Vec<u32>,
    /// Whether each thread is kept on one of them, in order; those that are more begin anew. Otherwise each is kept on one where they
    /// are as many as threads, or their cores are.
    pub is_strict: bool,
    /// Who goes first where others want a processor too.
    pub priority: ThreadPriority,
    /// How long threads wait for work at full speed before they sleep, 0 to 100; 1 is some milliseconds, `None` leaves it to who
    /// starts them.
    pub poll: Option<u32>,
}

impl Threads {
    /// # Errors
    /// [`Error::InvalidConfig`] names the number that is out of range.
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

/// What the settings of some threads are called.
#[derive(Debug, Clone, Copy)]
pub struct ThreadParamNames {
    /// That of [`Threads::cpus`].
    pub cpus: &'static str,
    /// That of [`Threads::poll`].
    pub poll: &'static str,
}

impl ThreadParamNames {
    /// Of the threads of a decode without rows of prompts.
    pub const DECODING: Self = Self { cpus: "cpus", poll: "poll" };
    /// Of those of a decode with rows of prompts.
    pub const PROMPTS: Self = Self { cpus: "cpus_batch", poll: "poll_batch" };
}

/// Who goes first where others want a processor too; llama.cpp's numbers are −1 to 3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThreadPriority {
    /// Work that nobody waits for.
    Low,
    /// As every other thread, but that those who answer requests go first.
    #[default]
    Normal,
    /// Before all threads without a priority.
    Medium,
    /// Before those of [`ThreadPriority::Medium`].
    High,
    /// Before those of [`ThreadPriority::High`].
    Realtime,
}

impl ThreadPriority {
    /// The priority of llama.cpp's number.
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
    fn processors_and_waits_out_of_range_are_named() {
        let refused = |threads: Threads, names: &ThreadParamNames| match threads.validate(names) {
            Err(Error::InvalidConfig { param, .. }) => param,
            other => panic!("{other:?}"),
        };
        let far = Threads { cpus: vec![0, 512], ..Threads::default() };
        assert_eq!(refused(far.clone(), &ThreadParamNames::DECODING), "cpus");
        assert_eq!(refused(far, &ThreadParamNames::PROMPTS), "cpus_batch");
        let long = Threads { poll: Some(101), ..Threads::default() };
        assert_eq!(refused(long.clone(), &ThreadParamNames::DECODING), "poll");
        assert_eq!(refused(long, &ThreadParamNames::PROMPTS), "poll_batch");
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
