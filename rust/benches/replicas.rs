//! Engines without a model, for the simulation of a cluster (`benches/cluster.py`): each is a complete engine with its prefix
//! tree, device cache and host cache, over a model that computes nothing. The simulation keeps the time; it sends requests on
//! standard input and reads answers on standard output.
//!
//! Numbers are little-endian. `S` (replicas, slots, cells: u32; bytes of the host cache: u64) starts this many replicas. `R`
//! (replica, tokens of the prompt, all tokens: u32; the tokens: i32) serves a prompt with its completion, and returns the
//! number of cached prompt tokens (u32). `D` (replica, maximum hashes: u32; bytes of the key: u32; the key) returns the
//! replica's digest (hashes in the device cache and in the host cache: u32; the hashes: u64). `K` (replica: u32) restarts a
//! replica. The end of standard input ends all.

mod measures {
    #[allow(dead_code, reason = "another bench measures with it")]
    pub(crate) mod weightless;
}

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::time::Duration;

use measures::weightless::{Decodes, Weightless};
use weft::config::{Checkpoints, Limits, SLOW_CONSUMER_TIMEOUT, SpeculationMode, TokenGap};
use weft::engine::Engine;
use weft::request::{Event, Prompt, Request, SamplingParams, Token};

/// Size of saved state, per token: large compared to the fixed size of an entry.
const BYTES_PER_TOKEN: usize = 8;

fn main() -> io::Result<()> {
    let (mut input, mut output) = (BufReader::new(io::stdin().lock()), BufWriter::new(io::stdout().lock()));
    let mut limits = limits(1, 256, 0);
    let mut engines: Vec<Engine> = Vec::new();
    loop {
        let mut what = [0];
        if input.read(&mut what)? == 0 {
            return Ok(());
        }
        match what[0] {
            b'S' => {
                let [n_replicas, n_slots, n_cells] = numbers(&mut input)?;
                let mut n_bytes = [0; 8];
                input.read_exact(&mut n_bytes)?;
                limits = self::limits(n_slots, n_cells, u64::from_le_bytes(n_bytes));
                engines = (0..n_replicas).map(|_| start(&limits)).collect();
            }
            b'R' => {
                let [replica, n_prompt, n_tokens] = numbers(&mut input)?;
                let mut bytes = vec![0; 4 * n_tokens as usize];
                input.read_exact(&mut bytes)?;
                let tokens =
                    bytes.chunks_exact(4).map(|token| Token::from_le_bytes(token.try_into().expect("4 bytes"))).collect();
                let n_cached = serve(&engines[replica as usize], tokens).min(n_prompt);
                output.write_all(&n_cached.to_le_bytes())?;
            }
            b'D' => {
                let [replica, n_max, n_bytes] = numbers(&mut input)?;
                let mut key = vec![0; n_bytes as usize];
                input.read_exact(&mut key)?;
                let digest = engines[replica as usize].prefix_digest(&key, n_max as usize).expect("the engine runs");
                for hashes in [&digest.device, &digest.host] {
                    let n = u32::try_from(hashes.len()).expect("no more than were asked for");
                    output.write_all(&n.to_le_bytes())?;
                }
                for hash in digest.device.iter().chain(&digest.host) {
                    output.write_all(&hash.to_le_bytes())?;
                }
            }
            b'K' => {
                let [replica] = numbers(&mut input)?;
                engines[replica as usize] = start(&limits);
            }
            other => return Err(io::Error::other(format!("nothing is asked with {other}"))),
        }
        output.flush()?;
    }
}

fn numbers<const N: usize>(input: &mut impl Read) -> io::Result<[u32; N]> {
    let mut all = [0; N];
    for number in &mut all {
        let mut bytes = [0; 4];
        input.read_exact(&mut bytes)?;
        *number = u32::from_le_bytes(bytes);
    }
    Ok(all)
}

fn limits(n_slots: u32, n_cells: u32, max_host_cache_bytes: u64) -> Limits {
    Limits {
        n_slots,
        n_ctx: n_cells,
        n_ctx_slot: n_cells,
        n_ubatch: 2_048,
        grouping: None,
        n_seq_max: n_slots + 64,
        n_outputs: n_slots + 64,
        max_host_cache_bytes: Some(max_host_cache_bytes),
        max_queue: 1_024,
        max_token_gap: TokenGap::Auto,
        slow_consumer_timeout: SLOW_CONSUMER_TIMEOUT,
        speculation: SpeculationMode::Off.into(),
        checkpoints: Checkpoints::NONE,
    }
}

fn start(limits: &Limits) -> Engine {
    let decodes = Decodes::default();
    decodes.run_freely();
    let build =
        move || Ok(Weightless::new(Duration::ZERO, decodes).with_bytes_per_token(BYTES_PER_TOKEN).with_idle_cells_for_free());
    Engine::start(*limits, build).expect("a model that computes nothing always starts")
}

/// Serves these tokens, and returns how many of them were cached; afterwards all of them are.
fn serve(engine: &Engine, tokens: Vec<Token>) -> u32 {
    let mut request = Request::new(Prompt::from_tokens(tokens), 0);
    request.max_tokens = Some(1);
    request.sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let completions = engine.submit(request, None).expect("it fits");
    let mut n_cached = 0;
    for event in completions {
        if let Event::Finished(finished) = event.expect("nothing fails here") {
            n_cached = finished.usage.n_cached;
        }
    }
    n_cached
}
