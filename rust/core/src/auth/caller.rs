//! Authentication of callers. Finds the gateway key wherever the client sent it, and the provider credential that may
//! come with it.

use std::{cell::Cell, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use penstock_net::headers::Headers;

use crate::{
    auth::jwt::TokenIdentity,
    error::{Error, KeyDenial, Result},
    ingress::control_headers::ControlHeaders,
    limits::rule::WorkspaceLimits,
    state::snapshot::{GatewayKey, Snapshot, Workspace, has_expired},
};

/// Authenticated caller of a request.
#[derive(Default, Clone, Copy)]
pub struct Caller<'c> {
    /// Gateway key of the caller; `None` if the gateway requires no key.
    pub key: Option<&'c GatewayKey>,
    /// Gateway key as the client sent it. It is never used as a provider credential, in whatever header it appears.
    pub sent_key: Option<&'c str>,
    /// Snapshot for looking up other gateway keys, which are no provider credentials either.
    key_snapshot: Option<&'c Snapshot>,
}

impl<'c> Caller<'c> {
    /// Returns the workspace of the key.
    pub fn workspace(&self) -> Option<&'c str> {
        self.key.and_then(|key| key.workspace.as_deref())
    }

    /// Returns the workspace of the key, as the snapshot describes it.
    pub fn find_workspace(&self) -> Option<&'c Workspace> {
        self.key_snapshot?.find_workspace(self.workspace()?)
    }

    /// Returns the limits of the key's workspace and its objects; `None` if there are none.
    pub fn find_limits(&self) -> Option<&'c WorkspaceLimits> {
        self.key_snapshot?.find_limits(self.workspace()?)
    }

    /// Returns the limits of another workspace and its objects; `None` if there are none.
    pub fn find_limits_of(&self, workspace: &str) -> Option<&'c WorkspaceLimits> {
        self.key_snapshot?.find_limits(workspace)
    }

    /// Returns true if the id of the key is enough to authorise a later request for this caller. This is so with a key
    /// and if no key is needed, but not with a token in place of a key.
    pub fn is_found_by_id(&self) -> bool {
        let Some(key) = self.key else { return true };
        let current_key = self.key_snapshot.and_then(|keys| keys.find_key_by_id(&key.id));
        current_key.is_some_and(|current_key| std::ptr::eq(current_key, key))
    }
}

/// Bound on the key lookups of one request. Text that is not checked because the budget is exhausted is assumed to
/// contain a key.
#[derive(Default)]
pub struct KeyLookupBudget(Cell<usize>);

impl KeyLookupBudget {
    /// Returns true if the request needed more lookups than allowed, so that not everything was checked.
    pub fn is_exhausted(&self) -> bool {
        self.0.get() > MAX_KEY_LOOKUPS
    }

    fn spend_lookup(&self, text: &str) -> bool {
        self.0.set(self.0.get() + if text.starts_with("eyJ") { TOKEN_LOOKUP_COST } else { 1 });
        self.is_exhausted()
    }
}

/// Function that extracts the key from one header in which clients send it.
type KeyExtractor = for<'h> fn(&'h Headers) -> Option<&'h str>;

/// Headers besides `x-gateway-api-key` that may hold the key, in lookup order. A known key wins over an unknown one.
const KEY_EXTRACTORS: [KeyExtractor; 6] =
    [bearer_token, aws_access_key_id, x_api_key, api_key, x_goog_api_key, subprotocol_key];

/// Header fields that contain only a key.
pub const KEY_HEADERS: [&str; 3] = ["x-api-key", "api-key", "x-goog-api-key"];

/// Number of letters and digits in a key that the gateway generates.
const GENERATED_KEY_LENGTH: usize = 48;
/// Minimum length of a word inside a text that is looked up as a key.
const MIN_KEY_LENGTH: usize = 8;
/// Characters that may surround a key in a text.
const KEY_DELIMITERS: [char; 14] = [',', ';', '=', '&', '"', '\'', '(', ')', '<', '>', '[', ']', '{', '}'];

