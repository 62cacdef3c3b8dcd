//! Who is calling: the gateway key, from where the caller put it.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{
    error::{Error, Result},
    headers::{Control, Headers},
    snapshot::{Key, Snapshot},
};

/// A caller that was admitted.
#[derive(Debug, Default)]
pub struct Caller<'s> {
    /// `None` where the gateway is open.
    pub key: Option<&'s Key>,
    /// The gateway key stood in `authorization`: it is no credential for a provider.
    pub in_authorization: bool,
}

/// Admits a caller, or says why not. Where keys are configured (or asked for by a setting) one must be sent.
pub fn admit<'s>(
    snapshot: &'s Snapshot,
    require: bool,
    headers: &Headers,
    control: &Control<'_>,
) -> Result<Caller<'s>> {
    if !require && !snapshot.has_keys() {
        return Ok(Caller::default());
    }
    if let Some(text) = control.api_key {
        let key = snapshot.key(text).ok_or(Error::KeyUnknown)?;
        return Ok(Caller { key: Some(valid(key)?), in_authorization: false });
    }
    let bearer = bearer(headers).ok_or(Error::KeyMissing)?;
    let key = snapshot.key(bearer).ok_or(Error::KeyMissing)?;
    Ok(Caller { key: Some(valid(key)?), in_authorization: true })
}

/// The token of `authorization: Bearer …`.
pub fn bearer(headers: &Headers) -> Option<&str> {
    let value = headers.text("authorization")?;
    let (scheme, token) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case("bearer ") && !token.trim().is_empty()).then(|| token.trim())
}

fn valid(key: &Key) -> Result<&Key> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    match key.expires_at {
        Some(end) if end <= now => Err(Error::KeyExpired),
        _ => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = r#"{"epoch":"1","keys":[
        {"id":"k","name":"n","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"id":"old","name":"o","expires_at":1,"sha256":"a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"}]}"#;

    fn outcome(fields: &[(&str, &str)]) -> std::result::Result<bool, &'static str> {
        let snapshot = Snapshot::compile(KEYS.as_bytes()).unwrap();
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let control = Control::read(&headers, &[]);
        admit(&snapshot, false, &headers, &control).map(|caller| caller.in_authorization).map_err(|error| error.code())
    }

    #[test]
    fn takes_the_key_from_its_own_header_or_from_authorization() {
        assert_eq!(outcome(&[("x-gateway-api-key", "abc")]), Ok(false));
        assert_eq!(outcome(&[("authorization", "Bearer abc")]), Ok(true));
    }

    #[test]
    fn refuses_without_a_valid_key() {
        assert_eq!(outcome(&[]), Err("api_key_missing"));
        assert_eq!(outcome(&[("authorization", "Bearer sk-provider")]), Err("api_key_missing"));
        assert_eq!(outcome(&[("x-gateway-api-key", "nope")]), Err("03"));
        assert_eq!(outcome(&[("x-gateway-api-key", "abd")]), Err("03"));
    }

    #[test]
    fn an_open_gateway_admits_everyone() {
        let headers = Headers::default();
        assert!(admit(&Snapshot::default(), false, &headers, &Control::default()).is_ok());
        assert!(admit(&Snapshot::default(), true, &headers, &Control::default()).is_err());
    }
}
