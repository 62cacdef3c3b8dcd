//! Names of fields and types in the JSON bodies of requests, grouped by their effect on the highest usage of a request.

use std::borrow::Cow;

use penstock_llm::operation::Operation;

/// Types of tools that the client runs.
const CLIENT_TOOLS: [&str; 6] =
    ["function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview"];
/// Prefixes of further types of tools that the client runs.
const CLIENT_TOOL_PREFIXES: [&str; 4] = ["bash_", "text_editor_", "computer_", "memory_"];
/// Fields of those tools without a type that the client runs. A cache point is an entry of Bedrock's list of tools.
const CLIENT_TOOL_FIELDS: [&str; 4] = ["functionDeclarations", "function_declarations", "toolSpec", "cachePoint"];

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
    /// Documents that a request ranks or refers to. Their entries are text with any fields.
    Documents,
    /// API version of Claude's bodies in Bedrock.
    ClaudeVersion,
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
            "messages" | "input" | "inputs" | "images" | "instances" | "requests" | "content" | "contents"
            | "chat_history" | "system" | "systeminstruction" | "system_instruction" => Self::Messages,
            "documents" => Self::Documents,
            "anthropic_version" => Self::ClaudeVersion,
            _ => Self::Other,
        }
    }
}

/// Which targets respect a limit on the tokens of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputLimitKind {
    /// All targets, because it is the limit of the client's API format, which translations keep.
    Own,
    /// Models of one vendor at Bedrock, except Claude models with the Messages API.
    Vendor,
    /// Some targets. Others ignore it, and translations drop it.
    Foreign,
}

impl OutputLimitKind {
    /// Returns the kind of limit that a field sets. `object` is the path of the object that contains the field; it is
    /// empty at the top level. Names in another case are foreign, because few targets know them.
    pub fn from_field(operation: Operation, object: &str, name: &str) -> Self {
        let is_own = match operation {
            Operation::ChatComplete => object.is_empty() && matches!(name, "max_tokens" | "max_completion_tokens"),
            Operation::CreateModelResponse => object.is_empty() && name == "max_output_tokens",
            Operation::Complete | Operation::Messages | Operation::InvokeModel | Operation::InvokeModelStream => {
                object.is_empty() && name == "max_tokens"
            }
            Operation::GenerateContent | Operation::StreamGenerateContent => {
                matches!(object, "generationConfig" | "generation_config")
                    && matches!(name, "maxOutputTokens" | "max_output_tokens")
            }
            Operation::Converse | Operation::ConverseStream => object == "inferenceConfig" && name == "maxTokens",
            _ => false,
        };
        let is_invoke = matches!(operation, Operation::InvokeModel | Operation::InvokeModelStream);
        if is_own {
            Self::Own
        } else if is_invoke && is_vendor_limit(object, name) {
            Self::Vendor
        } else {
            Self::Foreign
        }
    }
}

/// Returns true if a field limits the output tokens in an `InvokeModel` body for another vendor than Anthropic, or for an
/// old Claude model. `object` is the object that contains the field; it is empty at the top level.
fn is_vendor_limit(object: &str, name: &str) -> bool {
    match object {
        "" => matches!(name, "max_tokens_to_sample" | "max_gen_len" | "maxTokens"),
        "textGenerationConfig" => name == "maxTokenCount",
        "inferenceConfig" => matches!(name, "maxTokens" | "max_new_tokens"),
        _ => false,
    }
}

/// Returns true for objects at the top level in which an API format has its limit on the tokens of a response.
pub fn contains_output_limit(object: &str) -> bool {
    matches!(object, "generationConfig" | "generation_config" | "inferenceConfig" | "textGenerationConfig")
}

/// Returns the type of a tool that the provider runs, or the field that names it. `None` if the client runs the tool.
/// `names` are the fields of the tool that have a value.
pub fn find_provider_tool<'t>(
    operation: Operation,
    kind: Option<&'t str>,
    names: &'t [Cow<'_, str>],
) -> Option<&'t str> {
    // Each field of an entry is a tool of its own in these formats, whatever the entry's other fields are.
    let is_named_by_field = matches!(
        operation,
        Operation::GenerateContent | Operation::StreamGenerateContent | Operation::Converse | Operation::ConverseStream
    );
    let mut names = names.iter().map(|name| &**name);
    match kind.filter(|_| !is_named_by_field) {
        Some(kind) => {
            let is_client_tool =
                CLIENT_TOOLS.contains(&kind) || CLIENT_TOOL_PREFIXES.iter().any(|prefix| kind.starts_with(prefix));
            (!is_client_tool).then_some(kind)
        }
        // In Anthropic's format, a tool with `input_schema` is run by the client.
        None if !is_named_by_field && names.clone().any(|name| name == "input_schema") => None,
        None => names.find(|name| !CLIENT_TOOL_FIELDS.contains(name)),
    }
}

/// Location of the content of a message part, judged by the names of its fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContentLocation {
    /// In the body, as base64.
    Bytes,
    /// In the body, as text or as fields.
    Text,
    /// At the provider, which stored it under an id.
    Stored,
    /// Anywhere.
    #[default]
    Unknown,
}

impl ContentLocation {
    /// `kind` is the type of the object, and `names` are those of its fields that have a value. `source` is the location
    /// of its field `source`.
    pub fn from_fields(kind: &str, names: &[Cow<'_, str>], source: Self) -> Self {
        let has = |name: &str| names.iter().any(|other| other == name);
        let has_only = |allowed: &[&str]| !names.is_empty() && names.iter().all(|name| allowed.contains(&&**name));
        // The provider looks up its reasoning by the id, unless the request repeats it.
        let is_reference = matches!(kind, "reasoning" | "compaction") && !has("encrypted_content") && !has("content");
        if has("id") && (is_reference || has_only(&["id", "type", "status"])) {
            Self::Stored
        } else if has_only(&["bytes"]) || (source == Self::Bytes && has_only(&["format", "source"])) {
            Self::Bytes
        } else if has("data") && has_only(&["id", "data"]) {
            Self::Text
        } else {
            Self::Unknown
        }
    }

    /// Returns true if content at this location has a bound as the value of this field: Bedrock's recordings, and
    /// documents in Cohere's results of tools.
    pub fn is_bounded_in(self, field: &str) -> bool {
        matches!((field, self), ("audio", Self::Bytes) | ("document", Self::Text))
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
            | "actions"
            | "operation"
            | "outcome"
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
    matches!(kind, "image_url" | "input_image" | "image" | "image_base64" | "computer_screenshot")
}

/// Returns true for types of files and recordings, which may have any number of tokens.
pub fn is_media(kind: &str) -> bool {
    matches!(kind.split(['_', '.']).next(), Some("audio" | "video" | "file" | "document" | "input" | "image"))
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
            | "reasoning.text"
            | "reasoning.summary"
            | "reasoning.encrypted"
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