/// Maximum number of key lookups per request; each computes a digest. No normal request has this much text besides its
/// body.
const MAX_KEY_LOOKUPS: usize = 1_000;
/// Number of lookups that a possible token counts as, because its signature must be checked.
const TOKEN_LOOKUP_COST: usize = 50;

/// Placeholder that one client program sends as its bearer token if it has no key.
const PLACEHOLDER_TOKEN: &str = "OPENAI_API_KEY";

/// Token that a request sent in place of a key, after its verification.
pub struct VerifiedToken<'c> {
    identity: Arc<TokenIdentity>,
    text: &'c str,
}

/// Authenticates a caller or returns the reason for rejecting it. A key is required if keys are configured or a setting
/// demands one.
pub fn admit<'c>(
    token: Option<&'c VerifiedToken<'c>>,
    snapshot: &'c Snapshot,
    require: bool,
    headers: &'c Headers,
    control: &ControlHeaders<'c>,
) -> Result<Caller<'c>> {
    if let Some(VerifiedToken { identity, text }) = token {
        return Ok(Caller { key: Some(&identity.key), sent_key: Some(text), key_snapshot: Some(snapshot) });
    }
    if !require && !snapshot.has_keys() {
        return Ok(Caller {
            key_snapshot: snapshot.has_gateway_credentials().then_some(snapshot),
            ..Caller::default()
        });
    }
    // An explicit `x-gateway-api-key` is final: no other header is tried.
    let (key, sent) = match control.api_key {
        Some(text) => (
            snapshot.find_key(text).ok_or_else(|| denial_error(snapshot, std::iter::once(text), Error::KeyUnknown))?,
            text,
        ),
        None => KEY_EXTRACTORS
            .iter()
            .filter_map(|extract| extract(headers))
            .find_map(|text| snapshot.find_key(text).map(|key| (key, text)))
            .ok_or_else(|| {
                denial_error(snapshot, KEY_EXTRACTORS.iter().filter_map(|extract| extract(headers)), Error::KeyMissing)
            })?,
    };
    Ok(Caller { key: Some(check_expiry(key)?), sent_key: Some(sent), key_snapshot: Some(snapshot) })
}

/// Returns the caller that began an upload, for a request that continues it.
pub fn admit_upload<'c>(key: &'c GatewayKey, snapshot: &'c Snapshot) -> Caller<'c> {
    Caller { key: Some(key), sent_key: None, key_snapshot: Some(snapshot) }
}

/// Authenticates a caller that renders a prompt, and returns its workspace. The caller needs the scope to render
/// prompts, because rendering shows the text of the prompt. It does not need the scope to call models.
pub fn admit_render(
    snapshot: &Snapshot,
    require: bool,
    headers: &Headers,
    control: &ControlHeaders<'_>,
) -> Result<Option<Box<str>>> {
    let workspace = |key: &GatewayKey| key.workspace.as_deref().map(Into::into);
    if let Some(VerifiedToken { identity, .. }) = find_token(snapshot, headers, control)? {
        let key = Some(&identity.key).filter(|key| key.may_render);
        return key.map(workspace).ok_or(Error::TokenForbidden { claim: "scope" });
    }
    match admit(None, snapshot, require, headers, control) {
        Ok(Caller { key: Some(key), .. }) if !key.may_render => Err(Error::KeyForbidden { denial: KeyDenial::Render }),
        Ok(caller) => Ok(caller.workspace().map(Into::into)),
        Err(Error::KeyForbidden { denial: KeyDenial::Completions }) => {
            let sent = KEY_EXTRACTORS.iter().filter_map(|extract| extract(headers));
            let key = control.api_key.into_iter().chain(sent).find_map(|text| snapshot.find_render_key(text));
            check_expiry(key.ok_or(Error::KeyUnknown)?).map(workspace)
        }
        Err(error) => Err(error),
    }
}

