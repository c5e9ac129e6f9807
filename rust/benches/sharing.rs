//! Benefit of sharing: the engine compared with itself with nothing to share, the steadiness of its streams while prompts
//! arrive, the cost of idle prefixes for running streams, and the continuation of finished branches.
//!
//! `cargo bench --bench sharing -- story` takes about half a minute. The synthetic model takes up to ten where prefill is slow,
//! of which the second part takes half; `--part` and `--quick` restrict it. Compared configurations alternate in one process,
//! because a shared machine drifts; every measurement has a separate engine with nothing cached.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]

#[allow(dead_code, reason = "the bench of decoding, which shares this folder, uses all of it")]
mod support {
    pub(crate) mod gguf;
    pub(crate) mod machine;
    pub(crate) mod models;
    pub(crate) mod options;
    pub(crate) mod spread;
    pub(crate) mod synthetic;
    pub(crate) mod vocabulary;
    pub(crate) mod weights;
}

mod measures {
    pub(crate) mod branches;
    pub(crate) mod idle;
    pub(crate) mod lab;
    pub(crate) mod savings;
    pub(crate) mod steadiness;
    pub(crate) mod watch;
}

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use measures::lab::{Effort, Lab, Sizes};
use measures::{branches, idle, savings, steadiness};
use support::options::{self, Help, Options};
use support::{machine, models};

const HELP: Help = Help {
    bench: "sharing",
    quick: "shorter prompts, fewer rounds",
    flash_attention: "of the engine, in place of what it chooses",
    own: "  --part 1|2|3|4                   only that part: savings, steadiness, idle prefixes, finished branches\n",
};

type MeasuredPart = fn(&Lab) -> Result<(), String>;

const PARTS: [MeasuredPart; 4] = [savings::measure, steadiness::measure, idle::measure, branches::measure];

const FULL: (Effort, Sizes) = (
    Effort { part: Duration::from_secs(5), min_rounds: 2, max_rounds: 9 },
    Sizes {
        n_shared: 1_000,
        n_branch: 64,
        n_requests: 16,
        n_long: 1_500,
        n_stream: 96,
        n_idle: 24,
        n_idle_each: 1_000,
        n_fans: 50,
    },
);
const QUICK: (Effort, Sizes) = (
    Effort { part: Duration::from_millis(500), min_rounds: 1, max_rounds: 3 },
    Sizes { n_shared: 250, n_branch: 16, n_requests: 8, n_long: 400, n_stream: 72, n_idle: 60, n_idle_each: 400, n_fans: 15 },
);

fn main() -> ExitCode {
    let mut parts = PARTS.to_vec();
    let options = options::parse(&HELP, env::args().skip(1), |flag, value| {
        if flag != "--part" {
            return Ok(false);
        }
        let given = value()?;
        let part = given.parse().ok().and_then(|part: usize| PARTS.get(part.checked_sub(1)?));
        parts = vec![*part.ok_or_else(|| format!("--part is {given:?}; it must be 1 to {}", PARTS.len()))?];
        Ok(true)
    });
    options::run(&HELP, options, |options| bench(options, &parts))
}

fn bench(options: &Options, parts: &[MeasuredPart]) -> Result<(), String> {
    let started = Instant::now();
    let candidates = models::chosen(&options.name)?;
    println!("sharing: the engine against itself, in one run");
    machine::describe(options.n_threads);
    println!("  flash attention {}", format!("{:?}", options.flash_attention).to_lowercase());
    let (effort, sizes) = if options.is_quick { QUICK } else { FULL };
    for candidate in candidates {
        println!("\n{}", candidate.name);
        let lab = Lab::new(&candidate.path, options, effort, sizes)?;
        for part in parts {
            part(&lab)?;
        }
    }
    println!(
        "\nmedians over the rounds, the lowest and highest in brackets; all of it took {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}
