//! Who is calling: the gateway key, from where the caller put it, and the provider's credential, which may stand beside it.

use std::{cell::Cell, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    auth::jwt::TokenIdentity,
    error::{Error, Result},
    ingress::headers::{ControlHeaders, Headers},
    state::snapshot::{GatewayKey, Snapshot, has_expired},
};

/// A caller that was admitted.
#[derive(Default, Clone, Copy)]
pub struct Caller<'c> {
    /// `None` where the gateway is open.
    pub key: Option<&'c GatewayKey>,
    /// The gateway key as it was sent: it is no credential for a provider, wherever else it stands.
    pub sent_key: Option<&'c str>,
    /// Who knows of other keys of ours: one of them is no provider's either.
    key_snapshot: Option<&'c Snapshot>,
}

impl<'c> Caller<'c> {
    /// The workspace that the key is for.
    pub fn workspace(&self) -> Option<&'c str> {
        self.key.and_then(|key| key.workspace.as_deref())
    }
}

/// How often it was looked whether what a request says is a key. Who is looked through no further is taken to hold one.
#[derive(Default)]
pub struct KeyLookupBudget(Cell<usize>);

impl KeyLookupBudget {
    /// Whether there were more than one request has, so that not all was looked at.
    pub fn is_exhausted(&self) -> bool {
        self.0.get() > MAX_KEY_LOOKUPS
    }

    fn spend_lookup(&self, text: &str) -> bool {
        self.0.set(self.0.get() + if text.starts_with("eyJ") { TOKEN_LOOKUP_COST } else { 1 });
        self.is_exhausted()
    }
}

/// A place in which clients put the one key that they were given.
type KeyExtractor = for<'h> fn(&'h Headers) -> Option<&'h str>;

/// The places besides `x-gateway-api-key`, in the order of looking; a known key wins over what is none.
const KEY_EXTRACTORS: [KeyExtractor; 6] =
    [bearer_token, aws_access_key_id, x_api_key, api_key, x_goog_api_key, subprotocol_key];

/// Header fields that hold a key and nothing else.
pub const KEY_HEADERS: [&str; 3] = ["x-api-key", "api-key", "x-goog-api-key"];

/// So many letters and digits has a key that was made here.
const GENERATED_KEY_LENGTH: usize = 48;
/// Words of a text that are shorter are no keys.
const MIN_KEY_LENGTH: usize = 8;
/// What may stand around a key in a text.
const KEY_DELIMITERS: [char; 14] = [',', ';', '=', '&', '"', '\'', '(', ')', '<', '>', '[', ']', '{', '}'];

/// Looks at texts among the keys that one request has: each takes a digest. Nobody says so much beside a body by chance.
const MAX_KEY_LOOKUPS: usize = 1_000;
/// A look at what may be a token takes a signature.
const TOKEN_LOOKUP_COST: usize = 50;

/// What one client sends as its bearer token where nobody gave it one.
const PLACEHOLDER_TOKEN: &str = "OPENAI_API_KEY";

/// Admits a caller, or says why not. Where keys are configured (or asked for by a setting) one must be sent.
pub fn admit<'c>(
    passport: Option<&'c (Arc<TokenIdentity>, &'c str)>,
    snapshot: &'c Snapshot,
    require: bool,
    headers: &'c Headers,
    control: &ControlHeaders<'c>,
) -> Result<Caller<'c>> {
    if let Some((passport, text)) = passport {
        return Ok(Caller { key: Some(&passport.key), sent_key: Some(text), key_snapshot: Some(snapshot) });
    }
    if !require && !snapshot.has_keys() {
        return Ok(Caller {
            key_snapshot: snapshot.has_gateway_credentials().then_some(snapshot),
            ..Caller::default()
        });
    }
    // Who says which key is meant is taken at their word: nothing else is tried.
    let (key, sent) = match control.api_key {
        Some(text) => (
            snapshot.find_key(text).ok_or_else(|| denial_error(snapshot, std::iter::once(text), Error::KeyUnknown))?,
            text,
        ),
        None => KEY_EXTRACTORS
            .iter()
            .filter_map(|place| place(headers))
            .find_map(|text| snapshot.find_key(text).map(|key| (key, text)))
            .ok_or_else(|| {
                denial_error(snapshot, KEY_EXTRACTORS.iter().filter_map(|place| place(headers)), Error::KeyMissing)
            })?,
    };
    Ok(Caller { key: Some(check_expiry(key)?), sent_key: Some(sent), key_snapshot: Some(snapshot) })
}

