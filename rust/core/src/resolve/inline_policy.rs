//! Policy for inline choices of a request. Blocks them if the operator disables them, and never sends a stored
//! credential to a host that the request names.

use penstock_llm::catalog::{Grant, Options, Provider};

use crate::{
    accounting::record::masking::is_slug,
    config::Node,
    error::{Error, Result},
    features::custom_host::CustomHost,
    ingress::control_headers,
    resolve::target_resolver::TargetResolver,
    state::snapshot::SavedProvider,
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

/// Where a target's credential is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CredentialStorage {
    /// True if a saved config contains the credential, directly or as a secret in its parameters.
    pub is_in_config: bool,
    /// True if a saved provider contains the credential, directly or in header fields.
    pub is_in_provider: bool,
}

impl TargetResolver<'_> {
    /// Rejects a request that would send a stored credential or stored header fields to a host that the request names.
    /// Both go only to their provider or to the host stored with them.
    pub(crate) fn check_credential_host(
        &self,
        node: &Node,
        saved: Option<&SavedProvider>,
        stored: CredentialStorage,
    ) -> Result<()> {
        let CredentialStorage { is_in_config: in_config, is_in_provider: in_provider } = stored;
        let names_host =
            self.client_request.control.custom_host.is_some() && !self.names_stored_host(node, saved, stored);
        let is_bound = node.features.custom_host != CustomHost::default();
        // A key stored without a provider must not be sent to a provider that the request names.
        let is_loose = node.provider.is_none() && !is_bound;
        if in_config && (names_host || is_loose) || in_provider && (names_host || is_bound) {
            return Err(Error::CustomHostInvalid {
                message:
                    "stored credentials, secret parameters and header fields are sent only to the host that they are stored for; a request \
                    cannot name another"
                        .into(),
            });
        }
        Ok(())
    }

    /// Returns true if the host that the request names is the one that the credential is stored for.
    fn names_stored_host(&self, node: &Node, saved: Option<&SavedProvider>, stored: CredentialStorage) -> bool {
        let requested = CustomHost::default().resolve(self.client_request.control.custom_host).ok().flatten();
        let own = if stored.is_in_config {
            node.features.custom_host.resolve(None).ok().flatten()
        } else {
            saved.and_then(|saved| saved.custom_host.clone())
        };
        requested.is_some() && requested == own
    }

    /// Returns how a target's credential is fetched. Only stored providers and configs may use the machine's own
    /// identity, and only if the operator allows it.
    pub(crate) fn resolve_grant(
        &self,
        provider: &dyn Provider,
        options: &Options,
        is_stored: bool,
    ) -> Result<Option<Grant>> {
        let refused = |message| Error::ProviderOptionInvalid { provider: provider.slug(), message };
        let grant = provider.grant(options).map_err(refused)?;
        if !grant.as_ref().is_some_and(Grant::is_machine_identity)
            || (is_stored && self.settings.identity.allow_provider_use)
        {
            return Ok(grant);
        }
        let reason = if is_stored {
            "the operator does not allow that; see `identity.allow_provider_use`"
        } else {
            "only a stored provider or config may use them; a request sends its own keys"
        };
        Err(refused(format!("these options use the credentials of the machine itself, and {reason}")))
    }

    /// If `block_inline_config` is set, rejects every choice of the request that is not stored.
    pub(crate) fn check_inline_allowed(&self) -> Result<()> {
        if !self.settings.block_inline_config && !self.snapshot.blocks_inline_config(self.caller.workspace()) {
            return Ok(());
        }
        let control = &self.client_request.control;
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

    /// Returns the first header that decides a provider's host, under its `x-gateway-` name.
    fn find_host_header(&self) -> Option<&'static str> {
        let aliases = &self.settings.header_aliases;
        let rests = self
            .client_request
            .head
            .headers
            .iter()
            .filter_map(|(name, _)| control_headers::split_control_name(name, aliases));
        let find_field = |rest: &[u8]| {
            HOST_HEADERS.into_iter().find(|field| &field.as_bytes()[control_headers::CONTROL_PREFIX.len()..] == rest)
        };
        rests.into_iter().find_map(|(_, rest)| find_field(rest))
    }
}
