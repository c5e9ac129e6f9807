//! Tokenizing with a BPE vocabulary first splits the text into words. Where llama.cpp has no dedicated code for that, it uses
//! `std::regex`, which recurses for each character of a match: on a stack of 8 MiB a run of 43,000 letters or spaces ends the process.
//! So a text with a long run is tokenized on a thread with a sufficient stack, and a run longer than [`MAX_RUN`] is rejected.

use std::thread;

use crate::error::{Error, Result};

/// Maximum number of characters of a run for regular expressions. Its stack is 128 MiB, of which about 50 MiB are written.
pub(crate) const MAX_RUN: usize = 262_144;
/// Maximum number of characters of a run in which an expression starts a match at each character: 8 million steps, one second.
const MAX_SLOW_RUN: usize = 4_096;
/// Characters of a run that need no extra thread: every thread has 256 KiB of stack left.
const MAX_INLINE_RUN: usize = 512;
/// Upper bound of the stack per character of a run, in bytes: 195 for every expression with clang and GNU's library.
const STACK_BYTES_PER_CHARACTER: usize = 512;
const STACK_BASE_BYTES: usize = 1 << 20;

/// Classes of characters that an expression matches consecutively. Non-ASCII characters may be in any class but white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Letters, digits, white space, or others followed by line breaks and slashes.
    Alike,
    /// White space, or everything else.
    Words,
    /// Letters with spaces between them, and the classes of [`Runs::Alike`].
    Sentences,
    /// All characters: the expressions are unknown.
    Anything,
}

/// Splitters for which llama.cpp has dedicated code.
#[rustfmt::skip]
pub(crate) const DEDICATED: [&str; 57] = [
    "a.x-4.0", "chatglm-bpe", "codeshell", "command-r", "dbrx", "deepseek-r1-qwen", "exaone", "exaone4", "f2llmv2", "falcon-h1",
    "falcon3", "gemma4", "gigachat", "glm4", "glm5", "gpt-2", "granite-docling", "granite-embed-multi-311m", "grok-2",
    "hunyuan", "jais", "jina-de", "jina-es", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es", "jina-v5-nano",
    "kimi-k2", "kormo", "laguna", "lfm2", "llama-bpe", "llama-v3", "llama3", "megrez", "mellum", "mellum2", "midm-2.0",
    "minerva-7b", "mmbert", "modern-bert", "mpt", "olmo", "phi-2", "pixtral", "qwen2", "qwen35", "refact", "roberta-bpe",
    "sarvam-moe", "smaug-bpe", "smollm", "solar-open", "stablelm2", "starcoder", "trillion",
];

/// Splitters whose expressions repeat one class of characters, including the default for files that name none.
#[rustfmt::skip]
pub(crate) const CLASSES: [&str; 30] = [
    "", "afmoe", "bailingmoe", "bailingmoe2", "chameleon", "cohere2moe", "deepseek-coder", "deepseek-llm", "deepseek-v3",
    "default", "falcon", "gpt-4o", "granite-embed-multi-97m", "hunyuan-dense", "hy_v4", "jais-2", "joyai-llm", "kanana2",
    "llada-moe", "llama4", "minicpm5", "minimax-m2", "seed-coder", "spark2_5", "superbpe", "talkie", "tekken", "tiny_aya",
    "ufakzeka", "youtu",
];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Splitter {
    /// Classes that repeat; `None` if llama.cpp has dedicated code, whose stack use does not depend on the runs.
    runs: Option<Runs>,
    /// Characters at each of which an expression starts a match of the remaining run.
    is_slow: Option<fn(char) -> bool>,
    /// A word always ends between an ASCII letter or digit and the line feed after it, independently of the text on either side.
    pub(crate) separates_lines: bool,
}

impl Splitter {
    pub(crate) const NONE: Self = Self { runs: None, is_slow: None, separates_lines: false };

    pub(crate) fn named(name: &str) -> Self {
        let is_slow: Option<fn(char) -> bool> = match name {
            // `\s+$` fails at each white space that is followed by other text. Line breaks are split off before.
            "deepseek-llm" => Some(|character| character.is_whitespace() && !matches!(character, '\r' | '\n')),
            // `(?=(\d{3})+(?!\d))` counts the digits to the end of the number.
            "superbpe" => Some(char::is_numeric),
            _ => None,
        };
        let runs = match name {
            _ if DEDICATED.contains(&name) => None,
            _ if CLASSES.contains(&name) => Some(Runs::Alike),
            "bloom" | "gpt3-finnish" | "poro-chat" | "viking" | "whitespace" => Some(Runs::Words),
            "exaone-moe" => Some(Runs::Sentences),
            _ => Some(Runs::Anything),
        };
        let separates_lines = DEDICATED.contains(&name) || CLASSES.contains(&name) && name != "superbpe";
        Self { runs, is_slow, separates_lines }
    }

