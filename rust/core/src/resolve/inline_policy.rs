//! What a request may not choose by itself: anything where an operator says so, and a host for a credential that is not its own.

use penstock_llm::catalog::{Grant, Options, Provider};

use crate::{
    accounting::record::masking::is_slug,
    config::Node,
    error::{Error, Result},
    features::custom_host::CustomHost,
    ingress::headers,
    resolve::target_resolver::TargetResolver,
};

/// Control headers that decide which host of a provider is called.
const HOST_HEADERS: [&str; 11] = [
    "x-gateway-aws-sts-endpoint",
    "x-gateway-azure-authority-host",
    "x-gateway-azure-deployment-name",
    "x-gateway-azure-deployment-type",
    "x-gateway-azure-endpoint-name",
    "x-gateway-azure-foundry-url",
    "x-gateway-azure-region",
    "x-gateway-azure-resource-name",
    "x-gateway-databricks-workspace",
    "x-gateway-huggingface-base-url",
    "x-gateway-snowflake-account",
];

/// Where a credential is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CredentialStorage {
    /// In a config that was saved.
    pub is_in_config: bool,
    /// With a saved provider, or header fields in its place.
    pub is_in_provider: bool,
}

impl TargetResolver<'_> {
    /// A stored credential goes to its provider or to the host that is stored with it, never to one that a request names; so do
    /// stored header fields.
    pub(crate) fn check_credential_host(&self, node: &Node, stored: CredentialStorage) -> Result<()> {
        let CredentialStorage { is_in_config: in_config, is_in_provider: in_provider } = stored;
        let names_host = self.call.control.custom_host.is_some();
        let is_bound = node.features.custom_host != CustomHost::default();
        // A key that is stored without its provider belongs to none that a request could name.
        let is_loose = node.provider.is_none() && !is_bound;
        if in_config && (names_host || is_loose) || in_provider && (names_host || is_bound) {
            return Err(Error::CustomHostInvalid {
                message:
                    "stored credentials and header fields go to the host that they are stored for, not to one that a \
                    request names"
                        .into(),
            });
        }
        Ok(())
    }

    /// Of whom a target's credential is fetched. What the machine itself is given serves what is stored, where its operator
    /// lends it; no request may ask for it.
    pub(crate) fn resolve_grant(
        &self,
        provider: &dyn Provider,
        options: &Options,
        is_stored: bool,
    ) -> Result<Option<Grant>> {
        let refused = |message| Error::ProviderOptionInvalid { provider: provider.slug(), message };
        let grant = provider.grant(options).map_err(refused)?;
        if !grant.as_ref().is_some_and(Grant::is_machine_identity) || (is_stored && self.settings.identity.lend) {
            return Ok(grant);
        }
        let reason = if is_stored {
            "its operator does not lend them: `identity.lend`"
        } else {
            "only a stored provider or config may ask for them; a request sends keys of its own"
        };
        Err(refused(format!("these options ask for the keys of the machine itself, and {reason}")))
    }

    /// With `block_inline_config` only what is saved may decide.
    pub(crate) fn check_inline_allowed(&self) -> Result<()> {
        if !self.settings.block_inline_config && !self.snapshot.blocks_inline_config(self.caller.workspace()) {
            return Ok(());
        }
        let control = &self.call.control;
        let blocked = if control.config.is_some_and(|text| !is_slug(text.as_bytes())) {
            ("inline_config_blocked", "x-gateway-config")
        } else if control.provider.is_some_and(|name| !name.starts_with('@')) {
            ("inline_provider_blocked", "x-gateway-provider")
        } else if control.custom_host.is_some() {
            ("inline_custom_host_blocked", "x-gateway-custom-host")
        } else if let Some(field) = self.find_host_header() {
            ("inline_provider_url_blocked", field)
        } else if control.forward_headers.is_some() {
            ("inline_forward_headers_blocked", "x-gateway-forward-headers")
        } else {
            return Ok(());
        };
        Err(Error::InlineOptionBlocked { code: blocked.0, field: blocked.1 })
    }

    /// The first field that decides a provider's host, under the name that we have for it.
    fn find_host_header(&self) -> Option<&'static str> {
        let aliases = &self.settings.header_aliases;
        let rests = self.call.head.headers.iter().filter_map(|(name, _)| headers::split_control_name(name, aliases));
        let known = |rest: &[u8]| {
            HOST_HEADERS.into_iter().find(|field| &field.as_bytes()[headers::CONTROL_PREFIX.len()..] == rest)
        };
        rests.into_iter().find_map(|(_, rest)| known(rest))
    }
}
