//! Names of the API formats.

/// API format of requests, responses, streams and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiFormat {
    OpenAi,
    Anthropic,
    Gemini,
    Bedrock,
}
