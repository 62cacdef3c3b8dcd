//! Endpoints of an `OpenAI`-compatible provider that are not `OpenAI`'s, as data of the provider's row.

use crate::{
    catalog::{path_info::PathInfo, path_segment},
    operation::Operation,
    provider_format::ProviderFormat,
};

/// Placeholder for the model name in a path.
const MODEL_PLACEHOLDER: &str = ":model";

/// Function that returns the path of a request after the base URL. Its error names the missing value.
type PathWriter = fn(&PathInfo<'_>) -> Result<String, String>;

/// Format of a provider's own endpoint.
pub(crate) struct OwnEndpoint {
    /// Returns true if requests for this operation and model use the endpoint.
    pub applies: fn(Operation, &str) -> bool,
    pub format: &'static ProviderFormat,
    /// Returns the path after the base URL; `None` if the endpoint has the same path as `OpenAI`'s.
    pub path: Option<PathWriter>,
}

impl OwnEndpoint {
    /// Endpoint that generates images.
    pub(crate) const fn for_images(format: &'static ProviderFormat, path: PathWriter) -> Self {
        Self { applies: |operation, _| operation == Operation::ImageGenerate, format, path: Some(path) }
    }

    /// Model list that is not in `OpenAI`'s format.
    pub(crate) const fn for_model_list(format: &'static ProviderFormat, path: Option<PathWriter>) -> Self {
        Self { applies: |operation, _| operation == Operation::Models, format, path }
    }
}

/// Finds the endpoint for an operation and a model.
pub(crate) fn find_endpoint(
    endpoints: &'static [OwnEndpoint],
    operation: Operation,
    model: &str,
) -> Option<&'static OwnEndpoint> {
    endpoints.iter().find(|endpoint| (endpoint.applies)(operation, model))
}

/// Writes the path of an endpoint; returns false if the request uses `OpenAI`'s path.
pub(crate) fn write_endpoint_path(
    endpoints: &'static [OwnEndpoint],
    path_info: &PathInfo<'_>,
    out: &mut Vec<u8>,
) -> Result<bool, String> {
    let endpoint = find_endpoint(endpoints, path_info.operation, path_info.model);
    let Some(path) = endpoint.and_then(|endpoint| endpoint.path) else { return Ok(false) };
    out.extend_from_slice(path(path_info)?.as_bytes());
    Ok(true)
}

/// Inserts the model into a path. Slashes in model names stay unescaped.
pub(crate) fn path_with_model(path_info: &PathInfo<'_>, path: &str) -> Result<String, String> {
    let model: Vec<_> = path_info.model.split('/').map(path_segment::encode_model).collect::<Result<_, _>>()?;
    Ok(path.replace(MODEL_PLACEHOLDER, &model.join("/")))
}
