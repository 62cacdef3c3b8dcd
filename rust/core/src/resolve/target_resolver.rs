//! Resolution of a request: its operation, config and target. Covers everything that is decided before anything is sent
//! upstream.

use std::{borrow::Cow, time::Duration};

use penstock_llm::{
    api_format::ApiFormat,
    catalog::{self, Credential, Provider},
    operation::Operation,
};
use penstock_net::headers;

use crate::{
    accounting::{prices, record::masking::is_slug},
    auth::caller::Caller,
    config::Node,
    error::{Error, Result},
    features::{custom_host::CustomHost, parameters::Parameters},
    ingress::{
        client_sdk,
        control_headers::ControlHeaders,
        message::RequestHead,
        route::{self, Route},
    },
    parse::similar_name::find_similar,
    process::settings::Settings,
    resolve::{
        base_urls::BaseUrls,
        prompt_access::reject_changes_by_config,
        route_plan::{ConfigSource, NamedProvider, RoutePlan},
        target::{CredentialOrigin, ResponseCoding, StreamUsage, Target},
        target_address::TargetAddress,
    },
    state::{
        shared::inline_configs::{InlineConfigCache, PreparedConfig},
        snapshot::{GatewayKey, SavedProvider, Snapshot},
    },
};

/// Request of the data plane: its route, its head and its control headers.
pub struct ClientRequest<'c> {
    pub route: Route<'c>,
    pub head: &'c RequestHead,
    pub control: ControlHeaders<'c>,
    /// Client format of requests, responses and errors.
    pub api_format: ApiFormat,
}

impl<'c> ClientRequest<'c> {
    pub fn new(route: Route<'c>, head: &'c RequestHead, control: ControlHeaders<'c>) -> Self {
        let api_format = find_client_api_format(&route, head);
        Self { route, head, control, api_format }
    }

    pub fn requested_operation(&self) -> Operation {
        self.route.effective_operation()
    }
}

/// Returns the client format. If several formats share a path, the format follows from the path prefix, else from the
/// headers of the client's SDK.
fn find_client_api_format(route: &Route<'_>, head: &RequestHead) -> ApiFormat {
    let path = route.path;
    let is_anthropic = || path == "/messages" || path.starts_with("/messages/") || route::is_vertex_claude_path(path);
    let by_path = || match path {
        _ if route::is_google_path(path) || route::is_upload_path(path) => ApiFormat::Gemini,
        _ if path.starts_with("/model/") || path.starts_with("/guardrail/") => ApiFormat::Bedrock,
        _ if is_anthropic() => ApiFormat::Anthropic,
        _ => client_sdk::shared_path_format(&head.headers),
    };
    route.effective_operation().api_format().unwrap_or_else(by_path)
}

/// Resolves the target of a request from the process settings, the snapshot and the request.
pub struct TargetResolver<'c> {
    pub settings: &'c Settings,
    pub base_urls: &'c BaseUrls,
    pub snapshot: &'c Snapshot,
    pub inline_configs: &'c InlineConfigCache,
    pub client_request: &'c ClientRequest<'c>,
    pub caller: &'c Caller<'c>,
}

impl<'c> TargetResolver<'c> {
    /// Compiles a large inline config on a blocking thread. `build_plan` finds the result until the caller drops it.
    pub async fn prepare_config(&self) -> Result<Option<PreparedConfig>> {
        let Some(text) = self.client_request.control.config.filter(|text| !is_slug(text.as_bytes())) else {
            return Ok(None);
        };
        if self.settings.block_inline_config || self.caller.key.is_some_and(GatewayKey::is_config_locked) {
            return Ok(None);
        }
        // Boxed, because an inline future would enlarge the future of every request.
        let tenant = self.caller.workspace().or_else(|| self.caller.key.map(|key| &*key.id));
        Box::pin(self.inline_configs.prepare(tenant, text, self.settings.target_limits())).await.map(Some)
    }

