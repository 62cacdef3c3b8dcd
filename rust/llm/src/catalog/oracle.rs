//! Oracle Cloud options and authentication. The private key of a tenancy's user signs each request.

use crate::catalog::{
    grant::Grant,
    options::{OptionField, Options, forwarded_option, gateway_option},
    signing_keys::{OracleKey, SigningKeys},
};

pub(crate) const OPTIONS: &[OptionField] = &[
    gateway_option("oracle_region", "oracle-region"),
    OptionField {
        key: "oracle_compartment_id",
        header: "oracle-compartment-id",
        forwarded_as: Some("opc-compartment-id"),
    },
    gateway_option("oracle_api_version", "oracle-api-version"),
    gateway_option("oracle_serving_mode", "oracle-serving-mode"),
    gateway_option("oracle_tenancy", "oracle-tenancy"),
    gateway_option("oracle_user", "oracle-user"),
    gateway_option("oracle_fingerprint", "oracle-fingerprint"),
    gateway_option("oracle_private_key", "oracle-private-key"),
    gateway_option("oracle_key_passphrase", "oracle-key-passphrase"),
    forwarded_option("opc_conversation_store_id", "opc-conversation-store-id"),
];

/// Default API version.
const DEFAULT_API_VERSION: &str = "20231130";
/// Path of the `OpenAI`-compatible API after the API version.
const OPENAI_PATH: &str = "actions/v1";
/// Prefix of a model id that is a dedicated endpoint.
const DEDICATED_ENDPOINT_PREFIX: &str = "ocid1.generativeaiendpoint.";

/// Returns the base path after the host. Rejects an API version that is not a date.
pub(crate) fn base_path(options: &Options) -> Result<String, String> {
    let version = options.get("oracle_api_version").unwrap_or(DEFAULT_API_VERSION);
    if version.len() != DEFAULT_API_VERSION.len() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("oracle_api_version must be a date such as {DEFAULT_API_VERSION}"));
    }
    Ok(format!("/{version}/{OPENAI_PATH}"))
}

/// Rejects a serving mode that contradicts the model. The model alone selects the mode: it is the id of a dedicated
/// endpoint, or the name of an on-demand model.
pub(crate) fn check_serving_mode(options: &Options, model: &str) -> Result<(), String> {
    let is_own = model.starts_with(DEDICATED_ENDPOINT_PREFIX);
    match options.get("oracle_serving_mode") {
        Some("DEDICATED") if !is_own && !model.is_empty() => Err(format!(
            "oracle_serving_mode DEDICATED requires an endpoint id as the model; it begins with {DEDICATED_ENDPOINT_PREFIX}"
        )),
        Some("ON_DEMAND") if is_own => {
            Err("oracle_serving_mode ON_DEMAND requires a model name; the model is an endpoint id".into())
        }
        None | Some("DEDICATED" | "ON_DEMAND") => Ok(()),
        Some(other) => Err(format!("oracle_serving_mode `{other}` must be ON_DEMAND or DEDICATED")),
    }
}

/// Returns the signing key from the options; `None` if there is none, and then the request carries an API key.
pub(crate) fn signing_keys(options: &Options) -> Result<Option<SigningKeys<'_>>, String> {
    let Some(private_key) = options.get("oracle_private_key") else { return Ok(None) };
    let needed = |key: &'static str| {
        let value = options.get(key).ok_or_else(|| format!("no {key}; oracle_private_key requires it"))?;
        let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'/'));
        if is_plain {
            Ok(value)
        } else {
            Err(format!("{key} must be an id as Oracle shows it, without quotes, commas and slashes"))
        }
    };
    Ok(Some(SigningKeys::Oracle(OracleKey {
        tenancy: needed("oracle_tenancy")?,
        user: needed("oracle_user")?,
        fingerprint: needed("oracle_fingerprint")?,
        compartment: options.get("oracle_compartment_id"),
        private_key,
    })))
}

/// Returns the grant that decrypts an encrypted private key; `None` if the key is not encrypted.
pub(crate) fn grant(options: &Options) -> Result<Option<Grant>, String> {
    let Some(pem) = options.get("oracle_private_key") else { return Ok(None) };
    if pem.contains("Proc-Type:") {
        let message = "oracle_private_key has an unsupported encryption; convert it with `openssl pkcs8 -topk8`";
        return Err(message.into());
    }
    if !pem.contains("BEGIN ENCRYPTED PRIVATE KEY") {
        return Ok(None);
    }
    let passphrase = options.get("oracle_key_passphrase");
    let passphrase = passphrase.ok_or("no oracle_key_passphrase; the encrypted oracle_private_key requires it")?;
    Ok(Some(Grant::EncryptedKey { pem: pem.to_owned(), passphrase: passphrase.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encrypted_key_requires_its_passphrase() {
        let sealed = ("oracle_private_key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\\nabc");
        assert!(grant(&options(&[sealed])).unwrap_err().contains("oracle_key_passphrase"));
        let granted = grant(&options(&[sealed, ("oracle_key_passphrase", "p")])).unwrap().unwrap();
        assert!(
            granted.requires_signing()
                && granted.aws_signing_scope().is_none()
                && !format!("{granted:?}").contains("abc")
        );
        for plain in ["-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----"] {
            assert_eq!(grant(&options(&[("oracle_private_key", plain), ("oracle_key_passphrase", "p")])), Ok(None));
        }
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED";
        assert!(grant(&options(&[("oracle_private_key", old)])).unwrap_err().contains("pkcs8 -topk8"));
        assert_eq!(grant(&options(&[])), Ok(None));
    }

    #[test]
    fn validates_the_api_version_and_the_serving_mode() {
        assert_eq!(base_path(&options(&[])).unwrap(), "/20231130/actions/v1");
        assert_eq!(base_path(&options(&[("oracle_api_version", "20260101")])).unwrap(), "/20260101/actions/v1");
        assert!(base_path(&options(&[("oracle_api_version", "../../../a")])).is_err());
        let mode = |mode, model| check_serving_mode(&options(&[("oracle_serving_mode", mode)]), model);
        let endpoint_id = "ocid1.generativeaiendpoint.oc1.x";
        assert!(mode("DEDICATED", endpoint_id).is_ok() && mode("ON_DEMAND", "xai.grok-4").is_ok());
        assert!(mode("DEDICATED", "xai.grok-4").unwrap_err().contains("endpoint"));
        assert!(
            mode("ON_DEMAND", endpoint_id).is_err() && mode("other", endpoint_id).unwrap_err().contains("DEDICATED")
        );
        assert!(check_serving_mode(&options(&[]), endpoint_id).is_ok());
    }

    fn options(pairs: &[(&str, &str)]) -> Options {
        Options::from_pairs(OPTIONS, pairs)
    }

    #[test]
    fn signing_key_requires_tenancy_user_and_fingerprint() {
        assert_eq!(signing_keys(&options(&[("oracle_tenancy", "t")])), Ok(None));
        let key = ("oracle_private_key", "k");
        assert!(signing_keys(&options(&[key])).unwrap_err().contains("oracle_tenancy"));
        let pairs = [key, ("oracle_tenancy", "t"), ("oracle_user", "u"), ("oracle_fingerprint", "aa:bb")];
        assert!(matches!(signing_keys(&options(&pairs)), Ok(Some(SigningKeys::Oracle(_)))));
        let evil = [key, ("oracle_tenancy", "t\",x=\""), ("oracle_user", "u"), ("oracle_fingerprint", "aa:bb")];
        assert!(signing_keys(&options(&evil)).unwrap_err().contains("oracle_tenancy"));
    }
}