/// Returns the reason if one of the sent texts is a denied key, else the error `otherwise`.
fn denial_error<'t>(snapshot: &Snapshot, mut sent: impl Iterator<Item = &'t str>, otherwise: Error) -> Error {
    sent.find_map(|text| snapshot.key_denial(text)).map_or(otherwise, |reason| Error::KeyForbidden { denial: reason })
}

/// Returns true if any header that may hold a key contains a gateway key.
fn has_gateway_key(snapshot: &Snapshot, headers: &Headers) -> bool {
    KEY_EXTRACTORS.iter().filter_map(|extract| extract(headers)).any(|text| snapshot.find_key(text).is_some())
}

/// Authenticates a token that was sent in place of a key, to call models. Returns `None` if there is no such token, or
/// if a bearer token may belong to a provider. The keys of the request are tried then.
pub fn authenticate_token<'c>(
    snapshot: &Snapshot,
    headers: &'c Headers,
    control: &ControlHeaders<'c>,
) -> Result<Option<VerifiedToken<'c>>> {
    match find_token(snapshot, headers, control)? {
        Some(token) if !token.identity.may_call => Err(Error::TokenForbidden { claim: "scope" }),
        key => Ok(key),
    }
}

/// Verifies a token that was sent in place of a key, whichever scope it has.
fn find_token<'c>(
    snapshot: &Snapshot,
    headers: &'c Headers,
    control: &ControlHeaders<'c>,
) -> Result<Option<VerifiedToken<'c>>> {
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
        Some(key) => key
            .and_then(|token_identity| check_workspace(snapshot, token_identity, control))
            .map(|identity| Some(VerifiedToken { identity, text })),
    }
}

/// Rejects a token if the request expects another workspace. The token decides the workspace; the request can only
/// state which one it expects.
fn check_workspace(
    snapshot: &Snapshot,
    token_identity: Arc<TokenIdentity>,
    control: &ControlHeaders<'_>,
) -> Result<Arc<TokenIdentity>> {
    let matches_workspace = |name| {
        token_identity
            .key
            .workspace
            .as_deref()
            .is_some_and(|workspace_id| snapshot.is_workspace_name(workspace_id, name))
    };
    if control.workspace.is_none_or(matches_workspace) {
        Ok(token_identity)
    } else {
        Err(Error::TokenForbidden { claim: "workspace" })
    }
}

impl<'c> Caller<'c> {
    /// Returns the provider credential that the client sent. Tries `provider_header`, the header field that this
    /// provider uses, first.
    pub fn provider_credential(&self, headers: &'c Headers, provider_header: Option<&'static str>) -> Option<&'c str> {
        let sent = provider_header.into_iter().map(|name| non_empty_header(headers, name));
        let others = KEY_HEADERS.iter().map(|name| non_empty_header(headers, name));
        let all = sent.chain(std::iter::once_with(|| bearer_token(headers))).chain(others);
        let all = all.chain(std::iter::once_with(|| subprotocol_key(headers)));
        all.flatten().find(|text| !self.is_gateway_key(text))
    }

    fn is_gateway_key(&self, text: &str) -> bool {
        Some(text) == self.sent_key || self.key_snapshot.is_some_and(|keys| keys.is_gateway_credential(text))
    }

    /// Returns true if a text contains a gateway key, or a token sent in place of one. The gateway knows other keys
    /// than the one of this request only by their digests. So it finds them only as separate words or runs of letters
    /// and digits.
    pub fn contains_gateway_key(&self, text: &str, budget: &KeyLookupBudget) -> bool {
        if self.sent_key.is_some_and(|key| text.contains(key)) {
            return true;
        }
        let Some(keys) = self.key_snapshot else { return false };
        let text = text.trim();
        let generated_keys = text
            .split(|character: char| !character.is_ascii_alphanumeric())
            .filter(|run| run.len() == GENERATED_KEY_LENGTH);
        let words = text.split(|character: char| character.is_whitespace() || KEY_DELIMITERS.contains(&character));
        let parts = generated_keys
            .chain(words.filter(|word| word.len() >= MIN_KEY_LENGTH))
            .filter(|part| part.len() < text.len());
        std::iter::once(text).chain(parts).any(|part| budget.spend_lookup(part) || keys.is_gateway_credential(part))
    }

    /// Returns an `authorization` value that is more than a key, such as Basic or AWS4-HMAC-SHA256, unless it contains
    /// a gateway key.
    pub fn provider_authorization(&self, headers: &'c Headers) -> Option<&'c str> {
        let value = non_empty_header(headers, "authorization").filter(|value| parse_bearer(value).is_none())?;
        let has_gateway_key =
            decode_basic_auth(value).is_some_and(|pair| pair.split(':').any(|part| self.is_gateway_key(part)));
        // The part after the scheme may be a key shorter than `MIN_KEY_LENGTH`, so it is also checked on its own.
        let rest = value.split_once(' ').map_or(value, |(_, rest)| rest.trim());
        let budget = KeyLookupBudget::default();
        (!has_gateway_key && !self.contains_gateway_key(value, &budget) && !self.contains_gateway_key(rest, &budget))
            .then_some(value)
    }
}

