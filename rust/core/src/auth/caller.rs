//! Who is calling: the gateway key, from where the caller put it, and the provider's credential, which may stand beside it.

use std::{cell::Cell, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    auth::jwt::Passport,
    error::{Error, Result},
    ingress::headers::{Control, Headers},
    state::snapshot::{Key, Snapshot, is_over},
};

/// A caller that was admitted.
#[derive(Default, Clone, Copy)]
pub struct Caller<'c> {
    /// `None` where the gateway is open.
    pub key: Option<&'c Key>,
    /// The gateway key as it was sent: it is no credential for a provider, wherever else it stands.
    pub sent: Option<&'c str>,
    /// Who knows of other keys of ours: one of them is no provider's either.
    keys: Option<&'c Snapshot>,
}

impl<'c> Caller<'c> {
    /// The workspace that the key is for.
    pub fn workspace(&self) -> Option<&'c str> {
        self.key.and_then(|key| key.workspace.as_deref())
    }
}

/// How often it was looked whether what a request says is a key. Who is looked through no further is taken to hold one.
#[derive(Default)]
pub struct Looks(Cell<usize>);

impl Looks {
    /// Whether there were more than one request has, so that not all was looked at.
    pub fn are_spent(&self) -> bool {
        self.0.get() > MOST_LOOKS
    }

    fn spend(&self, text: &str) -> bool {
        self.0.set(self.0.get() + if text.starts_with("eyJ") { LOOKS_OF_A_TOKEN } else { 1 });
        self.are_spent()
    }
}

/// A place in which clients put the one key that they were given.
type Place = for<'h> fn(&'h Headers) -> Option<&'h str>;

/// The places besides `x-gateway-api-key`, in the order of looking; a known key wins over what is none.
const PLACES: [Place; 6] = [bearer, access_key_id, x_api_key, api_key, x_goog_api_key, sub_protocol];

/// Header fields that hold a key and nothing else.
pub const KEY_FIELDS: [&str; 3] = ["x-api-key", "api-key", "x-goog-api-key"];

/// So many letters and digits has a key that was made here.
const MADE: usize = 48;
/// Words of a text that are shorter are no keys.
const SHORTEST: usize = 8;
/// What may stand around a key in a text.
const BETWEEN: [char; 14] = [',', ';', '=', '&', '"', '\'', '(', ')', '<', '>', '[', ']', '{', '}'];

/// Looks at texts among the keys that one request has: each takes a digest. Nobody says so much beside a body by chance.
const MOST_LOOKS: usize = 1_000;
/// A look at what may be a token takes a signature.
const LOOKS_OF_A_TOKEN: usize = 50;

/// What one client sends as its bearer token where nobody gave it one.
const PLACEHOLDER: &str = "OPENAI_API_KEY";

/// Admits a caller, or says why not. Where keys are configured (or asked for by a setting) one must be sent.
pub fn admit<'c>(
    passport: Option<&'c (Arc<Passport>, &'c str)>,
    snapshot: &'c Snapshot,
    require: bool,
    headers: &'c Headers,
    control: &Control<'c>,
) -> Result<Caller<'c>> {
    if let Some((passport, text)) = passport {
        return Ok(Caller { key: Some(&passport.key), sent: Some(text), keys: Some(snapshot) });
    }
    if !require && !snapshot.has_keys() {
        return Ok(Caller { keys: snapshot.has_own().then_some(snapshot), ..Caller::default() });
    }
    // Who says which key is meant is taken at their word: nothing else is tried.
    let (key, sent) = match control.api_key {
        Some(text) => {
            (snapshot.key(text).ok_or_else(|| refusal(snapshot, std::iter::once(text), Error::KeyUnknown))?, text)
        }
        None => PLACES
            .iter()
            .filter_map(|place| place(headers))
            .find_map(|text| snapshot.key(text).map(|key| (key, text)))
            .ok_or_else(|| refusal(snapshot, PLACES.iter().filter_map(|place| place(headers)), Error::KeyMissing))?,
    };
    Ok(Caller { key: Some(valid(key)?), sent: Some(sent), keys: Some(snapshot) })
}

