//! `OpenAI`: the behaviour that is the default, all of its operations, and the headers that say whose account pays.

use super::{
    BATCHES, CHAT, COMPLETE, EMBED, FILES, FINE_TUNING, Group, IMAGE, IMAGE_EDIT, Known, Provider, REALTIME, RESPONSES,
    SPEECH, TRANSCRIBE, options::sent,
};

pub(crate) struct OpenAi;

/// What both `OpenAI` and its API at Azure offer.
pub(crate) const OFFERS: &[Group] =
    &[CHAT, RESPONSES, EMBED, COMPLETE, IMAGE, IMAGE_EDIT, SPEECH, TRANSCRIBE, FILES, BATCHES, FINE_TUNING, REALTIME];

const OPTIONS: &[Known] = &[
    sent("openai_organization", "openai-organization"),
    sent("openai_project", "openai-project"),
    sent("openai_beta", "openai-beta"),
];

impl Provider for OpenAi {
    fn slug(&self) -> &'static str {
        "openai"
    }

    fn base_url(&self) -> &'static str {
        "https://api.openai.com/v1"
    }

    fn offers(&self) -> &'static [Group] {
        OFFERS
    }

    fn options(&self) -> &'static [Known] {
        OPTIONS
    }
}
