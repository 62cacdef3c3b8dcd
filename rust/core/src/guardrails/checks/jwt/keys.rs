//! Sources of the keys that verify tokens: the parameters or a URL. An introspection endpoint verifies tokens itself.
//! Fetched keys and results are cached, so that a request rarely waits for them.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use penstock_net::BaseUrl;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::UnverifiedToken;
use crate::{
    guardrails::{
        check::CheckError,
        host_access::{HostAccess, HostChoice, HostRequest},
    },
    jose::verifier::{Jwk, Verifier},
};

const MAX_KEYS: usize = 100;
const MAX_REPLY_BYTES: usize = 256 * 1024;
/// Maximum number of URLs whose keys are cached.
const MAX_KEY_SETS: usize = 200;
/// Maximum number of active tokens that are cached.
const MAX_ACTIVE_TOKENS: usize = 10_000;
/// Minimum age of cached keys before a token with an unknown key id makes the gateway fetch them again.
const REFETCH_INTERVAL: Duration = Duration::from_secs(10);

/// Keys with their ids. An id may be empty.
type KeySet = Vec<(String, Verifier)>;

/// Keys of a URL, and when they were fetched.
#[derive(Clone)]
struct FetchedKeys {
    keys: Arc<KeySet>,
    fetched_at: Instant,
}

/// Fetched keys by URL, for all guardrails: the keys are public.
static KEY_SETS: LazyLock<Mutex<HashMap<String, FetchedKeys>>> = LazyLock::new(Mutex::default);

/// Claims that an introspection endpoint returned for an active token, and the time at which they expire in the cache.
type ActiveToken = (Arc<Map<String, Value>>, Instant);

/// Cached active tokens by the digest of endpoint and token.
static ACTIVE_TOKENS: LazyLock<Mutex<HashMap<[u8; 32], ActiveToken>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(super) enum KeySource {
    Inline(KeySet),
    Url { url: String, max_age: Duration, timeout: Duration },
    Introspection(Introspection),
}

/// An endpoint that reports whether a token is active (RFC 7662).
#[derive(Debug)]
pub(super) struct Introspection {
    url: String,
    content_type: &'static str,
    max_age: Duration,
    timeout: Duration,
}

impl KeySource {
    /// Compiles the source of keys in the parameters.
    ///
    /// # Errors
    /// If the parameters have no source or several, or the source is not valid.
    pub fn compile(parameters: &Value) -> Result<Self, (String, String)> {
        let matching: Vec<_> =
            ["jwksUri", "jwks", "introspectEndpoint"].into_iter().filter(|name| !parameters[name].is_null()).collect();
        let [name] = matching[..] else {
            let message = "needs exactly one of `jwksUri`, `jwks` and `introspectEndpoint`";
            return Err((String::new(), message.to_owned()));
        };
        let timeout = Duration::from_millis(parameters["timeout"].as_u64().unwrap_or_default());
        let seconds = |name: &str| Duration::from_secs(parameters[name].as_u64().unwrap_or_default());
        if name == "jwks" {
            let keys = read_keys(&parameters["jwks"]);
            if keys.is_empty() {
                return Err((".jwks".to_owned(), "has no public key for signatures that is supported".to_owned()));
            }
            return Ok(Self::Inline(keys));
        }
        let url = parameters[name].as_str().unwrap_or_default().to_owned();
        let address = url.split('?').next().unwrap_or_default();
        BaseUrl::parse(address).map_err(|message| (format!(".{name}"), message))?;
        if let Some(invalid) = url.chars().find(|letter| !letter.is_ascii_graphic() || *letter == '#') {
            return Err((format!(".{name}"), format!("must not contain {invalid:?} in its query")));
        }
        if name == "jwksUri" {
            return Ok(Self::Url { url, max_age: seconds("cacheMaxAge"), timeout });
        }
        let is_json = parameters["introspectContentType"] == "application/json";
        let content_type = if is_json { "application/json" } else { "application/x-www-form-urlencoded" };
        let max_age = seconds("introspectCacheMaxAge");
        Ok(Self::Introspection(Introspection { url, content_type, max_age, timeout }))
    }