/// Of a key that is known and may do nothing here it is told why.
fn denial_error<'t>(snapshot: &Snapshot, mut sent: impl Iterator<Item = &'t str>, otherwise: Error) -> Error {
    sent.find_map(|text| snapshot.key_denial(text)).map_or(otherwise, |lack| Error::KeyForbidden { denial: lack })
}

/// Whether a key of ours stands anywhere a caller may put one.
fn has_gateway_key(snapshot: &Snapshot, headers: &Headers) -> bool {
    KEY_EXTRACTORS.iter().filter_map(|place| place(headers)).any(|text| snapshot.find_key(text).is_some())
}

/// Who showed a token in the place of a key, and its text. One that is not ours may be a provider's: then a key is looked for.
pub fn authenticate_token<'c>(
    snapshot: &Snapshot,
    headers: &'c Headers,
    control: &ControlHeaders<'c>,
) -> Result<Option<(Arc<TokenIdentity>, &'c str)>> {
    if !snapshot.accepts_tokens() {
        return Ok(None);
    }
    let Some(text) = control.api_key.or_else(|| bearer_token(headers)) else { return Ok(None) };
    match snapshot.authenticate_token(text) {
        None => Ok(None),
        Some(Err(Error::TokenInvalid)) if control.api_key.is_none() => Ok(None),
        Some(Err(Error::TokenVerificationUnavailable))
            if control.api_key.is_none() && has_gateway_key(snapshot, headers) =>
        {
            Ok(None)
        }
        Some(found) => found
            .and_then(|passport| check_workspace(snapshot, passport, control))
            .map(|passport| Some((passport, text))),
    }
}

/// Nobody is served in another workspace than they mean to be in: the token decides, and a request may say what it expects.
fn check_workspace(
    snapshot: &Snapshot,
    passport: Arc<TokenIdentity>,
    control: &ControlHeaders<'_>,
) -> Result<Arc<TokenIdentity>> {
    let is_there = |named| passport.key.workspace.as_deref().is_some_and(|own| snapshot.is_workspace_name(own, named));
    if control.workspace.is_none_or(is_there) {
        Ok(passport)
    } else {
        Err(Error::TokenForbidden { claim: "workspace" })
    }
}

impl<'c> Caller<'c> {
    /// The provider's credential as the caller sent it. `own` is the field in which this provider wants it: it is looked at first.
    pub fn provider_credential(&self, headers: &'c Headers, own: Option<&'static str>) -> Option<&'c str> {
        let sent = own.into_iter().map(|name| non_empty_header(headers, name));
        let others = KEY_HEADERS.iter().map(|name| non_empty_header(headers, name));
        let all = sent.chain(std::iter::once_with(|| bearer_token(headers))).chain(others);
        let all = all.chain(std::iter::once_with(|| subprotocol_key(headers)));
        all.flatten().find(|text| !self.is_gateway_key(text))
    }

    fn is_gateway_key(&self, text: &str) -> bool {
        Some(text) == self.sent_key || self.key_snapshot.is_some_and(|keys| keys.is_gateway_credential(text))
    }

    /// Whether there is a key of ours in a text, or a token that is shown in the place of one. Of what the settings file calls
    /// a key no more is known than its digest: it is found where it stands by itself.
    pub fn contains_gateway_key(&self, text: &str, looks: &KeyLookupBudget) -> bool {
        if self.sent_key.is_some_and(|own| text.contains(own)) {
            return true;
        }
        let Some(keys) = self.key_snapshot else { return false };
        let text = text.trim();
        let made = text.split(|one: char| !one.is_ascii_alphanumeric()).filter(|run| run.len() == GENERATED_KEY_LENGTH);
        let words = text.split(|one: char| one.is_whitespace() || KEY_DELIMITERS.contains(&one));
        let parts =
            made.chain(words.filter(|word| word.len() >= MIN_KEY_LENGTH)).filter(|part| part.len() < text.len());
        std::iter::once(text).chain(parts).any(|part| looks.spend_lookup(part) || keys.is_gateway_credential(part))
    }

    /// An `authorization` that is more than a key, such as Basic or AWS4-HMAC-SHA256, and not the gateway's.
    pub fn provider_authorization(&self, headers: &'c Headers) -> Option<&'c str> {
        let value = non_empty_header(headers, "authorization").filter(|value| parse_bearer(value).is_none())?;
        let is_ours =
            decode_basic_auth(value).is_some_and(|pair| pair.split(':').any(|part| self.is_gateway_key(part)));
        // What stands behind the scheme may be a key that is shorter than what is looked for in the middle of texts.
        let rest = value.split_once(' ').map_or(value, |(_, rest)| rest.trim());
        let looks = KeyLookupBudget::default();
        (!is_ours && !self.contains_gateway_key(value, &looks) && !self.contains_gateway_key(rest, &looks))
            .then_some(value)
    }
}