/// Decodes the `user:password` pair of `authorization: Basic …`.
fn decode_basic_auth(authorization: &str) -> Option<String> {
    let (scheme, pair) = authorization.split_once(' ')?;
    let pair = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(pair.trim()).ok())??;
    String::from_utf8(pair).ok()
}

/// Returns the token of `authorization: Bearer …`.
fn bearer_token(headers: &Headers) -> Option<&str> {
    parse_bearer(headers.get_str("authorization")?).filter(|token| !token.is_empty() && *token != PLACEHOLDER_TOKEN)
}

fn parse_bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_at_checked(6)?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && (token.is_empty() || token.starts_with(' '));
    is_bearer.then(|| token.trim())
}

/// Returns the access key ID before the signature: `authorization: AWS4-HMAC-SHA256 Credential=<id>/<date>/…`.
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

/// Returns the key from the WebSocket subprotocols. Browsers can set no other header fields, so clients send the key
/// there.
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

    /// Returns the ID of the key, and the credential that remains for a provider that takes bearer tokens.
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
        let credential = caller.provider_credential(&headers, None).map(ToOwned::to_owned);
        Ok((caller.key.unwrap().id.to_string(), credential))
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
        let credential = admit_and_find_credential(&[("authorization", "Bearer abc"), ("api-key", "sk-1")]);
        assert_eq!(credential, Ok(("k".into(), Some("sk-1".into()))));
        // One client sends the same key in both headers.
        assert_eq!(
            admit_and_find_credential(&[("authorization", "Bearer abc"), ("api-key", "abc")]),
            Ok(("k".into(), None))
        );
        let admitted = admit_and_find_credential(&[
            ("x-gateway-api-key", "abc"),
            ("authorization", "Bearer sk-1"),
            ("api-key", "sk-1"),
        ]);
        assert_eq!(admitted, Ok(("k".into(), Some("sk-1".into()))));
    }

    #[test]
    fn an_explicit_key_header_is_the_only_one_tried() {
        for other in [("authorization", "Bearer abc"), ("x-api-key", "abc")] {
            assert_eq!(admit_and_find_credential(&[("x-gateway-api-key", "nope"), other]), Err("unknown"));
        }
        let headers: Headers =
            [(&b"x-gateway-api-key"[..], &b"\xff"[..]), (b"authorization", b"Bearer abc")].into_iter().collect();
        let snapshot = Snapshot::compile(KEYS_SNAPSHOT.as_bytes()).unwrap();
        let refused = admit(None, &snapshot, false, &headers, &ControlHeaders::parse(&headers, &[]));
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
        let credential = admit_and_find_credential(&[("x-gateway-api-key", "abc"), ("authorization", "Bearer abd")]);
        assert_eq!(credential, Ok(("k".into(), None)));
        let admitted = admit_and_find_credential(&[
            ("x-gateway-api-key", "abc"),
            ("authorization", "Bearer abd"),
            ("api-key", "sk-1"),
        ]);
        assert_eq!(admitted, Ok(("k".into(), Some("sk-1".into()))));
    }
}
