//! Drafts from constraints: the text that a grammar or a JSON schema forces next, such as the name of the next property, in the
//! tokens that a model would most likely write it in. Pure: the state of a constraint in, tokens out.
//!
//! A text has several spellings in tokens, all of which a grammar allows. The draft has the vocabulary's own tokenization, which
//! models were trained on. It need not be right, as every drafted token is verified.

use crate::request::{Constraint, Spacing, Token};
use crate::sampling::TokenStrings;

/// Bytes of forced text per drafted token: names and punctuation of JSON have 3 to 4.
const MAX_BYTES_PER_TOKEN: usize = 8;

/// Returns at most `max_draft` tokens that `constraint` forces next. `spacing` has read the text so far.
pub(crate) fn forced_tokens(
    constraint: &mut dyn Constraint,
    spacing: &Spacing,
    token_strings: &TokenStrings,
    max_draft: usize,
) -> Vec<Token> {
    if let Some(token) = constraint.forced() {
        return vec![token];
    }
    let text = constraint.forced_text(spacing, MAX_BYTES_PER_TOKEN * max_draft);
    let mut tokens = token_strings.tokenize_on(&text);
    // A word or white space at the end may continue in the same token.
    if text.last().is_some_and(|last| last.is_ascii_alphanumeric() || last.is_ascii_whitespace() || !last.is_ascii()) {
        tokens.pop();
    }
    tokens.truncate(max_draft);
    let n_allowed = constraint.n_allowed(&tokens);
    tokens.truncate(n_allowed);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{Grammar, Spellings, TokenLookup};
    use crate::request::ConstraintSource;
    use crate::sampling::token_strings::tests::Pieces;
    use std::sync::Arc;

    const PIECES: [&str; 14] = ["</s>", "{", "}", "\"", "{\"", "\":", " \"", ", ", "n", "na", "name", "age", " ", "a"];

    struct NoNames;

    impl TokenLookup for NoNames {
        fn find_token(&self, _: &str) -> Option<Token> {
            None
        }

        fn n_vocab(&self) -> usize {
            PIECES.len()
        }
    }

    /// The pieces that are forced after `text`.
    fn forced(grammar: &str, text: &[&str], max_draft: usize) -> Vec<&'static str> {
        let spellings = Arc::new(Spellings::new(PIECES.map(str::as_bytes), &[0]));
        let token_strings = Pieces::token_strings(&PIECES, 1);
        let mut constraint = Grammar::new(grammar, &NoNames, spellings).unwrap().start();
        let mut spacing = Spacing::default();
        for piece in text {
            let at = PIECES.iter().position(|other| other == piece).unwrap();
            assert!(constraint.try_accept_rest(Token::try_from(at).unwrap(), 0), "{piece} is not allowed");
            spacing.read(piece.as_bytes());
        }
        let tokens = forced_tokens(&mut *constraint, &spacing, &token_strings, max_draft);
        tokens.into_iter().map(|token| PIECES[usize::try_from(token).unwrap()]).collect()
    }

    #[test]
    fn forced_text_is_drafted_in_the_tokens_of_the_vocabulary() {
        let object = r#"root ::= "{" " "? "\"name\":" " "? "\"" "a"* "\"" "}""#;
        assert_eq!(forced(object, &[], 8), ["{\"", "name", "\":", " \""]);
        assert_eq!(forced(object, &[], 2), ["{\"", "name"]);
        assert_eq!(forced(object, &["{\"", "name", "\":", "\""], 8), [] as [&str; 0], "anything may follow");
        assert_eq!(forced(object, &["{\"", "name", "\":", "\"", "\""], 8), ["}"]);
    }

    #[test]
    fn a_word_at_the_end_is_not_drafted_for_it_may_continue() {
        assert_eq!(forced(r#"root ::= "{" ("name" | "na" "}")"#, &[], 8), ["{"]);
        assert_eq!(forced(r#"root ::= "{ " ("name" | "na" "}")"#, &[], 8), ["{", " "]);
        assert_eq!(forced(r#"root ::= "name" "a"?"#, &[], 8), [] as [&str; 0]);
    }
}
