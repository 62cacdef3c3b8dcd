//! Oracle's cloud as its services ask who calls: a user of a tenancy, whose key signs each request.

use super::{
    Grant, Known, Options, OracleKey, Signature,
    options::{known, sent},
};

pub(crate) const OPTIONS: &[Known] = &[
    known("oracle_region", "oracle-region"),
    Known { key: "oracle_compartment_id", header: "oracle-compartment-id", sent_as: Some("opc-compartment-id") },
    known("oracle_api_version", "oracle-api-version"),
    known("oracle_serving_mode", "oracle-serving-mode"),
    known("oracle_tenancy", "oracle-tenancy"),
    known("oracle_user", "oracle-user"),
    known("oracle_fingerprint", "oracle-fingerprint"),
    known("oracle_private_key", "oracle-private-key"),
    known("oracle_key_passphrase", "oracle-key-passphrase"),
    sent("opc_conversation_store_id", "opc-conversation-store-id"),
];

/// The version of the service where nobody says another, and what is below it for who speaks as `OpenAI` does.
const VERSION: &str = "20231130";
const BELOW: &str = "actions/v1";
/// By which endpoints of one's own are known among models.
const OWN_ENDPOINT: &str = "ocid1.generativeaiendpoint.";

/// What follows the host.
pub(crate) fn below(options: &Options) -> Result<String, String> {
    let version = options.get("oracle_api_version").unwrap_or(VERSION);
    if version.len() != VERSION.len() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("oracle_api_version must be a date such as {VERSION}"));
    }
    Ok(format!("/{version}/{BELOW}"))
}

/// Here the model says by itself who serves it: an endpoint of one's own, or the service's on demand.
pub(crate) fn refuse_other_mode(options: &Options, model: &str) -> Result<(), String> {
    let is_own = model.starts_with(OWN_ENDPOINT);
    match options.get("oracle_serving_mode") {
        Some("DEDICATED") if !is_own && !model.is_empty() => {
            Err(format!("with oracle_serving_mode DEDICATED the model is an endpoint's id: {OWN_ENDPOINT}…"))
        }
        Some("ON_DEMAND") if is_own => {
            Err("with oracle_serving_mode ON_DEMAND the model is a model's name, no endpoint's id".into())
        }
        None | Some("DEDICATED" | "ON_DEMAND") => Ok(()),
        Some(other) => Err(format!("oracle_serving_mode `{other}` must be ON_DEMAND or DEDICATED")),
    }
}

/// The key among the options, where there is one: else an API key of the service's own goes along.
pub(crate) fn signature(options: &Options) -> Result<Option<Signature<'_>>, String> {
    let Some(private_key) = options.get("oracle_private_key") else { return Ok(None) };
    let needed = |key: &'static str| {
        let value = options.get(key).ok_or_else(|| format!("no {key}: it goes together with oracle_private_key"))?;
        let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'/'));
        if is_plain { Ok(value) } else { Err(format!("{key} must be an id as Oracle shows it")) }
    };
    Ok(Some(Signature::Oracle(OracleKey {
        tenancy: needed("oracle_tenancy")?,
        user: needed("oracle_user")?,
        fingerprint: needed("oracle_fingerprint")?,
        compartment: options.get("oracle_compartment_id"),
        private_key,
    })))
}

/// A key that is sealed, and what opens it.
pub(crate) fn grant(options: &Options) -> Result<Option<Grant>, String> {
    let Some(pem) = options.get("oracle_private_key") else { return Ok(None) };
    if pem.contains("Proc-Type:") {
        let message =
            "oracle_private_key is sealed in a way that is not read: `openssl pkcs8 -topk8` makes a key that is";
        return Err(message.into());
    }
    if !pem.contains("BEGIN ENCRYPTED PRIVATE KEY") {
        return Ok(None);
    }
    let passphrase = options.get("oracle_key_passphrase");
    let passphrase = passphrase.ok_or("no oracle_key_passphrase: oracle_private_key is sealed with one")?;
    Ok(Some(Grant::SealedKey { pem: pem.to_owned(), passphrase: passphrase.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_key_needs_its_passphrase() {
        let sealed = ("oracle_private_key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\\nabc");
        assert!(grant(&options(&[sealed])).unwrap_err().contains("oracle_key_passphrase"));
        let granted = grant(&options(&[sealed, ("oracle_key_passphrase", "p")])).unwrap().unwrap();
        assert!(granted.is_to_sign() && granted.signs().is_none() && !format!("{granted:?}").contains("abc"));
        for plain in ["-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----"] {
            assert_eq!(grant(&options(&[("oracle_private_key", plain), ("oracle_key_passphrase", "p")])), Ok(None));
        }
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED";
        assert!(grant(&options(&[("oracle_private_key", old)])).unwrap_err().contains("pkcs8 -topk8"));
        assert_eq!(grant(&options(&[])), Ok(None));
    }

    #[test]
    fn a_version_is_a_date_and_a_mode_is_that_of_its_model() {
        assert_eq!(below(&options(&[])).unwrap(), "/20231130/actions/v1");
        assert_eq!(below(&options(&[("oracle_api_version", "20260101")])).unwrap(), "/20260101/actions/v1");
        assert!(below(&options(&[("oracle_api_version", "../../../a")])).is_err());
        let mode = |mode, model| refuse_other_mode(&options(&[("oracle_serving_mode", mode)]), model);
        let own = "ocid1.generativeaiendpoint.oc1.x";
        assert!(mode("DEDICATED", own).is_ok() && mode("ON_DEMAND", "xai.grok-4").is_ok());
        assert!(mode("DEDICATED", "xai.grok-4").unwrap_err().contains("endpoint"));
        assert!(mode("ON_DEMAND", own).is_err() && mode("other", own).unwrap_err().contains("DEDICATED"));
        assert!(refuse_other_mode(&options(&[]), own).is_ok());
    }

    fn options(given: &[(&str, &str)]) -> Options {
        Options::of(OPTIONS, given)
    }

    #[test]
    fn a_key_belongs_to_a_user_of_a_tenancy() {
        assert_eq!(signature(&options(&[("oracle_tenancy", "t")])), Ok(None));
        let key = ("oracle_private_key", "k");
        assert!(signature(&options(&[key])).unwrap_err().contains("oracle_tenancy"));
        let given = [key, ("oracle_tenancy", "t"), ("oracle_user", "u"), ("oracle_fingerprint", "aa:bb")];
        assert!(matches!(signature(&options(&given)), Ok(Some(Signature::Oracle(_)))));
        let evil = [key, ("oracle_tenancy", "t\",x=\""), ("oracle_user", "u"), ("oracle_fingerprint", "aa:bb")];
        assert!(signature(&options(&evil)).unwrap_err().contains("oracle_tenancy"));
    }
}
