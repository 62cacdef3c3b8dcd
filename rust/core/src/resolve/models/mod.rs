//! Per-model rules of saved providers: which models are allowed, their hosts, options and prices. Also detects requests
//! for the model catalogue.

pub(crate) mod named_models;

use penstock_llm::{
    catalog,
    operation::{BodyKind, Operation},
};
use penstock_net::headers::Headers;
use serde::Deserialize;

use crate::{
    accounting::{
        record::masking::is_slug,
        saved_models::{SavedModel, SavedModels},
    },
    auth::caller::{self, Caller},
    error::{Error, Result},
    ingress::{
        control_headers::{ControlHeaders, split_control_name},
        message::RequestHead,
    },
    resolve::{target::Target, target_resolver::ClientRequest},
    state::snapshot::{SavedProvider, Snapshot},
};

/// Path of model lists.
pub(crate) const MODELS_PATH: &str = "/v1/models";

/// Main model of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestedModel<'m> {
    /// Name that is sent to the provider.
    pub model: &'m str,
    /// Name in the query of the client's request. It is replaced by `model` when the request is sent.
    pub in_query: &'m str,
}

impl<'s> Target<'s> {
    /// Applies the saved settings of the requested model and its path prefix. Rejects a model that may not be used, as
    /// its main model or anywhere else.
    pub fn apply_model(
        &mut self,
        client_request: &ClientRequest<'_>,
        requested: RequestedModel<'_>,
        body: &[u8],
    ) -> Result<()> {
        let model = requested.model;
        if let Some(saved) = self.saved_provider {
            self.apply_saved_provider(client_request, saved, requested, body)?;
        }
        if let Some(prefix) = self.provider.path_prefix(client_request.route.operation, model, &self.base_url.prefix) {
            self.base_url.prefix = prefix.into();
        }
        Ok(())
    }

    /// Applies the settings saved with the provider and the model, and checks every model that the request names.
    fn apply_saved_provider(
        &mut self,
        client_request: &ClientRequest<'_>,
        saved: &'s SavedProvider,
        requested: RequestedModel<'_>,
        body: &[u8],
    ) -> Result<()> {
        let model = requested.model;
        self.header_fields = saved.header_fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let Some(models) = &saved.models else { return Ok(()) };
        self.price_overrides.adjustment.clone_from(&models.price_adjustment);
        let saved_model = models.by_slug.get(model);
        if client_request.route.operation == Operation::CreateBatchJob {
            models.check_job_model(&self.provider.job_models(body))?;
        } else if let Some(saved_model) = saved_model {
            self.apply_saved_model(client_request, saved_model).ok_or_else(|| Error::model_not_allowed(model))?;
        } else if !self.may_use_unlisted_model(client_request, models, model) {
            return Err(Error::model_not_allowed(model));
        }
        self.check_model_override(client_request, saved, saved_model)?;
        if models.is_restricted() { self.check_named_models(client_request, models, requested, body) } else { Ok(()) }
    }

    /// Returns true if a model that is not listed may be used.
    fn may_use_unlisted_model(&self, client_request: &ClientRequest<'_>, models: &SavedModels, model: &str) -> bool {
        if !model.is_empty() {
            return models.is_allowed(model);
        }
        // A request that names its model elsewhere is checked before anything is sent.
        !models.is_restricted()
            || self.has_batch_lines(client_request)
            || self.is_message_batch_cancel(client_request)
            || self.has_model_override(client_request)
            || !may_select_hidden_model(client_request)
    }

    /// Returns true if an option or the path overrides the model of the body. The override is checked separately.
    fn has_model_override(&self, client_request: &ClientRequest<'_>) -> bool {
        let operation = client_request.route.operation;
        let is_of_body = operation == Operation::Proxy || operation.is_fine_tuning();
        !is_of_body && self.provider.model_override(&self.options, client_request.route.path_params).is_some()
    }

