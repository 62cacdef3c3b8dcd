//! Input of a translation: the client's request, with everything that decides how it is translated.

use crate::{
    catalog::{options::Options, row::ProviderRow},
    chat::tool_call_signatures::ScopedSignatures,
    model_list::ModelListShape,
    operation::Operation,
};

/// Request that is to be translated to the provider's API format, with its context.
pub struct TranslationInput<'a> {
    pub operation: Operation,
    pub provider: &'a ProviderRow,
    pub body: &'a [u8],
    /// Model name from the body, or from the path if the body has none.
    pub model: &'a str,
    pub hints: RequestHints<'a>,
    /// True if the response may contain only fields of the client's API format.
    pub strict: bool,
    /// Current time in milliseconds since 1970.
    pub now_ms: u64,
    /// Distinguishes generated IDs of the same millisecond.
    pub nonce: u32,
}

/// Information about a request that is not in its body.
#[derive(Debug, Default, Clone, Copy)]
pub struct RequestHints<'a> {
    /// Requested beta features of Anthropic's API.
    pub anthropic_betas: Option<&'a str>,
    /// Requested version of Anthropic's API.
    pub anthropic_version: Option<&'a str>,
    /// True if the client uses Anthropic's API.
    pub is_anthropic_client: bool,
    /// Format in which the client expects model lists.
    pub model_list_shape: ModelListShape,
    /// Query string without the question mark.
    pub query: &'a str,
    /// Provider options other than the credential.
    pub options: Option<&'a Options>,
    /// Model that determines the format of the request, if it is not the one in the body.
    pub effective_model: Option<&'a str>,
    /// Signatures of earlier tool calls for the same caller.
    pub tool_call_signatures: Option<&'a ScopedSignatures>,
}
