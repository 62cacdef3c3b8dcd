//! Check of a signed token in a header field of the request: its signature, its lifetime and its claims.

mod claims;
mod keys;
mod lifetime;

use std::sync::Arc;

use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::{
    claims::{ClaimRule, ClaimRules, text_of_claim},
    keys::KeySource,
    lifetime::Lifetime,
};
use super::forwarded_headers::validate_names;
use crate::{
    guardrails::{
        check::{
            Change, Check, CheckEffects, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages,
            read_parameters,
        },
        host_access::{CheckJob, HostAccess},
    },
    jose::{strict_json::parse_object, verifier::decode_base64url},
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "default.jwt",
    alias: None,
    name: "JSON web token",
    description: "passes if a header field of the request has a valid signed token; needs one of `jwksUri`, `jwks` and `introspectEndpoint`",
    stages: Stages::Input,
    secrets: &[],
    schema: r#"{"properties":{"jwksUri":{"type":"string","pattern":"^https?://","description":"URL of the public keys"},"jwks":{"type":"object","required":["keys"],"properties":{"keys":{"type":"array","minItems":1,"maxItems":100,"items":{"type":"object"}}},"description":"public keys, as a JSON Web Key Set"},"introspectEndpoint":{"type":"string","pattern":"^https?://","description":"URL that tells whether a token is active (RFC 7662)"},"introspectContentType":{"enum":["application/x-www-form-urlencoded","application/json"],"default":"application/x-www-form-urlencoded"},"introspectCacheMaxAge":{"type":"integer","minimum":0,"maximum":3600,"default":0,"description":"seconds for which an active token is not asked about again"},"headerKey":{"type":"string","pattern":"^[A-Za-z0-9-]+$","default":"Authorization","description":"header field of the token; the word `Bearer` before it is ignored"},"cacheMaxAge":{"type":"integer","minimum":1,"maximum":604800,"default":86400,"description":"seconds for which the keys of `jwksUri` are used"},"clockTolerance":{"type":"integer","minimum":0,"maximum":600,"default":5,"description":"seconds"},"maxTokenAge":{"type":"string","pattern":"^[0-9]{1,6}[smhd]?$","default":"1d","description":"longest time since `iat`, such as `12h`"},"algorithms":{"type":"array","minItems":1,"items":{"enum":["RS256","RS384","RS512","PS256","PS384","PS512","ES256","ES384","EdDSA"]},"default":["RS256"]},"requiredClaims":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1}},"claimValues":{"type":"object","maxProperties":100,"description":"values by claim","additionalProperties":{"type":"object","required":["values"],"additionalProperties":false,"properties":{"values":{"oneOf":[{"type":"array","minItems":1,"items":{"type":["string","number","boolean"]}},{"type":["string","number","boolean"]}]},"matchType":{"enum":["exact","contains","containsAll","regex"],"default":"exact"}}}},"headerPayloadMatch":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1},"description":"names whose values in header and payload of the token must be the same"},"extractClaims":{"type":"array","maxItems":50,"items":{"type":"string","minLength":1},"description":"claims that the provider gets as header fields"},"claimPrefix":{"type":"string","pattern":"^x-[a-z0-9-]+-$","default":"x-jwt-","description":"begin of the names of these header fields"}}}"#,
    shared: &["timeout=5000"],
    compile: TokenCheck::compile,
}];

const MAX_TOKEN_BYTES: usize = 16 * 1024;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenParameters {
    header_key: String,
    #[serde(default)]
    required_claims: Vec<String>,
    #[serde(default)]
    claim_values: std::collections::BTreeMap<String, ClaimRule>,
    #[serde(default)]
    header_payload_match: Vec<String>,
    #[serde(default)]
    extract_claims: Vec<String>,
    claim_prefix: String,
    algorithms: Vec<String>,
}

#[derive(Debug)]
struct PreparedToken {
    parameters: TokenParameters,
    /// Names of the header fields of `extract_claims`, in their order.
    header_names: Vec<String>,
    rules: ClaimRules,
    lifetime: Lifetime,
    keys: KeySource,
}

/// Check of a token. It is in an `Arc`, because the job that `Check::job` returns outlives the call.
#[derive(Debug)]
struct TokenCheck(Arc<PreparedToken>);

