//! Threads that sample several rows of logits in parallel.

use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator, ParallelIterator};

/// Maximum number of threads. Sampling reads each row from memory once, and few threads saturate the memory bandwidth.
pub const MAX_THREADS: usize = 8;

/// Logits from which on the threads are woken, which takes about 50 µs: as long as sampling a row of 152,064 logits.
///
/// `cargo bench --bench sampling`, two busy cores, one thread and two, in µs: 110 and 158 for 2 rows of 152,064 logits, 136 and
/// 110 for 8 of 32,000, 356 and 244 for 128 of 2,048, 1,579 and 1,169 for 32 of 152,064.
pub const MIN_LOGITS: usize = 1 << 19;

/// The calling thread, and workers that sleep until there is enough work. Results do not depend on the number of threads.
pub struct Threads {
    workers: Option<rayon::ThreadPool>,
}

impl Threads {
    /// With the calling thread there are `n_threads`, at most [`MAX_THREADS`], or none if starting workers fails.
    ///
    /// The calling thread joins the pool for good (rayon keeps a few kilobytes for that): it takes part instead of waiting.
    pub fn new(n_threads: usize) -> Self {
        let n_threads = n_threads.min(MAX_THREADS);
        if n_threads <= 1 {
            return Self { workers: None };
        }
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(n_threads)
            .thread_name(|index| format!("weft-sampler-{index}"))
            .use_current_thread()
            .build();
        if let Err(error) = &threads {
            tracing::warn!("cannot start sampler threads, so one thread samples all rows: {error}");
        }
        Self { workers: threads.ok() }
    }

