//! What calls of tools are named: an id that its provider would refuse has another, the same for a call and what came of it.

use std::borrow::Cow;

/// Which ids a provider takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// At most so many letters, digits, dashes and underscores.
    Name(usize),
    /// At most so many bytes, whatever they are.
    Short(usize),
    /// Nine letters and digits.
    Nine,
}

/// Anthropic says no length, and Amazon does.
pub const CLAUDE: Form = Form::Name(64);
pub const OPENAI: Form = Form::Short(40);
pub const MISTRAL: Form = Form::Nine;

/// Where chats are held as `OpenAI` holds them: whoever hosts Mistral's models may be as strict as their maker.
pub fn of_chat(model: &str) -> Form {
    // Mistral, Ministral, Magistral, Codestral, Devstral; Mixtral, Pixtral, Voxtral.
    if model.contains("stral") || model.contains("xtral") { MISTRAL } else { OPENAI }
}

impl Form {
    fn takes(self, id: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric();
        match self {
            Self::Name(most) => {
                (1..=most).contains(&id.len()) && id.bytes().all(|byte| is_plain(byte) || matches!(byte, b'-' | b'_'))
            }
            Self::Short(most) => id.len() <= most,
            Self::Nine => id.len() == LETTERS && id.bytes().all(is_plain),
        }
    }

    /// The id itself where it is taken, or else one that every form takes and that the same id always has.
    pub fn fit(self, id: &str) -> Cow<'_, str> {
        if self.takes(id) { Cow::Borrowed(id) } else { Cow::Owned(named(id)) }
    }
}

const LETTERS: usize = 9;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Nine letters and digits out of a hash (FNV-1a), which must be the same in every version and on every machine.
fn named(id: &str) -> String {
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // The highest bits of that are its best.
    let mut rest = hash ^ (hash >> 32);
    let letter = |_| {
        let letter = ALPHABET[(rest % 62) as usize];
        rest /= 62;
        char::from(letter)
    };
    (0..LETTERS).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_fits_stays_and_another_becomes_one_that_fits_everywhere() {
        for (form, fitting) in [
            (CLAUDE, vec!["toolu_01-A", "call_PTLP8xhuLmLmLmLmLmLmLmLm"]),
            (MISTRAL, vec!["D681PevKs", "000000000"]),
            (OPENAI, vec!["functions.f:0", "call_PTLP8xhuLmLmLmLmLmLmLmLm", ""]),
        ] {
            for id in fitting {
                assert_eq!(form.fit(id), id, "{form:?}");
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
            let fitted = form.fit(id);
            assert_ne!(fitted, id, "{form:?}");
            assert_eq!(fitted, form.fit(id));
            assert!([CLAUDE, OPENAI, MISTRAL].iter().all(|one| one.takes(&fitted)), "{fitted}");
        }
    }

    #[test]
    fn models_of_mistrals_are_known_by_their_names() {
        for model in ["mistralai.mistral-large-2411", "open-mixtral-8x22b", "mistralai/Devstral-Small"] {
            assert_eq!(of_chat(model), MISTRAL);
        }
        assert_eq!(of_chat("gpt-5"), OPENAI);
    }

    #[test]
    fn ids_that_differ_stay_apart() {
        let ids: std::collections::HashSet<_> = (0..20_000).map(|n| named(&format!("functions.f:{n}"))).collect();
        assert_eq!(ids.len(), 20_000);
    }
}
