//! Batch output that a provider wrote to the customer's own Azure storage. It is read from the URL that the batch
//! reports, with a storage token.

use std::{pin::pin, time::Instant};

use penstock_llm::{api_format::ApiFormat, catalog, files};
use penstock_net::{
    BaseUrl, BodyFraming, Deadline, IncomingResponse, Origin, OutgoingRequest, ResponseBody, Upstream, body::Body,
};

use crate::{
    accounting::record::RequestLog,
    credentials::{self, IssuedCredential},
    error::{Error, Result},
    gateway_state::GatewayState,
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{delivery::UpstreamResponse, mask_secrets, offload::with_content_type},
};

/// Version of the Azure storage API, as a header line. The earliest versions do not accept tokens.
const STORAGE_VERSION_HEADER: &str = "x-ms-version: 2021-12-02\r\n";
/// Maximum size of an error body that is read. For a longer one, only the status is reported.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;

/// URL of a blob, with the query that may contain an access signature.
pub struct BlobUrl<'u> {
    /// Address of the blob, including its complete path.
    pub base: BaseUrl,
    query: &'u str,
}

impl<'u> BlobUrl<'u> {
    pub fn parse(url: &'u str) -> std::result::Result<Self, String> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        if !query.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err("its query contains invalid characters".into());
        }
        Ok(Self { base: BaseUrl::parse(address)?, query })
    }

    /// Returns true if the host is Azure storage over TLS, or is trusted by the operator. Tokens are sent to no other
    /// host.
    fn is_trusted_storage(&self, upstream: &Upstream) -> bool {
        let Origin::Network { is_secure: secure, host, .. } = &self.base.origin else { return false };
        *secure && catalog::is_azure_blob_host(host) || upstream.is_trusted(host)
    }

    /// Returns true if nobody can read the URL's signature in transit: the connection uses TLS, or the operator trusts
    /// the host.
    pub fn has_trusted_transport(&self, upstream: &Upstream) -> bool {
        let Origin::Network { is_secure: secure, host, .. } = &self.base.origin else { return false };
        *secure || upstream.is_trusted(host)
    }

    /// Builds the GET request for the blob with these header fields.
    pub fn build_request(&self, fields: &str) -> OutgoingRequest {
        let mark = if self.query.is_empty() { "" } else { "?" };
        let (path, query, host) = (&self.base.prefix, self.query, self.base.origin.authority());
        let head = format!("GET {path}{mark}{query} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n").into_bytes();
        OutgoingRequest {
            head,
            body: Body::empty(),
            body_framing: BodyFraming { is_chunked: false, is_bodiless: false },
            is_replayable: true,
        }
    }

    /// Returns true if the URL contains a signature; no token may be sent with it.
    fn is_signed(&self) -> bool {
        self.query.split('&').any(|pair| pair.starts_with("sig="))
    }
}

/// Fetches the output that a batch of this target wrote to the customer's storage. Called once per target.
pub async fn fetch_output_blob(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    url: &str,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let lacks = |message: String| Error::ProviderOptionInvalid { provider: target.provider.slug(), message };
    if !target.provider.row().can_write_azure_blobs {
        return Err(Error::NoBatchOutput { status: String::new() });
    }
    let blob = BlobUrl::parse(url)
        .map_err(|message| lacks(format!("the output of this batch has no valid address: {message}")))?;
    if !blob.is_trusted_storage(&state.upstream) {
        let host = blob.base.origin.authority();
        let message = "the output of this batch is at `{host}`, which is not an Azure storage host; list it in TRUSTED_CUSTOM_HOSTS";
        return Err(lacks(message.replace("{host}", &host)));
    }
    let token = if blob.is_signed() { None } else { Some(storage_token(state, target).await?) };
    let outgoing =
        blob.build_request(&build_header_fields(token.as_deref(), client_request.head.headers.get_str("range")));
    let mut deadline = Deadline::new(target.timeout, &outgoing.body, &state.coarse_timer);
    let sent = Instant::now();
    let sending = pin!(state.upstream.send(&blob.base.origin, outgoing));
    let incoming = deadline.enforce(sending).await?;
    log.upstream_latency = Some(sent.elapsed());
    let incoming = if incoming.head.status < 300 {
        incoming
    } else {
        let masked = mask_secrets::mask_stored_secrets(target, token.as_deref(), incoming, &mut deadline).await?;
        translate_error(target, url, masked, &mut deadline).await?
    };
    Ok(UpstreamResponse::new(incoming, ApiFormat::OpenAi, deadline.response_started()))
}

/// Returns a storage token: fetched from the issuer of the target's own credential, or sent with the request.
async fn storage_token(state: &GatewayState, target: &Target<'_>) -> Result<String> {
    let bearer_token = || target.provider.row().bearer_token(&target.options).map(ToOwned::to_owned);
    let Some(grant) = target.grant.as_deref().and_then(catalog::Grant::for_azure_storage) else {
        return bearer_token().ok_or_else(|| {
            let message = "the output of this batch is in a blob, which an API key cannot read; configure token fetching \
                (azure_auth_mode) or send a storage token (x-gateway-azure-ad-token)";
            Error::ProviderOptionInvalid { provider: target.provider.slug(), message: message.into() }
        });
    };
    match &*Box::pin(credentials::fetch_credential(state, target, &grant)).await? {
        IssuedCredential::Token(token) => Ok(token.clone()),
        IssuedCredential::AccessKeys { .. } | IssuedCredential::PrivateKey(_) | IssuedCredential::ModelName(_) => {
            let message = "the issued credential is not a token".into();
            Err(Error::CredentialUnavailable { provider: target.provider.slug(), message })
        }
    }
}

/// Builds the header fields. Only the range is forwarded from the client's request.
fn build_header_fields(token: Option<&str>, range: Option<&str>) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let range = range.map(|range| format!("range: {range}\r\n")).unwrap_or_default();
    format!("{STORAGE_VERSION_HEADER}{token}{range}")
}

/// Translates an error of the storage service to `OpenAI`'s error shape.
async fn translate_error(
    target: &Target<'_>,
    url: &str,
    mut incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let error_body =
        deadline.enforce(penstock_net::collect(&mut incoming.body, MAX_ERROR_BODY_BYTES)).await?.unwrap_or_default();
    let error_body = mask_secrets::mask_url_secrets(url, &error_body);
    let mut head = incoming.head;
    let translated = files::translate_error(
        target.provider.slug(),
        head.status,
        &error_body,
        head.headers.get_str("x-ms-request-id"),
    );
    head.headers = with_content_type(head.headers, b"application/json");
    Ok(IncomingResponse { head, body: ResponseBody::from_bytes(translated.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_valid_blob_urls_and_rejects_invalid_ones() {
        let blob = BlobUrl::parse("https://acct.blob.core.windows.net/out/1/results.jsonl?sv=1&sig=a%2Bb").unwrap();
        assert!(blob.is_signed());
        assert_eq!((&*blob.base.prefix, blob.query), ("/out/1/results.jsonl", "sv=1&sig=a%2Bb"));
        assert!(!BlobUrl::parse("https://acct.blob.core.windows.net/out/a?sv=sig").unwrap().is_signed());
        for wrong in
            ["", "file-1", "https://a.example/x?a b", "https://a.example/x y", "https://u@a.example/x", "ftp://a/b"]
        {
            assert!(BlobUrl::parse(wrong).is_err(), "{wrong}");
        }
    }
}