/// Of a key that is known and may do nothing here it is told why.
fn refusal<'t>(snapshot: &Snapshot, mut sent: impl Iterator<Item = &'t str>, otherwise: Error) -> Error {
    sent.find_map(|text| snapshot.lack(text)).map_or(otherwise, |lack| Error::KeyForbidden { lack })
}

/// Whether a key of ours stands anywhere a caller may put one.
fn shows_key(snapshot: &Snapshot, headers: &Headers) -> bool {
    PLACES.iter().filter_map(|place| place(headers)).any(|text| snapshot.key(text).is_some())
}

/// Who showed a token in the place of a key, and its text. One that is not ours may be a provider's: then a key is looked for.
pub fn passport<'c>(
    snapshot: &Snapshot,
    headers: &'c Headers,
    control: &Control<'c>,
) -> Result<Option<(Arc<Passport>, &'c str)>> {
    if !snapshot.takes_tokens() {
        return Ok(None);
    }
    let Some(text) = control.api_key.or_else(|| bearer(headers)) else { return Ok(None) };
    match snapshot.passport(text) {
        None => Ok(None),
        Some(Err(Error::TokenInvalid)) if control.api_key.is_none() => Ok(None),
        Some(Err(Error::TokenUnchecked)) if control.api_key.is_none() && shows_key(snapshot, headers) => Ok(None),
        Some(found) => {
            found.and_then(|passport| meant(snapshot, passport, control)).map(|passport| Some((passport, text)))
        }
    }
}

/// Nobody is served in another workspace than they mean to be in: the token decides, and a request may say what it expects.
fn meant(snapshot: &Snapshot, passport: Arc<Passport>, control: &Control<'_>) -> Result<Arc<Passport>> {
    let is_there = |named| passport.key.workspace.as_deref().is_some_and(|own| snapshot.is_called(own, named));
    if control.workspace.is_none_or(is_there) { Ok(passport) } else { Err(Error::TokenForbidden { what: "workspace" }) }
}

impl<'c> Caller<'c> {
    /// The provider's credential as the caller sent it. `own` is the field in which this provider wants it: it is looked at first.
    pub fn credential(&self, headers: &'c Headers, own: Option<&'static str>) -> Option<&'c str> {
        let sent = own.into_iter().map(|name| filled(headers, name));
        let others = KEY_FIELDS.iter().map(|name| filled(headers, name));
        let all = sent.chain(std::iter::once_with(|| bearer(headers))).chain(others);
        let all = all.chain(std::iter::once_with(|| sub_protocol(headers)));
        all.flatten().find(|text| !self.is_ours(text))
    }

    fn is_ours(&self, text: &str) -> bool {
        Some(text) == self.sent || self.keys.is_some_and(|keys| keys.is_own(text))
    }

    /// Whether there is a key of ours in a text, or a token that is shown in the place of one. Of what the settings file calls
    /// a key no more is known than its digest: it is found where it stands by itself.
    pub fn is_told(&self, text: &str, looks: &Looks) -> bool {
        if self.sent.is_some_and(|own| text.contains(own)) {
            return true;
        }
        let Some(keys) = self.keys else { return false };
        let text = text.trim();
        let made = text.split(|one: char| !one.is_ascii_alphanumeric()).filter(|run| run.len() == MADE);
        let words = text.split(|one: char| one.is_whitespace() || BETWEEN.contains(&one));
        let parts = made.chain(words.filter(|word| word.len() >= SHORTEST)).filter(|part| part.len() < text.len());
        std::iter::once(text).chain(parts).any(|part| looks.spend(part) || keys.is_own(part))
    }

    /// An `authorization` that is more than a key, such as Basic or AWS4-HMAC-SHA256, and not the gateway's.
    pub fn authorization(&self, headers: &'c Headers) -> Option<&'c str> {
        let value = filled(headers, "authorization").filter(|value| token(value).is_none())?;
        let is_ours = basic(value).is_some_and(|pair| pair.split(':').any(|part| self.is_ours(part)));
        // What stands behind the scheme may be a key that is shorter than what is looked for in the middle of texts.
        let rest = value.split_once(' ').map_or(value, |(_, rest)| rest.trim());
        let looks = Looks::default();
        (!is_ours && !self.is_told(value, &looks) && !self.is_told(rest, &looks)).then_some(value)
    }
}

