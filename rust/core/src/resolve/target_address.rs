//! Address and credential source of a target. Stored settings are resolved first, so that a request cannot redirect a
//! stored credential.

use penstock_llm::{
    catalog::{Grant, Options, Provider},
    operation::Operation,
};
use penstock_net::BaseUrl;

use crate::{
    config::Node,
    error::{Error, Result},
    features::custom_host::CustomHost,
    ingress::control_headers::split_control_name,
    resolve::{
        inline_policy::CredentialStorage,
        route_plan::{NamedProvider, RoutePlan},
        target_resolver::TargetResolver,
    },
    state::snapshot::SavedProvider,
};

/// Address of a target, with its options and credential source.
pub(crate) struct TargetAddress {
    pub base: BaseUrl,
    pub options: Options,
    pub grant: Option<Grant>,
    /// True if the target's credential is stored.
    pub is_credential_stored: bool,
}

impl<'c> TargetResolver<'c> {
    /// Resolves a target's base URL, options and credential grant. A stored credential goes only to the address stored
    /// with it, even if the request or config names another.
    pub(crate) fn resolve_address(
        &self,
        plan: &RoutePlan<'c>,
        node: &Node,
        named_provider: &NamedProvider<'c>,
        model: &str,
        is_from_client: bool,
    ) -> Result<TargetAddress> {
        let NamedProvider { provider, saved, .. } = *named_provider;
        let mut options = Options::default();
        let has_own = saved.is_some_and(|saved| {
            saved.options.copy_accepted(provider.row().options, &mut options);
            saved.api_key.is_some() || has_credential(provider, &options)
        });
        // Stored header fields are sent only to the stored address, even without a stored credential. Any credential
        // may be sent with them.
        let keeps_fields = saved.is_some_and(SavedProvider::has_header_fields);
        let stored = (keeps_fields && !has_own).then(|| options.clone());
        let add_node_options = |options: &mut Options| {
            node.deployments.add_options(provider, model, options);
            node.options.copy_accepted(provider.row().options, options);
        };
        if !has_own {
            add_node_options(&mut options);
        }
        let in_config =
            plan.config_slug.is_some() && (node.api_key.is_some() || !has_own && has_credential(provider, &options));
        let is_bound = has_own || in_config;
        // Secrets in the parameters of a saved config, for example headers of MCP tools, fix the host too.
        let has_secret_params = plan.config_slug.is_some() && node.features.parameters.secrets().next().is_some();
        self.check_credential_host(
            node,
            saved,
            CredentialStorage { is_in_config: in_config || has_secret_params, is_in_provider: has_own || keeps_fields },
        )?;
        let is_host_fixed = is_bound || has_secret_params;
        if !is_host_fixed && is_from_client {
            self.apply_header_options(provider, &mut options);
        }
        self.apply_path_options(provider, &mut options, is_host_fixed)?;
        let host = match (&plan.custom_host, self.client_request.control.custom_host) {
            (None, Some(_)) => CustomHost::default().resolve(self.client_request.control.custom_host)?,
            (host, _) => host.clone(),
        };
        let custom = if host.is_some() { host } else { node.features.custom_host.resolve(None)? };
        let base = match custom.or_else(|| saved.and_then(|saved| saved.custom_host.clone())) {
            Some(base) => base,
            None => resolve_base_url(
                provider,
                self.client_request.route.operation,
                stored.as_ref().unwrap_or(&options),
                named_provider.base_url.as_ref(),
            )?,
        };
        let grant = self.resolve_grant(provider, &options, is_bound)?;
        if has_own {
            add_node_options(&mut options);
        }
        if is_host_fixed && is_from_client {
            self.apply_header_options(provider, &mut options);
        }
        Ok(TargetAddress { base, options, grant, is_credential_stored: is_bound })
    }

    /// Adds the option that a forwarded path sets. Rejects one that contradicts the options; ignores it if the
    /// credential is stored.
    fn apply_path_options(&self, provider: &dyn Provider, options: &mut Options, is_bound: bool) -> Result<()> {
        let route = self.client_request.route;
        let path_option = if route.operation == Operation::Proxy { provider.option_in_path(route.path) } else { None };
        let Some((option, value)) = path_option else { return Ok(()) };
        match options.get(option.key) {
            Some(requested) if requested != value => {
                let message = format!("{} is `{requested}`, but the path has `{value}`", option.key);
                Err(Error::ProviderOptionInvalid { provider: provider.slug(), message })
            }
            None if !is_bound => {
                options.insert_if_absent(option, value.to_owned());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adds the options that the request's headers set and that are not set yet.
    fn apply_header_options(&self, provider: &dyn Provider, options: &mut Options) {
        if !self.client_request.control.has_other_fields || provider.row().options.is_empty() {
            return;
        }
        for (name, value) in self.client_request.head.headers.iter() {
            let Some((_, rest)) = split_control_name(name, &self.settings.header_aliases) else { continue };
            let matched = provider.row().options.iter().find(|option| option.header.as_bytes() == rest);
            if let (Some(option), Ok(value)) = (matched, std::str::from_utf8(value))
                && !value.trim().is_empty()
            {
                options.insert_if_absent(*option, value.trim().to_owned());
            }
        }
    }
}

/// Returns true if the options contain a credential or a part of one.
fn has_credential(provider: &dyn Provider, options: &Options) -> bool {
    provider.row().bearer_token(options).is_some()
        || !matches!(provider.grant(options), Ok(None))
        || !matches!(provider.signing_keys(options), Ok(None))
        || options.has_secret()
}

/// Returns a provider's own base URL: a fixed one, or one that its options decide.
fn resolve_base_url(
    provider: &dyn Provider,
    operation: Operation,
    options: &Options,
    default_base: Option<&BaseUrl>,
) -> Result<BaseUrl> {
    let slug = provider.slug();
    let lacks = |message| Error::ProviderOptionInvalid { provider: slug, message };
    if let Some(url) = provider.resolve_base_url(operation, options).map_err(lacks)? {
        return BaseUrl::parse(&url).map_err(lacks);
    }
    default_base.cloned().ok_or_else(|| Error::CustomHostInvalid {
        message: format!("`{slug}` has no default address; send x-gateway-custom-host"),
    })
}
