//! How far llama.cpp's regular expressions reach into a text, and the stack that they need for it.
//!
//! Before a text becomes tokens, a vocabulary of merges is asked for its words. For some vocabularies llama.cpp has code that finds
//! them; for the others it asks `std::regex`, which calls itself for each character of a match that it tries: on a stack of 8 MiB a
//! run of 43,000 letters or spaces ends the process. So a text with a long run is read by a thread whose stack is made for that
//! run, and one whose run is longer than [`MAX_RUN`] is refused.

use std::thread;

use crate::error::{Error, Result};

/// Most characters of a run that a regular expression reads. A stack for them is 128 MiB, of which about 50 MiB are written to.
pub(super) const MAX_RUN: usize = 262_144;
/// Most characters of a run that some expressions try from each of its characters anew: 8 million steps, a second.
const MAX_SLOW_RUN: usize = 4_096;
/// Characters of a run that need no thread of their own: any thread has 256 KiB to spare.
const MAX_NEAR_RUN: usize = 512;
/// What a character of a run takes at most. With clang and GNU's library it is 195, whatever the expression; others' frames differ.
const STACK_PER_CHARACTER: usize = 512;
/// What everything else takes.
const STACK_BESIDE: usize = 1 << 20;

/// Which characters an expression matches one after the other.
///
/// A match of each takes at most a few characters before and behind one such run. What is neither ASCII nor white space may be of
/// any class but that: each expression has classes of its own there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Letters, digits, white space, or others, with line breaks and slashes behind them.
    Alike,
    /// White space, or all else.
    Words,
    /// Letters with spaces between them, and as [`Runs::Alike`].
    Sentences,
    /// Whatever there is: the expressions are not known.
    Anything,
}

/// The names of those that llama.cpp has code for.
#[rustfmt::skip]
pub(super) const OWN_CODE: [&str; 57] = [
    "a.x-4.0", "chatglm-bpe", "codeshell", "command-r", "dbrx", "deepseek-r1-qwen", "exaone", "exaone4", "f2llmv2", "falcon-h1",
    "falcon3", "gemma4", "gigachat", "glm4", "glm5", "gpt-2", "granite-docling", "granite-embed-multi-311m", "grok-2",
    "hunyuan", "jais", "jina-de", "jina-es", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es", "jina-v5-nano",
    "kimi-k2", "kormo", "laguna", "lfm2", "llama-bpe", "llama-v3", "llama3", "megrez", "mellum", "mellum2", "midm-2.0",
    "minerva-7b", "mmbert", "modern-bert", "mpt", "olmo", "phi-2", "pixtral", "qwen2", "qwen35", "refact", "roberta-bpe",
    "sarvam-moe", "smaug-bpe", "smollm", "solar-open", "stablelm2", "starcoder", "trillion",
];

/// The names of those whose expressions repeat one class of characters, and of what is taken where a file names none.
#[rustfmt::skip]
pub(super) const CLASSES: [&str; 30] = [
    "", "afmoe", "bailingmoe", "bailingmoe2", "chameleon", "cohere2moe", "deepseek-coder", "deepseek-llm", "deepseek-v3",
    "default", "falcon", "gpt-4o", "granite-embed-multi-97m", "hunyuan-dense", "hy_v4", "jais-2", "joyai-llm", "kanana2",
    "llada-moe", "llama4", "minicpm5", "minimax-m2", "seed-coder", "spark2_5", "superbpe", "talkie", "tekken", "tiny_aya",
    "ufakzeka", "youtu",
];

/// What finds the words of a vocabulary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Splitter {
    /// `None` where llama.cpp has code of its own, which needs no more stack for a longer run.
    runs: Option<Runs>,
    /// What an expression tries from each of its characters anew.
    is_slow: Option<fn(char) -> bool>,
    separates_lines: bool,
}

impl Splitter {
    /// That of a vocabulary that is not made of merges.
    pub(super) const NONE: Self = Self { runs: None, is_slow: None, separates_lines: false };