    /// Builds the routing plan from the headers. The order of the checks decides which error is reported first.
    pub fn build_plan(&self) -> Result<RoutePlan<'c>> {
        let control = &self.client_request.control;
        self.check_inline_allowed()?;
        self.check_content_type()?;
        self.reject_guardrail_headers()?;
        let sent = match (control.provider, control.virtual_key) {
            (Some(name), _) => Some(self.find_requested_provider(name)?),
            (None, Some(slug)) => Some(self.find_saved_provider(slug)?),
            (None, None) => None,
        };
        if sent.is_none() && self.requested_config()?.is_none() {
            // A model of the form `@slug/model` may still name a provider.
            let operation = self.client_request.route.operation;
            let reads = operation.has_json_body() || operation.has_model_in_form() || operation == Operation::Realtime;
            self.reject_prompt_readers(&ConfigSource::None)?;
            let plan = RoutePlan {
                config: ConfigSource::None,
                config_slug: None,
                requested_provider: sent,
                custom_host: None,
            };
            return if reads { Ok(plan) } else { Err(Error::ProviderRequired) };
        }
        let host = CustomHost::default().resolve(control.custom_host)?;
        let (config, slug) = self.resolve_config()?;
        self.reject_prompt_readers(&config)?;
        Ok(RoutePlan { config, config_slug: slug, requested_provider: sent, custom_host: host })
    }

    /// Resolves the target of a leaf node for this model. Also returns the model name without its provider slug, if it
    /// began with one.
    pub fn resolve_target<'m>(
        &self,
        plan: &RoutePlan<'c>,
        node: &Node,
        model: &'m str,
    ) -> Result<(Target<'c>, Option<&'m str>)> {
        let control = &self.client_request.control;
        let (named_provider, model_override) = self.resolve_provider(plan, node, model)?;
        self.reject_unsaved_provider(named_provider.saved, plan, node)?;
        // A credential that the client sends for one provider must not go to another provider that a config names. With
        // its own credential or address, a client could read a prompt that is hidden from it.
        let is_named_by_request = node.provider.is_none() || std::ptr::eq(node, &raw const plan.config.root);
        let is_from_client = is_named_by_request && !self.hides_prompt();
        let TargetAddress { base, options, grant, is_credential_stored: is_bound } =
            self.resolve_address(plan, node, &named_provider, model_override.unwrap_or(model), is_from_client)?;
        let NamedProvider { provider, saved, .. } = named_provider;
        let sharing_prompt = self.find_sharing_prompt(saved, model)?;
        let features = &node.features;
        if let Some(prompt) = sharing_prompt {
            reject_changes_by_config(prompt, &features.parameters)?;
        }
        let default_timeout = Duration::from_millis(self.settings.request_timeout_ms);
        let timeout = features.request_timeout.resolve(control.request_timeout, default_timeout)?;
        let max_wait = features.request_timeout.or_setting(default_timeout);
        let forward = features.forward_headers.resolve(control.forward_headers)?;
        let headers = &self.client_request.head.headers;
        let credential = self.find_credential(node, saved, is_from_client, credential_header(provider, &base.prefix));
        let has_key = credential.is_some() || grant.is_some() || provider.row().bearer_token(&options).is_some();
        // An AWS signature of the client is valid only for the host that it was made for.
        let is_meant = is_from_client && self.client_request.api_format != ApiFormat::Bedrock;
        let authorization = if has_key || !is_meant { None } else { self.caller.provider_authorization(headers) };
        let inspects = features.inspect_stream.resolve(saved.map(|saved| saved.inspect_stream));
        let (strict, passthrough) =
            (features.strict.resolve(control.strict_openai_compliance), node.passthrough || control.is_nitro_mode());
        let priced = prices::ProviderPricing {
            is_prepaid: provider.row().is_prepaid(&options),
            ..prices::ProviderPricing::default()
        };
        let target = Target {
            provider,
            base_url: base,
            options,
            credential,
            authorization,
            caller: *self.caller,
            forward_headers: forward,
            timeout,
            configured_timeout: max_wait,
            inspects_stream: inspects,
            // A stream that is inspected must not be compressed, whatever the client accepts.
            response_coding: if inspects { ResponseCoding::Uncompressed } else { ResponseCoding::AnyAccepted },
            stream_usage: StreamUsage::Requested,
            is_strict: strict,
            is_passthrough: passthrough,
            saved_provider: saved,
            lender_workspace: sharing_prompt.and_then(|_| self.shared_provider()).map(|shared| &*shared.workspace),
            credential_origin: if is_bound { CredentialOrigin::Stored } else { CredentialOrigin::Request },
            grant: grant.map(Box::new),
            header_fields: Vec::new(),
            check_headers: Vec::new(),
            stored_parameters: if plan.config_slug.is_some() {
                features.parameters.clone()
            } else {
                Parameters::default()
            },
            price_overrides: priced,
            prefill: None,
        };
        Ok((target, model_override))
    }

    /// Returns the credential that is stored with the node or its saved provider, or else the one that the client sends
    /// for the provider.
    fn find_credential(
        &self,
        node: &Node,
        saved: Option<&'c SavedProvider>,
        is_from_client: bool,
        header: Option<&'static str>,
    ) -> Option<Cow<'c, str>> {
        match node.api_key.as_ref().or_else(|| saved.and_then(|saved| saved.api_key.as_ref())) {
            Some(secret) => Some(Cow::Owned(secret.expose().to_owned())),
            None if is_from_client => {
                self.caller.provider_credential(&self.client_request.head.headers, header).map(Cow::Borrowed)
            }
            None => None,
        }
    }

    /// Returns the provider of a node: the one that the node names, the one that the request names, or the one in the
    /// model name.
    fn resolve_provider<'m>(
        &self,
        plan: &RoutePlan<'c>,
        node: &Node,
        model: &'m str,
    ) -> Result<(NamedProvider<'c>, Option<&'m str>)> {
        let addressed = model.strip_prefix('@').and_then(|rest| rest.split_once('/'));
        let sent =
            if node.passthrough && !self.client_request.control.provider.is_some_and(|name| name.starts_with('@')) {
                None
            } else {
                plan.requested_provider
            };
        let pinned = node.provider.as_deref().map(|name| self.find_provider(name)).transpose()?.or(sent);
        match (pinned, addressed) {
            (Some(named_provider), Some((slug, rest))) => {
                // Some providers have model names that begin with `@`.
                let is_slug = self.snapshot.find_provider(self.caller.workspace(), slug).is_some()
                    || self.shared_provider().is_some_and(|shared| *shared.slug == *slug);
                Ok((named_provider, is_slug.then_some(rest)))
            }
            (Some(named_provider), None) => Ok((named_provider, None)),
            (None, Some((slug, rest))) => match self.find_shared_provider(slug, Some(model))? {
                Some(shared) => Ok((shared, Some(rest))),
                None => Ok((self.find_saved_provider(slug)?, Some(rest))),
            },
            (None, None) if node.passthrough => Err(Error::ProviderUnresolved),
            (None, None) => Err(Error::ProviderRequired),
        }
    }

    /// Rejects the headers that name default guardrails. Only keys, workspaces and organisations define default
    /// guardrails. A request that asks for checks must not be served without them.
    fn reject_guardrail_headers(&self) -> Result<()> {
        let ControlHeaders { input_guardrails, output_guardrails, .. } = self.client_request.control;
        let lists = [
            ("x-gateway-default-input-guardrails", input_guardrails),
            ("x-gateway-default-output-guardrails", output_guardrails),
        ];
        match lists.into_iter().find(|(_, list)| list.is_some_and(|list| list != "[]")) {
            Some((name, _)) => Err(Error::HeaderInvalid {
                name,
                message: "is not for clients; define guardrails in the config of the request".into(),
            }),
            None => Ok(()),
        }
    }

    /// Rejects a content type that the operation cannot read.
    fn check_content_type(&self) -> Result<()> {
        let operation = self.client_request.route.operation;
        let (allowed, is_allowed): (_, fn(&[u8]) -> bool) = match operation {
            _ if operation.has_json_body() => ("application/json", headers::is_json_media_type),
            _ if operation.has_model_in_form() => {
                ("multipart/form-data, audio/* or application/json", is_form_content_type)
            }
            _ => return Ok(()),
        };
        let is_other = |(name, value): (&[u8], &[u8])| name == b"content-type" && !is_allowed(value);
        if self.client_request.head.headers.iter().any(is_other) {
            let message = format!("{} takes {allowed}", operation.id());
            return Err(Error::HeaderInvalid { name: "content-type", message });
        }
        Ok(())
    }

    fn resolve_config(&self) -> Result<(ConfigSource<'c>, Option<&'c str>)> {
        let Some(text) = self.requested_config()? else { return Ok((ConfigSource::None, None)) };
        let (config, slug) = if is_slug(text.as_bytes()) {
            let missing = || Error::NotFoundInWorkspace { kind: "config", slug: text.to_owned() };
            let saved = self.snapshot.find_config(self.caller.workspace(), text).ok_or_else(missing)?;
            saved.config.check_limits(self.settings.target_limits()).map_err(Error::ConfigInvalid)?;
            (ConfigSource::Saved(saved), Some(text))
        } else {
            let compiled = self.inline_configs.get_or_compile(text, self.settings.target_limits());
            let inline = compiled.map_err(|problems| match self.client_request.control.provider {
                None if lacks_provider(text) => Error::ProviderRequired,
                _ => Error::ConfigInvalid(problems),
            })?;
            (ConfigSource::Inline(inline), None)
        };
        Ok((config, slug))
    }

    /// Returns the config that the request sent, or the default config of its API key.
    fn requested_config(&self) -> Result<Option<&'c str>> {
        let key_config =
            self.caller.key.and_then(GatewayKey::default_config).map(|slug| self.snapshot.resolve_config_slug(slug));
        let sent = self.client_request.control.config.map(|slug| self.normalise_config_slug(slug));
        let is_bound = self.caller.key.is_some_and(GatewayKey::is_config_locked);
        match sent {
            Some(sent) if is_bound && key_config != Some(sent) => Err(Error::ConfigOverrideNotAllowed),
            // Nitro mode would bypass settings of the config to which the key is bound.
            _ if is_bound && self.client_request.control.is_nitro_mode() => Err(Error::ConfigOverrideNotAllowed),
            sent => Ok(sent.or(key_config)),
        }
    }

    /// Returns the slug of a saved config in this workspace if it is named by its ID, so that both names compare equal.
    fn normalise_config_slug(&self, name: &'c str) -> &'c str {
        if !is_slug(name.as_bytes()) {
            return name;
        }
        let slug = self.snapshot.resolve_config_slug(name);
        if self.snapshot.find_config(self.caller.workspace(), slug).is_some() { slug } else { name }
    }

    pub(super) fn find_provider(&self, name: &str) -> Result<NamedProvider<'c>> {
        if let Some(slug) = name.strip_prefix('@') {
            return self.find_saved_provider(slug);
        }
        let (provider, base_url) = self.base_urls.find(name).ok_or_else(|| unknown_provider(name))?;
        Ok(NamedProvider { provider, base_url, saved: None })
    }

    fn find_saved_provider(&self, slug: &str) -> Result<NamedProvider<'c>> {
        self.find_provider_in(self.caller.workspace(), slug)
    }

    pub(super) fn find_provider_in(&self, workspace: Option<&str>, slug: &str) -> Result<NamedProvider<'c>> {
        let missing = || Error::NotFoundInWorkspace { kind: "saved provider", slug: format!("@{slug}") };
        let saved = self.snapshot.find_provider(workspace, slug).ok_or_else(missing)?;
        Ok(NamedProvider { saved: Some(saved), ..self.find_provider(&saved.provider)? })
    }
}

