//! What a request asks for and of whom: operation, config, target. Everything that is known before anything is sent.

use std::{borrow::Cow, time::Duration};

use penstock_llm::{
    dialect::Dialect,
    operation::Operation,
    providers::{self, Provider},
};

use crate::{
    caller::{self, Caller},
    config::{Config, Unknown},
    error::{Error, Result},
    features::forward_headers::ForwardHeaders,
    headers::{Control, Head},
    settings::Settings,
    snapshot::{SavedProvider, Snapshot},
    upstream::Base,
};

/// The path of a data-plane request, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route<'r> {
    pub operation: Operation,
    /// After `/v1` or `/v1/proxy`, with its leading slash.
    pub path: &'r str,
}

impl<'r> Route<'r> {
    /// `None` where the path is not one of the data plane.
    pub fn of(method: &str, path: &'r str) -> Option<Self> {
        let rest = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/') && rest.len() > 1)?;
        match rest.strip_prefix("/proxy").filter(|rest| rest.starts_with('/')) {
            Some(raw) => Some(Self { operation: Operation::Proxy, path: raw }),
            None => Some(Self { operation: Operation::of(method, rest), path: rest }),
        }
    }
}

/// One request of the data plane: what it is about, its own words, and what it asks of the gateway.
pub struct Call<'c> {
    pub route: Route<'c>,
    pub head: &'c Head,
    pub control: Control<'c>,
}

/// Where a request goes and with what.
pub struct Target<'c> {
    pub provider: &'static dyn Provider,
    pub base: Base,
    pub credential: Option<Cow<'c, str>>,
    pub forward: ForwardHeaders,
    pub timeout: Duration,
}

/// What decides the target: the process's settings, the snapshot, the request.
pub struct Choice<'c> {
    pub settings: &'c Settings,
    pub bases: &'c Bases,
    pub snapshot: &'c Snapshot,
    pub call: &'c Call<'c>,
    pub caller: &'c Caller<'c>,
}

/// Where each provider's API starts, parsed once.
pub struct Bases(Vec<(&'static dyn Provider, Option<Base>)>);

impl Bases {
    /// `mock` is the address of the pretend provider.
    pub fn new(mock: Option<&str>) -> std::result::Result<Self, String> {
        let base_of = |provider: &'static dyn Provider| match (provider.slug(), mock) {
            ("mock", Some(host)) => Base::parse(&format!("{}/v1", host.trim_end_matches('/'))).map(Some),
            _ if provider.base_url().is_empty() => Ok(None),
            _ => Base::parse(provider.base_url()).map(Some),
        };
        providers::all()
            .map(|provider| Ok((provider, base_of(provider)?)))
            .collect::<std::result::Result<_, _>>()
            .map(Self)
    }

    fn find(&self, slug: &str) -> Option<&(&'static dyn Provider, Option<Base>)> {
        self.0.iter().find(|(provider, _)| provider.slug() == slug)
    }
}

/// The providers, as a JSON array of `{"slug", "base_url", "dialect"}`.
pub fn catalogue() -> serde_json::Value {
    let row = |provider: &'static dyn Provider| {
        let dialect = match provider.dialect() {
            Dialect::OpenAi => "openai",
            Dialect::Anthropic => "anthropic",
        };
        serde_json::json!({"slug": provider.slug(), "base_url": provider.base_url(), "dialect": dialect})
    };
    providers::all().map(row).collect()
}

impl<'c> Choice<'c> {
    /// The target of a request, by its config or its provider header; and the slug of the config that was used.
    pub fn target(&self) -> Result<(Target<'c>, Option<&'c str>)> {
        self.refuse_blocked()?;
        let (config, slug) = self.config()?;
        let name = match (&config.provider, self.call.control.provider, self.call.control.virtual_key) {
            (Some(name), _, _) => Cow::Owned(name.clone()),
            (None, Some(name), _) => Cow::Borrowed(name),
            (None, None, Some(slug)) => Cow::Owned(format!("@{slug}")),
            (None, None, None) => return Err(Error::ProviderNeeded),
        };
        let saved = self.saved(&name)?;
        let slug_of_provider = saved.map_or(&*name, |saved| &saved.provider);
        let (provider, own) =
            self.bases.find(slug_of_provider).ok_or_else(|| Error::ProviderUnknown(slug_of_provider.to_owned()))?;
        let custom = config.custom_host.resolve(self.call.control.custom_host)?;
        self.refuse_leak(&config, slug, saved, custom.is_some())?;
        let base = custom.or_else(|| saved.and_then(|saved| saved.custom_host.clone())).or_else(|| own.clone());
        let base = base.ok_or_else(|| Error::HostRefused {
            message: format!("`{slug_of_provider}` has no address of its own: send x-gateway-custom-host"),
        })?;
        let stored = config.api_key.as_ref().or_else(|| saved.and_then(|saved| saved.api_key.as_ref()));
        let credential = match stored {
            Some(secret) => Some(Cow::Owned(secret.expose().to_owned())),
            None => self.sent_credential().map(Cow::Borrowed),
        };
        let settings = Duration::from_millis(self.settings.request_timeout_ms);
        let timeout = config.request_timeout.resolve(self.call.control.request_timeout, settings)?;
        let forward = config.forward_headers.resolve(self.call.control.forward_headers)?;
        Ok((Target { provider: *provider, base, credential, forward, timeout }, slug))
    }

