//! Names of Vertex AI models: each has a publisher, which Gemini and Claude models need not state.

/// Returns the model name as batch and tuning jobs need it. A name with a slash is already complete.
pub(crate) fn publisher_model_path(model: &str) -> String {
    if model.contains('/') {
        return model.to_owned();
    }
    let (publisher, model) = split_publisher(model);
    format!("publishers/{publisher}/models/{model}")
}

/// Splits a model into its publisher and its name. Without a publisher, Claude models belong to Anthropic and all
/// others to Google.
pub(crate) fn split_publisher(model: &str) -> (&'static str, &str) {
    const PUBLISHERS: [&str; 5] = ["google", "anthropic", "meta", "mistralai", "endpoints"];
    let split = model
        .split_once('.')
        .and_then(|(first, rest)| Some((*PUBLISHERS.iter().find(|publisher| **publisher == first)?, rest)));
    split.unwrap_or((if model.starts_with("claude") { "anthropic" } else { "google" }, model))
}
