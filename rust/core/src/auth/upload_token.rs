//! Tokens in upload URLs. Google's SDK sends no key after the first request of an upload, so the URL at which it
//! continues must identify the caller. A token is signed, expires, and is valid only for its upload.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use penstock_net::headers::Headers;
use serde::{Deserialize, Serialize};

use crate::{
    auth::caller::{Caller, KEY_HEADERS},
    ingress::{
        control_headers::{CONTROL_PREFIX, split_control_name},
        message::RequestHead,
        route,
    },
    state::snapshot::{GatewayKey, SavedProvider, Snapshot, has_expired, sha256_digest},
};

/// Query parameter with the token. Its name marks it as a secret wherever URLs are masked.
pub const TOKEN_PARAM: &str = "gateway_upload_token";
/// Query parameter with the id that the provider assigned to the upload.
const UPLOAD_ID_PARAM: &str = "upload_id";
const COMMAND_HEADER: &str = "x-goog-upload-command";
const LIFETIME_SECONDS: u64 = 24 * 3600;
const MAX_TOKEN_BYTES: usize = 2048;
/// Prefix of the signed text. It distinguishes these signatures from those that other features make with the same key.
const SIGNATURE_PURPOSE: &str = "penstock upload 1";
/// Minimum length of a provider's credential that signs tokens. A shorter one could be guessed from the signatures.
const MIN_CREDENTIAL_BYTES: usize = 16;

/// Signed content of a token.
#[derive(Serialize, Deserialize)]
struct UploadClaims {
    /// Id of the gateway key that began the upload; `None` if the gateway required no key.
    key: Option<Box<str>>,
    /// Id of the caller's workspace; `None` if the caller has none.
    workspace: Option<Box<str>>,
    /// Slug of the saved provider that the upload goes to.
    provider: Box<str>,
    /// End of the token's validity, in Unix seconds.
    expires_at: u64,
}

/// Permission to continue one upload.
pub struct UploadGrant<'s> {
    pub key: Option<&'s GatewayKey>,
}

/// Returns a token to continue an upload at this path and query. `None` if the gateway could not verify it later. This
/// is so if the query has no upload id, or the caller has a token in place of a gateway key.
pub fn sign_upload(caller: &Caller<'_>, saved: &SavedProvider, path: &str, query: &str) -> Option<String> {
    if !caller.is_found_by_id() {
        return None;
    }
    let claims = UploadClaims {
        key: caller.key.map(|key| key.id.clone()),
        workspace: caller.workspace().map(Into::into),
        provider: saved.identity.slug.clone(),
        expires_at: unix_seconds() + LIFETIME_SECONDS,
    };
    let claims = BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).ok()?);
    let key = match credential_key(saved) {
        Some(key) => key,
        None if caller.key.is_none() => open_key(),
        None => digest_key(&sha256_digest(caller.sent_key?)),
    };
    let signature = hmac::sign(&key, &signed_text(&claims, path, upload_id(query)?));
    Some(format!("{claims}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

impl<'s> UploadGrant<'s> {
    /// Removes the token from the query of an upload. If the token is valid and the request has no credential, replaces
    /// the control headers by one that names the provider of the upload. A token cannot start an upload.
    pub fn take(snapshot: &'s Snapshot, head: &mut RequestHead, aliases: &[String]) -> Option<Self> {
        if !route::is_upload_path(&head.path) {
            return None;
        }
        let token = take_parameter(&mut head.query, TOKEN_PARAM)?;
        let starts =
            head.headers.get(COMMAND_HEADER).is_none_or(|command| command.windows(5).any(|part| part == b"start"));
        if starts || has_credential(&head.headers, aliases) {
            return None;
        }
        let claims = verify(snapshot, head, &token)?;
        let key = match &claims.key {
            Some(id) => Some(snapshot.find_key_by_id(id).filter(|key| {
                key.workspace.as_deref() == claims.workspace.as_deref() && !key.expires_at.is_some_and(has_expired)
            })?),
            None => None,
        };
        head.headers.retain(|name| split_control_name(name, aliases).is_none());
        let name = [CONTROL_PREFIX, b"provider"].concat();
        head.headers.push(&name, format!("@{}", claims.provider).as_bytes());
        Some(Self { key })
    }
}

/// Returns the claims of a token that is valid for this request.
fn verify(snapshot: &Snapshot, head: &RequestHead, token: &str) -> Option<UploadClaims> {
    let (text, signature) = token.split_once('.').filter(|_| token.len() <= MAX_TOKEN_BYTES)?;
    let claims: UploadClaims = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    let saved = snapshot.find_provider(claims.workspace.as_deref(), &claims.provider)?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
    let signed = signed_text(text, &head.path, upload_id(&head.query)?);
    let is_signed_with = |key: hmac::Key| hmac::verify(&key, &signed, &signature).is_ok();
    let is_valid = match (credential_key(saved), &claims.key) {
        (Some(key), _) => is_signed_with(key),
        (None, None) => is_signed_with(open_key()),
        // After a rotation, a key has two digests for a while.
        (None, Some(id)) => snapshot.key_digests(id).any(|digest| is_signed_with(digest_key(digest))),
    };
    (is_valid && !has_expired(claims.expires_at)).then_some(claims)
}

/// Returns the signing key that is made from the credential of a saved provider. All nodes have this credential and
/// clients do not. `None` if the provider has no credential, or a short one.
fn credential_key(saved: &SavedProvider) -> Option<hmac::Key> {
    let credential = saved.api_key.as_ref()?.expose();
    (credential.len() >= MIN_CREDENTIAL_BYTES).then(|| hmac::Key::new(hmac::HMAC_SHA256, credential.as_bytes()))
}

/// Returns the signing key that is made from the digest of a gateway key. The owner of the gateway key can forge
/// tokens, but they permit nothing that the gateway key does not.
fn digest_key(digest: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, digest)
}

/// Returns the signing key of a gateway that requires no key. Anybody can compute it, but its tokens permit nothing:
/// the gateway must still require no key when the upload continues.
fn open_key() -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, SIGNATURE_PURPOSE.as_bytes())
}