    fn config(&self) -> Result<(Cow<'c, Config>, Option<&'c str>)> {
        let Some(text) = self.call.control.config else { return Ok((Cow::Owned(Config::default()), None)) };
        if text.starts_with('{') {
            let config = Config::parse(text.as_bytes(), Unknown::Ignored).map_err(Error::ConfigInvalid)?;
            return Ok((Cow::Owned(config), None));
        }
        match self.snapshot.config(text) {
            Some(config) => Ok((Cow::Borrowed(config), Some(text))),
            None => Err(Error::SavedUnknown { kind: "config", slug: text.to_owned() }),
        }
    }

    fn saved(&self, name: &str) -> Result<Option<&'c SavedProvider>> {
        let Some(slug) = name.strip_prefix('@') else { return Ok(None) };
        let missing = || Error::SavedUnknown { kind: "provider", slug: slug.to_owned() };
        self.snapshot.provider(slug).map(Some).ok_or_else(missing)
    }

    /// A stored credential goes to its provider or to the host that is stored with it, never to one that a request names.
    fn refuse_leak(
        &self,
        config: &Config,
        slug: Option<&str>,
        saved: Option<&SavedProvider>,
        custom: bool,
    ) -> Result<()> {
        let in_config = slug.is_some() && config.api_key.is_some() && self.call.control.custom_host.is_some();
        let in_provider = custom && saved.is_some_and(|saved| saved.api_key.is_some());
        if in_config || in_provider {
            return Err(Error::HostRefused {
                message: "a stored credential is not sent to a host that a request names".into(),
            });
        }
        Ok(())
    }

    /// With `block_inline_config` only what is saved may decide.
    fn refuse_blocked(&self) -> Result<()> {
        if !self.settings.block_inline_config {
            return Ok(());
        }
        let control = &self.call.control;
        let inline = |text: Option<&str>, mark: char| text.is_some_and(|text| !text.starts_with(mark));
        let blocked = if control.config.is_some_and(|text| text.starts_with('{')) {
            ("inline_config_blocked", "x-gateway-config")
        } else if inline(control.provider, '@') {
            ("inline_provider_blocked", "x-gateway-provider")
        } else if control.custom_host.is_some() {
            ("inline_custom_host_blocked", "x-gateway-custom-host")
        } else if control.forward_headers.is_some() {
            ("inline_forward_headers_blocked", "x-gateway-forward-headers")
        } else {
            return Ok(());
        };
        Err(Error::InlineBlocked { code: blocked.0, field: blocked.1 })
    }

    /// The provider's credential as the caller sent it; the gateway's own key is none, wherever it stands.
    fn sent_credential(&self) -> Option<&'c str> {
        let headers = &self.call.head.headers;
        let bearer = caller::bearer(headers);
        let own = if self.caller.in_authorization { bearer } else { self.call.control.api_key };
        let sent = [bearer, headers.text("x-api-key"), headers.text("api-key")];
        sent.into_iter().flatten().find(|text| Some(*text) != own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Headers;

    fn target(
        settings: &Settings,
        snapshot: &str,
        fields: &[(&str, &str)],
    ) -> Result<(String, String, Option<String>)> {
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let head = Head { headers, ..Head::default() };
        let control = Control::read(&head.headers, &[]);
        let call = Call {
            route: Route { operation: Operation::ChatComplete, path: "/chat/completions" },
            head: &head,
            control,
        };
        let (bases, caller) = (Bases::new(Some("http://127.0.0.1:1")).unwrap(), Caller::default());
        let snapshot = Snapshot::compile(snapshot.as_bytes()).unwrap();
        let choice = Choice { settings, bases: &bases, snapshot: &snapshot, call: &call, caller: &caller };
        let (target, _) = choice.target()?;
        let authority = target.base.origin.authority();
        Ok((target.provider.slug().to_owned(), authority, target.credential.map(Cow::into_owned)))
    }

    const SAVED: &str = r#"{"epoch":"1","providers":[{"slug":"mine","provider":"openai","api_key":"sk-stored"}],
        "configs":[{"slug":"pc-1","config":{"provider":"@mine"}}]}"#;

    #[test]
    fn takes_paths_apart() {
        let route = |path| Route::of("POST", path);
        assert_eq!(route("/v1/chat/completions").unwrap().operation, Operation::ChatComplete);
        assert_eq!(
            route("/v1/proxy/chat/completions"),
            Some(Route { operation: Operation::Proxy, path: "/chat/completions" })
        );
        assert_eq!((route("/v1"), route("/v1/"), route("/v2/x"), route("/v1x/y")), (None, None, None, None));
    }

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
        let fields = [("x-gateway-provider", "@mine"), ("x-gateway-custom-host", "https://evil.example")];
        assert!(matches!(target(&Settings::default(), SAVED, &fields), Err(Error::HostRefused { .. })));
        let inline = [("x-gateway-config", r#"{"provider":"@mine","custom_host":"https://evil.example"}"#)];
        assert!(matches!(target(&Settings::default(), SAVED, &inline), Err(Error::HostRefused { .. })));
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
        assert_eq!(code(&[("x-gateway-custom-host", "https://a")]), Some("inline_custom_host_blocked"));
        assert_eq!(code(&[("x-gateway-virtual-key", "mine")]), None);
    }
}
