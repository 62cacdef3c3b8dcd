//! A request as it leaves: the request line and the fields that the provider may see, in bytes.

use penstock_llm::{operation::Operation, providers::Credential};

use crate::{
    call::{Call, Target},
    headers::{self, Head},
};

/// What the body of a request looks like on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    None,
    Known(u64),
    Chunked,
}

/// Renders the head of a request to a target.
pub fn head(call: &Call<'_>, target: &Target<'_>, aliases: &[String], length: Length) -> Vec<u8> {
    let head = call.head;
    let mut out = Vec::with_capacity(1024);
    request_line(&mut out, call, target);
    field(&mut out, b"host", target.base.origin.authority().as_bytes());
    let credential = target.credential.as_deref().map(|key| (target.provider.credential(key), key));
    for (name, value) in head.headers.iter() {
        if passes(name, call, target, aliases, credential.is_some()) {
            field(&mut out, name, value);
        }
    }
    if let Some((name, value)) = target.provider.required_header()
        && head.headers.get(name).is_none()
    {
        field(&mut out, name.as_bytes(), value.as_bytes());
    }
    match credential {
        Some((Credential::Bearer, key)) => {
            out.extend_from_slice(b"authorization: Bearer ");
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Some((Credential::Header(name), key)) => field(&mut out, name.as_bytes(), key.as_bytes()),
        None => (),
    }
    framing(&mut out, length);
    out.extend_from_slice(b"\r\n");
    out
}

fn request_line(out: &mut Vec<u8>, call: &Call<'_>, target: &Target<'_>) {
    let Call { route, head, .. } = call;
    let path =
        target.provider.path(route.operation).filter(|_| route.operation != Operation::Proxy).unwrap_or(route.path);
    // Clients whose base URL lacks the version segment say it twice.
    let path = if target.base.prefix.ends_with("/v1") { path.strip_prefix("/v1").unwrap_or(path) } else { path };
    out.extend_from_slice(head.method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.base.prefix.as_bytes());
    out.extend_from_slice(path.as_bytes());
    if !head.query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(head.query.as_bytes());
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

fn framing(out: &mut Vec<u8>, length: Length) {
    match length {
        Length::None => (),
        Length::Known(length) => field(out, b"content-length", itoa::Buffer::new().format(length).as_bytes()),
        Length::Chunked => field(out, b"transfer-encoding", b"chunked"),
    }
}

fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a field of the caller's goes on to the provider.
fn passes(name: &[u8], call: &Call<'_>, target: &Target<'_>, aliases: &[String], has_key: bool) -> bool {
    let head = call.head;
    if headers::is_hop_by_hop(name) || headers::control_name(name, aliases).is_some() {
        return false;
    }
    match name {
        // A credential is written once, from where it was decided; what is left is the gateway's own key.
        b"host" | b"content-length" | b"expect" | b"cookie" | b"x-api-key" | b"api-key" => false,
        // A scheme that is no bearer passes where there is no credential.
        b"authorization" => !has_key && crate::caller::bearer(&head.headers).is_none(),
        _ if target.forward.contains(name) => true,
        _ if call.route.operation == Operation::Proxy => !is_named_by_connection(name, head),
        b"accept" | b"content-type" | b"user-agent" | b"idempotency-key" | b"traceparent" | b"tracestate" => true,
        _ => name.starts_with(b"anthropic-") || name.starts_with(b"openai-"),
    }
}

fn is_named_by_connection(name: &[u8], head: &Head) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| head.headers.has_token("connection", name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_llm::providers;

    use super::*;
    use crate::{call::Route, features::forward_headers::ForwardHeaders, headers::Control, upstream::Base};

    fn rendered(
        provider: &str,
        operation: Operation,
        path: &str,
        key: Option<&str>,
        fields: &[(&str, &str)],
    ) -> String {
        let target = Target {
            provider: providers::find(provider).unwrap(),
            base: Base::parse("https://api.example/v1").unwrap(),
            credential: key.map(Into::into),
            forward: ForwardHeaders::default().resolve(Some("x-team")).unwrap(),
            timeout: Duration::ZERO,
        };
        let request = Head {
            method: "POST".into(),
            path: String::new(),
            query: "a=1".into(),
            headers: fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect(),
        };
        let call = Call { route: Route { operation, path }, head: &request, control: Control::default() };
        let bytes = head(&call, &target, &[], Length::Known(2));
        String::from_utf8(bytes).unwrap()
    }

    const SENT: &[(&str, &str)] = &[
        ("Host", "gateway"),
        ("Authorization", "Bearer sk-client"),
        ("X-Gateway-Api-Key", "pk"),
        ("Connection", "close, x-hop"),
        ("X-Hop", "1"),
        ("X-Team", "red"),
        ("X-Other", "2"),
        ("Content-Type", "application/json"),
        ("Accept-Encoding", "gzip"),
        ("Content-Length", "9"),
        ("Cookie", "c=1"),
    ];

    #[test]
    fn an_operation_sends_only_what_a_provider_needs() {
        let text = rendered("openai", Operation::ChatComplete, "/chat/completions", Some("sk-1"), SENT);
        assert_eq!(
            text,
            "POST /v1/chat/completions?a=1 HTTP/1.1\r\nhost: api.example\r\nx-team: red\r\n\
             content-type: application/json\r\nauthorization: Bearer sk-1\r\ncontent-length: 2\r\n\r\n"
        );
    }

    #[test]
    fn a_pass_through_sends_what_is_not_of_the_connection_or_the_gateway() {
        let text = rendered("openai", Operation::Proxy, "/files", Some("sk-1"), SENT);
        assert!(text.contains("x-other: 2") && text.contains("accept-encoding: gzip"));
        for absent in ["x-hop", "pk", "sk-client", "cookie", "content-length: 9"] {
            assert!(!text.contains(absent), "{absent} in {text}");
        }
    }

    #[test]
    fn anthropic_gets_its_key_and_its_version() {
        let text = rendered("anthropic", Operation::Messages, "/messages", Some("sk-1"), &[]);
        assert!(text.contains("x-api-key: sk-1\r\n") && text.contains("anthropic-version: 2023-06-01\r\n"));
        let oauth = rendered("anthropic", Operation::Messages, "/messages", Some("sk-ant-oat01-1"), &[]);
        assert!(oauth.contains("authorization: Bearer sk-ant-oat01-1\r\n"));
    }

    #[test]
    fn a_version_said_twice_is_said_once() {
        assert!(rendered("openai", Operation::Proxy, "/v1/files", None, &[]).starts_with("POST /v1/files?a=1 "));
    }

    #[test]
    fn a_gateway_key_in_authorization_never_leaves() {
        assert!(!rendered("openai", Operation::Proxy, "/files", None, SENT).contains("sk-client"));
    }
}
