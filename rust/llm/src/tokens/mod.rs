//! Token counting for responses whose provider reports no usage. Vocabularies are included in the binary and unpacked
//! at first use.
//!
//! The first count in an encoding takes tens of milliseconds, and long texts take longer. So tokens must not be
//! counted on an event loop.

pub(crate) mod ascii_words;
pub(crate) mod body_text;
pub(crate) mod bpe;
pub(crate) mod long_runs;
pub(crate) mod request_checks;

pub use crate::tokens::body_text::{count_request_body, count_response_body};
use crate::{
    api_format::format::ApiFormat, chat::clients::bedrock_converse::count_tokens::extract_counted_body,
    errors::RequestError,
};

/// Tokenizer encoding: a vocabulary and its pattern for splitting text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Encoding(&'static str);

impl Encoding {
    pub const O200K_BASE: Self = Self("o200k_base");
    pub const CL100K_BASE: Self = Self("cl100k_base");
    pub const P50K_BASE: Self = Self("p50k_base");
    pub const R50K_BASE: Self = Self("r50k_base");

    /// Returns the encoding with this name, such as `cl100k_base`, if its vocabulary is included.
    pub fn from_name(name: &str) -> Option<Self> {
        tiktoken::list_encodings().iter().find(|encoding| **encoding == name).map(|encoding| Self(encoding))
    }

    pub fn name(self) -> &'static str {
        self.0
    }
}

/// Returns the encoding of a model; `o200k_base` if its own is unknown or not public.
pub fn encoding_for_model(model: &str) -> Encoding {
    let name = model.rsplit('/').next().unwrap_or(model);
    tiktoken::model_to_encoding(name).and_then(Encoding::from_name).unwrap_or(Encoding::O200K_BASE)
}

/// Counts the tokens of a request in this API format, for a count-tokens response. The error names the field that is
/// missing or unreadable.
pub fn count_request(api_format: ApiFormat, encoding: Encoding, body: &[u8]) -> Result<usize, RequestError> {
    if api_format == ApiFormat::Bedrock {
        return Ok(count_request_body(encoding, &extract_counted_body(body)?).unwrap_or_default());
    }
    request_checks::check_request(api_format, body)?;
    Ok(count_request_body(encoding, body).unwrap_or_default())
}

/// Counts the tokens of a text. Special tokens such as `<|endoftext|>` count as plain text.
pub fn count_text(encoding: Encoding, text: &str) -> usize {
    match tiktoken::get_encoding(encoding.0) {
        Some(vocabulary) => long_runs::count_by_runs(encoding, vocabulary, text),
        None => text.len().div_ceil(4),
    }
}
