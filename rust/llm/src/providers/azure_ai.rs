//! Azure AI Foundry: one address for a customer's models of many vendors, Claude among them by Anthropic's own API.

use super::{
    Asked, BATCHES, CHAT, COMPLETE, Credential, EMBED, FILES, FINE_TUNING, Grant, Group, IMAGE, IMAGE_EDIT, Known, OCR,
    Options, Provider, RERANK, SPEECH, TRANSCRIBE,
    azure_openai::write_query,
    by_openai, entra,
    options::{joined, known},
};
use crate::{
    operation::Operation,
    translation::{
        self,
        wires::{Wire, chat, messages},
    },
};

pub(super) struct AzureAi;

const OPTIONS: [Known; 11] = joined(
    entra::OPTIONS,
    [
        known("azure_foundry_url", "azure-foundry-url"),
        known("api_version", "azure-api-version"),
        known("azure_ad_token", "azure-ad-token"),
        Known { key: "deployment_id", header: "azure-deployment-id", sent_as: Some("azureml-model-deployment") },
        Known { key: "azure_extra_parameters", header: "azure-extra-parameters", sent_as: Some("extra-parameters") },
    ],
);

impl Provider for AzureAi {
    fn slug(&self) -> &'static str {
        "azure-ai"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[CHAT, COMPLETE, EMBED, IMAGE, IMAGE_EDIT, SPEECH, TRANSCRIBE, OCR, RERANK, FILES, BATCHES, FINE_TUNING]
    }

    fn options(&self) -> &'static [Known] {
        &OPTIONS
    }

    fn base(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let url = options.get("azure_foundry_url").ok_or("no foundry: send x-gateway-azure-foundry-url")?;
        let url = url.trim_end_matches('/');
        if !url.starts_with("https://") {
            return Err("azure_foundry_url must begin with https://".into());
        }
        // What is no inference belongs to the resource.
        let origin = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        Ok(Some(if is_of_resource(operation) { format!("{origin}/openai") } else { url.to_owned() }))
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        match operation {
            Operation::Messages if is_claude(model) => None,
            _ if is_claude(model) && translation::is_talk(operation) => Some(&messages::ANTHROPIC),
            _ => by_openai(self.offers(), operation).then_some(&chat::COMPATIBLE),
        }
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        let path = match asked.operation {
            _ if is_claude(asked.model) && translation::is_talk(asked.operation) => "/v1/messages",
            operation => self.path(operation).unwrap_or(asked.path),
        };
        out.extend_from_slice(path.as_bytes());
        write_query(asked, options.get("api_version"), out);
        Ok(())
    }

    fn credential(&self, _key: &str, prefix: &str) -> Credential {
        if is_anthropics(prefix) { Credential::Header("x-api-key") } else { Credential::Bearer }
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        if self.token(options).is_some() { Ok(None) } else { entra::grant(options) }
    }

    fn token<'o>(&self, options: &'o Options) -> Option<&'o str> {
        options.get("azure_ad_token")
    }

    fn required_header(&self, prefix: &str) -> Option<(&'static str, &'static str)> {
        // What a model does not know is no reason to refuse a request.
        Some(if is_anthropics(prefix) { ("anthropic-version", "2023-06-01") } else { ("extra-parameters", "drop") })
    }
}

fn is_claude(model: &str) -> bool {
    model.contains("claude")
}

fn is_anthropics(prefix: &str) -> bool {
    prefix.contains("anthropic")
}

fn is_of_resource(operation: Operation) -> bool {
    [FILES, BATCHES, FINE_TUNING].iter().any(|group| group.contains(&operation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Stated;

    fn options(given: &[(&str, &str)]) -> Options {
        Options::of(&OPTIONS, given)
    }

    fn target(operation: Operation, path: &str, model: &str) -> String {
        let asked = Asked {
            operation,
            path,
            query: "",
            prefix: "",
            model,
            user: "",
            streams: false,
            begun: false,
            stated: Stated::default(),
        };
        let mut out = Vec::new();
        AzureAi.write_target(&asked, &options(&[("api_version", "2024-05-01-preview")]), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_model_of_anthropics_is_asked_by_anthropics_path() {
        let chat = "/chat/completions";
        let version = "?api-version=2024-05-01-preview";
        assert_eq!(target(Operation::ChatComplete, chat, "gpt-4o"), format!("{chat}{version}"));
        assert_eq!(target(Operation::Messages, "/messages", "gpt-4o"), format!("{chat}{version}"));
        for (operation, path) in [(Operation::Messages, "/messages"), (Operation::ChatComplete, chat)] {
            assert_eq!(target(operation, path, "claude-opus-4-1"), format!("/v1/messages{version}"));
        }
        assert_eq!(AzureAi.credential("k", "/anthropic"), Credential::Header("x-api-key"));
        assert_eq!(AzureAi.credential("k", "/models"), Credential::Bearer);
    }

    #[test]
    fn files_belong_to_the_resource_and_not_to_its_models() {
        let given = options(&[("azure_foundry_url", "https://res.services.ai.azure.com/models/")]);
        let base = |operation| AzureAi.base(operation, &given).unwrap().unwrap();
        assert_eq!(base(Operation::ChatComplete), "https://res.services.ai.azure.com/models");
        for operation in [Operation::UploadFile, Operation::ListFinetuneCheckpoints] {
            assert_eq!(base(operation), "https://res.services.ai.azure.com/openai");
        }
        assert!(AzureAi.base(Operation::Embed, &options(&[])).unwrap_err().contains("x-gateway-azure-foundry-url"));
    }
}