fn signed_text(claims: &str, path: &str, upload_id: &str) -> Vec<u8> {
    // None of the parts contains a line break.
    [SIGNATURE_PURPOSE, claims, path, upload_id].join("\n").into_bytes()
}

/// Returns the id of the upload; `None` if the query has none or several.
fn upload_id(query: &str) -> Option<&str> {
    let mut ids = query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(name, _)| *name == UPLOAD_ID_PARAM);
    let (_, id) = ids.next()?;
    (!id.is_empty() && ids.next().is_none()).then_some(id)
}

/// Removes a parameter from a query and returns its first value.
fn take_parameter(query: &mut String, parameter: &str) -> Option<String> {
    let is_wanted = |pair: &&str| pair.split_once('=').is_some_and(|(name, _)| name == parameter);
    let value = query.split('&').find(is_wanted)?.split_once('=')?.1.to_owned();
    let rest: Vec<_> = query.split('&').filter(|pair| !is_wanted(pair)).collect();
    *query = rest.join("&");
    Some(value)
}

/// Returns true if a request has a header that may hold a credential. Such a request authenticates in the usual way.
fn has_credential(headers: &Headers, aliases: &[String]) -> bool {
    headers.iter().any(|(name, _)| {
        name == b"authorization"
            || KEY_HEADERS.iter().any(|header| header.as_bytes() == name)
            || split_control_name(name, aliases).is_some_and(|(_, rest)| rest == b"api-key")
    })
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::control_headers::ControlHeaders;

    const KEY_ROW: &str = r#"{"id":"k","name":"n","workspace":"w","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}"#;
    const SNAPSHOT_JSON: &str = r#"{"epoch":"1","keys":[
        {"id":"k","name":"n","workspace":"w","sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}],
        "providers":[{"slug":"g","provider":"google","workspace":"w","api_key":"AIza-0123456789abcdef"},
            {"slug":"g","provider":"google","workspace":"v","api_key":"AIza-0123456789abcdef"},
            {"slug":"short","provider":"google","workspace":"w","api_key":"guessable"},
            {"slug":"none","provider":"google","workspace":"w"}]}"#;
    const PATH: &str = "/upload/v1/files";
    const QUERY: &str = "upload_id=A-b&upload_protocol=resumable";

    fn snapshot_from(json: &str) -> Snapshot {
        Snapshot::compile(json.as_bytes()).unwrap()
    }

    fn sign(snapshot: &Snapshot, slug: &str, query: &str) -> Option<String> {
        let headers = [(&b"x-goog-api-key"[..], &b"abc"[..])].into_iter().collect();
        let caller = crate::auth::caller::admit(None, snapshot, true, &headers, &ControlHeaders::default()).unwrap();
        let saved = snapshot.find_provider(caller.workspace(), slug).unwrap();
        sign_upload(&caller, saved, PATH, query)
    }

    fn upload_head(path: &str, query: &str, fields: &[(&str, &str)]) -> RequestHead {
        let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let (method, path, query) = ("POST".into(), path.into(), query.into());
        RequestHead { method, path, query, headers, ..RequestHead::default() }
    }

    const UPLOAD: (&str, &str) = ("x-goog-upload-command", "upload, finalize");

    /// Returns the id of the key that a request acts for, and its head afterwards.
    fn take(snapshot: &Snapshot, mut head: RequestHead) -> (Option<String>, RequestHead) {
        let grant = UploadGrant::take(snapshot, &mut head, &["x-portkey-".to_owned()]);
        (grant.map(|grant| grant.key.unwrap().id.to_string()), head)
    }

    #[test]
    fn continues_its_own_upload_at_its_own_provider() {
        let snapshot = snapshot_from(SNAPSHOT_JSON);
        let token = sign(&snapshot, "g", QUERY).unwrap();
        let fields = [UPLOAD, ("x-portkey-provider", "@other"), ("x-gateway-config", "pc-1"), ("content-type", "a/b")];
        let (key, head) = take(&snapshot, upload_head(PATH, &format!("{QUERY}&{TOKEN_PARAM}={token}"), &fields));
        assert_eq!((key.as_deref(), head.query.as_str()), (Some("k"), QUERY));
        let names: Vec<_> = head.headers.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
        assert_eq!(names, ["x-goog-upload-command", "content-type", "x-gateway-provider"]);
        assert_eq!(head.headers.get_str("x-gateway-provider"), Some("@g"));
    }

    #[test]
    fn is_valid_for_nothing_else() {
        let snapshot = snapshot_from(SNAPSHOT_JSON);
        let token = sign(&snapshot, "g", QUERY).unwrap();
        let with_token = |query: &str| format!("{query}&{TOKEN_PARAM}={token}");
        let (claims, signature) = token.split_once('.').unwrap();
        let other = |change: fn(&mut UploadClaims)| {
            let mut parsed: UploadClaims =
                serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
            change(&mut parsed);
            let text = BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&parsed).unwrap());
            format!("{QUERY}&{TOKEN_PARAM}={text}.{signature}")
        };
        for (path, query, fields) in [
            (PATH, with_token("upload_id=B&upload_protocol=resumable"), &[UPLOAD][..]),
            (PATH, with_token("upload_id=A-b&upload_id=B"), &[UPLOAD]),
            (PATH, with_token("a=b"), &[UPLOAD]),
            ("/upload/v1beta/files", with_token(QUERY), &[UPLOAD]),
            ("/upload/v1/fileSearchStores/a:uploadToFileSearchStore", with_token(QUERY), &[UPLOAD]),
            (PATH, with_token(QUERY), &[("x-goog-upload-command", "start, upload, finalize")]),
            (PATH, with_token(QUERY), &[]),
            (PATH, with_token(QUERY), &[UPLOAD, ("x-goog-api-key", "unknown")]),
            (PATH, with_token(QUERY), &[UPLOAD, ("x-portkey-api-key", "unknown")]),
            (PATH, format!("{QUERY}&{TOKEN_PARAM}={claims}."), &[UPLOAD]),
            (PATH, format!("{QUERY}&{TOKEN_PARAM}={claims}"), &[UPLOAD]),
            (PATH, format!("{QUERY}&{TOKEN_PARAM}="), &[UPLOAD]),
            (PATH, other(|claims| claims.expires_at += 1), &[UPLOAD]),
            (PATH, other(|claims| claims.workspace = Some("v".into())), &[UPLOAD]),
            (PATH, other(|claims| claims.key = None), &[UPLOAD]),
            (PATH, QUERY.to_owned(), &[UPLOAD]),
        ] {
            let (key, head) = take(&snapshot, upload_head(path, &query, fields));
            assert_eq!(key, None, "{path}?{query} {fields:?}");
            assert!(!head.query.contains(TOKEN_PARAM) && head.headers.len() == fields.len(), "{path}?{query}");
        }
    }

    #[test]
    fn ends_with_its_key_its_provider_and_its_time() {
        let snapshot = snapshot_from(SNAPSHOT_JSON);
        let token = sign(&snapshot, "g", QUERY).unwrap();
        let is_valid = |snapshot: &Snapshot, token: &str| {
            take(snapshot, upload_head(PATH, &format!("{QUERY}&{TOKEN_PARAM}={token}"), &[UPLOAD])).0.is_some()
        };
        assert!(is_valid(&snapshot, &token));
        for (before, after) in [
            (r#""id":"k""#, r#""id":"l""#),
            (r#""workspace":"w","sha256""#, r#""workspace":"v","sha256""#),
            (r#""name":"n","#, r#""name":"n","expires_at":1,"#),
            ("AIza-0123456789abcdef", "AIza-0123456789abcdeg"),
            (r#""slug":"g""#, r#""slug":"h""#),
        ] {
            assert!(!is_valid(&snapshot_from(&SNAPSHOT_JSON.replace(before, after)), &token), "{after}");
        }
        let saved = snapshot.find_provider(Some("w"), "g").unwrap();
        let claims = r#"{"key":"k","workspace":"w","provider":"g","expires_at":1}"#;
        let past = BASE64_URL_SAFE_NO_PAD.encode(claims);
        let signature = hmac::sign(&credential_key(saved).unwrap(), &signed_text(&past, PATH, "A-b"));
        assert!(!is_valid(&snapshot, &format!("{past}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))));
    }

    #[test]
    fn is_signed_with_the_gateway_key_if_the_credential_is_short() {
        let snapshot = snapshot_from(SNAPSHOT_JSON);
        let key_of = |snapshot: &Snapshot, token: &str| {
            take(snapshot, upload_head(PATH, &format!("{QUERY}&{TOKEN_PARAM}={token}"), &[UPLOAD])).0
        };
        for slug in ["short", "none"] {
            let token = sign(&snapshot, slug, QUERY).unwrap();
            assert_eq!(key_of(&snapshot, &token).as_deref(), Some("k"), "{slug}");
            let ba = SNAPSHOT_JSON.replace("ba7816bf", "ba7816be");
            for (reason, other) in
                [("another key", &ba), ("no key", &SNAPSHOT_JSON.replace("\"id\":\"k\"", "\"id\":\"l\""))]
            {
                assert_eq!(key_of(&snapshot_from(other), &token), None, "{slug}: {reason}");
            }
            // A rotated key has two rows until the old one expires.
            let rotated = ba.replacen("\"keys\":[", &format!("\"keys\":[{KEY_ROW},"), 1);
            assert_eq!(key_of(&snapshot_from(&rotated), &token).as_deref(), Some("k"), "{slug}");
            // The provider's short credential did not sign the token, so nobody can guess the credential from the
            // signature.
            let guess = hmac::Key::new(hmac::HMAC_SHA256, b"guessable");
            let (claims, signature) = token.split_once('.').unwrap();
            let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
            assert!(hmac::verify(&guess, &signed_text(claims, PATH, "A-b"), &signature).is_err());
        }
    }

    #[test]
    fn permits_nothing_if_the_gateway_requires_no_key() {
        let open = snapshot_from(r#"{"epoch":"1","providers":[{"slug":"s","provider":"google","api_key":"short"}]}"#);
        let headers = Headers::default();
        let caller = crate::auth::caller::admit(None, &open, false, &headers, &ControlHeaders::default()).unwrap();
        let token = sign_upload(&caller, open.find_provider(None, "s").unwrap(), PATH, QUERY).unwrap();
        let mut head = upload_head(PATH, &format!("{QUERY}&{TOKEN_PARAM}={token}"), &[UPLOAD]);
        let grant = UploadGrant::take(&open, &mut head, &[]).unwrap();
        assert!(grant.key.is_none());
        assert_eq!(head.headers.get_str("x-gateway-provider"), Some("@s"));
    }

    #[test]
    fn is_not_issued_if_nothing_could_verify_it() {
        let snapshot = snapshot_from(SNAPSHOT_JSON);
        for (slug, query) in [("short", "a=b"), ("g", "upload_protocol=resumable"), ("g", "upload_id=")] {
            assert_eq!(sign(&snapshot, slug, query), None, "{slug} {query}");
        }
    }
}
