//! Azure AI Foundry: one address for a customer's models of many vendors, Claude among them by Anthropic's own API.

use super::{
    Asked, BATCHES, CHAT, COMPLETE, Credential, EMBED, FILES, FINE_TUNING, Grant, Group, IMAGE, IMAGE_EDIT, Known, OCR,
    Options, Provider, REALTIME, RERANK, RESPONSES, SPEECH, Stated, TRANSCRIBE,
    azure_openai::{self, write_query},
    by_openai, entra,
    options::{joined, known, sent},
};
use crate::catalog::{
    param_map::{self, USUAL, Wording},
    path_segment,
};
use crate::{
    chat::providers::{Wire, anthropic_messages, openai_chat},
    operation::Operation,
    translation::{self},
};

pub(crate) struct AzureAi;

const OPTIONS: [Known; 20] = joined(
    entra::OPTIONS,
    [
        known("azure_foundry_url", "azure-foundry-url"),
        known("azure_endpoint_name", "azure-endpoint-name"),
        known("azure_region", "azure-region"),
        known("azure_deployment_type", "azure-deployment-type"),
        Known {
            key: "azure_deployment_name",
            header: "azure-deployment-name",
            sent_as: Some("azureml-model-deployment"),
        },
        known("api_version", "azure-api-version"),
        known("azure_ad_token", "azure-ad-token"),
        Known { key: "deployment_id", header: "azure-deployment-id", sent_as: Some("azureml-model-deployment") },
        Known { key: "azure_extra_params", header: "azure-extra-params", sent_as: Some("extra-parameters") },
        sent("anthropic_version", "anthropic-version"),
        RESPONSES_PROXY,
    ],
);

/// Responses are asked for of the resource's own API, and not told in chat completions, which all models have.
const RESPONSES_PROXY: Known = known("provider_responses_proxy", "provider-responses-proxy");

impl Provider for AzureAi {
    fn slug(&self) -> &'static str {
        "azure-ai"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[
            CHAT,
            COMPLETE,
            EMBED,
            IMAGE,
            IMAGE_EDIT,
            SPEECH,
            TRANSCRIBE,
            OCR,
            RERANK,
            FILES,
            BATCHES,
            FINE_TUNING,
            REALTIME,
            // Making one takes an option.
            &[
                Operation::GetModelResponse,
                Operation::DeleteModelResponse,
                Operation::ListResponseInputItems,
                Operation::CancelModelResponse,
            ],
        ]
    }

    fn options(&self) -> &'static [Known] {
        &OPTIONS
    }

    fn base(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let url = options.get("azure_foundry_url").map_or_else(|| by_name(options), |url| Ok(url.to_owned()))?;
        let url = url.trim_end_matches('/');
        if !url.starts_with("https://") {
            return Err("azure_foundry_url must begin with https://".into());
        }
        // What is no inference belongs to the resource.
        let origin = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let is_of_others = OF_OTHERS.contains(&&url[origin.len()..]);
        Ok(Some(match of_maker(operation) {
            _ if is_of_resource(operation) => format!("{origin}/openai"),
            // What models there are is known to the resource; what runs one alone has no list.
            _ if operation == Operation::Models && is_resource(&origin) => format!("{origin}/openai"),
            _ if answers_itself(operation, options) && !is_anthropics(&url[origin.len()..]) => {
                format!("{origin}/openai")
            }
            // Below a resource, or alone.
            Some(path) if is_of_others => format!("{origin}{}", if is_resource(&origin) { path } else { "/v1" }),
            _ => url.to_owned(),
        }))
    }

    /// What its makers have APIs of their own for is not among the others of a resource.
    fn prefix(&self, operation: Operation, model: &str, prefix: &str) -> Option<&'static str> {
        let is_claudes = translation::is_talk(operation) && is_claude(model);
        // A host alone may be a model's, too.
        let path = if is_claudes { Some("/anthropic") } else { of_maker(operation).filter(|_| !prefix.is_empty()) };
        path.filter(|_| OF_OTHERS.contains(&prefix))
    }

    /// Its models are of many vendors, and so are their words.
    fn has_own_ends(&self) -> bool {
        true
    }

    fn wording(&self, _operation: Operation) -> &'static Wording {
        &USUAL
    }

    fn wording_of(&self, operation: Operation, model: &str) -> &'static Wording {
        param_map::of_many(self.wording(operation), operation, model)
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        match operation {
            Operation::Messages if is_claude(model) => None,
            _ if is_claude(model) && translation::is_talk(operation) => Some(&anthropic_messages::ANTHROPIC),
            _ => by_openai(self.offers(), operation).then(|| openai_chat::of_many(model) as &dyn Wire),
        }
    }

    /// What is asked at the address of Anthropic's models is theirs, whatever its deployment is called.
    fn wire_at(
        &self,
        operation: Operation,
        model: &str,
        (options, prefix): (&Options, &str),
    ) -> Option<&'static dyn Wire> {
        if answers_itself(operation, options) && !is_claude(model) && !is_anthropics(prefix) {
            return None;
        }
        self.wire(operation, if is_anthropics(prefix) { CLAUDE } else { model })
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if asked.operation == Operation::Realtime {
            azure_openai::write_session(asked, options.get("api_version"), out);
            return Ok(());
        }
        let is_claudes = is_claude(asked.model) || is_anthropics(asked.prefix);
        let is_list = asked.operation == Operation::Models && asked.prefix == "/openai";
        if is_list || is_kept(asked.operation) || answers_itself(asked.operation, options) && !is_claudes {
            let version = options.get("api_version").filter(|version| *version != "v1");
            let is_said = version.is_some() || asked.prefix.ends_with("/v1");
            out.extend_from_slice(if is_said { b"" } else { b"/v1" });
            out.extend_from_slice(asked.path.as_bytes());
            write_query(asked, version, out);
            return Ok(());
        }
        let path = match asked.operation {
            operation if translation::is_talk(operation) && is_claudes => "/v1/messages",
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

    fn leaves_blobs(&self) -> bool {
        true
    }

    fn token<'o>(&self, options: &'o Options) -> Option<&'o str> {
        options.get("azure_ad_token")
    }

    fn pinned<'o>(&self, options: &'o Options, _stated: Stated<'o>) -> Option<&'o str> {
        options.get("azure_deployment_name").or_else(|| options.get("deployment_id"))
    }

    fn required_header(&self, prefix: &str) -> Option<(&'static str, &'static str)> {
        // What a model does not know is no reason to refuse a request.
        Some(if is_anthropics(prefix) { ("anthropic-version", "2023-06-01") } else { ("extra-parameters", "drop") })
    }
}

