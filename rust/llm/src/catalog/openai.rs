//! `OpenAI`: the default behaviour, all of its operations, and the headers that select the organization and the project
//! to bill.

use super::{
    BATCHES, CHAT, COMPLETIONS, EMBED, FILES, FINE_TUNING, IMAGE_EDIT, IMAGE_GENERATION, OperationGroup, OptionField,
    Provider, REALTIME, RESPONSES, SPEECH, TRANSCRIPTION, options::forwarded_option,
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

impl Provider for OpenAi {
    fn slug(&self) -> &'static str {
        "openai"
    }

    fn base_url(&self) -> &'static str {
        "https://api.openai.com/v1"
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        NATIVE_OPERATIONS
    }

    fn options(&self) -> &'static [OptionField] {
        OPTIONS
    }
}
