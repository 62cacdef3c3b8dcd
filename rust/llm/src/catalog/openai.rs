//! `OpenAI`: the default behaviour, all of its operations, and the headers that select the organization and the project
//! to bill.

use crate::catalog::{
    operation_groups::{
        BATCHES, CHAT, COMPLETIONS, EMBED, FILES, FINE_TUNING, IMAGE_EDIT, IMAGE_GENERATION, OperationGroup, REALTIME,
        RESPONSES, SPEECH, TRANSCRIPTION,
    },
    options::{OptionField, forwarded_option},
    provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels},
    row::ProviderRow,
};

pub(crate) struct OpenAi;

/// Operations of both `OpenAI` and its API on Azure.
pub(crate) const NATIVE_OPERATIONS: &[OperationGroup] = &[
    CHAT,
    RESPONSES,
    EMBED,
    COMPLETIONS,
    IMAGE_GENERATION,
    IMAGE_EDIT,
    SPEECH,
    TRANSCRIPTION,
    FILES,
    BATCHES,
    FINE_TUNING,
    REALTIME,
];

const OPTIONS: &[OptionField] = &[
    forwarded_option("openai_organization", "openai-organization"),
    forwarded_option("openai_project", "openai-project"),
    forwarded_option("openai_beta", "openai-beta"),
];

static ROW: ProviderRow = ProviderRow {
    options: OPTIONS,
    hides_searches: true,
    // Newer models reject `max_tokens`.
    chat_output_limit: "max_completion_tokens",
    ..ProviderRow::new("openai", "https://api.openai.com/v1", NATIVE_OPERATIONS)
};

impl ProviderFormats for OpenAi {
    fn row(&self) -> &ProviderRow {
        &ROW
    }
}

impl ProviderAddress for OpenAi {}

impl ProviderCredentials for OpenAi {}

impl ProviderModels for OpenAi {}