    /// Checks the model that an option or the path sets in place of the body's. An override that is stored with the
    /// provider or model is always allowed.
    fn check_model_override(
        &mut self,
        client_request: &ClientRequest<'_>,
        saved: &SavedProvider,
        saved_model: Option<&SavedModel>,
    ) -> Result<()> {
        let Some(pinned) = self.provider.model_override(&self.options, client_request.route.path_params) else {
            return Ok(());
        };
        let is_own = |saved_model: &SavedModel| saved_model.options.iter().any(|(_, value)| value == pinned);
        if saved.options.has_value(pinned) || saved_model.is_some_and(is_own) {
            return Ok(());
        }
        self.check_line_model(pinned)?;
        if let (Some(models), true) =
            (&saved.models, self.provider.row().model_from_options(&self.options) == Some(pinned))
        {
            self.price_overrides.model_prices = models.model_prices(pinned);
        }
        Ok(())
    }

    /// Applies the saved header fields, prices, options and host of a model; `None` if the model is disabled.
    fn apply_saved_model(&mut self, client_request: &ClientRequest<'_>, saved_model: &'s SavedModel) -> Option<()> {
        if !saved_model.is_enabled {
            return None;
        }
        self.header_fields
            .retain(|(name, _)| saved_model.header_fields.iter().all(|(overridden, _)| overridden != name));
        self.header_fields
            .extend(saved_model.header_fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.price_overrides.model_prices.clone_from(&saved_model.prices);
        for (option, value) in &saved_model.options {
            // Providers may define the same option differently: some take it as a header, others do not.
            let definition = self.provider.row().options.iter().find(|definition| definition.key == option.key);
            if let Some(definition) = definition {
                self.options.replace(*definition, value.clone());
            }
        }
        if let (Some(base), None) = (&saved_model.custom_host, client_request.control.custom_host) {
            self.base_url = base.clone();
        }
        Some(())
    }

    /// Rejects a batch line for a model that may not be used.
    pub fn check_line_model(&self, model: &str) -> Result<()> {
        let models = self.saved_provider.and_then(|saved| saved.models.as_ref());
        models.map_or(Ok(()), |models| models.check_job_model(&[model.to_owned()]))
    }
}

/// Returns true if a request with no known model may still select one. Forms, unread proxy bodies and provider-stored
/// prompts can name a model that the gateway does not see.
fn may_select_hidden_model(client_request: &ClientRequest<'_>) -> bool {
    match client_request.route.operation {
        Operation::Proxy => client_request.head.has_body_method(),
        // A later job decides the model of these uploads. A batch whose lines are not checked cannot run without a
        // model.
        Operation::UploadFile
        | Operation::PutBatchObject
        | Operation::CreateBatchDataset
        | Operation::UploadBatchDataset
        | Operation::CreateBatch => false,
        // Messages on a WebSocket are checked as they arrive.
        operation => {
            operation.body_kind() == Some(BodyKind::Form)
                || (operation.has_json_body() && client_request.head.has_body_method())
        }
    }
}

/// Returns true if a model list request is for the catalogue: it names no provider, or asks for the catalogue
/// explicitly.
pub fn is_catalogue_request(snapshot: &Snapshot, head: &RequestHead, aliases: &[String]) -> bool {
    let below = head.path.strip_prefix(MODELS_PATH);
    if !snapshot.has_model_catalogue
        || head.method != "GET"
        || !below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    {
        return false;
    }
    let control = ControlHeaders::parse(&head.headers, aliases);
    let is_set = |name: &[u8]| control_value(&head.headers, aliases, name).is_some_and(|value| value != b"false");
    let names_no_provider = control.provider.is_none() && control.virtual_key.is_none() && control.config.is_none();
    names_no_provider
        || is_set(b"fetch-integrated-models")
        || is_set(b"models-endpoint")
        || control.config.is_some_and(|config| config_fetches_catalogue(snapshot, head, &control, config))
}

/// Returns the catalogue query that replaces the model list of a provider without one. It lists the provider's models
/// that the caller may use, and needs a gateway key.
pub fn catalogue_query(snapshot: &Snapshot, head: &RequestHead, aliases: &[String]) -> Option<String> {
    if !snapshot.has_model_catalogue || head.method != "GET" || head.path != MODELS_PATH {
        return None;
    }
    let control = ControlHeaders::parse(&head.headers, aliases);
    let token = caller::authenticate_token(snapshot, &head.headers, &control).ok().flatten();
    let caller = caller::admit(token.as_ref(), snapshot, true, &head.headers, &control).ok()?;
    let by_config = || {
        let config = control.config?;
        let saved = snapshot.find_config(caller.workspace(), config).filter(|_| is_slug(config.as_bytes()))?;
        saved.config.root.provider.as_deref().filter(|name| name.starts_with('@'))
    };
    let saved = |slug: &str| snapshot.find_provider(caller.workspace(), slug).map(|saved| saved.provider.clone());
    let (kind, catalogue_filter) = match (control.provider.or_else(by_config), control.virtual_key) {
        (Some(name), _) => match name.strip_prefix('@') {
            Some(slug) => (saved(slug)?, format!("provider={slug}")),
            None => (name.to_owned(), format!("ai_service={name}")),
        },
        (None, Some(slug)) => (saved(slug)?, format!("provider={slug}")),
        (None, None) => return None,
    };
    let is_listless = catalog::find_provider(&kind).is_some_and(|provider| !provider.row().has_model_list);
    let mark = if head.query.is_empty() { "" } else { "&" };
    is_listless.then(|| format!("{}{mark}{catalogue_filter}", head.query))
}

/// Returns the value of a control header, found by its name without the prefix.
fn control_value<'h>(headers: &'h Headers, aliases: &[String], control_name: &[u8]) -> Option<&'h [u8]> {
    headers
        .iter()
        .find(|(name, _)| split_control_name(name, aliases).is_some_and(|(_, rest)| rest == control_name))
        .map(|(_, value)| value)
}