/// Where models are that are named without their address: those of a resource, or one that was deployed alone.
fn by_name(options: &Options) -> Result<String, String> {
    match options.get("azure_deployment_type") {
        None => {
            let lacks = "no foundry: send x-gateway-azure-foundry-url or x-gateway-azure-endpoint-name";
            options.get("azure_endpoint_name").ok_or(lacks)?;
            Ok(format!("https://{}.services.ai.azure.com/models", label(options, "azure_endpoint_name")?))
        }
        Some("serverless") => {
            let (name, region) = (label(options, "azure_deployment_name")?, label(options, "azure_region")?);
            Ok(format!("https://{}.{region}.models.ai.azure.com", name.to_ascii_lowercase()))
        }
        Some("managed") => {
            let (name, region) = (label(options, "azure_endpoint_name")?, label(options, "azure_region")?);
            Ok(format!("https://{name}.{region}.inference.ml.azure.com"))
        }
        Some(other) => Err(format!("azure_deployment_type `{other}` must be serverless or managed")),
    }
}

/// What becomes part of a host.
fn label<'o>(options: &'o Options, key: &str) -> Result<&'o str, String> {
    let value = options.get(key).ok_or_else(|| format!("no {key}: send x-gateway-{}", key.replace('_', "-")))?;
    if path_segment::is_label(value) { Ok(value) } else { Err(format!("{key} must be letters, digits and dashes")) }
}

/// Below which a resource has the models of all others, or its address alone.
const OF_OTHERS: [&str; 4] = ["", "/models", "/openai", "/openai/v1"];

/// Where in a resource the API of its model's maker is, for what only that knows.
fn of_maker(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::Rerank => Some("/providers/cohere/v2"),
        Operation::Ocr => Some("/providers/mistral/azure"),
        _ => None,
    }
}

/// Whether an address is a resource's, and not that of a model that was deployed alone.
fn is_resource(origin: &str) -> bool {
    [".services.ai.azure.com", ".cognitiveservices.azure.com", ".openai.azure.com"]
        .iter()
        .any(|end| origin.ends_with(end))
}

/// In the names of all of Anthropic's models.
const CLAUDE: &str = "claude";

