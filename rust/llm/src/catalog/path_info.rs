//! Properties of a request that determine its URL at the provider.

use crate::operation::Operation;

/// Properties of a request that determine its URL at the provider.
#[derive(Debug, Clone, Copy)]
pub struct PathInfo<'a> {
    pub operation: Operation,
    /// Path that the client sent after `/v1`, with its leading slash and still percent-encoded.
    pub path: &'a str,
    /// Query string without its question mark.
    pub query: &'a str,
    /// Path of the base URL or the custom host.
    pub prefix: &'a str,
    /// Model named in the body; may be empty.
    pub model: &'a str,
    /// `user` value of the body; may be empty.
    pub user: &'a str,
    /// True if the client wants a stream.
    pub is_streaming: bool,
    /// True if the model must continue a response that another target began.
    pub has_prefill: bool,
    pub path_options: PathOptions<'a>,
}

/// Defaults for tests.
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

/// Options that provider-specific clients put into the path, before the part that all clients share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathOptions<'a> {
    pub deployment: Option<&'a str>,
    pub version: Option<&'a str>,
    pub google: Option<GooglePathOptions<'a>>,
}

/// Options that Google's clients put into the path before the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GooglePathOptions<'a> {
    /// API version with its leading slash.
    pub version: &'a str,
    /// Project and location of a Vertex AI path; empty for Vertex AI paths without them. `None` for other paths.
    pub project_and_location: Option<&'a str>,
}
