//! Names of fields and types in the JSON bodies of requests, grouped by their effect on the highest usage of a request.

/// Meaning of a field at the top level of a body, or of an object that contains further parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyField {
    /// Maximum number of tokens of a response.
    OutputLimit,
    /// Number of responses or images.
    Choices,
    /// Object with further parameters.
    Nested,
    /// Prompts of a completion.
    Prompt,
    Tools,
    /// Tools in an earlier API version. They are functions of the client.
    Functions,
    /// Adds input or costs that are not known before the response.
    Unbounded,
    /// Messages or other content for the model.
    Messages,
    Other,
}

impl BodyField {
    /// Returns the meaning of a field. Ignores its case, because the JSON decoders of some providers do.
    pub fn from_name(name: &str) -> Self {
        match &*name.to_ascii_lowercase() {
            "max_tokens"
            | "max_completion_tokens"
            | "max_output_tokens"
            | "max_tokens_to_sample"
            | "max_new_tokens"
            | "max_gen_len"
            | "maxtokens"
            | "maxtokencount"
            | "maxoutputtokens"
            | "num_predict" => Self::OutputLimit,
            "n"
            | "best_of"
            | "candidatecount"
            | "candidate_count"
            | "num_generations"
            | "numresults"
            | "num_return_sequences"
            | "num_images"
            | "num_outputs"
            | "numberofimages"
            | "number_of_images"
            | "samples" => Self::Choices,
            "generationconfig"
            | "generation_config"
            | "inferenceconfig"
            | "toolconfig"
            | "options"
            | "extra_body"
            | "google"
            | "additionalmodelrequestfields"
            | "textgenerationconfig"
            | "imagegenerationconfig" => Self::Nested,
            "prompt" => Self::Prompt,
            "tools" => Self::Tools,
            "functions" => Self::Functions,
            "web_search_options"
            | "search_parameters"
            | "enable_search"
            | "data_sources"
            | "connectors"
            | "mcp_servers"
            | "plugins"
            | "previous_response_id"
            | "conversation"
            | "cachedcontent"
            | "cached_content"
            | "container"
            | "background"
            | "models"
            | "prediction" => Self::Unbounded,
            "messages" | "input" | "inputs" | "images" | "documents" | "instances" | "requests" | "content"
            | "contents" | "chat_history" | "system" | "systeminstruction" | "system_instruction" => Self::Messages,
            _ => Self::Other,
        }
    }
}

/// Returns true for fields of messages whose values are text for the model, or no input of the model: arguments and
/// results of tools, and notes about the message.
pub fn is_data(field: &str) -> bool {
    matches!(
        field,
        "input"
            | "args"
            | "arguments"
            | "response"
            | "json"
            | "schema"
            | "parameters"
            | "action"
            | "operation"
            | "annotations"
            | "citations"
            | "cache_control"
            | "cachePoint"
            | "caller"
            | "logprobs"
    )
}

/// Returns true for types of images in messages.
pub fn is_image(kind: &str) -> bool {
    matches!(kind, "image_url" | "input_image" | "image" | "computer_screenshot")
}

/// Returns true for types of objects in messages that have at most one token for each byte. An empty type stands for
/// an object without one.
pub fn is_bounded(kind: &str) -> bool {
    const SUFFIXES: [&str; 2] = ["_call", "_call_output"];
    const CALLS: [&str; 6] = ["function", "custom_tool", "local_shell", "shell", "apply_patch", "computer"];
    let is_call = || SUFFIXES.iter().any(|suffix| kind.strip_suffix(suffix).is_some_and(|name| CALLS.contains(&name)));
    matches!(
        kind,
        "" | "text"
            | "input_text"
            | "output_text"
            | "summary_text"
            | "reasoning_text"
            | "refusal"
            | "message"
            | "thinking"
            | "redacted_thinking"
            | "reasoning"
            | "compaction"
            | "tool_use"
            | "tool_result"
            | "tool_reference"
            | "search_result"
            | "function"
            | "custom"
            | "input_audio"
            | "base64"
            | "url"
            | "content"
    ) || is_call()
}
