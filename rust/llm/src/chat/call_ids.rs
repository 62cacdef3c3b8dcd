//! Tool call ids. An id that the provider would reject is replaced, in the same way for a tool call and its result.

use std::borrow::Cow;

/// Format of the ids that a provider accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallIdFormat {
    /// One to this many letters, digits, dashes and underscores.
    Identifier(usize),
    /// At most this many bytes of any kind.
    MaxBytes(usize),
    /// Exactly nine letters and digits.
    NineAlphanumeric,
}

/// Format for Claude models. Anthropic documents no maximum length, but Amazon does.
pub const CLAUDE: CallIdFormat = CallIdFormat::Identifier(64);
pub const OPENAI: CallIdFormat = CallIdFormat::MaxBytes(40);
pub const MISTRAL: CallIdFormat = CallIdFormat::NineAlphanumeric;

/// Returns the id format for a model behind the `OpenAI` chat API. Hosts of Mistral's models may be as strict as
/// Mistral.
pub fn for_chat_model(model: &str) -> CallIdFormat {
    // Matches Mistral, Ministral, Magistral, Codestral, Devstral; Mixtral, Pixtral, Voxtral.
    if model.contains("stral") || model.contains("xtral") { MISTRAL } else { OPENAI }
}

impl CallIdFormat {
    fn accepts(self, id: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric();
        match self {
            Self::Identifier(max_bytes) => {
                (1..=max_bytes).contains(&id.len())
                    && id.bytes().all(|byte| is_plain(byte) || matches!(byte, b'-' | b'_'))
            }
            Self::MaxBytes(max_bytes) => id.len() <= max_bytes,
            Self::NineAlphanumeric => id.len() == HASHED_ID_LENGTH && id.bytes().all(is_plain),
        }
    }

    /// Returns the id itself if it is accepted. Otherwise returns a replacement that every format accepts, and that is
    /// always the same for the same id.
    pub fn normalise_id(self, id: &str) -> Cow<'_, str> {
        if self.accepts(id) { Cow::Borrowed(id) } else { Cow::Owned(hash_id(id)) }
    }
}

/// Shortens a text to `max_chars` characters: its beginning, and a hash of the whole text. The result is always the
/// same for the same text. Returns `None` if the text is short enough.
pub(super) fn shorten(text: &str, max_chars: usize) -> Option<String> {
    if text.chars().count() <= max_chars {
        return None;
    }
    let remaining: String = text.chars().take(max_chars - HASHED_ID_LENGTH - 1).collect();
    Some(format!("{remaining}_{}", hash_id(text)))
}

const HASHED_ID_LENGTH: usize = 9;
const BASE62_ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Hashes an id (FNV-1a) to nine letters and digits. The result must be the same in every version and on every machine.
pub(super) fn hash_id(id: &str) -> String {
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // Mixes in the high bits, which are the best distributed ones.
    let mut rest = hash ^ (hash >> 32);
    let letter = |_| {
        let letter = BASE62_ALPHABET[(rest % 62) as usize];
        rest /= 62;
        char::from(letter)
    };
    (0..HASHED_ID_LENGTH).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_only_ids_that_the_format_rejects() {
        for (form, fitting) in [
            (CLAUDE, vec!["toolu_01-A", "call_PTLP8xhuLmLmLmLmLmLmLmLm"]),
            (MISTRAL, vec!["D681PevKs", "000000000"]),
            (OPENAI, vec!["functions.f:0", "call_PTLP8xhuLmLmLmLmLmLmLmLm", ""]),
        ] {
            for id in fitting {
                assert_eq!(form.normalise_id(id), id, "{form:?}");
            }
        }
        let long = "x".repeat(65);
        for (form, id) in [
            (CLAUDE, "functions.f:0"),
            (CLAUDE, ""),
            (CLAUDE, &long),
            (CLAUDE, "é"),
            (OPENAI, &long),
            (MISTRAL, "call_PTLP8xhu"),
            (MISTRAL, "abc-efghi"),
            (MISTRAL, ""),
        ] {
            let fitted = form.normalise_id(id);
            assert_ne!(fitted, id, "{form:?}");
            assert_eq!(fitted, form.normalise_id(id));
            assert!([CLAUDE, OPENAI, MISTRAL].iter().all(|one| one.accepts(&fitted)), "{fitted}");
        }
    }

    #[test]
    fn recognizes_mistral_models_by_name() {
        for model in ["mistralai.mistral-large-2411", "open-mixtral-8x22b", "mistralai/Devstral-Small"] {
            assert_eq!(for_chat_model(model), MISTRAL);
        }
        assert_eq!(for_chat_model("gpt-5"), OPENAI);
    }

    #[test]
    fn distinct_ids_stay_distinct() {
        let ids: std::collections::HashSet<_> = (0..20_000).map(|n| hash_id(&format!("functions.f:{n}"))).collect();
        assert_eq!(ids.len(), 20_000);
    }
}
