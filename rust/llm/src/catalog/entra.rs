//! Entra ID as Azure's services ask for it: an application with a secret, the machine itself, or an application for which that vouches.

use super::{Federated, Grant, Known, Options, Voucher, options::known};
use crate::catalog::path_segment;

pub(crate) const OPTIONS: [Known; 9] = [
    known("azure_auth_mode", "azure-auth-mode"),
    known("azure_entra_tenant_id", "azure-entra-tenant-id"),
    known("azure_entra_client_id", "azure-entra-client-id"),
    known("azure_entra_client_secret", "azure-entra-client-secret"),
    known("azure_entra_scope", "azure-entra-scope"),
    known("azure_authority_host", "azure-authority-host"),
    known("azure_managed_client_id", "azure-managed-client-id"),
    known("azure_workload_client_id", "azure-workload-client-id"),
    known("azure_workload_tenant_id", "azure-workload-tenant-id"),
];

const AUTHORITY: &str = "https://login.microsoftonline.com";
const MODES: &str = "default, entra, managed, workload or entraFederated";
const SCOPE: &str = "https://cognitiveservices.azure.com/.default";

/// Where a token comes from, if the options say that one is to be fetched.
pub(crate) fn grant(options: &Options) -> Result<Option<Grant>, String> {
    let text = |key: &str| options.get(key).map(ToOwned::to_owned);
    let scope = text("azure_entra_scope").unwrap_or_else(|| SCOPE.to_owned());
    let managed = text("azure_managed_client_id");
    Ok(Some(match options.get("azure_auth_mode") {
        None | Some("default" | "apiKey") => return Ok(None),
        Some("entra") => Grant::Application {
            authority: text("azure_authority_host").unwrap_or_else(|| AUTHORITY.to_owned()),
            tenant: tenant(options, "azure_entra_tenant_id")?.ok_or_else(|| lacks("azure_entra_tenant_id"))?,
            client: text("azure_entra_client_id").ok_or_else(|| lacks("azure_entra_client_id"))?,
            secret: text("azure_entra_client_secret").ok_or_else(|| lacks("azure_entra_client_secret"))?,
            scope,
        },
        Some("managed") => Grant::Managed { resource: resource(&scope), client: managed },
        Some("workload") => Grant::Federated(Box::new(Federated {
            tenant: tenant(options, "azure_workload_tenant_id")?,
            client: text("azure_workload_client_id"),
            scope,
            voucher: Voucher::Workload,
        })),
        Some("entraFederated") => Grant::Federated(Box::new(Federated {
            tenant: Some(tenant(options, "azure_entra_tenant_id")?.ok_or_else(|| lacks("azure_entra_tenant_id"))?),
            client: Some(text("azure_entra_client_id").ok_or_else(|| lacks("azure_entra_client_id"))?),
            scope,
            voucher: Voucher::Any { managed },
        })),
        Some(other) => return Err(format!("azure_auth_mode `{other}` is not known: it may be {MODES}")),
    }))
}

fn lacks(key: &str) -> String {
    format!("no {key}: send x-gateway-{}", key.replace('_', "-"))
}

/// A tenant stands in the path of where tokens are given.
fn tenant(options: &Options, key: &str) -> Result<Option<String>, String> {
    match options.get(key) {
        Some(tenant) if !tenant.split('.').all(path_segment::is_label) => {
            Err(format!("{key} must be an id or a domain"))
        }
        tenant => Ok(tenant.map(ToOwned::to_owned)),
    }
}

/// What a scope is of, as machines ask for it.
fn resource(scope: &str) -> String {
    scope.strip_suffix("/.default").unwrap_or(scope).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(given: &[(&str, &str)]) -> Options {
        Options::of(&OPTIONS, given)
    }

    #[test]
    fn an_application_is_named_in_full_or_what_lacks_is() {
        let mode = ("azure_auth_mode", "entra");
        assert_eq!(grant(&options(&[])), Ok(None));
        assert!(grant(&options(&[mode])).unwrap_err().contains("x-gateway-azure-entra-tenant-id"));
        let given = [
            mode,
            ("azure_entra_tenant_id", "t-1"),
            ("azure_entra_client_id", "c"),
            ("azure_entra_client_secret", "s"),
        ];
        let Ok(Some(Grant::Application { authority, scope, .. })) = grant(&options(&given)) else { panic!("a grant") };
        assert_eq!((authority.as_str(), scope.as_str()), (AUTHORITY, SCOPE));
        assert!(grant(&options(&[mode, ("azure_entra_tenant_id", "../x")])).is_err());
        assert!(grant(&options(&[("azure_auth_mode", "other")])).unwrap_err().contains("managed, workload"));
    }

    #[test]
    fn the_machine_asks_for_itself_or_vouches_for_an_application() {
        let managed = grant(&options(&[("azure_auth_mode", "managed"), ("azure_managed_client_id", "m")]));
        let (resource, client) = ("https://cognitiveservices.azure.com".to_owned(), Some("m".to_owned()));
        assert_eq!(managed, Ok(Some(Grant::Managed { resource, client })));
        let workload = ("azure_auth_mode", "workload");
        let Ok(Some(Grant::Federated(own))) = grant(&options(&[workload])) else { panic!("a grant") };
        assert_eq!((own.tenant, own.client, own.voucher), (None, None, Voucher::Workload));
        assert!(grant(&options(&[workload, ("azure_workload_tenant_id", "a/b")])).unwrap_err().contains("workload"));
        let federated = ("azure_auth_mode", "entraFederated");
        assert!(grant(&options(&[federated])).unwrap_err().contains("x-gateway-azure-entra-tenant-id"));
        let given = [federated, ("azure_entra_tenant_id", "t.example"), ("azure_entra_client_id", "c")];
        let granted = grant(&options(&given)).unwrap().unwrap();
        assert!(granted.is_machines() && !granted.is_to_sign());
    }
}