/// Fields of an inline config that decide whether a model list comes from the catalogue.
#[derive(Deserialize)]
struct InlineFlags {
    #[serde(default, alias = "fetchIntegratedModels")]
    fetch_integrated_models: bool,
}

fn config_fetches_catalogue(
    snapshot: &Snapshot,
    head: &RequestHead,
    control: &ControlHeaders<'_>,
    config: &str,
) -> bool {
    if !is_slug(config.as_bytes()) {
        // The config is not compiled, because the caller is not known yet.
        return serde_json::from_str::<InlineFlags>(config).is_ok_and(|flags| flags.fetch_integrated_models);
    }
    // A caller with a token instead of a key has a workspace too.
    let token = caller::authenticate_token(snapshot, &head.headers, control).ok().flatten();
    let caller = caller::admit(token.as_ref(), snapshot, true, &head.headers, control).ok();
    let workspace = caller.as_ref().and_then(Caller::workspace);
    snapshot.find_config(workspace, config).is_some_and(|saved| saved.config.root.fetch_integrated_models)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT_JSON: &str = r#"{"epoch":"1","catalogue":true,
        "models":[{"id":"i","allow_all":false,"models":[{"slug":"gpt","enabled":true},{"slug":"old","enabled":false}]}],
        "providers":[{"slug":"mine","provider":"openai","models":"i"},{"slug":"theirs","provider":"openai","workspace":"b"}],
        "configs":[{"slug":"pc-1","id":"c-1","config":{"provider":"openai","fetch_integrated_models":true}}]}"#;

    fn sample_snapshot() -> Snapshot {
        Snapshot::compile(SNAPSHOT_JSON.as_bytes()).unwrap()
    }

    #[test]
    fn allows_job_by_any_listed_name_unless_one_is_disabled() {
        let models = |allow_all: bool| {
            let rows = r#"[{"slug":"gpt","enabled":true},{"slug":"old","enabled":false}]"#;
            let published = format!(r#"{{"id":"i","allow_all":{allow_all},"models":{rows}}}"#);
            SavedModels::compile(serde_json::from_str(&published).unwrap(), "$", &mut Vec::new())
        };
        let admits = |allow_all, names: &[&str]| {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            models(allow_all).check_job_model(&names).is_ok()
        };
        assert!(
            admits(false, &["publishers/x/models/gpt", "gpt"]) && !admits(false, &["else"]) && admits(true, &["else"])
        );
        for allow_all in [false, true] {
            assert!(!admits(allow_all, &["old"]) && !admits(allow_all, &["gpt", "old"]) && !admits(allow_all, &[]));
        }
        let free = SavedModels { allow_all: true, ..SavedModels::default() };
        assert!(free.check_job_model(&[]).is_ok());
    }

    #[test]
    fn a_disabled_model_stays_disabled_in_any_spelling() {
        let rows = r#"[{"slug":"Old","enabled":false},{"slug":"ft:old:me","enabled":true}]"#;
        let published = format!(r#"{{"id":"i","allow_all":true,"models":{rows}}}"#);
        let models = SavedModels::compile(serde_json::from_str(&published).unwrap(), "$", &mut Vec::new());
        for model in [
            " old",
            "OLD",
            "a/b/old",
            "models/old:generateContent",
            "us.old",
            "%256fld",
            "old?x",
            "o\u{131}ld",
            "../old\\",
        ] {
            assert!(!models.is_allowed(model), "{model}");
        }
        for model in ["older", "old-2", "my-old", "old.1", "ft:old:me", "a b"] {
            assert!(models.is_allowed(model), "{model}");
        }
    }

    #[test]
    fn queries_catalogue_for_provider_without_model_list() {
        let saved = SNAPSHOT_JSON
            .replace(
                r#""providers":["#,
                r#""keys":[{"id":"k","name":"n","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","workspace":"a"}],
                "providers":[{"slug":"px","provider":"perplexity-ai","workspace":"a"},"#,
            );
        let snapshot = Snapshot::compile(saved.as_bytes()).unwrap();
        let query_for = |fields: &[(&str, &str)], query: &str| {
            let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            let (method, path, query) = ("GET".into(), "/v1/models".into(), query.into());
            catalogue_query(&snapshot, &RequestHead { method, path, query, headers, ..RequestHead::default() }, &[])
        };
        let key = ("x-gateway-api-key", "abc");
        assert_eq!(query_for(&[key, ("x-gateway-provider", "@px")], "limit=5").as_deref(), Some("limit=5&provider=px"));
        assert_eq!(query_for(&[key, ("x-gateway-virtual-key", "px")], "").as_deref(), Some("provider=px"));
        assert_eq!(query_for(&[key, ("x-gateway-provider", "voyage")], "").as_deref(), Some("ai_service=voyage"));
        for fields in [
            &[("x-gateway-provider", "voyage")][..],
            &[key],
            &[key, ("x-gateway-provider", "openai")],
            &[key, ("x-gateway-provider", "@theirs")],
            &[key, ("x-gateway-provider", "nobody")],
        ] {
            assert_eq!(query_for(fields, ""), None, "{fields:?}");
        }
    }

    #[test]
    fn detects_catalogue_requests() {
        let snapshot = sample_snapshot();
        let build_body = |path: &str, fields: &[(&str, &str)]| {
            let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            let head = RequestHead { method: "GET".into(), path: path.into(), headers, ..RequestHead::default() };
            is_catalogue_request(&snapshot, &head, &["x-portkey-".into()])
        };
        let provider = ("x-gateway-provider", "openai");
        assert!(build_body("/v1/models", &[]) && build_body("/v1/models/@mine/gpt", &[]));
        assert!(!build_body("/v1/models", &[provider]) && !build_body("/v1/modelsx", &[]));
        for flag in ["x-gateway-fetch-integrated-models", "x-gateway-models-endpoint", "x-portkey-models-endpoint"] {
            assert!(build_body("/v1/models", &[provider, (flag, "true")]), "{flag}");
            assert!(!build_body("/v1/models", &[provider, (flag, "false")]), "{flag}");
        }
        assert!(build_body(
            "/v1/models",
            &[("x-gateway-config", r#"{"provider":"openai","fetch_integrated_models":true}"#)]
        ));
        assert!(!build_body("/v1/models", &[("x-gateway-config", r#"{"provider":"openai"}"#)]));
    }
}