    /// Runs `read`, which splits `text`, with a sufficient stack.
    pub(crate) fn with_stack<T: Send>(self, text: &[u8], read: impl FnOnce() -> T + Send) -> Result<T> {
        let n_run = self.check(text)?;
        if n_run <= MAX_INLINE_RUN {
            return Ok(read());
        }
        let n_bytes = STACK_BASE_BYTES + n_run * STACK_BYTES_PER_CHARACTER;
        thread::scope(|scope| {
            let reader = thread::Builder::new().name("weft-splitter".into()).stack_size(n_bytes).spawn_scoped(scope, read);
            let reader = reader.map_err(|error| {
                let message = format!("cannot start a thread with a stack of {n_bytes} bytes, which tokenizing a run of {n_run} characters needs: {error}");
                Error::NotSupported { message }
            })?;
            Ok(reader.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)))
        })
    }

    pub(crate) fn check(self, text: &[u8]) -> Result<usize> {
        let Some(runs) = self.runs.filter(|_| text.len() > MAX_INLINE_RUN) else { return Ok(0) };
        let (mut longest, mut slow, mut was_break) = (LongestRun::default(), LongestRun::default(), false);
        // llama.cpp converts each invalid byte to at most one character, of any class.
        let mut offset = 0;
        for chunk in text.utf8_chunks() {
            let valid = chunk.valid().char_indices().map(|(i, character)| (offset + i, character));
            let after = offset + chunk.valid().len();
            let invalid = (after..).take(chunk.invalid().len()).map(|i| (i, ANY));
            for (i, character) in valid.chain(invalid) {
                if was_break && character != '/' && !character.is_whitespace() {
                    longest.end(OTHERS);
                }
                was_break = matches!(character, '\r' | '\n');
                longest.add(i, runs.classes(character));
                slow.add(i, self.is_slow.map_or(0, |is_slow| u8::from(is_slow(character))));
            }
            offset = after + chunk.invalid().len();
        }
        longest.check(MAX_RUN)?;
        slow.check(MAX_SLOW_RUN)?;
        Ok(longest.n)
    }
}

const ANY: char = '\u{3000}';

const LETTERS: u8 = 1;
const DIGITS: u8 = 2;
const OTHERS: u8 = 4;
const SPACES: u8 = 8;

impl Runs {
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
            Self::Words if character.is_ascii() && alike & SPACES == 0 => LETTERS,
            Self::Words if character.is_ascii() => SPACES,
            Self::Sentences if character == ' ' => LETTERS | SPACES,
            Self::Alike | Self::Words | Self::Sentences | Self::Anything => alike,
        }
    }
}

#[derive(Debug, Default)]
struct LongestRun {
    current: [usize; 4],
    n: usize,
    last: usize,
}

impl LongestRun {
    fn add(&mut self, offset: usize, classes: u8) {
        for (class, n) in self.current.iter_mut().enumerate() {
            *n = if classes >> class & 1 == 1 { *n + 1 } else { 0 };
            if *n > self.n {
                (self.n, self.last) = (*n, offset);
            }
        }
    }

    fn end(&mut self, classes: u8) {
        self.current.iter_mut().enumerate().filter(|(class, _)| classes >> class & 1 == 1).for_each(|(_, n)| *n = 0);
    }

    fn check(&self, limit: usize) -> Result<()> {
        if self.n <= limit {
            return Ok(());
        }
        let (n, last) = (self.n, self.last);
        let message = format!(
            "the text has {n} consecutive characters of one class, up to byte {last} of a part between special tokens; this model's \
             tokenizer supports at most {limit}, so shorten the run or separate it by white space, a digit or a letter"
        );
        Err(Error::InvalidRequest { param: "text", message })
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, MAX_RUN, MAX_SLOW_RUN, Splitter};

    fn longest(name: &str, text: &str) -> usize {
        // Short texts are not checked.
        Splitter::named(name).check(format!("{text}{}", "a1 .".repeat(200)).as_bytes()).expect("the runs are short")
    }

    #[test]
    fn a_run_consists_of_characters_that_one_expression_matches() {
        let text = "abc 123 ... \n\n\n\n///";
        assert_eq!(longest("tekken", text), 7, "line breaks and slashes extend the preceding run");
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
    fn each_invalid_byte_counts_as_a_character() {
        let text = [&[0xe4, 0xb8].repeat(600)[..], b" ", &[0xff; 900]].concat();
        assert_eq!(Splitter::named("gpt-4o").check(&text), Ok(2_101));
    }

    #[test]
    fn an_overlong_run_is_rejected_with_its_offset_and_the_limit() {
        let text = format!("{}.{}", "b".repeat(MAX_RUN), "a".repeat(MAX_RUN + 1));
        let Err(Error::InvalidRequest { param: "text", message }) = Splitter::named("gpt-4o").check(text.as_bytes()) else {
            panic!("the text was accepted")
        };
        assert!(
            message.contains("262145 consecutive characters")
                && message.contains("byte 524289")
                && message.contains("at most 262144")
        );
        assert_eq!(Splitter::named("gpt-4o").check(&text.as_bytes()[1..=MAX_RUN]), Ok(MAX_RUN - 1));
    }

    #[test]
    fn runs_with_quadratic_cost_have_a_lower_limit() {
        let (spaces, digits) = (" ".repeat(MAX_SLOW_RUN + 1), "1".repeat(MAX_SLOW_RUN + 1));
        for (name, slow, fast) in [("deepseek-llm", &spaces, &digits), ("superbpe", &digits, &spaces)] {
            assert!(Splitter::named(name).check(slow.as_bytes()).is_err());
            assert_eq!(Splitter::named(name).check(&slow.as_bytes()[1..]), Ok(MAX_SLOW_RUN));
            assert_eq!(Splitter::named(name).check(fast.as_bytes()), Ok(MAX_SLOW_RUN + 1));
        }
        assert_eq!(Splitter::named("deepseek-llm").check("中".repeat(9_999).as_bytes()), Ok(9_999));
    }
}
