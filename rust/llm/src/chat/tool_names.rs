//! Replaces tool names that the provider would reject with short names. Restores the client's names in the tool calls
//! of the response.

use std::borrow::Cow;

use super::call_ids::hash_id;

/// Format of the tool names that a provider accepts.
#[derive(Debug, Clone, Copy)]
pub struct ToolNameFormat {
    max_length: usize,
    /// Characters that are allowed besides letters, digits, underscores and dashes.
    punctuation: &'static str,
    must_start_with_letter: bool,
}

/// Format that both `OpenAI` and Amazon document.
pub const OPENAI: ToolNameFormat = ToolNameFormat { max_length: 64, punctuation: "", must_start_with_letter: false };
pub const CLAUDE: ToolNameFormat = ToolNameFormat { max_length: 128, ..OPENAI };
pub const GEMINI: ToolNameFormat = ToolNameFormat { punctuation: ".:", must_start_with_letter: true, ..OPENAI };

impl ToolNameFormat {
    fn accepts(self, name: &str) -> bool {
        let is_allowed = |character: char| {
            character.is_ascii_alphanumeric() || matches!(character, '_' | '-') || self.punctuation.contains(character)
        };
        let is_valid_start = |character: char| character.is_ascii_alphabetic() || character == '_';
        name.len() <= self.max_length
            && name.chars().all(is_allowed)
            && (!self.must_start_with_letter || name.chars().next().is_none_or(is_valid_start))
    }

    /// Returns the name itself if it is accepted. Otherwise returns a replacement that is always the same for the same
    /// name: its beginning, and a hash of all of it.
    pub fn normalise_name(self, name: &str) -> Cow<'_, str> {
        if self.accepts(name) {
            return Cow::Borrowed(name);
        }
        let plain = |character: char| {
            if character.is_ascii_alphanumeric() || matches!(character, '_' | '-') { character } else { '_' }
        };
        let hash = hash_id(name);
        let starts_well = name.starts_with(|character: char| character.is_ascii_alphabetic());
        let start = if self.must_start_with_letter && !starts_well { "_" } else { "" };
        let length = self.max_length - hash.len() - 1 - start.len();
        let remaining: String = name.chars().take(length).map(plain).collect();
        Cow::Owned(format!("{start}{remaining}_{hash}"))
    }
}

/// Name of a tool in the request to the provider, and the client's name that it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenamedTool {
    pub sent: String,
    pub original: String,
}

/// Returns the client's name for the name in a tool call.
pub fn original_name<'n>(renamed: &'n [RenamedTool], sent: &'n str) -> &'n str {
    renamed.iter().find(|tool| tool.sent == sent).map_or(sent, |tool| &tool.original)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_only_names_that_the_provider_rejects() {
        let long = format!("mcp__documents__{}", "search_".repeat(20));
        for (format, accepted, rejected) in [
            (OPENAI, "read_file-2", "fs.read"),
            (OPENAI, "", &*long),
            (CLAUDE, &long[..128], "fs:read"),
            (GEMINI, "fs.read:all", "2fast"),
            (GEMINI, "_x", &*long),
        ] {
            assert_eq!(format.normalise_name(accepted), accepted, "{format:?}");
            let sent = format.normalise_name(rejected);
            assert!(sent != rejected && format.accepts(&sent), "{sent}");
            assert_eq!(sent, format.normalise_name(rejected), "the same name gives the same replacement");
        }
        let other = format!("{long}x");
        assert_ne!(OPENAI.normalise_name(&long), OPENAI.normalise_name(&other));
    }
}
