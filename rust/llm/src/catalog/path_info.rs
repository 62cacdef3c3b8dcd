//! What is asked of a provider, as far as its address depends on it.

use crate::operation::Operation;

/// What is asked of a provider, as far as the address depends on it.
#[derive(Debug, Clone, Copy)]
pub struct PathInfo<'a> {
    pub operation: Operation,
    /// The caller's own, after `/v1`, with its leading slash and percent-encoded as it came.
    pub path: &'a str,
    /// Without its question mark.
    pub query: &'a str,
    /// The path of the base URL or the custom host.
    pub prefix: &'a str,
    /// What the body names; may be empty.
    pub model: &'a str,
    /// Likewise.
    pub user: &'a str,
    /// The caller wants a stream.
    pub is_streaming: bool,
    /// The answer was begun by somebody else.
    pub has_prefill: bool,
    pub path_options: PathOptions<'a>,
}

/// As tests ask it, where nothing more is said.
#[cfg(test)]
impl<'a> PathInfo<'a> {
    pub(crate) const fn for_test(operation: Operation, path: &'a str, model: &'a str) -> Self {
        let path_options = PathOptions { deployment: None, version: None, google: None };
        Self {
            operation,
            path,
            query: "",
            prefix: "",
            model,
            user: "",
            is_streaming: false,
            has_prefill: false,
            path_options,
        }
    }
}

/// What clients made for one provider say in the path, before what others say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathOptions<'a> {
    pub deployment: Option<&'a str>,
    pub version: Option<&'a str>,
    pub google: Option<GooglePathOptions<'a>>,
}

/// What Google's own clients say before the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GooglePathOptions<'a> {
    /// Of its API, with its leading slash.
    pub version: &'a str,
    /// Project and location, as Vertex AI has them; empty where Vertex AI is asked without.
    pub project_and_location: Option<&'a str>,
}
