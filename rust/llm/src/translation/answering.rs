//! What must be known of a request to answer it in its caller's dialect.

use super::asked::Fields;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answering {
    pub provider: &'static str,
    /// As the caller named it, for answers that do not say.
    pub model: String,
    /// In seconds since 1970.
    pub created: u64,
    /// Nothing but what the dialect itself has.
    pub strict: bool,
    /// Blocks of thinking are shown: to who is not strict, or asked for them in so many words.
    pub blocks: bool,
    /// The caller asked for a last chunk with what a stream cost.
    pub include_usage: bool,
    /// What a response repeats of its request.
    pub echo: Fields,
}