/// The user and password of `authorization: Basic …`, with a colon between.
fn decode_basic_auth(authorization: &str) -> Option<String> {
    let (scheme, pair) = authorization.split_once(' ')?;
    let pair = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(pair.trim()).ok())??;
    String::from_utf8(pair).ok()
}

/// The token of `authorization: Bearer …`.
fn bearer_token(headers: &Headers) -> Option<&str> {
    parse_bearer(headers.get_str("authorization")?).filter(|token| !token.is_empty() && *token != PLACEHOLDER_TOKEN)
}

fn parse_bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_at_checked(6)?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && (token.is_empty() || token.starts_with(' '));
    is_bearer.then(|| token.trim())
}

/// The id that stands before the signature: `authorization: AWS4-HMAC-SHA256 Credential=<id>/<date>/…`.
fn aws_access_key_id(headers: &Headers) -> Option<&str> {
    let rest = headers.get_str("authorization")?.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let (_, scope) = rest.split_once("Credential=")?;
    scope.split(['/', ',']).next().filter(|id| !id.is_empty())
}

fn x_api_key(headers: &Headers) -> Option<&str> {
    non_empty_header(headers, "x-api-key")
}

fn api_key(headers: &Headers) -> Option<&str> {
    non_empty_header(headers, "api-key")
}

fn x_goog_api_key(headers: &Headers) -> Option<&str> {
    non_empty_header(headers, "x-goog-api-key")
}

/// Browsers can set no header fields on a WebSocket but the names of protocols.
fn subprotocol_key(headers: &Headers) -> Option<&str> {
    let names = headers.get_str("sec-websocket-protocol")?.split(',');
    names.map(str::trim).find_map(|name| name.strip_prefix("openai-insecure-api-key."))
}

fn non_empty_header<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers.get_str(name).map(str::trim).filter(|text| !text.is_empty())
}

