//! JWT authentication: accepts tokens of an organisation's identity provider instead of gateway keys. Verifies them
//! with the provider's published keys.

mod issuer;
mod published_key;
mod signed_token;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use self::{
    issuer::Issuer,
    published_key::PublishedJwk,
    signed_token::{Claims, SignedToken, parse_unix_seconds, user_claim},
};
use crate::{
    auth::gateway_key::{GatewayKey, Workspace, parse_defaults},
    error::{Error, Problem, Result},
    jose::verifier::Verifier,
    limits::claims::compile_claims,
};

/// Scope that a token needs to call models.
const CALL_SCOPE: &str = "completions.write";
/// Scope that a token needs to render prompts.
const RENDER_SCOPE: &str = "prompts.render";
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Maximum number of verified tokens cached per snapshot.
const MAX_CACHED_TOKENS: usize = 10_000;

/// JWT settings as published in a snapshot.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedSettings {
    keys: Vec<PublishedJwk>,
    issuers: Vec<Issuer>,
    algorithms: Vec<String>,
    /// Organisations whose tokens are accepted; empty means all.
    organisations: Vec<String>,
    default_scopes: Vec<String>,
    leeway_seconds: u64,
}

/// Users removed from an organisation, or from one workspace only. Lists every identifier that a token may use for
/// them; emails are lower-case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemovedMembers {
    organisation_id: Box<str>,
    workspace_id: Option<Box<str>>,
    names: HashSet<Box<str>>,
}

/// Verified identity of a token, represented as a key that is valid until the token expires.
#[derive(Debug)]
pub struct TokenIdentity {
    pub key: GatewayKey,
    /// True if the token may call models. Otherwise it may only render prompts.
    pub may_call: bool,
    /// `nbf` claim in Unix seconds; 0 if absent.
    not_before: u64,
}

/// Verifies tokens, and caches those that it verified.
#[derive(Debug)]
pub struct TokenAuthenticator {
    /// Verifiers by key id, with the index of their issuer. Two issuers may use the same key id.
    keys: HashMap<String, Vec<(usize, Verifier)>>,
    issuers: Vec<Issuer>,
    algorithms: Vec<String>,
    organisations: Vec<String>,
    default_scopes: Vec<String>,
    leeway_seconds: u64,
    /// Identifiers of removed users by organisation id or workspace id.
    removed_members: HashMap<Box<str>, HashSet<Box<str>>>,
    verified_tokens: Mutex<HashMap<[u8; 32], Arc<TokenIdentity>>>,
}

impl TokenAuthenticator {
    pub(crate) fn compile(
        published: PublishedSettings,
        departed: Vec<RemovedMembers>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut keys: HashMap<String, Vec<(usize, Verifier)>> = HashMap::with_capacity(published.keys.len());
        for (index, key) in published.keys.into_iter().enumerate() {
            match Verifier::from_jwk(&key.to_jwk()).filter(|_| key.issuer < published.issuers.len()) {
                Some(verifier) => keys.entry(key.kid).or_default().push((key.issuer, verifier)),
                None => problems
                    .push(Problem::new(format!("$.jwt.keys[{index}]"), "is not a supported public key for signatures")),
            }
        }
        let PublishedSettings { issuers, algorithms, organisations, default_scopes, leeway_seconds, .. } = published;
        let removed_members = departed
            .into_iter()
            .map(|removed| (removed.workspace_id.unwrap_or(removed.organisation_id), removed.names))
            .collect();
        Self {
            keys,
            issuers,
            algorithms,
            organisations,
            default_scopes,
            leeway_seconds,
            removed_members,
            verified_tokens: Mutex::default(),
        }
    }