    /// That of a vocabulary of merges, by the name that the file has for it in `tokenizer.ggml.pre`.
    pub(super) fn named(name: &str) -> Self {
        let is_slow: Option<fn(char) -> bool> = match name {
            // `\s+$` fails at each white space that something else follows. Line breaks are cut off before.
            "deepseek-llm" => Some(|character| character.is_whitespace() && !matches!(character, '\r' | '\n')),
            // `(?=(\d{3})+(?!\d))` counts the digits to the end of the number.
            "superbpe" => Some(char::is_numeric),
            _ => None,
        };
        let runs = match name {
            _ if OWN_CODE.contains(&name) => None,
            _ if CLASSES.contains(&name) => Some(Runs::Alike),
            "bloom" | "gpt3-finnish" | "poro-chat" | "viking" | "whitespace" => Some(Runs::Words),
            "exaone-moe" => Some(Runs::Sentences),
            _ => Some(Runs::Anything),
        };
        // The expression of superbpe cuts at digits alone.
        let separates_lines = OWN_CODE.contains(&name) || CLASSES.contains(&name) && name != "superbpe";
        Self { runs, is_slow, separates_lines }
    }

    /// Returns whether a word always ends between an ASCII letter or digit and the line feed after it, and the words on one side do not
    /// depend on the other side.
    pub(super) fn separates_lines(self) -> bool {
        self.separates_lines
    }

    /// Does `read`, which splits `text`, where the stack is large enough for it: on this thread, or on one of its own while this
    /// one waits.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if a run in `text` is too long, and [`Error::NotSupported`] if the system has no memory for the
    /// thread.
    pub(super) fn with_stack<T: Send>(self, text: &[u8], read: impl FnOnce() -> T + Send) -> Result<T> {
        let n_longest = self.check(text)?;
        if n_longest <= MAX_NEAR_RUN {
            return Ok(read());
        }
        let n_bytes = STACK_BESIDE + n_longest * STACK_PER_CHARACTER;
        thread::scope(|scope| {
            let reader = thread::Builder::new().name("weft-splitter".into()).stack_size(n_bytes).spawn_scoped(scope, read);
            let reader = reader.map_err(|error| {
                let message =
                    format!("a run of {n_longest} characters needs a stack of {n_bytes} bytes to be tokenized: {error}");
                Error::NotSupported { message }
            })?;
            Ok(reader.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)))
        })
    }

    /// Characters of the longest run in `text`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is too long.
    pub(super) fn check(self, text: &[u8]) -> Result<usize> {
        let Some(runs) = self.runs.filter(|_| text.len() > MAX_NEAR_RUN) else { return Ok(0) };
        let (mut longest, mut slow, mut was_break) = (LongestRun::default(), LongestRun::default(), false);
        // Of what is no UTF-8, llama.cpp makes at most a character of each byte, which may be any.
        let mut place = 0;
        for chunk in text.utf8_chunks() {
            let valid = chunk.valid().char_indices().map(|(at, character)| (place + at, character));
            let after = place + chunk.valid().len();
            let invalid = (after..).take(chunk.invalid().len()).map(|at| (at, ANY));
            for (at, character) in valid.chain(invalid) {
                if was_break && character != '/' && !character.is_whitespace() {
                    longest.end(OTHERS);
                }
                was_break = matches!(character, '\r' | '\n');
                longest.add(at, runs.classes(character));
                slow.add(at, self.is_slow.map_or(0, |is_slow| u8::from(is_slow(character))));
            }
            place = after + chunk.invalid().len();
        }
        longest.check(MAX_RUN)?;
        slow.check(MAX_SLOW_RUN)?;
        Ok(longest.n)
    }
}

/// A character that is in every class.
const ANY: char = '\u{3000}';

const LETTERS: u8 = 1;
const DIGITS: u8 = 2;
const OTHERS: u8 = 4;
const SPACES: u8 = 8;

impl Runs {
    /// The classes of runs that a character may be in, one bit each.
    fn classes(self, character: char) -> u8 {
        if self == Self::Anything {
            return LETTERS;
        }
        let alike = match character {
            'a'..='z' | 'A'..='Z' => LETTERS,
            '0'..='9' => DIGITS,
            '\r' | '\n' => OTHERS | SPACES,
            ' ' | '\t' | '\x0b' | '\x0c' => SPACES,
            '\0'..='\x7f' => OTHERS,
            _ if character.is_whitespace() => LETTERS | DIGITS | OTHERS | SPACES,
            _ => LETTERS | DIGITS | OTHERS,
        };
        match self {
            Self::Words if character.is_ascii() => {
                if alike & SPACES == 0 {
                    LETTERS
                } else {
                    SPACES
                }
            }
            Self::Sentences if character == ' ' => LETTERS | SPACES,
            Self::Alike | Self::Words | Self::Sentences | Self::Anything => alike,
        }
    }
}