/// A token whose signature is not verified yet.
struct UnverifiedToken {
    header: Map<String, Value>,
    claims: Map<String, Value>,
    signed_text: String,
    signature: Vec<u8>,
}

/// Result of each part of the check.
#[derive(Debug, Default)]
struct Validations {
    is_signed: bool,
    /// Required claims that the token lacks.
    missing: Vec<String>,
    /// Claims with a value that is not allowed.
    failed: Vec<String>,
    /// Claims that differ between the header and the payload of the token.
    mismatches: Vec<String>,
    lifetime: Option<&'static str>,
}

impl TokenParameters {
    /// Returns the name of the header field of a claim.
    fn header_name(&self, claim: &str) -> String {
        let kebab: String = claim.chars().flat_map(to_kebab_letters).collect();
        format!("{}{}", self.claim_prefix, kebab.trim_start_matches('-'))
    }
}

impl TokenCheck {
    fn compile(parameters: Value) -> CompileResult {
        let keys = KeySource::compile(&parameters)?;
        let lifetime = Lifetime::compile(&parameters)?;
        let mut parameters: TokenParameters = read_parameters(parameters)?;
        let rules = ClaimRules::compile(std::mem::take(&mut parameters.claim_values))?;
        for (index, name) in parameters.extract_claims.iter().enumerate() {
            if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte)) {
                let message = "must have only letters, digits and _ - . : /, because it becomes a header field";
                return Err((format!(".extractClaims.{index}"), message.to_owned()));
            }
        }
        parameters.header_key = parameters.header_key.to_ascii_lowercase();
        let header_names: Vec<_> = parameters.extract_claims.iter().map(|name| parameters.header_name(name)).collect();
        validate_names(&header_names).map_err(|message| (".claimPrefix".to_owned(), message))?;
        Ok(Box::new(Self(Arc::new(PreparedToken { parameters, header_names, rules, lifetime, keys }))))
    }
}

impl UnverifiedToken {
    /// Parses a token; `None` if it is malformed, too long, or has critical extensions (`crit`, RFC 7515 section
    /// 4.1.11).
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<_> = text.split('.').collect();
        let [header, claims, signature] = parts[..] else { return None };
        let parsed = parse_object(&decode_base64url(header)?)?;
        (text.len() <= MAX_TOKEN_BYTES && !parsed.contains_key("crit")).then_some(())?;
        Some(Self {
            header: parsed,
            claims: parse_object(&decode_base64url(claims)?)?,
            signed_text: format!("{header}.{claims}"),
            signature: decode_base64url(signature)?,
        })
    }
}

impl PreparedToken {
    /// Returns the token of a request, without `Bearer`.
    fn find_token(&self, input: &CheckInput<'_>) -> Option<String> {
        let text = input.headers.get_str(&self.parameters.header_key)?.trim();
        let (scheme, rest) = text.split_once(' ').unwrap_or(("", text));
        let token = if scheme.eq_ignore_ascii_case("bearer") { rest } else { text };
        Some(token.trim().to_owned()).filter(|token| !token.is_empty())
    }

    async fn decide(&self, hosts: &dyn HostAccess, text: Option<String>) -> Result<CheckOutcome, CheckError> {
        let Some(text) = text else {
            let explanation = format!("the request has no header field `{}`", self.parameters.header_key);
            return Ok(CheckOutcome::new(false, json!({"verdict": false, "explanation": explanation})));
        };
        let unreadable = || {
            let explanation = "the header field has no signed token";
            Ok(CheckOutcome::new(false, json!({"verdict": false, "explanation": explanation})))
        };
        let (claims, header, is_signed) = if let KeySource::Introspection(introspection) = &self.keys {
            match introspection.find_claims(hosts, &text).await? {
                Some(claims) => (claims, Map::new(), true),
                None => (Map::new(), Map::new(), false),
            }
        } else {
            let Some(token) = UnverifiedToken::parse(&text) else { return unreadable() };
            let is_signed = self.keys.verify(hosts, &token, &self.parameters.algorithms).await?;
            (token.claims, token.header, is_signed)
        };
        let mut validations = Validations { is_signed, ..Validations::default() };
        if is_signed {
            self.validate(&header, &claims, &mut validations);
        }
        Ok(self.conclude(&claims, &validations))
    }

