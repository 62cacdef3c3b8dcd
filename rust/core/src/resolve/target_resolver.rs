//! What a request asks for and of whom: operation, config, target. Everything that is known before anything is sent.

use std::{
    borrow::Cow,
    ops::Deref,
    sync::{Arc, LazyLock},
    time::Duration,
};

use penstock_llm::{
    api_format::Dialect,
    catalog::{self, Credential, Provider},
    operation::Operation,
};

use crate::{
    accounting::{prices, record::masking::is_slug},
    auth::caller::Caller,
    config::{Config, Node},
    error::{Error, Result},
    features::custom_host::CustomHost,
    ingress::{
        headers::{self, Control, Head},
        route::{self, Route},
    },
    process::settings::Settings,
    resolve::{
        target::{Coding, Reach, Target, Telling},
        target_address::Place,
    },
    state::{
        shared::inline_configs::InlineConfigs,
        snapshot::{Key, SavedProvider, Snapshot},
    },
    upstream::Base,
};

/// One request of the data plane: what it is about, its own words, and what it asks of the gateway.
pub struct Call<'c> {
    pub route: Route<'c>,
    pub head: &'c Head,
    pub control: Control<'c>,
}

impl Call<'_> {
    pub fn asked_for(&self) -> Operation {
        self.route.asked_for(&self.head.method)
    }

    /// The dialect in which the caller writes, reads and is told of errors. Where a path is of several, clients are known
    /// by how theirs begin, Anthropic's also by the version that they ask for.
    pub fn dialect(&self) -> Dialect {
        let path = self.route.path;
        let is_anthropics = || {
            path == "/messages"
                || path.starts_with("/messages/")
                || self.head.headers.get("anthropic-version").is_some()
                || route::is_of_claude(path)
        };
        let by_path = || match path {
            _ if route::is_of_google(path) => Dialect::Gemini,
            _ if path.starts_with("/model/") || path.starts_with("/guardrail/") => Dialect::Bedrock,
            _ if is_anthropics() => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        };
        self.asked_for().dialect().unwrap_or_else(by_path)
    }
}

/// What decides the target: the process's settings, the snapshot, the request.
pub struct Choice<'c> {
    pub settings: &'c Settings,
    pub bases: &'c Bases,
    pub snapshot: &'c Snapshot,
    pub inline_configs: &'c InlineConfigs,
    pub call: &'c Call<'c>,
    pub caller: &'c Caller<'c>,
}

/// Where each provider's API starts, parsed once.
pub struct Bases(Vec<(&'static str, &'static dyn Provider, Option<Base>)>);

impl Bases {
    /// `mock` is the address of the pretend provider.
    pub fn new(mock: Option<&str>) -> std::result::Result<Self, String> {
        let base_of = |provider: &'static dyn Provider| match (provider.slug(), mock) {
            ("mock", Some(host)) => Base::parse(&format!("{}/v1", host.trim_end_matches('/'))).map(Some),
            _ if provider.base_url().is_empty() => Ok(None),
            _ => Base::parse(provider.base_url()).map(Some),
        };
        catalog::all()
            .map(|provider| Ok((provider.slug(), provider, base_of(provider)?)))
            .collect::<std::result::Result<_, _>>()
            .map(Self)
    }

    fn find(&self, slug: &str) -> Option<(&'static dyn Provider, &Option<Base>)> {
        self.0.iter().find(|(known, ..)| *known == slug).map(|(_, provider, base)| (*provider, base))
    }
}

/// A provider as it was named: by its own name, or by the slug of a saved one.
#[derive(Clone, Copy)]
pub(crate) struct Named<'c> {
    pub provider: &'static dyn Provider,
    pub own: &'c Option<Base>,
    pub saved: Option<&'c SavedProvider>,
}

/// How a request is to be routed, as far as it can be said before its body is read.
pub struct Plan<'c> {
    pub config: Chosen<'c>,
    /// Of the saved config.
    pub slug: Option<&'c str>,
    sent: Option<Named<'c>>,
    /// From its header.
    pub(crate) host: Option<Base>,
}

/// The config of a request.
pub enum Chosen<'c> {
    Saved(&'c Config),
    Inline(Arc<Config>),
    None,
}

static NONE: LazyLock<Config> = LazyLock::new(Config::default);

impl Deref for Chosen<'_> {
    type Target = Config;

    fn deref(&self) -> &Config {
        match self {
            Self::Saved(config) => config,
            Self::Inline(config) => config,
            Self::None => &NONE,
        }
    }
}

