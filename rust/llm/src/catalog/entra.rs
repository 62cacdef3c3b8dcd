//! Microsoft Entra ID tokens for Azure services: by client secret, managed identity, or federated workload identity.

use crate::catalog::{
    grant::{ClientAssertion, FederatedApplication, Grant},
    options::{OptionField, Options, gateway_option},
    path_segment,
};

pub(crate) const OPTIONS: [OptionField; 9] = [
    gateway_option("azure_auth_mode", "azure-auth-mode"),
    gateway_option("azure_entra_tenant_id", "azure-entra-tenant-id"),
    gateway_option("azure_entra_client_id", "azure-entra-client-id"),
    gateway_option("azure_entra_client_secret", "azure-entra-client-secret"),
    gateway_option("azure_entra_scope", "azure-entra-scope"),
    gateway_option("azure_authority_host", "azure-authority-host"),
    gateway_option("azure_managed_client_id", "azure-managed-client-id"),
    gateway_option("azure_workload_client_id", "azure-workload-client-id"),
    gateway_option("azure_workload_tenant_id", "azure-workload-tenant-id"),
];

const DEFAULT_AUTHORITY: &str = "https://login.microsoftonline.com";
const MODES: &str = "default, entra, managed, workload or entraFederated";
const DEFAULT_SCOPE: &str = "https://cognitiveservices.azure.com/.default";

/// Returns how a token is obtained; `None` if the options do not ask for one.
pub(crate) fn grant_from_options(options: &Options) -> Result<Option<Grant>, String> {
    let text = |key: &str| options.get(key).map(ToOwned::to_owned);
    let scope = text("azure_entra_scope").unwrap_or_else(|| DEFAULT_SCOPE.to_owned());
    let managed = text("azure_managed_client_id");
    Ok(Some(match options.get("azure_auth_mode") {
        None | Some("default" | "apiKey") => return Ok(None),
        Some("entra") => Grant::EntraApplication {
            authority: text("azure_authority_host").unwrap_or_else(|| DEFAULT_AUTHORITY.to_owned()),
            tenant: tenant_from_options(options, "azure_entra_tenant_id")?
                .ok_or_else(|| missing_option_error("azure_entra_tenant_id"))?,
            client_id: text("azure_entra_client_id").ok_or_else(|| missing_option_error("azure_entra_client_id"))?,
            client_secret: text("azure_entra_client_secret")
                .ok_or_else(|| missing_option_error("azure_entra_client_secret"))?,
            scope,
        },
        Some("managed") => Grant::ManagedIdentity { resource: resource_from_scope(&scope), client_id: managed },
        Some("workload") => Grant::FederatedApplication(Box::new(FederatedApplication {
            tenant: tenant_from_options(options, "azure_workload_tenant_id")?,
            client_id: text("azure_workload_client_id"),
            scope,
            client_assertion: ClientAssertion::WorkloadTokenFile,
        })),
        Some("entraFederated") => Grant::FederatedApplication(Box::new(FederatedApplication {
            tenant: Some(
                tenant_from_options(options, "azure_entra_tenant_id")?
                    .ok_or_else(|| missing_option_error("azure_entra_tenant_id"))?,
            ),
            client_id: Some(
                text("azure_entra_client_id").ok_or_else(|| missing_option_error("azure_entra_client_id"))?,
            ),
            scope,
            client_assertion: ClientAssertion::TokenFileOrManagedIdentity { managed_client_id: managed },
        })),
        Some(other) => return Err(format!("azure_auth_mode `{other}` is unknown; it may be {MODES}")),
    }))
}

fn missing_option_error(key: &str) -> String {
    format!("no {key}: send x-gateway-{}", key.replace('_', "-"))
}

/// Returns a tenant option after validation, because the tenant becomes part of the token endpoint's path.
fn tenant_from_options(options: &Options, key: &str) -> Result<Option<String>, String> {
    match options.get(key) {
        Some(tenant) if !tenant.split('.').all(path_segment::is_host_label) => {
            Err(format!("{key} must be an id or a domain"))
        }
        tenant => Ok(tenant.map(ToOwned::to_owned)),
    }
}

/// Returns the resource of a scope; the managed identity endpoint expects a resource instead of a scope.
fn resource_from_scope(scope: &str) -> String {
    scope.strip_suffix("/.default").unwrap_or(scope).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_options(pairs: &[(&str, &str)]) -> Options {
        Options::from_pairs(&OPTIONS, pairs)
    }

    #[test]
    fn names_the_missing_application_option() {
        let mode = ("azure_auth_mode", "entra");
        assert_eq!(grant_from_options(&build_options(&[])), Ok(None));
        assert!(grant_from_options(&build_options(&[mode])).unwrap_err().contains("x-gateway-azure-entra-tenant-id"));
        let pairs = [
            mode,
            ("azure_entra_tenant_id", "t-1"),
            ("azure_entra_client_id", "c"),
            ("azure_entra_client_secret", "s"),
        ];
        let Ok(Some(Grant::EntraApplication { authority, scope, .. })) = grant_from_options(&build_options(&pairs))
        else {
            panic!("a grant")
        };
        assert_eq!((authority.as_str(), scope.as_str()), (DEFAULT_AUTHORITY, DEFAULT_SCOPE));
        assert!(grant_from_options(&build_options(&[mode, ("azure_entra_tenant_id", "../x")])).is_err());
        assert!(
            grant_from_options(&build_options(&[("azure_auth_mode", "other")]))
                .unwrap_err()
                .contains("managed, workload")
        );
    }

    #[test]
    fn managed_and_federated_modes_use_the_machine_identity() {
        let managed =
            grant_from_options(&build_options(&[("azure_auth_mode", "managed"), ("azure_managed_client_id", "m")]));
        let (resource, client) = ("https://cognitiveservices.azure.com".to_owned(), Some("m".to_owned()));
        assert_eq!(managed, Ok(Some(Grant::ManagedIdentity { resource, client_id: client })));
        let workload = ("azure_auth_mode", "workload");
        let Ok(Some(Grant::FederatedApplication(application))) = grant_from_options(&build_options(&[workload])) else {
            panic!("a grant")
        };
        assert_eq!(
            (application.tenant, application.client_id, application.client_assertion),
            (None, None, ClientAssertion::WorkloadTokenFile)
        );
        assert!(
            grant_from_options(&build_options(&[workload, ("azure_workload_tenant_id", "a/b")]))
                .unwrap_err()
                .contains("workload")
        );
        let federated = ("azure_auth_mode", "entraFederated");
        assert!(
            grant_from_options(&build_options(&[federated])).unwrap_err().contains("x-gateway-azure-entra-tenant-id")
        );
        let pairs = [federated, ("azure_entra_tenant_id", "t.example"), ("azure_entra_client_id", "c")];
        let granted = grant_from_options(&build_options(&pairs)).unwrap().unwrap();
        assert!(granted.is_machine_identity() && !granted.requires_signing());
    }
}
