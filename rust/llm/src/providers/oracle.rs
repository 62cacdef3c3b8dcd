//! Oracle's cloud as its services ask who calls: a user of a tenancy, whose key signs each request.

use super::{
    Known, Options, OracleKey, Signature,
    options::{known, sent},
};

pub(super) const OPTIONS: &[Known] = &[
    known("oracle_region", "oracle-region"),
    Known { key: "oracle_compartment_id", header: "oracle-compartment-id", sent_as: Some("opc-compartment-id") },
    known("oracle_tenancy", "oracle-tenancy"),
    known("oracle_user", "oracle-user"),
    known("oracle_fingerprint", "oracle-fingerprint"),
    known("oracle_private_key", "oracle-private-key"),
    sent("opc_conversation_store_id", "opc-conversation-store-id"),
];

/// The key among the options, where there is one: else an API key of the service's own goes along.
pub(super) fn signature(options: &Options) -> Result<Option<Signature<'_>>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
