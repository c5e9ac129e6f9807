//! Placement and priority of compute threads.

use super::{MAX_THREADS, reject, reject_value};
use crate::error::Result;

const MAX_POLL: u32 = 100;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads {
    /// Processors by the system's numbers, each below [`MAX_THREADS`]; empty is all that this process may use.
    pub cpus: Vec<u32>,
    /// Binds each thread to one processor, round-robin; if false, only if there are as many processors or cores as threads.
    pub is_strict: bool,
    pub priority: ThreadPriority,
    /// Time for which threads poll for work before they sleep, 0 to 100; 1 is some milliseconds, `None` is the caller's default.
    pub poll: Option<u32>,
}

impl Threads {
    /// Checks the settings, named `cpus` and `poll`, in a process that may run on the `allowed` processors, if known.
    pub(super) fn validate(&self, [cpus, poll]: [&'static str; 2], allowed: Option<&[usize]>) -> Result<()> {
        if let Some(cpu) = self.cpus.iter().find(|cpu| **cpu >= MAX_THREADS) {
            return reject(cpus, format!("{cpus} has processor {cpu}; each must be below {MAX_THREADS}"));
        }
        if let Some(n) = self.poll.filter(|n| *n > MAX_POLL) {
            return reject_value(poll, n, format_args!("0 to {MAX_POLL}"));
        }
        match allowed {
            _ if self.cpus.is_empty() => Ok(()),
            None => {
                tracing::warn!("{cpus} has no effect: this system cannot bind threads to processors");
                Ok(())
            }
            Some(allowed) if self.cpus.iter().any(|cpu| allowed.contains(&(*cpu as usize))) => Ok(()),
            Some(allowed) => reject(
                cpus,
                format!("{cpus} is {:?}; it must include a processor that this process may use: {allowed:?}", self.cpus),
            ),
        }
    }
}

/// OS scheduling priority of threads, in ascending order. Threads that answer requests have priority over normal ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ThreadPriority {
    Low,
    #[default]
    Normal,
    Medium,
    High,
    Realtime,
}

impl ThreadPriority {
    pub fn from_number(number: i32) -> Option<Self> {
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
    use crate::error::Error;

    const DECODING: [&str; 2] = ["cpus", "poll"];
    const PROMPTS: [&str; 2] = ["cpus_batch", "poll_batch"];

    fn rejection(threads: &Threads, names: [&'static str; 2], allowed: Option<&[usize]>) -> (&'static str, String) {
        match threads.validate(names, allowed) {
            Err(Error::InvalidConfig { param, message }) => (param, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn processors_and_polls_out_of_range_are_rejected_by_name() {
        let far = Threads { cpus: vec![0, 512], ..Threads::default() };
        assert_eq!(rejection(&far, DECODING, None).0, "cpus");
        assert_eq!(rejection(&far, PROMPTS, None).0, "cpus_batch");
        let long = Threads { poll: Some(101), ..Threads::default() };
        assert_eq!(rejection(&long, DECODING, None).0, "poll");
        assert_eq!(rejection(&long, PROMPTS, None).0, "poll_batch");
        let max = Threads { cpus: vec![511], poll: Some(100), is_strict: true, priority: ThreadPriority::Low };
        assert_eq!(max.validate(DECODING, None), Ok(()));
    }

    #[test]
    fn processors_that_the_process_may_not_use_are_rejected() {
        let on = |cpus: &[u32]| Threads { cpus: cpus.to_vec(), ..Threads::default() };
        assert_eq!(on(&[1, 511]).validate(PROMPTS, Some(&[0, 1])), Ok(()), "missing processors are ignored");
        assert_eq!(on(&[]).validate(PROMPTS, Some(&[])), Ok(()));
        let message = "cpus_batch is [511]; it must include a processor that this process may use: [0, 1]".to_owned();
        assert_eq!(rejection(&on(&[511]), PROMPTS, Some(&[0, 1])), ("cpus_batch", message));
    }

    #[test]
    fn priorities_have_llama_cpps_numbers() {
        assert_eq!(
            [-2, -1, 0, 1, 2, 3, 4].map(ThreadPriority::from_number),
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
