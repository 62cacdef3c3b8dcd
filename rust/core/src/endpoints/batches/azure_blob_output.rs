//! The output of a batch that its provider left in a customer's own storage at Azure: read where it says, with a token for storage.

use std::{pin::pin, time::Instant};

use penstock_llm::{api_format::Dialect, catalog, files};

use crate::{
    accounting::record::Facts,
    credentials::{self, Issued},
    error::{Error, Result},
    gateway::Gateway,
    ingress::body::Body,
    process::deadline::Deadline,
    request::translate::retyped,
    resolve::{target::Target, target_resolver::Call},
    response::delivery::Served,
    upstream::{self, AnswerBody, Base, Incoming, Origin, Outgoing, Shape},
};

/// The first versions of Azure's storage know no tokens.
const VERSION: &str = "x-ms-version: 2021-12-02\r\n";
/// A refusal that is larger says no more than its status.
const MOST_OF_REFUSAL: usize = 64 * 1024;

/// Where a blob is, and what its address says of who may read it.
pub struct Blob<'u> {
    /// With the whole path.
    pub base: Base,
    query: &'u str,
}

impl<'u> Blob<'u> {
    pub fn of(url: &'u str) -> std::result::Result<Self, String> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        if !query.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err("its query is none".into());
        }
        Ok(Self { base: Base::parse(address)?, query })
    }

    /// Whether what is at this address is Azure's storage, or an operator says so: nobody else is shown a token for it.
    fn is_of_storage(&self, upstream: &upstream::Upstream) -> bool {
        let Origin::Network { secure, host, .. } = &self.base.origin else { return false };
        *secure && catalog::keeps_blobs(host) || upstream.trusts(host)
    }

    /// Whether nobody on the way reads what its address is signed with.
    pub fn is_private(&self, upstream: &upstream::Upstream) -> bool {
        let Origin::Network { secure, host, .. } = &self.base.origin else { return false };
        *secure || upstream.trusts(host)
    }

    /// The question for it, with these header fields.
    pub fn asked(&self, fields: &str) -> Outgoing {
        let mark = if self.query.is_empty() { "" } else { "?" };
        let (path, query, host) = (&self.base.prefix, self.query, self.base.origin.authority());
        let head = format!("GET {path}{mark}{query} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n").into_bytes();
        Outgoing { head, body: Body::empty(), shape: Shape { chunked: false, bodiless: false }, replayable: true }
    }

    /// Whether its address is a signature, beside which nobody shows a token.
    fn is_signed(&self) -> bool {
        self.query.split('&').any(|pair| pair.starts_with("sig="))
    }
}

/// Once per target whose batch left its output there.
pub async fn read(
    gateway: &Gateway,
    call: &Call<'_>,
    (target, url): (&Target<'_>, &str),
    facts: &mut Facts,
) -> Result<Served> {
    let lacks = |message: String| Error::OptionInvalid { provider: target.provider.slug(), message };
    if !target.provider.leaves_blobs() {
        return Err(Error::NoOutput { status: String::new() });
    }
    let blob =
        Blob::of(url).map_err(|message| lacks(format!("the output of this batch is at no address: {message}")))?;
    if !blob.is_of_storage(&gateway.upstream) {
        let host = blob.base.origin.authority();
        let message =
            "the output of this batch is at `{host}`, which is no storage of Azure's: list it in TRUSTED_CUSTOM_HOSTS";
        return Err(lacks(message.replace("{host}", &host)));
    }
    let token = if blob.is_signed() { None } else { Some(token(gateway, target).await?) };
    let outgoing = blob.asked(&fields(token.as_deref(), call.head.headers.text("range")));
    let mut deadline = Deadline::new(target.timeout, &outgoing.body, &gateway.grace);
    let sent = Instant::now();
    let sending = pin!(gateway.upstream.send(&blob.base.origin, outgoing));
    let incoming = deadline.bound(sending).await?;
    facts.upstream = Some(sent.elapsed());
    let incoming = if incoming.head.status < 300 { incoming } else { refused(target, incoming, &mut deadline).await? };
    Ok(Served::new(incoming, Dialect::OpenAi, deadline.answered()))
}

/// A token that storage takes: of whoever is asked for the target's own, or one that came with the request.
async fn token(gateway: &Gateway, target: &Target<'_>) -> Result<String> {
    let given = || target.provider.token(&target.options).map(ToOwned::to_owned);
    let Some(grant) = target.grant.as_deref().and_then(catalog::Grant::for_storage) else {
        return given().ok_or_else(|| {
            let message = "the output of this batch lies in a blob, which no API key opens: let tokens be fetched \
                (azure_auth_mode), or send one for storage (x-gateway-azure-ad-token)";
            Error::OptionInvalid { provider: target.provider.slug(), message: message.into() }
        });
    };
    match &*Box::pin(credentials::fetch(gateway, target, &grant)).await? {
        Issued::Token(token) => Ok(token.clone()),
        Issued::Keys { .. } | Issued::Key(_) | Issued::Name(_) => {
            let message = "what was given is no token".into();
            Err(Error::CredentialUnavailable { provider: target.provider.slug(), message })
        }
    }
}

/// Nothing of the caller's goes along but which part of it is asked for.
fn fields(token: Option<&str>, range: Option<&str>) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let range = range.map(|range| format!("range: {range}\r\n")).unwrap_or_default();
    format!("{VERSION}{token}{range}")
}

/// What storage says instead, in `OpenAI`'s shape.
async fn refused(target: &Target<'_>, mut incoming: Incoming, deadline: &mut Deadline) -> Result<Incoming> {
    let said = deadline.bound(upstream::collect(&mut incoming.body, MOST_OF_REFUSAL)).await?.unwrap_or_default();
    let mut head = incoming.head;
    let told = files::refused(target.provider.slug(), head.status, &said, head.headers.text("x-ms-request-id"));
    head.headers = retyped(head.headers, b"application/json");
    Ok(Incoming { head, body: AnswerBody::whole(told.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_or_refused() {
        let blob = Blob::of("https://acct.blob.core.windows.net/out/1/results.jsonl?sv=1&sig=a%2Bb").unwrap();
        assert!(blob.is_signed());
        assert_eq!((&*blob.base.prefix, blob.query), ("/out/1/results.jsonl", "sv=1&sig=a%2Bb"));
        assert!(!Blob::of("https://acct.blob.core.windows.net/out/a?sv=sig").unwrap().is_signed());
        for wrong in
            ["", "file-1", "https://a.example/x?a b", "https://a.example/x y", "https://u@a.example/x", "ftp://a/b"]
        {
            assert!(Blob::of(wrong).is_err(), "{wrong}");
        }
    }
}
