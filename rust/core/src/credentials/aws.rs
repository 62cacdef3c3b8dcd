//! AWS STS client. Exchanges access keys or a third-party identity token for the temporary keys of a role.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use penstock_llm::{
    catalog::{AmazonKeys, AssumeRole, AwsCredentials},
    xml,
};
use penstock_net::{BaseUrl, BufferedResponse, Upstream};

use super::sigv4;
use crate::credentials::{issued::IssuedCredential, payload_hash::PayloadDigest, token_endpoint};

/// Session name for roles that are assumed with a web identity.
const WEB_IDENTITY_SESSION_NAME: &str = "penstock";

/// Assumes a role with the given access keys, and returns its temporary keys with their lifetime.
pub async fn assume_role(
    upstream: &Upstream,
    role: &AssumeRole,
    with: &AwsCredentials,
) -> Result<(IssuedCredential, Duration), String> {
    let mut fields = vec![
        ("Action", "AssumeRole"),
        ("Version", "2011-06-15"),
        ("RoleArn", role.arn.as_str()),
        ("RoleSessionName", role.session_name.as_str()),
    ];
    fields.extend(role.external_id.as_deref().map(|id| ("ExternalId", id)));
    let form = token_endpoint::encode_form(&fields);
    let AwsCredentials { access_key_id: id, secret_access_key: secret, session_token: session } = with;
    let with = AmazonKeys {
        service: "sts",
        region: &role.region,
        access_key_id: id,
        secret_access_key: secret,
        session_token: session.as_deref(),
    };
    let signed = |base: &BaseUrl| {
        let mut head = build_partial_head(base);
        head.extend_from_slice(b"\r\n");
        sigv4::sign_head(
            &with,
            &mut head,
            &base.origin.authority(),
            Some(&PayloadDigest::compute(form.as_bytes())),
            SystemTime::now(),
        )?;
        // Removes the final line break, because more header fields follow.
        head.truncate(head.len() - b"\r\n".len());
        Ok(head)
    };
    parse_sts_response(&token_endpoint::post_form(upstream, &role.sts_endpoint, &form, signed).await?)
}

/// Assumes a role with a third-party identity token, and returns its temporary keys with their lifetime.
pub async fn assume_role_with_web_identity(
    upstream: &Upstream,
    role: &str,
    endpoint: &str,
    identity: &str,
) -> Result<(IssuedCredential, Duration), String> {
    let form = token_endpoint::encode_form(&[
        ("Action", "AssumeRoleWithWebIdentity"),
        ("Version", "2011-06-15"),
        ("RoleArn", role),
        ("RoleSessionName", WEB_IDENTITY_SESSION_NAME),
        ("WebIdentityToken", identity),
    ]);
    parse_sts_response(
        &token_endpoint::post_form(upstream, endpoint, &form, |base| Ok(build_partial_head(base))).await?,
    )
}

/// Builds a request head without its final header fields.
fn build_partial_head(base: &BaseUrl) -> Vec<u8> {
    let path = if base.prefix.is_empty() { "/" } else { &base.prefix };
    format!("POST {path} HTTP/1.1\r\nhost: {}\r\n", base.origin.authority()).into_bytes()
}

fn parse_sts_response(response: &BufferedResponse) -> Result<(IssuedCredential, Duration), String> {
    let text = String::from_utf8_lossy(&response.body);
    if response.status >= 300 {
        let message = xml::element_text(&text, "Message").unwrap_or_default();
        return Err(format!(
            "the role could not be assumed ({}): {}",
            response.status,
            token_endpoint::sanitise_message(&message)
        ));
    }
    parse_keys(&text, SystemTime::now()).ok_or_else(|| "the response for the role contains no usable keys".to_owned())
}

/// Extracts the keys and their remaining lifetime from an STS response.
fn parse_keys(response: &str, now: SystemTime) -> Option<(IssuedCredential, Duration)> {
    let text = |name| xml::element_text(response, name).map(Cow::into_owned);
    let expires = humantime::parse_rfc3339(&xml::element_text(response, "Expiration")?).ok()?;
    let life = expires.duration_since(now).ok()?;
    let keys = IssuedCredential::AccessKeys {
        id: text("AccessKeyId")?,
        secret: text("SecretAccessKey")?,
        token: text("SessionToken")?,
    };
    Some((keys, life))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn parses_role_keys_with_their_expiry() {
        let response = "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIA1</AccessKeyId>\
            <SecretAccessKey>a/b+c=</SecretAccessKey><SessionToken>tok==</SessionToken>\
            <Expiration>1970-01-01T01:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
        let (IssuedCredential::AccessKeys { id, secret, token }, life) = parse_keys(response, UNIX_EPOCH).unwrap()
        else {
            panic!("keys")
        };
        assert_eq!((id.as_str(), secret.as_str(), token.as_str()), ("ASIA1", "a/b+c=", "tok=="));
        assert_eq!(life, Duration::from_hours(1));
        assert!(parse_keys(response, UNIX_EPOCH + Duration::from_hours(2)).is_none(), "what is over is none");
    }
}
