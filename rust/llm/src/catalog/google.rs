//! Google AI Studio: Gemini, the model in the path, the key in a header of its own.

use super::{Asked, Credential, GEMINI, GEMINI_COUNT, GEMINI_EMBED, Group, Options, Provider, is_in};
use crate::catalog::path_segment;
use crate::{
    chat::providers::{Wire, gemini},
    images::image_formats,
    operation::Operation,
    translation::{self},
};

pub(crate) struct Google;

impl Provider for Google {
    fn slug(&self) -> &'static str {
        "google"
    }

    fn base_url(&self) -> &'static str {
        "https://generativelanguage.googleapis.com"
    }

    fn offers(&self) -> &'static [Group] {
        &[GEMINI, GEMINI_EMBED, GEMINI_COUNT]
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        match operation {
            own if is_in(self.offers(), own) => None,
            Operation::ImageGenerate => Some(painting(model)),
            Operation::Embed | Operation::Models => Some(&gemini::STUDIO),
            operation if operation.counts_tokens() => Some(&gemini::STUDIO),
            _ => translation::is_talk(operation).then_some(&gemini::STUDIO),
        }
    }

    fn write_target(&self, asked: &Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        let stated = asked.stated.google.map_or("/v1beta", |stated| stated.version);
        // Vertex AI's preview has a name of its own.
        // What thinks as an experiment is known to the first version alone.
        let is_alpha = stated == "/v1alpha" || asked.model.contains("gemini-2.0-flash-thinking-exp");
        let version = if is_alpha { "/v1alpha" } else { "/v1beta" };
        // Who brought the version with the address says it once.
        let is_said = ["/v1beta", "/v1alpha"].iter().any(|version| asked.prefix.ends_with(version));
        let version = if is_said { "" } else { version };
        if asked.operation == Operation::Models {
            out.extend_from_slice(format!("{version}/models?pageSize=1000").as_bytes());
            crate::catalog::model_lists::write_next(asked, "pageToken", out);
            return Ok(());
        }
        let is_its_own = is_in(self.offers(), asked.operation);
        if self.wire(asked.operation, asked.model).is_none() && !is_its_own {
            super::write_path(self, asked, out);
            return Ok(());
        }
        let model = path_segment::model(asked.model.strip_prefix("models/").unwrap_or(asked.model))?;
        out.extend_from_slice(format!("{version}/models/{model}:").as_bytes());
        if is_its_own {
            write_own(asked, out);
        } else {
            out.extend_from_slice(verb_of(asked).as_bytes());
        }
        Ok(())
    }

    fn named_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        path_segment::after(path, &["/models/", "/tunedModels/"])
    }

    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        Credential::Header("x-goog-api-key")
    }
}

/// What its own clients ask for, in the way that they chose.
pub(crate) fn write_own(asked: &Asked<'_>, out: &mut Vec<u8>) {
    let verb = match asked.operation {
        Operation::StreamGenerateContent => "streamGenerateContent",
        Operation::EmbedContent => "embedContent",
        Operation::BatchEmbedContents => "batchEmbedContents",
        Operation::CountTokens => "countTokens",
        _ => "generateContent",
    };
    out.extend_from_slice(verb.as_bytes());
    if !asked.query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(asked.query.as_bytes());
    }
}

/// What is done with the model, and how a stream of it comes.
pub(crate) fn verb_of(asked: &Asked<'_>) -> &'static str {
    match asked.operation {
        Operation::Embed => "batchEmbedContents",
        operation if operation.counts_tokens() => "countTokens",
        Operation::ImageGenerate if !is_gemini(asked.model) => "predict",
        _ if asked.streams => "streamGenerateContent?alt=sse",
        _ => "generateContent",
    }
}

/// How a model is asked for images.
pub(crate) fn painting(model: &str) -> &'static dyn Wire {
    if is_gemini(model) { &image_formats::GEMINI } else { &image_formats::IMAGEN }
}

fn is_gemini(model: &str) -> bool {
    model.contains("gemini")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{OfGoogle, Stated};

    fn target(model: &str, streams: bool) -> Result<String, String> {
        let operation = Operation::ChatComplete;
        let asked = Asked { streams, ..Asked::of(operation, "/chat/completions", model) };
        let mut out = Vec::new();
        Google.write_target(&asked, &Options::default(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_model_is_a_segment_of_the_path_whatever_it_is_called() {
        assert_eq!(target("gemini-2.5-pro", false).unwrap(), "/v1beta/models/gemini-2.5-pro:generateContent");
        assert!(target("models/gemini-2.5-pro", true).unwrap().ends_with("pro:streamGenerateContent?alt=sse"));
        let thinks = "gemini-2.0-flash-thinking-exp-01-21";
        assert_eq!(target(thinks, false).unwrap(), format!("/v1alpha/models/{thinks}:generateContent"));
        assert_eq!(target("a/../b?x", false).unwrap(), "/v1beta/models/a%2F..%2Fb%3Fx:generateContent");
        assert!(target("", false).unwrap_err().contains("no model") && target("..", false).is_err());
    }

    #[test]
    fn its_own_client_is_asked_in_the_version_that_it_names() {
        for (version, prefix, sent) in [
            ("/v1alpha", "", "/v1alpha/models/g:generateContent"),
            ("/v1alpha", "/x/v1alpha", "/models/g:generateContent"),
            ("/v1beta", "", "/v1beta/models/g:generateContent"),
            ("/v1beta1", "", "/v1beta/models/g:generateContent"),
        ] {
            let google = Some(OfGoogle { version, place: None });
            let asked = Asked::of(Operation::GenerateContent, "/models/g:generateContent", "g");
            let asked = Asked { prefix, stated: Stated { google, ..asked.stated }, ..asked };
            let mut out = Vec::new();
            Google.write_target(&asked, &Options::default(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), sent);
        }
    }
}
