//! Roles of Amazon: keys that may take one on are exchanged for keys of a while (STS, `AssumeRole`).

use std::time::{Duration, SystemTime};

use penstock_llm::providers::{Role, Signature};

use super::{Issued, sigv4, token};
use crate::upstream::Upstream;

pub async fn keys(upstream: &Upstream, role: &Role) -> Result<(Issued, Duration), String> {
    let mut fields = vec![
        ("Action", "AssumeRole"),
        ("Version", "2011-06-15"),
        ("RoleArn", role.arn.as_str()),
        ("RoleSessionName", role.session_name.as_str()),
    ];
    fields.extend(role.external_id.as_deref().map(|id| ("ExternalId", id)));
    let form = token::form(&fields);
    let Role { region, id, secret, token: session, endpoint, .. } = role;
    let with = Signature { service: "sts", region, id, secret, token: session.as_deref() };
    let signed = |base: &crate::upstream::Base| {
        let authority = base.origin.authority();
        let path = if base.prefix.is_empty() { "/" } else { &base.prefix };
        let mut head = format!("POST {path} HTTP/1.1\r\nhost: {authority}\r\n\r\n").into_bytes();
        sigv4::sign(&with, &mut head, (&authority, form.as_bytes()), SystemTime::now())?;
        // The last fields are still to come.
        head.truncate(head.len() - b"\r\n".len());
        Ok(head)
    };
    let (status, answer) = token::post(upstream, endpoint, &form, signed).await?;
    let answer = String::from_utf8_lossy(&answer);
    if status >= 300 {
        let words = within(&answer, "Message").unwrap_or_default();
        return Err(format!("the role was not given ({status}): {}", token::plain(words)));
    }
    given(&answer, SystemTime::now()).ok_or_else(|| "the role was given without keys".to_owned())
}

/// The keys of an answer, and how long they are good.
fn given(answer: &str, now: SystemTime) -> Option<(Issued, Duration)> {
    let text = |name| within(answer, name).map(ToOwned::to_owned);
    let expires = humantime::parse_rfc3339(within(answer, "Expiration")?.trim()).ok()?;
    let life = expires.duration_since(now).ok()?;
    let keys =
        Issued::Keys { id: text("AccessKeyId")?, secret: text("SecretAccessKey")?, token: text("SessionToken")? };
    Some((keys, life))
}

/// The text of the first element of this name. Keys are letters, digits, `+`, `/` and `=`, which XML leaves as they are.
fn within<'x>(xml: &'x str, name: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn the_keys_of_a_role_are_read_with_their_end() {
        let answer = "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIA1</AccessKeyId>\
            <SecretAccessKey>a/b+c=</SecretAccessKey><SessionToken>tok==</SessionToken>\
            <Expiration>1970-01-01T01:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
        let (Issued::Keys { id, secret, token }, life) = given(answer, UNIX_EPOCH).unwrap() else { panic!("keys") };
        assert_eq!((id.as_str(), secret.as_str(), token.as_str()), ("ASIA1", "a/b+c=", "tok=="));
        assert_eq!(life, Duration::from_hours(1));
        assert!(given(answer, UNIX_EPOCH + Duration::from_hours(2)).is_none(), "what is over is none");
    }
}
