//! Entra ID as Azure's services ask for it: the application, its secret, and what a token is asked for.

use super::{Grant, Known, Options, options::known, segment};

pub(super) const OPTIONS: [Known; 6] = [
    known("azure_auth_mode", "azure-auth-mode"),
    known("azure_entra_tenant_id", "azure-entra-tenant-id"),
    known("azure_entra_client_id", "azure-entra-client-id"),
    known("azure_entra_client_secret", "azure-entra-client-secret"),
    known("azure_entra_scope", "azure-entra-scope"),
    known("azure_authority_host", "azure-authority-host"),
];

const AUTHORITY: &str = "https://login.microsoftonline.com";
const SCOPE: &str = "https://cognitiveservices.azure.com/.default";

/// Where a token comes from, if the options say that one is to be fetched.
pub(super) fn grant(options: &Options) -> Result<Option<Grant>, String> {
    match options.get("azure_auth_mode") {
        None | Some("default" | "apiKey") => return Ok(None),
        Some("entra") => (),
        Some(other) => {
            return Err(format!("azure_auth_mode `{other}` is not available in this version: it may be entra"));
        }
    }
    let needed = |key: &str| {
        let missing = || format!("no {key}: send x-gateway-{}", key.replace('_', "-"));
        options.get(key).map(ToOwned::to_owned).ok_or_else(missing)
    };
    let tenant = needed("azure_entra_tenant_id")?;
    if !tenant.split('.').all(segment::is_label) {
        return Err("azure_entra_tenant_id must be an id or a domain".into());
    }
    let or = |key: &str, usual: &str| options.get(key).unwrap_or(usual).to_owned();
    Ok(Some(Grant::Application {
        authority: or("azure_authority_host", AUTHORITY),
        tenant,
        client: needed("azure_entra_client_id")?,
        secret: needed("azure_entra_client_secret")?,
        scope: or("azure_entra_scope", SCOPE),
    }))
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
        assert!(grant(&options(&[("azure_auth_mode", "managed")])).unwrap_err().contains("managed"));
    }
}