    /// Calls `work` for each of `rows` of `n_vocab` logits. Must be called on the thread that created this value.
    pub fn for_each<T: Send>(&self, rows: &mut [T], n_vocab: usize, work: impl Fn(&mut T) + Send + Sync) {
        match &self.workers {
            Some(threads) if rows.len() > 1 && rows.len().saturating_mul(n_vocab) >= MIN_LOGITS => {
                threads.install(|| rows.par_iter_mut().with_max_len(1).for_each(work));
            }
            _ => rows.iter_mut().for_each(work),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hash;
    use std::sync::{Mutex, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::request::{SamplingParams, Token};
    use crate::sampling::draw::rng::Mt19937;
    use crate::sampling::token_strings::tests::Pieces;
    use crate::sampling::{Sampler, logprobs};

    /// Maximum time to wait for expected threads.
    const MAX_WAIT: Duration = Duration::from_secs(60);

    const N_ROWS: usize = 40;
    const N_VOCAB: usize = 20_000;

    /// A token, the bits of its log-probability, and the same for the most likely tokens.
    type Drawn = (Token, u32, Vec<(Token, u32)>);

    /// Returns the results of three rounds over the same rows.
    fn drawn_on(n_threads: usize) -> Vec<Drawn> {
        let mut random = Mt19937::new(3);
        #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
        let mut row = || (0..N_VOCAB).map(|_| (random.uniform() * 12.0) as f32).collect::<Vec<f32>>();
        let logits: Vec<Vec<f32>> = (0..N_ROWS).map(|_| row()).collect();
        let params = SamplingParams { temperature: 1.5, top_k: 200, repeat_penalty: 1.3, ..SamplingParams::default() };
        let token_strings = Pieces::none(&[]);
        let sampler = |seed| Sampler::new(&params, seed, &token_strings, 100);
        let mut rows: Vec<_> = (0..).zip(&logits).map(|(seed, row)| (sampler(seed), row, Vec::new())).collect();
        let draw = |(sampler, row, drawn): &mut (Sampler, &Vec<f32>, Vec<Drawn>)| {
            let token = sampler.sample(row);
            sampler.accept(token);
            let (chosen, top) = logprobs(row, token, 5);
            drawn.push((token, chosen.to_bits(), top.into_iter().map(|(token, logprob)| (token, logprob.to_bits())).collect()));
        };
        thread::scope(|scope| {
            let sampling = scope.spawn(|| {
                let threads = Threads::new(n_threads);
                (0..3).for_each(|_| threads.for_each(&mut rows, N_VOCAB, draw));
            });
            sampling.join().expect("sampling does not fail");
        });
        rows.into_iter().flat_map(|(_, _, drawn)| drawn).collect()
    }

    #[test]
    fn draws_do_not_depend_on_the_number_of_threads() {
        const { assert!(N_ROWS * N_VOCAB >= MIN_LOGITS, "the threads are used") };
        let single_threaded = drawn_on(1);
        assert_eq!(single_threaded.len(), 3 * N_ROWS);
        for n_threads in [2, 3, 8, 100] {
            assert_eq!(drawn_on(n_threads), single_threaded, "on {n_threads} threads");
        }
    }

    /// Records the calling thread, then sleeps so that other threads wake up: at least 20 ms, and until the deadline has passed or
    /// `n_expected` threads are recorded.
    fn take_part<T: Eq + Hash>(participants: &Mutex<HashSet<T>>, participant: T, n_expected: usize, deadline: Instant) {
        let count = || participants.lock().expect("no thread panics").len();
        participants.lock().expect("no thread panics").insert(participant);
        thread::sleep(Duration::from_millis(20));
        while count() < n_expected && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns how many threads took part, and how often each row was processed.
    fn worked_on(n_threads: usize, n_rows: usize, n_vocab: usize, n_expected: usize) -> (usize, Vec<usize>) {
        let worker = thread::spawn(move || {
            let threads = Threads::new(n_threads);
            let (participants, deadline) = (Mutex::default(), Instant::now() + MAX_WAIT);
            let mut rows = vec![0; n_rows];
            threads.for_each(&mut rows, n_vocab, |n_times| {
                *n_times += 1;
                take_part(&participants, thread::current().id(), n_expected, deadline);
            });
            (participants.into_inner().expect("no thread panics").len(), rows)
        });
        worker.join().expect("counting does not fail")
    }

    #[test]
    fn rows_are_distributed_if_there_are_enough_logits() {
        assert_eq!(worked_on(3, 12, MIN_LOGITS, 3), (3, vec![1; 12]));
        assert_eq!(worked_on(100, 40, MIN_LOGITS, MAX_THREADS), (MAX_THREADS, vec![1; 40]));
    }

    #[test]
    fn few_logits_or_a_single_row_stay_on_the_calling_thread() {
        assert_eq!(worked_on(3, 4, MIN_LOGITS / 8, 1), (1, vec![1; 4]));
        assert_eq!(worked_on(3, 1, MIN_LOGITS, 1), (1, vec![1]));
        assert_eq!(worked_on(1, 4, MIN_LOGITS, 1), (1, vec![1; 4]));
        assert_eq!(worked_on(3, 0, MIN_LOGITS, 1), (0, vec![]));
    }

    /// Returns the clock ticks of CPU time of a thread, named by its `/proc/thread-self` link; `None` once it has ended.
    #[cfg(target_os = "linux")]
    fn ticks(task: &std::path::Path) -> Option<u64> {
        let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(task).join("stat")).ok()?;
        let after_name: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        // utime and stime (proc(5)), counted from the field after the name.
        Some(after_name[11].parse::<u64>().ok()? + after_name[12].parse::<u64>().ok()?)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn threads_without_rows_use_no_cpu_and_end_with_their_owner() {
        let (tasks_sender, tasks_receiver) = mpsc::channel();
        let (end_sender, end_receiver) = mpsc::channel::<()>();
        let owner = thread::spawn(move || {
            let threads = Threads::new(3);
            let (tasks, deadline) = (Mutex::default(), Instant::now() + MAX_WAIT);
            threads.for_each(&mut [0; 12], MIN_LOGITS, |_| {
                take_part(&tasks, std::fs::read_link("/proc/thread-self").expect("Linux names its threads"), 3, deadline);
            });
            tasks_sender.send(tasks.into_inner().expect("no thread panics")).expect("the test receives");
            end_receiver.recv().expect("the test sends");
        });
        let tasks = tasks_receiver.recv().expect("the threads work");
        assert_eq!(tasks.len(), 3);
        let used = || tasks.iter().map(|task| ticks(task)).collect::<Vec<_>>();
        thread::sleep(Duration::from_millis(100));
        let before = used();
        assert!(before.iter().all(Option::is_some), "{before:?}");
        thread::sleep(Duration::from_millis(500));
        assert_eq!(used(), before);
        end_sender.send(()).expect("the owner waits");
        owner.join().expect("the owner does not fail");
        let is_over = || used().iter().all(Option::is_none);
        assert!(
            (0..100).any(|_| is_over() || {
                thread::sleep(Duration::from_millis(50));
                false
            }),
            "{:?}",
            used()
        );
    }
}
