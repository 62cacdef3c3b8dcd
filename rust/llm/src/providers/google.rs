//! Google AI Studio: Gemini, the model in the path, the key in a header of its own.

use super::{Asked, Credential, Group, Options, Provider, segment};
use crate::{
    operation::Operation,
    translation::{
        self,
        wires::{Wire, gemini::Gemini},
    },
};

pub(super) struct Google;

impl Provider for Google {
    fn slug(&self) -> &'static str {
        "google"
    }

    fn base_url(&self) -> &'static str {
        "https://generativelanguage.googleapis.com"
    }

    fn offers(&self) -> &'static [Group] {
        &[]
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        (translation::is_talk(operation) || operation == Operation::Embed).then_some(&Gemini)
    }

    fn write_target(&self, asked: &Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if self.wire(asked.operation, asked.model).is_none() {
            super::write_path(self, asked, out);
            return Ok(());
        }
        let model = segment::model(asked.model.strip_prefix("models/").unwrap_or(asked.model))?;
        // Who brought the version with the address says it once.
        let version = if asked.prefix.ends_with("/v1beta") { "" } else { "/v1beta" };
        let path = format!("{version}/models/{model}:{}", verb_of(asked));
        out.extend_from_slice(path.as_bytes());
        Ok(())
    }

    fn credential(&self, _key: &str) -> Credential {
        Credential::Header("x-goog-api-key")
    }
}

fn verb_of(asked: &Asked<'_>) -> &'static str {
    if asked.operation == Operation::Embed { "batchEmbedContents" } else { verb(asked.streams) }
}

/// What is done with the model, and how a stream of it comes.
pub(super) fn verb(streams: bool) -> &'static str {
    if streams { "streamGenerateContent?alt=sse" } else { "generateContent" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Stated;

    fn target(model: &str, streams: bool) -> Result<String, String> {
        let (operation, stated) = (Operation::ChatComplete, Stated::default());
        let asked = Asked { operation, path: "/chat/completions", query: "", prefix: "", model, streams, stated };
        let mut out = Vec::new();
        Google.write_target(&asked, &Options::default(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_model_is_a_segment_of_the_path_whatever_it_is_called() {
        assert_eq!(target("gemini-2.5-pro", false).unwrap(), "/v1beta/models/gemini-2.5-pro:generateContent");
        assert!(target("models/gemini-2.5-pro", true).unwrap().ends_with("pro:streamGenerateContent?alt=sse"));
        assert_eq!(target("a/../b?x", false).unwrap(), "/v1beta/models/a%2F..%2Fb%3Fx:generateContent");
        assert!(target("", false).unwrap_err().contains("no model") && target("..", false).is_err());
    }
}