impl Plan<'_> {
    /// Whether where the request goes is known without its body.
    pub fn names_provider(&self) -> bool {
        self.sent.is_some() || self.config.root.provider.is_some()
    }
}

impl<'c> Choice<'c> {
    /// What the request says of its routing. What is wrong is told in the order in which it stands here.
    pub fn plan(&self) -> Result<Plan<'c>> {
        let control = &self.call.control;
        self.refuse_blocked()?;
        self.refuse_kind()?;
        self.refuse_guardrails()?;
        let sent = match (control.provider, control.virtual_key) {
            (Some(name), _) => Some(self.named(name)?),
            (None, Some(slug)) => Some(self.saved(slug)?),
            (None, None) => None,
        };
        if sent.is_none() && self.config_named()?.is_none() {
            // A model of the form `@slug/model` may still name one.
            let operation = self.call.route.operation;
            let reads = operation.takes_json() || operation.takes_model_in_form() || operation == Operation::Realtime;
            let plan = Plan { config: Chosen::None, slug: None, sent, host: None };
            return if reads { Ok(plan) } else { Err(Error::ProviderNeeded) };
        }
        let host = CustomHost::default().resolve(control.custom_host)?;
        let (config, slug) = self.config()?;
        Ok(Plan { config, slug, sent, host })
    }

    /// Where a node without further targets goes, for a request for this model; and the model, where part of its name
    /// said who is meant.
    pub fn target<'m>(&self, plan: &Plan<'c>, node: &Node, model: &'m str) -> Result<(Target<'c>, Option<&'m str>)> {
        let control = &self.call.control;
        let (whom, named) = self.whom(plan, node, model)?;
        // What the caller sends for one provider is not for whoever else a config names.
        let is_callers = node.provider.is_none() || std::ptr::eq(node, &raw const plan.config.root);
        let Place { base, options, grant, is_bound } =
            self.place(plan, node, (&whom, named.unwrap_or(model)), is_callers)?;
        let Named { provider, saved, .. } = whom;
        let features = &node.features;
        let settings = Duration::from_millis(self.settings.request_timeout_ms);
        let timeout = features.request_timeout.resolve(control.request_timeout, settings)?;
        let patience = features.request_timeout.or(settings);
        let forward = features.forward_headers.resolve(control.forward_headers)?;
        let headers = &self.call.head.headers;
        let stored = node.api_key.as_ref().or_else(|| saved.and_then(|saved| saved.api_key.as_ref()));
        let credential = match stored {
            Some(secret) => Some(Cow::Owned(secret.expose().to_owned())),
            None if is_callers => self.caller.credential(headers, field_of(provider, &base.prefix)).map(Cow::Borrowed),
            None => None,
        };
        let has_key = credential.is_some() || grant.is_some() || provider.token(&options).is_some();
        // What Amazon's clients sign is good for the host that they were given, and nowhere else.
        let is_meant = is_callers && self.call.dialect() != Dialect::Bedrock;
        let authorization = if has_key || !is_meant { None } else { self.caller.authorization(headers) };
        let inspects = features.inspect_stream.resolve(saved.map(|saved| saved.inspect_stream));
        let (strict, passthrough) = (features.strict.resolve(control.strict), node.passthrough || control.is_nitro());
        let priced = prices::Own { is_prepaid: provider.is_prepaid(&options), ..prices::Own::default() };
        let target = Target {
            provider,
            base,
            options,
            credential,
            authorization,
            caller: *self.caller,
            forward,
            timeout,
            patience,
            inspects,
            // What is inspected must be readable, whatever the caller accepts.
            coding: if inspects { Coding::Plain } else { Coding::Any },
            telling: Telling::Asked,
            strict,
            passthrough,
            saved,
            reach: if is_bound { Reach::Stored } else { Reach::Own },
            grant: grant.map(Box::new),
            fields: Vec::new(),
            priced,
            goes_on: None,
        };
        Ok((target, named))
    }

    /// The provider of a node: the one that it names, the one that the request names, or the one in the model's name.
    fn whom<'m>(&self, plan: &Plan<'c>, node: &Node, model: &'m str) -> Result<(Named<'c>, Option<&'m str>)> {
        let addressed = model.strip_prefix('@').and_then(|rest| rest.split_once('/'));
        let sent = if node.passthrough && !self.call.control.provider.is_some_and(|name| name.starts_with('@')) {
            None
        } else {
            plan.sent
        };
        let pinned = node.provider.as_deref().map(|name| self.named(name)).transpose()?.or(sent);
        match (pinned, addressed) {
            (Some(named), Some((slug, rest))) => {
                // Some providers' own models begin with an `@` too.
                let is_slug = self.snapshot.provider(self.caller.workspace(), slug).is_some();
                Ok((named, is_slug.then_some(rest)))
            }
            (Some(named), None) => Ok((named, None)),
            (None, Some((slug, rest))) => Ok((self.saved(slug)?, Some(rest))),
            (None, None) if node.passthrough => Err(Error::ProviderUnresolved),
            (None, None) => Err(Error::ProviderNeeded),
        }
    }

    /// Who asks for checks is not served without them: there are none yet.
    fn refuse_guardrails(&self) -> Result<()> {
        let Control { input_guardrails, output_guardrails, .. } = self.call.control;
        let lists = [
            ("x-gateway-default-input-guardrails", input_guardrails),
            ("x-gateway-default-output-guardrails", output_guardrails),
        ];
        match lists.into_iter().find(|(_, list)| list.is_some_and(|list| list != "[]")) {
            Some((name, _)) => Err(Error::HeaderInvalid { name, message: "is not available in this version".into() }),
            None => Ok(()),
        }
    }

    /// What is read must be what it says it is.
    fn refuse_kind(&self) -> Result<()> {
        let operation = self.call.route.operation;
        let (allowed, is_allowed): (_, fn(&[u8]) -> bool) = match operation {
            _ if operation.takes_json() => ("application/json", headers::is_json),
            _ if operation.takes_model_in_form() => ("multipart/form-data, audio/* or application/json", is_form),
            _ => return Ok(()),
        };
        let is_other = |(name, value): (&[u8], &[u8])| name == b"content-type" && !is_allowed(value);
        if self.call.head.headers.iter().any(is_other) {
            let message = format!("{} takes {allowed}", operation.id());
            return Err(Error::HeaderInvalid { name: "content-type", message });
        }
        Ok(())
    }

    fn config(&self) -> Result<(Chosen<'c>, Option<&'c str>)> {
        let Some(text) = self.config_named()? else { return Ok((Chosen::None, None)) };
        let (config, slug) = if is_slug(text.as_bytes()) {
            let missing = || Error::SavedUnknown { kind: "config", slug: text.to_owned() };
            let saved = self.snapshot.config(self.caller.workspace(), text).ok_or_else(missing)?;
            saved.check(self.settings.target_limits()).map_err(Error::ConfigInvalid)?;
            (Chosen::Saved(saved), Some(text))
        } else {
            let compiled = self.inline_configs.compiled(text, self.settings.target_limits());
            let inline = compiled.map_err(|problems| match self.call.control.provider {
                None if names_nobody(text) => Error::ProviderNeeded,
                _ => Error::ConfigInvalid(problems),
            })?;
            (Chosen::Inline(inline), None)
        };
        Ok((config, slug))
    }

    /// The config that was sent, or the one that the key has for all its requests.
    fn config_named(&self) -> Result<Option<&'c str>> {
        let own = self.caller.key.and_then(Key::config).map(|named| self.snapshot.config_slug(named));
        let sent = self.call.control.config.map(|named| self.config_slug(named));
        let is_bound = self.caller.key.is_some_and(Key::is_bound);
        match sent {
            Some(sent) if is_bound && own != Some(sent) => Err(Error::ConfigBound),
            // What its config sets is part of what binds a key.
            _ if is_bound && self.call.control.is_nitro() => Err(Error::ConfigBound),
            sent => Ok(sent.or(own)),
        }
    }

    /// The slug of a saved config of this workspace that is named by its id: both ways it is the same one.
    fn config_slug(&self, named: &'c str) -> &'c str {
        if !is_slug(named.as_bytes()) {
            return named;
        }
        let slug = self.snapshot.config_slug(named);
        if self.snapshot.config(self.caller.workspace(), slug).is_some() { slug } else { named }
    }

    fn named(&self, name: &str) -> Result<Named<'c>> {
        if let Some(slug) = name.strip_prefix('@') {
            return self.saved(slug);
        }
        let (provider, own) = self.bases.find(name).ok_or_else(|| Error::ProviderUnknown(name.to_owned()))?;
        Ok(Named { provider, own, saved: None })
    }

    fn saved(&self, slug: &str) -> Result<Named<'c>> {
        let missing = || Error::SavedUnknown { kind: "provider", slug: slug.to_owned() };
        let saved = self.snapshot.provider(self.caller.workspace(), slug).ok_or_else(missing)?;
        Ok(Named { saved: Some(saved), ..self.named(&saved.provider)? })
    }
}