    fn validate(&self, header: &Map<String, Value>, claims: &Map<String, Value>, validations: &mut Validations) {
        let is_introspected = matches!(self.keys, KeySource::Introspection(_));
        validations.lifetime = self.lifetime.find_problem(claims, is_introspected);
        let is_missing = |name: &&String| claims.get(*name).is_none_or(Value::is_null);
        validations.missing = self.parameters.required_claims.iter().filter(is_missing).cloned().collect();
        validations.failed = self.rules.find_failed(claims);
        let differs = |name: &&String| claims.get(*name).is_none() || header.get(*name) != claims.get(*name);
        validations.mismatches = self.parameters.header_payload_match.iter().filter(differs).cloned().collect();
    }

    fn conclude(&self, claims: &Map<String, Value>, validations: &Validations) -> CheckOutcome {
        let explanation = match validations {
            Validations { is_signed: false, .. } if matches!(self.keys, KeySource::Introspection(_)) => {
                "the token is not active"
            }
            Validations { is_signed: false, .. } => "the signature of the token is not valid",
            Validations { lifetime: Some(problem), .. } => problem,
            Validations { missing, .. } if !missing.is_empty() => "the token lacks required claims",
            Validations { failed, .. } if !failed.is_empty() => "claims of the token have other values",
            Validations { mismatches, .. } if !mismatches.is_empty() => "header and payload of the token differ",
            _ => "the token is valid",
        };
        let Validations { is_signed, missing, failed, mismatches, lifetime } = validations;
        let verdict =
            *is_signed && lifetime.is_none() && missing.is_empty() && failed.is_empty() && mismatches.is_empty();
        let data = json!({"verdict": verdict, "explanation": explanation, "validations": {
            "signatureValid": is_signed, "requiredClaims": {"valid": missing.is_empty(), "missing": missing},
            "claimValues": {"valid": failed.is_empty(), "failed": failed},
            "headerPayloadMatch": {"valid": mismatches.is_empty(), "failed": mismatches}}});
        let change = (verdict && !self.parameters.extract_claims.is_empty()).then(|| self.header_fields(claims));
        CheckOutcome { change, ..CheckOutcome::new(verdict, data) }
    }

    /// Adds the header fields of the extracted claims to an outcome that has none. They are empty, because a client could
    /// set them itself if the check does not deny a request without a valid token.
    fn reserve_header_fields(&self, outcome: Result<CheckOutcome, CheckError>) -> Result<CheckOutcome, CheckError> {
        if self.parameters.extract_claims.is_empty() {
            return outcome;
        }
        let mut outcome = outcome.unwrap_or_else(CheckOutcome::failed);
        outcome.change.get_or_insert_with(|| self.header_fields(&Map::new()));
        Ok(outcome)
    }

    /// Returns header fields with the values of the extracted claims. If the token lacks a claim, its field is empty,
    /// so that a client cannot set it.
    fn header_fields(&self, claims: &Map<String, Value>) -> Change {
        let value = |claim: &String| claims.get(claim).map(text_of_claim).unwrap_or_default();
        let values = self.parameters.extract_claims.iter().map(value);
        Change::Headers(self.header_names.iter().cloned().zip(values).collect())
    }
}

/// Returns the letters of a name in kebab case, as in `user-id` for `userId` and `user_id`.
fn to_kebab_letters(letter: char) -> impl Iterator<Item = char> {
    let (dash, letter) = match letter {
        'A'..='Z' => (Some('-'), letter.to_ascii_lowercase()),
        letter if letter.is_ascii_alphanumeric() => (None, letter),
        _ => (None, '-'),
    };
    dash.into_iter().chain([letter])
}

impl Check for TokenCheck {
    fn run(&self, _input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        Err(CheckError::new("the keys cannot be fetched here"))
    }

    fn job(&self, input: &CheckInput<'_>) -> Option<CheckJob> {
        let (prepared, token) = (Arc::clone(&self.0), self.0.find_token(input));
        let decide = move |hosts: Arc<dyn HostAccess>| {
            async move {
                let outcome = prepared.decide(&*hosts, token).await;
                prepared.reserve_header_fields(outcome)
            }
            .boxed()
        };
        Some(Box::new(decide))
    }

    fn effects(&self) -> CheckEffects<'_> {
        CheckEffects { reserved_headers: &self.0.header_names, ..CheckEffects::default() }
    }
}

#[cfg(test)]
mod tests;