    /// Returns true if one of the keys signed a token.
    ///
    /// # Errors
    /// If the keys cannot be fetched.
    pub async fn verify(
        &self,
        hosts: &dyn HostAccess,
        token: &UnverifiedToken,
        algorithms: &[String],
    ) -> Result<bool, CheckError> {
        let text = |name: &str| token.header.get(name).and_then(Value::as_str).unwrap_or_default();
        let (algorithm, id) = (text("alg"), text("kid"));
        if !algorithms.iter().any(|allowed| allowed == algorithm) {
            return Ok(false);
        }
        let is_signed = |keys: &KeySet| {
            find_keys(keys, id)
                .any(|key| key.verify(algorithm, token.signed_text.as_bytes(), &token.signature).is_some())
        };
        match self {
            Self::Inline(keys) => Ok(is_signed(keys)),
            Self::Introspection(_) => Ok(false),
            Self::Url { url, max_age, timeout } => {
                let known = lock(&KEY_SETS).get(url).cloned().filter(|known| known.fetched_at.elapsed() < *max_age);
                if let Some(FetchedKeys { keys, fetched_at }) = known {
                    let may_refetch = fetched_at.elapsed() >= REFETCH_INTERVAL;
                    if !may_refetch || find_keys(&keys, id).next().is_some() {
                        return Ok(is_signed(&keys));
                    }
                }
                Ok(is_signed(&*fetch_keys(hosts, url, *timeout).await?))
            }
        }
    }
}

/// Returns the keys that may have signed a token: those with the key id of the token, or all if it has no key id.
fn find_keys<'k>(keys: &'k KeySet, id: &'k str) -> impl Iterator<Item = &'k Verifier> {
    keys.iter().filter(move |(known, _)| id.is_empty() || known == id).map(|(_, key)| key)
}

fn read_keys(set: &Value) -> KeySet {
    let keys = set["keys"].as_array().into_iter().flatten().take(MAX_KEYS);
    let read = |key: &Value| {
        let key: Jwk = serde_json::from_value(key.clone()).ok()?;
        let is_for_signatures = key.usage.is_empty() || key.usage == "sig";
        is_for_signatures.then(|| Verifier::from_jwk(&key)).flatten().map(|verifier| (key.kid, verifier))
    };
    keys.filter_map(read).collect()
}

async fn fetch_keys(hosts: &dyn HostAccess, url: &str, timeout: Duration) -> Result<Arc<KeySet>, CheckError> {
    let request = HostRequest {
        method: "GET",
        url: url.to_owned(),
        headers: vec![("accept".to_owned(), "application/json".to_owned())],
        body: None,
        timeout,
        max_body_bytes: MAX_REPLY_BYTES,
        chosen_by: HostChoice::Guardrail,
    };
    let reply = hosts.send(request).await?;
    let set: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let keys = read_keys(&set);
    if reply.status != 200 || keys.is_empty() {
        return Err(CheckError::new(format!("the host of the keys returned no keys, and status {}", reply.status)));
    }
    let fetched = FetchedKeys { keys: Arc::new(keys), fetched_at: Instant::now() };
    let mut sets = lock(&KEY_SETS);
    if sets.len() >= MAX_KEY_SETS && !sets.contains_key(url) {
        sets.clear();
    }
    sets.insert(url.to_owned(), fetched.clone());
    Ok(fetched.keys)
}

impl Introspection {
    /// Returns the claims of an active token; `None` if it is not active.
    ///
    /// # Errors
    /// If the endpoint cannot be reached, or returns no valid response.
    pub async fn find_claims(
        &self,
        hosts: &dyn HostAccess,
        token: &str,
    ) -> Result<Option<Map<String, Value>>, CheckError> {
        let digest: [u8; 32] = Sha256::digest(format!("{}\n{token}", self.url).as_bytes()).into();
        let now = Instant::now();
        if let Some((claims, _)) = lock(&ACTIVE_TOKENS).get(&digest).filter(|(_, end)| now < *end) {
            return Ok(Some((**claims).clone()));
        }
        let body = if self.content_type == "application/json" {
            json!({"token": token}).to_string()
        } else {
            url::form_urlencoded::Serializer::new(String::new()).append_pair("token", token).finish()
        };
        let request = HostRequest {
            method: "POST",
            url: self.url.clone(),
            headers: vec![("accept".to_owned(), "application/json".to_owned())],
            body: Some((self.content_type, body)),
            timeout: self.timeout,
            max_body_bytes: MAX_REPLY_BYTES,
            chosen_by: HostChoice::Guardrail,
        };
        let reply = hosts.send(request).await?;
        let answer: Option<Map<String, Value>> = serde_json::from_slice(&reply.body).ok();
        let answer = answer.filter(|answer| reply.status == 200 && answer.get("active").is_some_and(Value::is_boolean));
        let Some(claims) = answer else {
            return Err(CheckError::new(format!("the endpoint returned no answer, and status {}", reply.status)));
        };
        if claims["active"] != true {
            return Ok(None);
        }
        if !self.max_age.is_zero() {
            let mut tokens = lock(&ACTIVE_TOKENS);
            if tokens.len() >= MAX_ACTIVE_TOKENS {
                tokens.clear();
            }
            tokens.insert(digest, (Arc::new(claims.clone()), now + self.max_age));
        }
        Ok(Some(claims))
    }
}