    /// Authenticates a token; `None` if the text is not a token.
    pub fn authenticate(&self, text: &str, workspaces: &[Workspace]) -> Option<Result<Arc<TokenIdentity>>> {
        let mut parts = text.split('.');
        let (Some(head), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        head.starts_with("eyJ").then(|| {
            let digest = Sha256::digest(text.as_bytes()).into();
            let cached = self.lock_verified_tokens().get(&digest).cloned();
            let token_identity = match cached {
                Some(token_identity) => token_identity,
                None if text.len() > MAX_TOKEN_BYTES => return Err(Error::TokenInvalid),
                None => {
                    let token = SignedToken::parse(head, claims, signature).ok_or(Error::TokenInvalid)?;
                    let issuer = self.verify_signature(&token).ok_or_else(|| self.rejection_error(&token.claims))?;
                    let token_identity = Arc::new(self.build_identity(issuer, &token.claims, workspaces)?);
                    self.cache_token(digest, &token_identity);
                    token_identity
                }
            };
            self.check_validity_period(&token_identity).map(|()| token_identity)
        })
    }

    /// Returns true if one of the issuers signed this token. Ignores all other checks.
    pub fn has_valid_signature(&self, text: &str) -> bool {
        let mut parts = text.split('.');
        let (Some(head), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        let is_token = head.starts_with("eyJ") && text.len() <= MAX_TOKEN_BYTES;
        is_token
            && SignedToken::parse(head, claims, signature).is_some_and(|token| self.verify_signature(&token).is_some())
    }

    fn lock_verified_tokens(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Arc<TokenIdentity>>> {
        self.verified_tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache_token(&self, digest: [u8; 32], token_identity: &Arc<TokenIdentity>) {
        let mut verified = self.lock_verified_tokens();
        if verified.len() >= MAX_CACHED_TOKENS {
            verified.clear();
        }
        verified.insert(digest, Arc::clone(token_identity));
    }

    fn check_validity_period(&self, token_identity: &TokenIdentity) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let end = token_identity.key.expires_at.unwrap_or(0);
        if end.saturating_add(self.leeway_seconds) <= now
            || token_identity.not_before > now.saturating_add(self.leeway_seconds)
        {
            return Err(Error::TokenExpired);
        }
        Ok(())
    }

    /// Verifies the signature and returns its issuer. The algorithm must be allowed and must fit the kind of key.
    fn verify_signature(&self, token: &SignedToken) -> Option<&Issuer> {
        let algorithm = self.algorithms.iter().find(|name| **name == token.algorithm)?;
        self.keys.get(&token.key_id)?.iter().find_map(|(index, key)| {
            let issuer = &self.issuers[*index];
            issuer
                .matches_claims(&token.claims)
                .then(|| key.verify(algorithm, token.signed_text.as_bytes(), &token.signature))?
                .map(|()| issuer)
        })
    }

    /// Returns the error for a token whose signature could not be verified. The error is temporary if the keys of its
    /// issuer have not been fetched yet.
    fn rejection_error(&self, claims: &Claims) -> Error {
        let is_mute = |index| !self.keys.values().flatten().any(|(issuer_index, _)| *issuer_index == index);
        let is_unread = |(index, issuer): (usize, &Issuer)| {
            !issuer.url.is_empty() && issuer.matches_claims(claims) && is_mute(index)
        };
        if self.issuers.iter().enumerate().any(is_unread) {
            Error::TokenVerificationUnavailable
        } else {
            Error::TokenInvalid
        }
    }

    fn build_identity(&self, issuer: &Issuer, claims: &Claims, workspaces: &[Workspace]) -> Result<TokenIdentity> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let seconds = |value: &Value| parse_unix_seconds(value).ok_or(Error::TokenInvalid);
        let expires_at = claims.get("exp").map_or(Err(Error::TokenInvalid), seconds)?;
        let not_before = claims.get("nbf").map_or(Ok(0), seconds)?;
        let organisation = text("organisation_id").ok_or(Error::TokenInvalid)?;
        let user = user_claim(claims).ok_or(Error::TokenInvalid)?;
        let is_allowed = |allowed: &[String]| allowed.is_empty() || allowed.iter().any(|name| name == organisation);
        if !is_allowed(&self.organisations) || !is_allowed(&issuer.organisations) {
            return Err(Error::TokenForbidden { claim: "organisation" });
        }
        if self.is_removed_member(organisation, user) {
            return Err(Error::TokenSubjectRemoved);
        }
        let mut candidates =
            workspaces.iter().filter(|workspace| &*workspace.organisation_id == organisation).peekable();
        candidates.peek().ok_or(Error::TokenInvalid)?;
        let slug = text("workspace_slug").ok_or(Error::TokenForbidden { claim: "workspace" })?;
        let workspace = candidates
            .find(|workspace| &*workspace.slug == slug)
            .ok_or(Error::TokenForbidden { claim: "workspace" })?;
        if self.is_removed_member(&workspace.id, user) {
            return Err(Error::TokenForbidden { claim: "workspace" });
        }
        let [may_call, may_render] = [CALL_SCOPE, RENDER_SCOPE].map(|scope| self.has_scope(claims, scope));
        if !may_call && !may_render {
            return Err(Error::TokenForbidden { claim: "scope" });
        }
        let limits = compile_claims(organisation, user, claims.get("usage_limits"), claims.get("rate_limits"))
            .map_err(|_| Error::TokenInvalid)?;
        let defaults = match claims.get("defaults") {
            None | Some(Value::Null) => None,
            Some(value @ Value::Object(_)) => parse_defaults(&value.to_string()).map_err(|_| Error::TokenInvalid)?,
            Some(_) => return Err(Error::TokenInvalid),
        };
        let key = GatewayKey {
            id: user.into(),
            name: user.into(),
            expires_at: Some(expires_at),
            workspace: Some(Arc::clone(&workspace.id)),
            // The management API finds users by their id, or by their email in lower case.
            user_id: Some(if user.contains('@') { user.to_lowercase().into() } else { user.into() }),
            defaults,
            limits,
            may_render,
        };
        Ok(TokenIdentity { key, may_call, not_before })
    }

    /// Returns true if this user was removed from the organisation or workspace with this id.
    fn is_removed_member(&self, tenant_id: &str, user: &str) -> bool {
        let contains_user =
            |names: &HashSet<Box<str>>| names.contains(user) || names.contains(user.to_lowercase().as_str());
        self.removed_members.get(tenant_id).is_some_and(contains_user)
    }

    fn has_scope(&self, claims: &Claims, expected: &str) -> bool {
        // A scope may have a brand prefix, such as `portkey.`.
        let is_it = |scope: &str| scope == expected || scope.split_once('.').is_some_and(|(_, rest)| rest == expected);
        match claims.get("scopes").or_else(|| claims.get("scope")) {
            Some(Value::String(all)) => all.split_whitespace().any(is_it),
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).any(is_it),
            Some(_) => false,
            None => self.default_scopes.iter().any(|scope| is_it(scope)),
        }
    }
}

#[cfg(test)]
mod tests;
