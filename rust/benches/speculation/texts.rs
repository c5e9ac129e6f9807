//! Prompts of the benchmark.

use weft::llama::Model;
use weft::request::Token;

/// The beginning of a story, which is continued.
pub(crate) const STORY: &str = "Once upon a time, there was a girl who lived in a small house by the sea.";

/// Tokenizes a text, with the tokens that a prompt begins with.
///
/// # Errors
/// A message, if llama.cpp fails.
pub(crate) fn tokenize(model: &Model, text: &str) -> Result<Vec<Token>, String> {
    model.tokenize(text.as_bytes(), true, true).map_err(|error| error.to_string())
}

/// Returns a chat of one question, in the format of SmolLM2 and Qwen.
pub(crate) fn chat(question: &str) -> String {
    format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
}

/// A text of about 320 tokens, to be copied.
pub(crate) const REPORT: &str = include_str!("../../../benches/report.txt");

/// Questions that are answered with prose.
pub(crate) const QUESTIONS: [&str; 4] = [
    "Write a short story about a fox who learns to swim.",
    "Explain why the sky is blue to a child.",
    "What should a person do on a rainy Sunday?",
    "Describe a market in a small town in the morning.",
];

/// The schema of a customer.
pub(crate) const CUSTOMER: &str = include_str!("../../../benches/customer.json");

/// A question that is answered with a customer.
pub(crate) const CUSTOMER_QUESTION: &str = "Invent a customer of a bookshop, as JSON.";