/// Returns the header field in which a provider expects its key, unless it expects a bearer token.
fn credential_header(provider: &dyn Provider, prefix: &str) -> Option<&'static str> {
    match provider.credential("", prefix) {
        Credential::Header(name) => Some(name),
        Credential::Bearer | Credential::Scheme(_) => None,
    }
}

/// Returns true if an operation that takes a form accepts this content type. Some providers take raw audio, or JSON
/// with the URL of an image.
fn is_form_content_type(kind: &[u8]) -> bool {
    let is_audio = |kind: &[u8]| kind.get(..6).is_some_and(|start| start.eq_ignore_ascii_case(b"audio/"));
    headers::is_media_type(kind, "multipart/form-data")
        || is_audio(kind.trim_ascii())
        || headers::is_json_media_type(kind)
}

/// Returns true if an inline config names no provider and no target. Used for invalid configs.
fn lacks_provider(config: &str) -> bool {
    let read = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(config);
    read.is_ok_and(|map| !["provider", "targets", "virtual_key"].iter().any(|key| map.contains_key(*key)))
}

/// Returns the error for a name that is no provider, with the most similar provider name.
fn unknown_provider(name: &str) -> Error {
    let known: Vec<&str> = catalog::all_providers().map(<dyn Provider>::slug).collect();
    Error::ProviderUnknown { slug: name.to_owned(), similar: find_similar(name, &known) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_net::headers::Headers;

    fn resolve_root_target(
        settings: &Settings,
        snapshot: &str,
        fields: &[(&str, &str)],
    ) -> Result<(String, String, Option<String>)> {
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let head = RequestHead { headers, ..RequestHead::default() };
        let control = ControlHeaders::parse(&head.headers, &[]);
        let client_request = ClientRequest::new(Route::parse("POST", "/v1/chat/completions").unwrap(), &head, control);
        let (base_urls, caller) = (BaseUrls::new(Some("http://127.0.0.1:1")).unwrap(), Caller::default());
        let snapshot = Snapshot::compile(snapshot.as_bytes()).unwrap();
        let inline_configs = InlineConfigCache::new(1 << 20);
        let resolver = TargetResolver {
            settings,
            base_urls: &base_urls,
            snapshot: &snapshot,
            inline_configs: &inline_configs,
            client_request: &client_request,
            caller: &caller,
        };
        let plan = resolver.build_plan()?;
        let (target, _) = resolver.resolve_target(&plan, &plan.config.root, "")?;
        let authority = target.base_url.origin.authority();
        Ok((target.provider.slug().to_owned(), authority, target.credential.map(Cow::into_owned)))
    }

    const SAVED_SNAPSHOT: &str = r#"{"epoch":"1","providers":[{"slug":"mine","provider":"openai","api_key":"sk-stored"}],
        "configs":[{"slug":"pc-1","config":{"provider":"@mine"}},
            {"slug":"pc-key","config":{"provider":"openai","api_key":"sk-config"}},
            {"slug":"pc-loose","config":{"api_key":"sk-config"}},
            {"slug":"pc-bound","config":{"api_key":"sk-config","custom_host":"https://llm.example/v1"}},
            {"slug":"pc-host","config":{"custom_host":"https://llm.example/v1"}}]}"#;

    #[test]
    fn a_named_provider_gets_the_clients_credential() {
        let fields = [("x-gateway-provider", "openai"), ("authorization", "Bearer sk-1")];
        let resolved = resolve_root_target(&Settings::default(), r#"{"epoch":"1"}"#, &fields).unwrap();
        assert_eq!(resolved, ("openai".into(), "api.openai.com".into(), Some("sk-1".into())));
    }

    #[test]
    fn a_custom_host_replaces_the_provider_host() {
        let fields = [("x-gateway-provider", "openai"), ("x-gateway-custom-host", "https://llm.example/v1")];
        assert_eq!(resolve_root_target(&Settings::default(), r#"{"epoch":"1"}"#, &fields).unwrap().1, "llm.example");
    }

    #[test]
    fn saved_providers_and_configs_are_found_by_slug() {
        for fields in [("x-gateway-provider", "@mine"), ("x-gateway-config", "pc-1"), ("x-gateway-virtual-key", "mine")]
        {
            assert_eq!(
                resolve_root_target(&Settings::default(), SAVED_SNAPSHOT, &[fields]).unwrap().2.as_deref(),
                Some("sk-stored")
            );
        }
        for fields in [("x-gateway-provider", "@other"), ("x-gateway-config", "pc-2")] {
            assert!(matches!(
                resolve_root_target(&Settings::default(), SAVED_SNAPSHOT, &[fields]),
                Err(Error::NotFoundInWorkspace { .. })
            ));
        }
    }

    #[test]
    fn a_stored_credential_never_goes_to_a_host_that_the_request_names() {
        let evil = ("x-gateway-custom-host", "https://evil.example");
        for fields in [
            &[("x-gateway-provider", "@mine"), evil][..],
            &[("x-gateway-virtual-key", "mine"), evil],
            &[("x-gateway-config", "pc-1"), evil],
            &[("x-gateway-config", "pc-key"), evil],
            &[("x-gateway-config", "pc-bound"), ("x-gateway-provider", "openai"), evil],
            &[("x-gateway-config", r#"{"provider":"@mine"}"#), evil],
            &[("x-gateway-config", r#"{"provider":"@mine","custom_host":"https://evil.example"}"#)],
            &[("x-gateway-config", r#"{"custom_host":"https://evil.example"}"#), ("x-gateway-provider", "@mine")],
            &[("x-gateway-config", r#"{"custom_host":"https://evil.example"}"#), ("x-gateway-virtual-key", "mine")],
            // The host and the credential were stored separately, so they do not belong together.
            &[("x-gateway-config", "pc-host"), ("x-gateway-provider", "@mine")],
            &[("x-gateway-config", "pc-loose"), ("x-gateway-provider", "groq")],
            &[("x-gateway-config", "pc-loose"), ("x-gateway-provider", "@mine")],
        ] {
            let resolved = resolve_root_target(&Settings::default(), SAVED_SNAPSHOT, fields);
            assert!(matches!(resolved, Err(Error::CustomHostInvalid { .. })), "{fields:?}: {:?}", resolved.ok());
        }
    }

    #[test]
    fn a_request_may_name_the_host_that_a_credential_is_stored_for() {
        let saved = r#"{"slug":"mine","provider":"openai","api_key":"k","custom_host":"https://llm.example/v1"}"#;
        let snapshot = SAVED_SNAPSHOT.replace(r#"{"slug":"mine","provider":"openai","api_key":"sk-stored"}"#, saved);
        for (config, provider) in [("", "@mine"), ("pc-bound", "openai")] {
            let is_allowed = |host| {
                let source = [("x-gateway-config", config), ("x-gateway-provider", provider)];
                let fields = [&source[..], &[("x-gateway-custom-host", host)]].concat();
                resolve_root_target(&Settings::default(), &snapshot, &fields).is_ok()
            };
            assert!(is_allowed("https://llm.example/v1"), "{provider}");
            assert!(!is_allowed("https://llm.example/v2") && !is_allowed("http://llm.example/v1"), "{provider}");
        }
    }

    #[test]
    fn a_stored_credential_goes_to_the_host_it_is_stored_for() {
        for (fields, host) in [
            (&[("x-gateway-config", "pc-key"), ("x-gateway-provider", "groq")][..], "api.openai.com"),
            (&[("x-gateway-config", "pc-bound"), ("x-gateway-provider", "openai")], "llm.example"),
        ] {
            let resolved = resolve_root_target(&Settings::default(), SAVED_SNAPSHOT, fields).unwrap();
            assert_eq!((resolved.1.as_str(), resolved.2.as_deref()), (host, Some("sk-config")), "{fields:?}");
        }
        // A credential that the request itself brings may go to the host that the request names.
        let request_fields =
            [("x-gateway-config", r#"{"provider":"openai","api_key":"sk-own","custom_host":"https://a.example"}"#)];
        assert_eq!(resolve_root_target(&Settings::default(), SAVED_SNAPSHOT, &request_fields).unwrap().1, "a.example");
    }

    #[test]
    fn reports_errors_in_the_order_of_the_spec() {
        let code = |fields: &[(&str, &str)]| {
            resolve_root_target(&Settings::default(), SAVED_SNAPSHOT, fields).map_err(|error| error.code()).err()
        };
        let kind = ("content-type", "text/plain");
        let host = ("x-gateway-custom-host", "ftp://a");
        let forward = ("x-gateway-forward-headers", "x-gateway-forward-headers");
        for (fields, expected) in [
            (&[kind, forward, host][..], "invalid_header"),
            (&[forward, host], "provider_required"),
            (&[("x-gateway-provider", "nobody"), host, forward], "invalid_provider"),
            (&[("x-gateway-provider", "@nobody"), host, forward], "not_found_in_workspace"),
            (&[("x-gateway-virtual-key", "nobody"), host, forward], "not_found_in_workspace"),
            (&[("x-gateway-config", "{"), host, forward], "invalid_custom_host"),
            (&[("x-gateway-config", "{"), forward], "invalid_config"),
            (&[("x-gateway-config", "[1]"), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"retry":1}"#), forward], "provider_required"),
            (&[("x-gateway-config", r#"{"retry":1}"#), ("x-gateway-provider", "openai"), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"provider":1}"#), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"provider":"openai","options":[]}"#), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"provider":"openai"}"#), forward], "invalid_header"),
            (&[("x-gateway-config", "pc-none"), forward], "not_found_in_workspace"),
        ] {
            assert_eq!(code(fields), Some(expected), "{fields:?}");
        }
    }

    const AZURE_SNAPSHOT: &str = r#"{"epoch":"1","providers":[{"slug":"az","provider":"azure-openai","api_key":"k",
        "options":{"resource_name":"mine","api_version":"v1"}}]}"#;

    #[test]
    fn options_decide_the_address_of_a_provider() {
        let settings = Settings::default();
        let fields = [("x-gateway-provider", "azure-openai"), ("x-gateway-azure-resource-name", "res")];
        assert_eq!(resolve_root_target(&settings, SAVED_SNAPSHOT, &fields).unwrap().1, "res.openai.azure.com");
        let config = r#"{"provider":"azure-openai","resource_name":"in-config"}"#;
        let fields = [("x-gateway-config", config), ("x-gateway-azure-resource-name", "res")];
        assert_eq!(resolve_root_target(&settings, SAVED_SNAPSHOT, &fields).unwrap().1, "in-config.openai.azure.com");
        let missing = resolve_root_target(&settings, SAVED_SNAPSHOT, &[("x-gateway-provider", "azure-openai")]);
        assert!(matches!(missing, Err(Error::ProviderOptionInvalid { provider: "azure-openai", .. })));
    }

    #[test]
    fn a_stored_credential_goes_to_the_stored_address_despite_headers() {
        let fields = [("x-gateway-provider", "@az"), ("x-gateway-azure-resource-name", "evil")];
        let resolved = resolve_root_target(&Settings::default(), AZURE_SNAPSHOT, &fields).unwrap();
        assert_eq!((resolved.1.as_str(), resolved.2.as_deref()), ("mine.openai.azure.com", Some("k")));
        let unplaced = AZURE_SNAPSHOT.replace(r#""resource_name":"mine","#, "");
        assert!(matches!(
            resolve_root_target(&Settings::default(), &unplaced, &fields),
            Err(Error::ProviderOptionInvalid { .. })
        ));
    }

    #[test]
    fn blocks_inline_settings_in_the_order_of_the_spec() {
        let settings = Settings { block_inline_config: true, ..Settings::default() };
        let code = |fields: &[(&str, &str)]| {
            resolve_root_target(&settings, SAVED_SNAPSHOT, fields).map_err(|error| error.code()).err()
        };
        assert_eq!(
            code(&[("x-gateway-config", "{}"), ("x-gateway-provider", "openai")]),
            Some("inline_config_blocked")
        );
        assert_eq!(code(&[("x-gateway-provider", "openai")]), Some("inline_provider_blocked"));
        assert_eq!(code(&[("x-gateway-config", "[]")]), Some("inline_config_blocked"));
        let address = ("x-gateway-azure-resource-name", "a");
        let forward = ("x-gateway-forward-headers", "x-team");
        assert_eq!(
            code(&[forward, address, ("x-gateway-custom-host", "https://a")]),
            Some("inline_custom_host_blocked")
        );
        assert_eq!(code(&[forward, address]), Some("inline_provider_url_blocked"));
        assert_eq!(code(&[forward]), Some("inline_forward_headers_blocked"));
        for fields in [("x-gateway-virtual-key", "mine"), ("x-gateway-provider", "@mine"), ("x-gateway-config", "pc-1")]
        {
            assert_eq!(code(&[fields, ("authorization", "Bearer sk-1")]), None);
        }
    }

    #[test]
    fn a_misspelt_provider_is_recognised() {
        for (name, similar) in [("opnai", Some("openai")), ("antropic", Some("anthropic")), ("my-server", None)] {
            let resolved = resolve_root_target(&Settings::default(), AZURE_SNAPSHOT, &[("x-gateway-provider", name)]);
            assert!(
                matches!(&resolved, Err(Error::ProviderUnknown { slug, similar: found }) if slug == name && *found == similar),
                "{name}"
            );
        }
    }
}