/// The field in which a provider wants its key, where it is not a bearer token.
fn field_of(provider: &dyn Provider, prefix: &str) -> Option<&'static str> {
    match provider.credential("", prefix) {
        Credential::Header(name) => Some(name),
        Credential::Bearer | Credential::Scheme(_) => None,
    }
}

/// Whether what takes a form may be sent so: some providers take the sound alone, or JSON that says where a picture is.
fn is_form(kind: &[u8]) -> bool {
    let is_audio = |kind: &[u8]| kind.get(..6).is_some_and(|start| start.eq_ignore_ascii_case(b"audio/"));
    headers::is_kind(kind, "multipart/form-data") || is_audio(kind.trim_ascii()) || headers::is_json(kind)
}

/// Whether an inline config with faults could not lead anywhere even without them.
fn names_nobody(config: &str) -> bool {
    let read = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(config);
    read.is_ok_and(|map| !["provider", "targets", "virtual_key"].iter().any(|key| map.contains_key(*key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::headers::Headers;

    fn target(
        settings: &Settings,
        snapshot: &str,
        fields: &[(&str, &str)],
    ) -> Result<(String, String, Option<String>)> {
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let head = Head { headers, ..Head::default() };
        let control = Control::read(&head.headers, &[]);
        let call = Call { route: Route::of("POST", "/v1/chat/completions").unwrap(), head: &head, control };
        let (bases, caller) = (Bases::new(Some("http://127.0.0.1:1")).unwrap(), Caller::default());
        let snapshot = Snapshot::compile(snapshot.as_bytes()).unwrap();
        let inline_configs = InlineConfigs::new(1 << 20);
        let choice = Choice {
            settings,
            bases: &bases,
            snapshot: &snapshot,
            inline_configs: &inline_configs,
            call: &call,
            caller: &caller,
        };
        let plan = choice.plan()?;
        let (target, _) = choice.target(&plan, &plan.config.root, "")?;
        let authority = target.base.origin.authority();
        Ok((target.provider.slug().to_owned(), authority, target.credential.map(Cow::into_owned)))
    }

    const SAVED: &str = r#"{"epoch":"1","providers":[{"slug":"mine","provider":"openai","api_key":"sk-stored"}],
        "configs":[{"slug":"pc-1","config":{"provider":"@mine"}},
            {"slug":"pc-key","config":{"provider":"openai","api_key":"sk-config"}},
            {"slug":"pc-loose","config":{"api_key":"sk-config"}},
            {"slug":"pc-bound","config":{"api_key":"sk-config","custom_host":"https://llm.example/v1"}},
            {"slug":"pc-host","config":{"custom_host":"https://llm.example/v1"}}]}"#;

    #[test]
    fn a_provider_name_takes_the_callers_credential() {
        let fields = [("x-gateway-provider", "openai"), ("authorization", "Bearer sk-1")];
        let found = target(&Settings::default(), r#"{"epoch":"1"}"#, &fields).unwrap();
        assert_eq!(found, ("openai".into(), "api.openai.com".into(), Some("sk-1".into())));
    }

    #[test]
    fn a_custom_host_takes_the_providers_place() {
        let fields = [("x-gateway-provider", "openai"), ("x-gateway-custom-host", "https://llm.example/v1")];
        assert_eq!(target(&Settings::default(), r#"{"epoch":"1"}"#, &fields).unwrap().1, "llm.example");
    }

    #[test]
    fn saved_things_are_found_by_their_slug() {
        for fields in [("x-gateway-provider", "@mine"), ("x-gateway-config", "pc-1"), ("x-gateway-virtual-key", "mine")]
        {
            assert_eq!(target(&Settings::default(), SAVED, &[fields]).unwrap().2.as_deref(), Some("sk-stored"));
        }
        for fields in [("x-gateway-provider", "@other"), ("x-gateway-config", "pc-2")] {
            assert!(matches!(target(&Settings::default(), SAVED, &[fields]), Err(Error::SavedUnknown { .. })));
        }
    }

    #[test]
    fn a_stored_credential_never_goes_to_a_host_of_the_requests_choice() {
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
            // Stored apart, they were not stored for each other.
            &[("x-gateway-config", "pc-host"), ("x-gateway-provider", "@mine")],
            &[("x-gateway-config", "pc-loose"), ("x-gateway-provider", "groq")],
            &[("x-gateway-config", "pc-loose"), ("x-gateway-provider", "@mine")],
        ] {
            let found = target(&Settings::default(), SAVED, fields);
            assert!(matches!(found, Err(Error::HostRefused { .. })), "{fields:?}: {:?}", found.ok());
        }
    }

    #[test]
    fn a_stored_credential_goes_where_it_was_stored_for() {
        for (fields, host) in [
            (&[("x-gateway-config", "pc-key"), ("x-gateway-provider", "groq")][..], "api.openai.com"),
            (&[("x-gateway-config", "pc-bound"), ("x-gateway-provider", "openai")], "llm.example"),
        ] {
            let found = target(&Settings::default(), SAVED, fields).unwrap();
            assert_eq!((found.1.as_str(), found.2.as_deref()), (host, Some("sk-config")), "{fields:?}");
        }
        // What the request itself brings may go where the request says.
        let own =
            [("x-gateway-config", r#"{"provider":"openai","api_key":"sk-own","custom_host":"https://a.example"}"#)];
        assert_eq!(target(&Settings::default(), SAVED, &own).unwrap().1, "a.example");
    }

    #[test]
    fn what_is_wrong_is_told_in_the_order_of_the_spec() {
        let code =
            |fields: &[(&str, &str)]| target(&Settings::default(), SAVED, fields).map_err(|error| error.code()).err();
        let kind = ("content-type", "text/plain");
        let host = ("x-gateway-custom-host", "ftp://a");
        let forward = ("x-gateway-forward-headers", "x-gateway-forward-headers");
        for (fields, expected) in [
            (&[kind, forward, host][..], "invalid_header"),
            (&[forward, host], "provider_needed"),
            (&[("x-gateway-provider", "nobody"), host, forward], "invalid_provider"),
            (&[("x-gateway-provider", "@nobody"), host, forward], "not_found_in_workspace"),
            (&[("x-gateway-virtual-key", "nobody"), host, forward], "not_found_in_workspace"),
            (&[("x-gateway-config", "{"), host, forward], "invalid_custom_host"),
            (&[("x-gateway-config", "{"), forward], "invalid_config"),
            (&[("x-gateway-config", "[1]"), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"retry":1}"#), forward], "provider_needed"),
            (&[("x-gateway-config", r#"{"retry":1}"#), ("x-gateway-provider", "openai"), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"provider":1}"#), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"provider":"openai","options":[]}"#), forward], "invalid_config"),
            (&[("x-gateway-config", r#"{"provider":"openai"}"#), forward], "invalid_header"),
            (&[("x-gateway-config", "pc-none"), forward], "not_found_in_workspace"),
        ] {
            assert_eq!(code(fields), Some(expected), "{fields:?}");
        }
    }

    const AZURE: &str = r#"{"epoch":"1","providers":[{"slug":"az","provider":"azure-openai","api_key":"k",
        "options":{"resource_name":"mine","api_version":"v1"}}]}"#;

    #[test]
    fn options_decide_the_address_of_a_provider() {
        let settings = Settings::default();
        let fields = [("x-gateway-provider", "azure-openai"), ("x-gateway-azure-resource-name", "res")];
        assert_eq!(target(&settings, SAVED, &fields).unwrap().1, "res.openai.azure.com");
        let config = r#"{"provider":"azure-openai","resource_name":"in-config"}"#;
        let fields = [("x-gateway-config", config), ("x-gateway-azure-resource-name", "res")];
        assert_eq!(target(&settings, SAVED, &fields).unwrap().1, "in-config.openai.azure.com");
        let missing = target(&settings, SAVED, &[("x-gateway-provider", "azure-openai")]);
        assert!(matches!(missing, Err(Error::OptionInvalid { provider: "azure-openai", .. })));
    }

    #[test]
    fn a_stored_credential_goes_to_the_stored_address_whatever_a_header_says() {
        let fields = [("x-gateway-provider", "@az"), ("x-gateway-azure-resource-name", "evil")];
        let found = target(&Settings::default(), AZURE, &fields).unwrap();
        assert_eq!((found.1.as_str(), found.2.as_deref()), ("mine.openai.azure.com", Some("k")));
        let unplaced = AZURE.replace(r#""resource_name":"mine","#, "");
        assert!(matches!(target(&Settings::default(), &unplaced, &fields), Err(Error::OptionInvalid { .. })));
    }

    #[test]
    fn inline_choices_can_be_blocked_in_the_order_of_the_spec() {
        let settings = Settings { block_inline_config: true, ..Settings::default() };
        let code = |fields: &[(&str, &str)]| target(&settings, SAVED, fields).map_err(|error| error.code()).err();
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
}