fn check_expiry(key: &GatewayKey) -> Result<&GatewayKey> {
    if key.expires_at.is_some_and(has_expired) { Err(Error::KeyExpired) } else { Ok(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS_SNAPSHOT: &str = r#"{"epoch":"1","keys":[
        {"id":"k","name":"n","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"id":"old","name":"o","expires_at":1,"sha256":"a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"}]}"#;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    /// The key's id, and what is left for a provider that takes bearer tokens.
    fn admit_and_find_credential(
        fields: &[(&str, &str)],
    ) -> std::result::Result<(String, Option<String>), &'static str> {
        let snapshot = Snapshot::compile(KEYS_SNAPSHOT.as_bytes()).unwrap();
        let headers = headers(fields);
        let control = ControlHeaders::parse(&headers, &[]);
        let caller = admit(None, &snapshot, false, &headers, &control).map_err(|error| match error {
            Error::KeyMissing => "missing",
            Error::KeyUnknown => "unknown",
            Error::KeyExpired => "expired",
            _ => "other",
        })?;
        let left = caller.provider_credential(&headers, None).map(ToOwned::to_owned);
        Ok((caller.key.unwrap().id.to_string(), left))
    }

    #[test]
    fn accepts_the_key_in_every_supported_header() {
        for field in [
            ("x-gateway-api-key", "abc"),
            ("authorization", "Bearer abc"),
            ("authorization", "bearer  abc "),
            ("x-api-key", "abc"),
            ("api-key", "abc"),
            ("x-goog-api-key", " abc "),
            ("authorization", "AWS4-HMAC-SHA256 Credential=abc/20261121/eu-west-1/bedrock/aws4_request, Signature=0"),
            ("authorization", "AWS4-HMAC-SHA256 SignedHeaders=host,Credential=abc/20261121/x, Signature=0"),
            ("sec-websocket-protocol", "realtime, openai-insecure-api-key.abc, openai-beta.realtime-v1"),
        ] {
            assert_eq!(admit_and_find_credential(&[field]), Ok(("k".into(), None)), "{field:?}");
        }
    }

    #[test]
    fn a_known_key_wins_over_a_possible_provider_credential() {
        for field in [("x-api-key", "abc"), ("api-key", "abc"), ("x-goog-api-key", "abc")] {
            assert_eq!(
                admit_and_find_credential(&[("authorization", "Bearer sk-1"), field]),
                Ok(("k".into(), Some("sk-1".into())))
            );
        }
        let found = admit_and_find_credential(&[("authorization", "Bearer abc"), ("api-key", "sk-1")]);
        assert_eq!(found, Ok(("k".into(), Some("sk-1".into()))));
        // One client sends what it has in both.
        assert_eq!(
            admit_and_find_credential(&[("authorization", "Bearer abc"), ("api-key", "abc")]),
            Ok(("k".into(), None))
        );
        let found = admit_and_find_credential(&[
            ("x-gateway-api-key", "abc"),
            ("authorization", "Bearer sk-1"),
            ("api-key", "sk-1"),
        ]);
        assert_eq!(found, Ok(("k".into(), Some("sk-1".into()))));
    }

    #[test]
    fn an_explicit_key_header_is_the_only_one_tried() {
        for other in [("authorization", "Bearer abc"), ("x-api-key", "abc")] {
            assert_eq!(admit_and_find_credential(&[("x-gateway-api-key", "nope"), other]), Err("unknown"));
        }
        let odd: Headers =
            [(&b"x-gateway-api-key"[..], &b"\xff"[..]), (b"authorization", b"Bearer abc")].into_iter().collect();
        let snapshot = Snapshot::compile(KEYS_SNAPSHOT.as_bytes()).unwrap();
        let refused = admit(None, &snapshot, false, &odd, &ControlHeaders::parse(&odd, &[]));
        assert!(matches!(refused.err(), Some(Error::KeyUnknown)));
    }

    #[test]
    fn rejects_requests_without_a_valid_key() {
        for fields in [
            &[][..],
            &[("authorization", "Bearer sk-provider")],
            &[("authorization", "Bearerabc")],
            &[("authorization", "abc")],
            &[("authorization", "Basic abc")],
            &[("authorization", "AWS4-HMAC-SHA256 Credential=/x")],
            &[("sec-websocket-protocol", "abc, openai-insecure-api-key.")],
            &[("x-api-key", "")],
        ] {
            assert_eq!(admit_and_find_credential(fields), Err("missing"), "{fields:?}");
        }
        assert_eq!(admit_and_find_credential(&[("x-gateway-api-key", "abd")]), Err("expired"));
        assert_eq!(admit_and_find_credential(&[("authorization", "Bearer abd")]), Err("expired"));
    }

    #[test]
    fn an_open_gateway_admits_everyone() {
        let headers = Headers::default();
        assert!(admit(None, &Snapshot::default(), false, &headers, &ControlHeaders::default()).is_ok());
        assert!(admit(None, &Snapshot::default(), true, &headers, &ControlHeaders::default()).is_err());
    }

    #[test]
    fn a_placeholder_is_not_a_credential() {
        let headers = headers(&[("authorization", "Bearer OPENAI_API_KEY")]);
        let caller = Caller::default();
        assert_eq!((caller.provider_credential(&headers, None), caller.provider_authorization(&headers)), (None, None));
    }

    #[test]
    fn the_header_of_the_provider_is_tried_first() {
        let headers = headers(&[("authorization", "Bearer a"), ("x-api-key", "b"), ("api-key", "c")]);
        let caller = Caller::default();
        assert_eq!(caller.provider_credential(&headers, None), Some("a"));
        assert_eq!(caller.provider_credential(&headers, Some("api-key")), Some("c"));
    }

    #[test]
    fn another_auth_scheme_passes_unless_it_contains_the_gateway_key() {
        let signed = "AWS4-HMAC-SHA256 Credential=abc/20261121/x";
        let headers = headers(&[("authorization", signed)]);
        assert_eq!(Caller::default().provider_authorization(&headers), Some(signed));
        let caller = Caller { sent_key: Some("abc"), ..Caller::default() };
        assert_eq!(caller.provider_authorization(&headers), None);
        for (pair, passes) in [("YWJjOg==", false), ("OmFiYw==", false), ("dXNlcjpwYXNz", true)] {
            let value = format!("Basic {pair}");
            let headers = self::headers(&[("authorization", &value)]);
            assert_eq!(caller.provider_authorization(&headers), passes.then_some(&*value), "{pair}");
        }
    }

    #[test]
    fn another_gateway_key_is_not_a_provider_credential() {
        let found = admit_and_find_credential(&[("x-gateway-api-key", "abc"), ("authorization", "Bearer abd")]);
        assert_eq!(found, Ok(("k".into(), None)));
        let found = admit_and_find_credential(&[
            ("x-gateway-api-key", "abc"),
            ("authorization", "Bearer abd"),
            ("api-key", "sk-1"),
        ]);
        assert_eq!(found, Ok(("k".into(), Some("sk-1".into()))));
    }
}