/// The longest run of characters that have a class in common, in a text that is read character by character.
#[derive(Debug, Default)]
struct LongestRun {
    /// Characters of the run that goes on, for each class.
    now: [usize; 4],
    n: usize,
    /// Where the character stands that the longest ends with, in bytes of the text.
    last: usize,
}

impl LongestRun {
    fn add(&mut self, place: usize, classes: u8) {
        for (class, n) in self.now.iter_mut().enumerate() {
            *n = if classes >> class & 1 == 1 { *n + 1 } else { 0 };
            if *n > self.n {
                (self.n, self.last) = (*n, place);
            }
        }
    }

    /// Ends the runs of these classes.
    fn end(&mut self, classes: u8) {
        self.now.iter_mut().enumerate().filter(|(class, _)| classes >> class & 1 == 1).for_each(|(_, n)| *n = 0);
    }

    fn check(&self, limit: usize) -> Result<()> {
        if self.n <= limit {
            return Ok(());
        }
        let (n, last) = (self.n, self.last);
        let message = format!(
            "the text has {n} characters of one kind in a row, up to byte {last} of a stretch between special tokens; this model's \
             tokenizer reads at most {limit}, so break them by white space, a digit or a letter, or leave some out"
        );
        Err(Error::InvalidRequest { param: "text", message })
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, MAX_RUN, MAX_SLOW_RUN, Splitter};

    fn longest(name: &str, text: &str) -> usize {
        // Short texts are not looked at.
        Splitter::named(name).check(format!("{text}{}", "a1 .".repeat(200)).as_bytes()).expect("it is short enough")
    }

    #[test]
    fn a_run_is_of_characters_that_one_expression_matches_in_a_row() {
        let text = "abc 123 ... \n\n\n\n///";
        assert_eq!(longest("tekken", text), 7, "line breaks and then slashes belong to what stands before them");
        assert_eq!(longest("tekken", "...\n..\n中中\n"), 4);
        assert_eq!(longest("tekken", &"Это не так, как было.\n".repeat(9)), 6);
        assert_eq!(longest("tekken", &"中a中1中 ".repeat(9)), 3);
        assert_eq!(longest("tekken", "中文。中文"), 6, "an a follows");
        assert_eq!(longest("bloom", "a1.b2,c3 d"), 8);
        assert_eq!(longest("exaone-moe", "one two three. four"), 13);
        assert_eq!(longest("llama-bpe", &"a".repeat(9_999)), 0);
        assert_eq!(longest("of a later llama.cpp", text), text.len() + 800);
    }

    #[test]
    fn what_is_no_utf_8_counts_as_a_character_for_each_byte() {
        let text = [&[0xe4, 0xb8].repeat(600)[..], b" ", &[0xff; 900]].concat();
        assert_eq!(Splitter::named("gpt-4o").check(&text), Ok(2_101));
    }

    #[test]
    fn a_run_that_is_too_long_is_refused_with_its_place_and_the_limit() {
        let text = format!("{}.{}", "b".repeat(MAX_RUN), "a".repeat(MAX_RUN + 1));
        let Err(Error::InvalidRequest { param: "text", message }) = Splitter::named("gpt-4o").check(text.as_bytes()) else {
            panic!("it was read")
        };
        assert!(message.contains("262145 characters") && message.contains("byte 524289") && message.contains("at most 262144"));
        assert_eq!(Splitter::named("gpt-4o").check(&text.as_bytes()[1..=MAX_RUN]), Ok(MAX_RUN - 1));
    }

    #[test]
    fn what_takes_the_square_of_a_run_is_refused_earlier() {
        let (spaces, digits) = (" ".repeat(MAX_SLOW_RUN + 1), "1".repeat(MAX_SLOW_RUN + 1));
        for (name, slow, fast) in [("deepseek-llm", &spaces, &digits), ("superbpe", &digits, &spaces)] {
            assert!(Splitter::named(name).check(slow.as_bytes()).is_err());
            assert_eq!(Splitter::named(name).check(&slow.as_bytes()[1..]), Ok(MAX_SLOW_RUN));
            assert_eq!(Splitter::named(name).check(fast.as_bytes()), Ok(MAX_SLOW_RUN + 1));
        }
        assert_eq!(Splitter::named("deepseek-llm").check("中".repeat(9_999).as_bytes()), Ok(9_999));
    }
}