/// The user and password of `authorization: Basic …`, with a colon between.
fn basic(authorization: &str) -> Option<String> {
    let (scheme, pair) = authorization.split_once(' ')?;
    let pair = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(pair.trim()).ok())??;
    String::from_utf8(pair).ok()
}

/// The token of `authorization: Bearer …`.
fn bearer(headers: &Headers) -> Option<&str> {
    token(headers.text("authorization")?).filter(|token| !token.is_empty() && *token != PLACEHOLDER)
}

fn token(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_at_checked(6)?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && (token.is_empty() || token.starts_with(' '));
    is_bearer.then(|| token.trim())
}

/// The id that stands before the signature: `authorization: AWS4-HMAC-SHA256 Credential=<id>/<date>/…`.
fn access_key_id(headers: &Headers) -> Option<&str> {
    let rest = headers.text("authorization")?.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let (_, scope) = rest.split_once("Credential=")?;
    scope.split(['/', ',']).next().filter(|id| !id.is_empty())
}

fn x_api_key(headers: &Headers) -> Option<&str> {
    filled(headers, "x-api-key")
}

fn api_key(headers: &Headers) -> Option<&str> {
    filled(headers, "api-key")
}

fn x_goog_api_key(headers: &Headers) -> Option<&str> {
    filled(headers, "x-goog-api-key")
}

/// Browsers can set no header fields on a WebSocket but the names of protocols.
fn sub_protocol(headers: &Headers) -> Option<&str> {
    let names = headers.text("sec-websocket-protocol")?.split(',');
    names.map(str::trim).find_map(|name| name.strip_prefix("openai-insecure-api-key."))
}

fn filled<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers.text(name).map(str::trim).filter(|text| !text.is_empty())
}

