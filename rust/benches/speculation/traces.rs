//! Prompts of agents, with their recorded answers as the text to be written.
//!
//! The model is far too small for an agent. Each answer is therefore dictated, by a mask of the logits that neither drafts from
//! nor cuts them, so that acceptance is that of the text index. `python -m benches.traces --texts FILE` writes the file: prompt,
//! answer, prompt, answer and so on, each with a zero byte after it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use weft::llama::Model;
use weft::request::{Constraint, ConstraintSource, Prompt, Request, SamplingParams, SharedConstraint, Token};

use crate::loads::{print, print_head};
use crate::run::{Run, start, without_drafts};
use crate::support::options::Options;

/// Lets one text through, whatever the logits.
#[derive(Debug, Clone)]
struct Dictated {
    answer: Arc<[Token]>,
    n_accepted: usize,
}

impl ConstraintSource for Dictated {
    fn start(&self) -> Box<dyn Constraint> {
        self.copy()
    }
}

impl Constraint for Dictated {
    fn allows(&mut self, token: Token) -> bool {
        self.answer.get(self.n_accepted) == Some(&token)
    }

    fn mask(&mut self, logits: &mut [f32]) {
        for (token, logit) in (0..).zip(logits) {
            if !self.allows(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, _token: Token) {
        self.n_accepted += 1;
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Prints a row of all answers together.
///
/// # Errors
/// A message, if the file cannot be read, or the engine fails.
pub(crate) fn measure(model: &Arc<Model>, options: &Options, path: &Path) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let texts: Vec<&str> = text.split_terminator('\0').collect();
    let engine = start(model, options, 4, 32_768)?;
    let n_ctx = engine.limits().n_ctx_slot as usize;
    let (mut runs, mut n_left_out): ([Vec<Run>; 2], usize) = Default::default();
    for pair in texts.chunks_exact(2) {
        let request = request(model, pair[0], pair[1])?;
        let n_answer = request.max_tokens.unwrap_or(0) as usize;
        if n_answer < 2 || request.n_tokens() + n_answer > n_ctx {
            n_left_out += 1;
            continue;
        }
        runs[0].push(Run::of(&engine, vec![without_drafts(request.clone())])?);
        runs[1].push(Run::of(&engine, vec![request])?);
    }
    println!("{} answers; {n_left_out} others have one token, or do not fit the context", runs[0].len());
    print_head();
    print("the answer in the middle", &runs);
    // The first token of an answer comes with its prompt.
    let n_timed = |run: &Run| (run.tokens[0].len() - 1) as f64;
    let [off, on] = runs.each_ref().map(|runs| runs.iter().map(|run| n_timed(run) / run.tokens_per_s).sum::<f64>());
    let n_tokens: f64 = runs[0].iter().map(n_timed).sum();
    let n = |of: fn(&Run) -> u64| runs[1].iter().map(of).sum::<u64>();
    println!(
        "all answers: {n_tokens} tokens; {:.1} tokens/s off, {:.1} on, {:.2} ×; {} of {} drafted tokens accepted",
        n_tokens / off,
        n_tokens / on,
        off / on,
        n(|run| run.n_accepted),
        n(|run| run.n_drafted)
    );
    Ok(())
}

fn request(model: &Model, prompt: &str, answer: &str) -> Result<Request, String> {
    let tokenize =
        |text: &str, is_prompt| model.tokenize(text.as_bytes(), is_prompt, is_prompt).map_err(|error| error.to_string());
    let answer: Arc<[Token]> = tokenize(answer, false)?.into();
    let max_tokens = Some(u32::try_from(answer.len()).map_err(|error| error.to_string())?);
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let constraint = Some(SharedConstraint(Arc::new(Dictated { answer, n_accepted: 0 })));
    Ok(Request { max_tokens, sampling, constraint, ..Request::new(Prompt::from_tokens(tokenize(prompt, true)?), 1) })
}