fn is_claude(model: &str) -> bool {
    model.contains(CLAUDE)
}

fn is_anthropics(prefix: &str) -> bool {
    prefix.contains("anthropic")
}

fn is_of_resource(operation: Operation) -> bool {
    [FILES, BATCHES, FINE_TUNING, REALTIME].iter().any(|group| group.contains(&operation)) || is_kept(operation)
}

/// Whether it is about a response that the resource keeps.
fn is_kept(operation: Operation) -> bool {
    operation != Operation::CreateModelResponse && RESPONSES.contains(&operation)
}

fn answers_itself(operation: Operation, options: &Options) -> bool {
    operation == Operation::CreateModelResponse && options.get(RESPONSES_PROXY.key) == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Stated;

    fn options(given: &[(&str, &str)]) -> Options {
        Options::of(&OPTIONS, given)
    }

    fn target(operation: Operation, path: &str, model: &str) -> String {
        let asked = Asked::of(operation, path, model);
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
        let deployed = Asked { prefix: "/anthropic", ..Asked::of(Operation::ChatComplete, chat, "our-best") };
        let mut out = Vec::new();
        AzureAi.write_target(&deployed, &options(&[]), &mut out).unwrap();
        assert_eq!(out, b"/v1/messages");
        let wire = |prefix| AzureAi.wire_at(Operation::ChatComplete, "our-best", (&options(&[]), prefix)).is_some();
        assert!(wire("/anthropic") && !wire("/models"));
        assert_eq!(AzureAi.credential("k", "/anthropic"), Credential::Header("x-api-key"));
        assert_eq!(AzureAi.credential("k", "/models"), Credential::Bearer);
    }

    #[test]
    fn what_a_maker_has_an_api_for_is_asked_by_that() {
        let base = |operation, url: &str| {
            let given = options(&[("azure_foundry_url", url)]);
            AzureAi.base(operation, &given).unwrap().unwrap()
        };
        for (url, rerank, ocr) in [
            ("https://r.services.ai.azure.com/models", "/providers/cohere/v2", "/providers/mistral/azure"),
            ("https://r.services.ai.azure.com", "/providers/cohere/v2", "/providers/mistral/azure"),
            ("https://d.eastus2.models.ai.azure.com", "/v1", "/v1"),
            ("https://d.eastus2.models.ai.azure.com/v1", "/v1", "/v1"),
            ("https://d.eastus2.models.ai.azure.com/v2", "/v2", "/v2"),
            ("https://apim.example/cohere/v2", "/cohere/v2", "/cohere/v2"),
        ] {
            let origin = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
            assert_eq!(base(Operation::Rerank, url), format!("{origin}{rerank}"));
            assert_eq!(base(Operation::Ocr, url), format!("{origin}{ocr}"));
        }
        let prefix = |operation, model, prefix| AzureAi.prefix(operation, model, prefix);
        for of_others in ["/models", "", "/openai/v1"] {
            assert_eq!(prefix(Operation::ChatComplete, "claude-opus-4-5", of_others), Some("/anthropic"));
            assert_eq!(prefix(Operation::Messages, "claude-opus-4-5", of_others), Some("/anthropic"));
            assert_eq!(prefix(Operation::ChatComplete, "gpt-5", of_others), None);
            assert_eq!(prefix(Operation::Embed, "claude-opus-4-5", of_others), None);
        }
        // As a host of the caller's own may say it.
        assert_eq!(prefix(Operation::Rerank, "rerank-v3", "/models"), Some("/providers/cohere/v2"));
        assert_eq!(prefix(Operation::Ocr, "mistral-ocr", "/openai/v1"), Some("/providers/mistral/azure"));
        for own in ["", "/v1", "/cohere/v2", "/providers/cohere/v2"] {
            assert_eq!(prefix(Operation::Rerank, "rerank-v3", own), None, "{own}");
        }
        assert_eq!(prefix(Operation::Messages, "claude-opus-4-5", "/mine"), None);
    }

    #[test]
    fn responses_are_the_resources_own_where_that_is_asked_for_and_always_once_they_are_kept() {
        let create = Operation::CreateModelResponse;
        let url = ("azure_foundry_url", "https://res.services.ai.azure.com/models");
        let own = ("provider_responses_proxy", "true");
        let dated = ("api_version", "2025-04-01-preview");
        let asked = |operation, path, model, given: &[(&str, &str)]| {
            let given = options(given);
            let base = AzureAi.base(operation, &given).unwrap().unwrap();
            let asked = Asked {
                prefix: &base["https://res.services.ai.azure.com".len()..],
                ..Asked::of(operation, path, model)
            };
            let mut out = base.clone().into_bytes();
            AzureAi.write_target(&asked, &given, &mut out).unwrap();
            let is_told = AzureAi.wire_at(operation, model, (&given, asked.prefix)).is_some();
            (String::from_utf8(out).unwrap().split_off("https://res.services.ai.azure.com".len()), is_told)
        };
        let found = |path: &str, is_told| (path.to_owned(), is_told);
        let path = "/responses";
        assert_eq!(asked(create, path, "gpt-5", &[url]), found("/models/chat/completions", true));
        assert_eq!(asked(create, path, "gpt-5", &[url, own]), found("/openai/v1/responses", false));
        let version = "/openai/responses?api-version=2025-04-01-preview";
        assert_eq!(asked(create, path, "gpt-5", &[url, own, dated]), found(version, false));
        // Claude has no such API there.
        assert!(asked(create, path, "claude-opus-4-5", &[url, own]).1);
        let theirs = ("azure_foundry_url", "https://res.services.ai.azure.com/anthropic");
        assert_eq!(asked(create, path, "our-best", &[theirs, own]), found("/anthropic/v1/messages", true));
        let items = asked(Operation::ListResponseInputItems, "/responses/r-1/input_items", "", &[url]);
        assert_eq!(items, found("/openai/v1/responses/r-1/input_items", false));
        assert_eq!(asked(Operation::Models, "/models", "", &[url]), found("/openai/v1/models", false));
        let dated_list = asked(Operation::Models, "/models", "", &[url, dated]);
        assert_eq!(dated_list, found("/openai/models?api-version=2025-04-01-preview", false));
        let kept = asked(Operation::GetModelResponse, "/responses/r-1", "", &[url, ("api_version", "v1")]);
        assert_eq!(kept, found("/openai/v1/responses/r-1", false));
    }

    #[test]
    fn a_session_is_asked_of_the_resource_as_its_version_has_it() {
        let session = |given: &[(&str, &str)]| {
            let stated = Stated::default();
            let (operation, path, query, prefix) = (Operation::Realtime, "/realtime", "model=gpt-realtime", "/openai");
            let asked =
                Asked { operation, path, query, prefix, model: "", user: "", streams: false, begun: false, stated };
            let mut out = Vec::new();
            AzureAi.write_target(&asked, &options(given), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(session(&[]), "/v1/realtime?model=gpt-realtime");
        let preview = session(&[("api_version", "2025-04-01-preview")]);
        assert_eq!(preview, "/realtime?deployment=gpt-realtime&api-version=2025-04-01-preview");
    }

    #[test]
    fn files_belong_to_the_resource_and_not_to_its_models() {
        let given = options(&[("azure_foundry_url", "https://res.services.ai.azure.com/models/")]);
        let base = |operation| AzureAi.base(operation, &given).unwrap().unwrap();
        assert_eq!(base(Operation::ChatComplete), "https://res.services.ai.azure.com/models");
        for operation in [Operation::Realtime, Operation::UploadFile, Operation::ListFinetuneCheckpoints] {
            assert_eq!(base(operation), "https://res.services.ai.azure.com/openai");
        }
        let named = |name| AzureAi.base(Operation::ChatComplete, &options(&[("azure_endpoint_name", name)]));
        assert_eq!(named("my-res").unwrap().unwrap(), "https://my-res.services.ai.azure.com/models");
        assert!(named("evil.example/").unwrap_err().contains("azure_endpoint_name"));
        let of = |kind| {
            let given = [("azure_endpoint_name", "e"), ("azure_deployment_name", "D"), ("azure_region", "eastus2")];
            let given = [&given[..], &[("azure_deployment_type", kind)]].concat();
            AzureAi.base(Operation::ChatComplete, &options(&given)).map(Option::unwrap)
        };
        assert_eq!(of("serverless").unwrap(), "https://d.eastus2.models.ai.azure.com");
        assert_eq!(of("managed").unwrap(), "https://e.eastus2.inference.ml.azure.com");
        assert!(of("other").unwrap_err().contains("serverless or managed"));
        assert!(AzureAi.base(Operation::Embed, &options(&[])).unwrap_err().contains("x-gateway-azure-foundry-url"));
    }
}