fn valid(key: &Key) -> Result<&Key> {
    if key.expires_at.is_some_and(is_over) { Err(Error::KeyExpired) } else { Ok(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = r#"{"epoch":"1","keys":[
        {"id":"k","name":"n","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"id":"old","name":"o","expires_at":1,"sha256":"a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"}]}"#;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    /// The key's id, and what is left for a provider that takes bearer tokens.
    fn outcome(fields: &[(&str, &str)]) -> std::result::Result<(String, Option<String>), &'static str> {
        let snapshot = Snapshot::compile(KEYS.as_bytes()).unwrap();
        let headers = headers(fields);
        let control = Control::read(&headers, &[]);
        let caller = admit(None, &snapshot, false, &headers, &control).map_err(|error| match error {
            Error::KeyMissing => "missing",
            Error::KeyUnknown => "unknown",
            Error::KeyExpired => "expired",
            _ => "other",
        })?;
        let left = caller.credential(&headers, None).map(ToOwned::to_owned);
        Ok((caller.key.unwrap().id.to_string(), left))
    }

    #[test]
    fn takes_the_key_from_every_place() {
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
            assert_eq!(outcome(&[field]), Ok(("k".into(), None)), "{field:?}");
        }
    }

    #[test]
    fn a_known_key_wins_over_what_may_be_a_providers() {
        for field in [("x-api-key", "abc"), ("api-key", "abc"), ("x-goog-api-key", "abc")] {
            assert_eq!(outcome(&[("authorization", "Bearer sk-1"), field]), Ok(("k".into(), Some("sk-1".into()))));
        }
        let found = outcome(&[("authorization", "Bearer abc"), ("api-key", "sk-1")]);
        assert_eq!(found, Ok(("k".into(), Some("sk-1".into()))));
        // One client sends what it has in both.
        assert_eq!(outcome(&[("authorization", "Bearer abc"), ("api-key", "abc")]), Ok(("k".into(), None)));
        let found = outcome(&[("x-gateway-api-key", "abc"), ("authorization", "Bearer sk-1"), ("api-key", "sk-1")]);
        assert_eq!(found, Ok(("k".into(), Some("sk-1".into()))));
    }

    #[test]
    fn a_key_that_is_named_as_such_is_the_only_one_tried() {
        for other in [("authorization", "Bearer abc"), ("x-api-key", "abc")] {
            assert_eq!(outcome(&[("x-gateway-api-key", "nope"), other]), Err("unknown"));
        }
        let odd: Headers =
            [(&b"x-gateway-api-key"[..], &b"\xff"[..]), (b"authorization", b"Bearer abc")].into_iter().collect();
        let snapshot = Snapshot::compile(KEYS.as_bytes()).unwrap();
        let refused = admit(None, &snapshot, false, &odd, &Control::read(&odd, &[]));
        assert!(matches!(refused.err(), Some(Error::KeyUnknown)));
    }

    #[test]
    fn refuses_without_a_valid_key() {
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
            assert_eq!(outcome(fields), Err("missing"), "{fields:?}");
        }
        assert_eq!(outcome(&[("x-gateway-api-key", "abd")]), Err("expired"));
        assert_eq!(outcome(&[("authorization", "Bearer abd")]), Err("expired"));
    }

    #[test]
    fn an_open_gateway_admits_everyone() {
        let headers = Headers::default();
        assert!(admit(None, &Snapshot::default(), false, &headers, &Control::default()).is_ok());
        assert!(admit(None, &Snapshot::default(), true, &headers, &Control::default()).is_err());
    }

    #[test]
    fn a_placeholder_is_no_credential() {
        let headers = headers(&[("authorization", "Bearer OPENAI_API_KEY")]);
        let caller = Caller::default();
        assert_eq!((caller.credential(&headers, None), caller.authorization(&headers)), (None, None));
    }

    #[test]
    fn the_field_of_the_provider_comes_first() {
        let headers = headers(&[("authorization", "Bearer a"), ("x-api-key", "b"), ("api-key", "c")]);
        let caller = Caller::default();
        assert_eq!(caller.credential(&headers, None), Some("a"));
        assert_eq!(caller.credential(&headers, Some("api-key")), Some("c"));
    }

    #[test]
    fn a_scheme_of_its_own_passes_unless_the_gateways_key_is_in_it() {
        let signed = "AWS4-HMAC-SHA256 Credential=abc/20261121/x";
        let headers = headers(&[("authorization", signed)]);
        assert_eq!(Caller::default().authorization(&headers), Some(signed));
        let caller = Caller { sent: Some("abc"), ..Caller::default() };
        assert_eq!(caller.authorization(&headers), None);
        for (pair, passes) in [("YWJjOg==", false), ("OmFiYw==", false), ("dXNlcjpwYXNz", true)] {
            let value = format!("Basic {pair}");
            let headers = self::headers(&[("authorization", &value)]);
            assert_eq!(caller.authorization(&headers), passes.then_some(&*value), "{pair}");
        }
    }

    #[test]
    fn another_key_of_ours_is_no_credential_of_a_providers_either() {
        let found = outcome(&[("x-gateway-api-key", "abc"), ("authorization", "Bearer abd")]);
        assert_eq!(found, Ok(("k".into(), None)));
        let found = outcome(&[("x-gateway-api-key", "abc"), ("authorization", "Bearer abd"), ("api-key", "sk-1")]);
        assert_eq!(found, Ok(("k".into(), Some("sk-1".into()))));
    }
}
