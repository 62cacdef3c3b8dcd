//! Upstream request head: the request line and the headers that the provider may see, as bytes.

use std::borrow::Cow;

use penstock_llm::{
    catalog::{Credential, PathInfo},
    operation::{BodyKind, Operation},
    translation::Translation,
};
use penstock_net::{Origin, headers, uri};
use percent_encoding::percent_decode_str;

use crate::{
    auth::caller::{Caller, KeyLookupBudget},
    credentials::IssuedCredential,
    error::{Error, Result},
    ingress::{control_headers, trace_context},
    resolve::{
        target::{ResponseCoding, Target},
        target_resolver::ClientRequest,
    },
    response::mask_secrets,
};

/// Framing of a request body in HTTP/1.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    None,
    Known(u64),
    Chunked,
}

/// How a request and its response are transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransformMode {
    Unchanged,
    /// The request is unchanged, but the response is edited: it is normalised, or usage that only the gateway requested
    /// is removed.
    ResponseEdited,
    /// The request goes to a host that serves the model in the client's own format.
    NativeFormat,
    Translated,
}

impl TransformMode {
    pub fn from_translation(translation: Option<&Translation>, normalises: bool) -> Self {
        match translation {
            Some(translation) if translation.is_passthrough() => Self::NativeFormat,
            Some(_) => Self::Translated,
            None if normalises => Self::ResponseEdited,
            None => Self::Unchanged,
        }
    }

    fn is_translated(self) -> bool {
        matches!(self, Self::NativeFormat | Self::Translated)
    }
}

/// Values from the request body and the gateway that determine the head.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'s> {
    pub model: &'s str,
    pub user: &'s str,
    pub is_streaming: bool,
    pub mode: TransformMode,
    /// Content type of the body, if it differs from the client's.
    pub content_type: Option<&'s str>,
    /// Anthropic beta features that the body requested.
    pub anthropic_betas: Option<&'s str>,
    /// Anthropic API version that the body requested.
    pub anthropic_version: Option<&'s str>,
    /// Position of the next page of a list. `None` for the first page.
    pub page_token: Option<&'s str>,
    pub body_length: BodyLength,
    /// Credential that was fetched for this request.
    pub issued_credential: Option<&'s IssuedCredential>,
}

/// Renders the head of a client's request to a target.
pub fn render_head(
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    input: RenderInput<'_>,
    aliases: &[String],
) -> Result<Vec<u8>> {
    let head = client_request.head;
    let (mut out, key_lookups) = (Vec::with_capacity(1024), KeyLookupBudget::default());
    write_request_line(&mut out, client_request, target, input, &key_lookups)?;
    write_host(&mut out, &target.base_url.origin);
    let connection_headers = head.headers.connection_options();
    let passing = HeaderFilter { client_request, target, connection_headers, input, key_lookups: &key_lookups };
    for (name, value) in head.headers.iter() {
        if control_headers::split_control_name(name, aliases).is_none() && passing.should_forward(name, value) {
            write_header(&mut out, name, value);
        }
    }
    if key_lookups.is_exhausted() {
        let message = "its query and headers have too many words to check for gateway keys; send fewer or shorter ones";
        return Err(Error::HeaderInvalid { name: "request", message: message.into() });
    }
    for (name, value) in target.options.forwarded_headers() {
        write_header(&mut out, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in &target.header_fields {
        write_header(&mut out, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in &target.check_headers {
        write_header(&mut out, name.as_bytes(), value.as_bytes());
    }
    if let Some((name, value)) = target.provider.required_header(&target.base_url.prefix)
        && head.headers.get(name).is_none()
        && !target.overrides_header(name.as_bytes())
    {
        write_header(&mut out, name.as_bytes(), input.anthropic_version.unwrap_or(value).as_bytes());
    }
    if let Some(betas) = input.anthropic_betas.filter(|betas| !betas.is_empty()) {
        write_header(&mut out, b"anthropic-beta", betas.as_bytes());
    }
    if let Some(kind) = input.content_type.or_else(|| passing.default_content_type()) {
        write_header(&mut out, b"content-type", kind.as_bytes());
    }
    if passing.is_translated_image_request() && !target.overrides_header(b"accept") {
        write_header(&mut out, b"accept", b"application/json");
    }
    if passing.requires_identity_encoding() {
        // A compressed response cannot be edited or read.
        write_header(&mut out, b"accept-encoding", b"identity");
    }
    write_credential(&mut out, target, input.issued_credential);
    write_trace_context(&mut out, client_request);
    write_body_framing(&mut out, input.body_length);
    out.extend_from_slice(b"\r\n");
    Ok(out)
}

/// Renders the head of an internal request of the gateway to a target. Nothing of the client's request is forwarded.
pub(crate) fn render_internal_head(
    target: &Target<'_>,
    path_info: &PathInfo<'_>,
    method: &str,
    fields: &[(String, String)],
    length: BodyLength,
    issued: Option<&IssuedCredential>,
) -> Result<Vec<u8>> {
    let Target { provider, options, base_url: base, .. } = target;
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(base.prefix.as_bytes());
    let written = provider.write_request_target(path_info, options, &mut out);
    written.map_err(|message| Error::ProviderOptionInvalid { provider: provider.slug(), message })?;
    check_target_path(&out, provider.slug())?;
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_host(&mut out, &base.origin);
    let is_set = |name: &str| fields.iter().any(|(set, _)| set == name);
    for (name, value) in target.header_fields.iter().filter(|(name, _)| !is_set(name)) {
        write_header(&mut out, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in fields {
        write_header(&mut out, name.as_bytes(), value.as_bytes());
    }
    write_credential(&mut out, target, issued);
    write_body_framing(&mut out, length);
    out.extend_from_slice(b"\r\n");
    Ok(out)
}

/// Returns the path of the base URL. Strips its version if assistant prefill needs another version of the API.
fn base_path<'t>(target: &'t Target<'_>) -> &'t str {
    let prefix = &*target.base_url.prefix;
    let moves = target.prefill.is_some_and(|support| support.version_segment.is_some());
    prefix.strip_suffix(target.provider.row().version_segment).filter(|_| moves).unwrap_or(prefix)
}

fn write_request_line(
    out: &mut Vec<u8>,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    input: RenderInput<'_>,
    key_lookups: &KeyLookupBudget,
) -> Result<()> {
    let Target { provider, options, .. } = target;
    out.extend_from_slice(client_request.head.method.as_bytes());
    out.push(b' ');
    let prefix = base_path(target);
    out.extend_from_slice(prefix.as_bytes());
    let query = strip_gateway_keys(&client_request.head.query, &target.caller, key_lookups);
    let path_info = PathInfo {
        operation: client_request.route.operation,
        path: client_request.route.path,
        // A translated request drops the client's query, which belongs to another API. Model lists in the client's own
        // format keep it.
        query: match input.mode {
            TransformMode::NativeFormat if client_request.route.operation == Operation::Models => &query,
            mode if mode.is_translated() => input.page_token.unwrap_or_default(),
            _ => &query,
        },
        prefix,
        model: input.model,
        user: input.user,
        is_streaming: input.is_streaming,
        has_prefill: target.prefill.is_some(),
        path_options: client_request.route.path_params,
    };
    let written = provider.write_request_target(&path_info, options, out);
    written.map_err(|message| Error::ProviderOptionInvalid { provider: provider.slug(), message })?;
    check_target_path(out, provider.slug())?;
    out.extend_from_slice(b" HTTP/1.1\r\n");
    Ok(())
}

/// Rejects a request line whose path has dot segments. The client's path has none, so they come from an option, a
/// model or an id that became a path segment.
fn check_target_path(request_line: &[u8], provider: &'static str) -> Result<()> {
    let line = std::str::from_utf8(request_line).unwrap_or("..");
    let target = line.split_once(' ').map_or(line, |(_, target)| target);
    let path = target.split('?').next().unwrap_or(target);
    if uri::find_path_error(path).is_none() && !path.contains(['#', ' ', '\r', '\n']) {
        return Ok(());
    }
    let message = format!(
        "the path `{path}` would not be valid; options and models must not be `.` or `..`, and must not contain `#`, spaces or line breaks"
    );
    Err(Error::ProviderOptionInvalid { provider, message })
}

/// Returns the query without parameters that contain a gateway key.
fn strip_gateway_keys<'q>(query: &'q str, caller: &Caller<'_>, key_lookups: &KeyLookupBudget) -> Cow<'q, str> {
    let contains_key = |pair: &str| {
        caller.contains_gateway_key(pair, key_lookups)
            || pair.contains('%')
                && caller.contains_gateway_key(&percent_decode_str(pair).decode_utf8_lossy(), key_lookups)
    };
    if query.is_empty() {
        return Cow::Borrowed(query);
    }
    let mut pairs = 0;
    let remaining: Vec<_> = query.split('&').inspect(|_| pairs += 1).filter(|pair| !contains_key(pair)).collect();
    if remaining.len() == pairs { Cow::Borrowed(query) } else { remaining.join("&").into() }
}

/// Writes the credential of the target once, from its highest-priority source.
fn write_credential(out: &mut Vec<u8>, target: &Target<'_>, issued: Option<&IssuedCredential>) {
    if target.signs_requests() {
        return;
    }
    let issued =
        issued.and_then(|issued| if let IssuedCredential::Token(token) = issued { Some(token.as_str()) } else { None });
    let token =
        issued.or_else(|| target.provider.row().bearer_token(&target.options)).map(|token| (Credential::Bearer, token));
    let api_key_header =
        || target.credential.as_deref().map(|key| (target.provider.credential(key, &target.base_url.prefix), key));
    match token.or_else(api_key_header) {
        Some((Credential::Bearer, key)) => {
            out.extend_from_slice(b"authorization: Bearer ");
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Some((Credential::Scheme(scheme), key)) => {
            write_header(out, b"authorization", format!("{scheme} {key}").as_bytes());
        }
        Some((Credential::Header(name), key)) => write_header(out, name.as_bytes(), key.as_bytes()),
        None => {
            if let Some(value) = target.authorization {
                write_header(out, b"authorization", value.as_bytes());
            }
        }
    }
}

/// Writes the W3C trace context, if the client sent one. The provider's span is a child of the gateway's.
fn write_trace_context(out: &mut Vec<u8>, client_request: &ClientRequest<'_>) {
    let Some(trace) = &client_request.control.trace else { return };
    write_header(out, b"traceparent", trace.to_traceparent().as_bytes());
    if let Some(state) = trace_context::merge_tracestate(&client_request.head.headers) {
        write_header(out, b"tracestate", state.as_bytes());
    }
}

fn write_host(out: &mut Vec<u8>, origin: &Origin) {
    out.extend_from_slice(b"host: ");
    origin.write_authority(out);
    out.extend_from_slice(b"\r\n");
}

fn write_body_framing(out: &mut Vec<u8>, length: BodyLength) {
    match length {
        BodyLength::None => (),
        BodyLength::Known(length) => {
            write_header(out, b"content-length", itoa::Buffer::new().format(length).as_bytes());
        }
        BodyLength::Chunked => write_header(out, b"transfer-encoding", b"chunked"),
    }
}

fn write_header(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Prefixes of headers that providers read.
const PROVIDER_HEADER_PREFIXES: [&[u8]; 3] = [b"anthropic-", b"openai-", b"x-amzn-bedrock-"];

fn has_provider_prefix(name: &[u8]) -> bool {
    PROVIDER_HEADER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Decides which of the client's headers are forwarded to the provider.
struct HeaderFilter<'p> {
    client_request: &'p ClientRequest<'p>,
    target: &'p Target<'p>,
    connection_headers: Vec<Vec<u8>>,
    input: RenderInput<'p>,
    key_lookups: &'p KeyLookupBudget,
}

impl HeaderFilter<'_> {
    fn should_forward(&self, name: &[u8], value: &[u8]) -> bool {
        if is_never_forwarded(name) || self.connection_headers.iter().any(|connection_header| connection_header == name)
        {
            return false;
        }
        let is_wanted = match name {
            b"content-type" if self.input.content_type.is_some() => false,
            b"accept" if self.is_translated_image_request() => false,
            b"accept-encoding" if self.requires_identity_encoding() => false,
            _ if self.target.forward_headers.contains(name) => true,
            control_headers::SESSION_HEADER => false,
            // The gateway does not read these responses, so the client may request any content type and coding.
            _ if matches!(self.client_request.route.operation.body_kind(), None | Some(BodyKind::NoBody)) => true,
            b"accept" | b"content-type" | b"user-agent" | b"idempotency-key" => true,
            b"anthropic-beta" if self.input.mode == TransformMode::NativeFormat => true,
            _ if self.input.mode.is_translated() && !self.belongs_to_provider(name) => false,
            _ => has_provider_prefix(name) || self.is_provider_option(name),
        };
        // A gateway key is never forwarded, whatever header it is in.
        is_wanted && !self.target.overrides_header(name) && !self.contains_gateway_key(name, value)
    }

    fn contains_gateway_key(&self, name: &[u8], value: &[u8]) -> bool {
        // The provider needs these headers, and a key in them could only be a coincidence.
        let is_needed = matches!(name, b"accept" | b"content-type" | b"user-agent");
        !is_needed && self.target.caller.contains_gateway_key(&String::from_utf8_lossy(value), self.key_lookups)
    }

    /// Returns true if the response must not be compressed.
    fn requires_identity_encoding(&self) -> bool {
        self.input.mode != TransformMode::Unchanged
            || self.target.response_coding == ResponseCoding::Uncompressed
            || mask_secrets::requires_plain_response(self.target, self.input.is_streaming)
    }

    /// Returns the content type for a JSON body whose client sent none. Providers reject a body without a content type.
    fn default_content_type(&self) -> Option<&'static str> {
        let ClientRequest { route, head, .. } = self.client_request;
        let lacks_content_type = route.operation.has_json_body() && head.headers.get("content-type").is_none();
        (lacks_content_type && !self.target.overrides_header(b"content-type")).then_some("application/json")
    }

    /// Returns true for translated image generation. Some providers return raw image bytes unless the request accepts
    /// JSON.
    fn is_translated_image_request(&self) -> bool {
        self.input.mode.is_translated() && self.client_request.route.operation == Operation::ImageGenerate
    }

    /// Returns true if the header belongs to this provider. A translated request must not carry headers of the client's
    /// format.
    fn belongs_to_provider(&self, name: &[u8]) -> bool {
        name.starts_with(self.target.provider.slug().as_bytes())
            || !has_provider_prefix(name) && self.is_provider_option(name)
    }

    /// Returns true if the provider accepts this header as an option under the same name.
    fn is_provider_option(&self, name: &[u8]) -> bool {
        let options = self.target.provider.row().options;
        options.iter().any(|option| option.header.as_bytes() == name && option.forwarded_as == Some(option.header))
    }
}

/// Returns true for headers that are rewritten, belong to the client's connection or are private. They are never
/// forwarded, even if listed.
fn is_never_forwarded(name: &[u8]) -> bool {
    let is_gateway_header = matches!(
        name,
        b"host"
            | b"content-length"
            | b"expect"
            | b"cookie"
            | b"authorization"
            | b"x-api-key"
            | b"api-key"
            | b"x-goog-api-key"
            | b"traceparent"
            | b"tracestate"
    );
    is_gateway_header
        || headers::is_hop_by_hop(name)
        || headers::is_cloud_metadata(name)
        || name.starts_with(b"sec-websocket-")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_llm::{
        catalog::{self, Options},
        operation::Operation,
    };

    use super::*;
    use crate::{
        features::{forward_headers::ForwardHeaders, parameters::Parameters},
        ingress::{control_headers::ControlHeaders, message::RequestHead, route::Route},
    };
    use penstock_net::BaseUrl;

    fn render_request(
        provider: &str,
        operation: Operation,
        path: &str,
        key: Option<&str>,
        fields: &[(&str, &str)],
    ) -> String {
        let target = Target {
            provider: catalog::find_provider(provider).unwrap(),
            base_url: BaseUrl::parse("https://api.example/v1").unwrap(),
            options: Options::default(),
            credential: key.map(Into::into),
            authorization: None,
            caller: Caller::default(),
            forward_headers: ForwardHeaders::default()
                .resolve(Some("x-team, x-hop, cookie, authorization, host, x-gateway-api-key"))
                .unwrap(),
            timeout: Duration::ZERO,
            configured_timeout: Duration::ZERO,
            inspects_stream: false,
            response_coding: ResponseCoding::AnyAccepted,
            stream_usage: crate::resolve::target::StreamUsage::Requested,
            is_strict: true,
            is_passthrough: false,
            saved_provider: None,
            lender_workspace: None,
            credential_origin: crate::resolve::target::CredentialOrigin::Request,
            grant: None,
            header_fields: Vec::new(),
            check_headers: Vec::new(),
            stored_parameters: Parameters::default(),
            price_overrides: crate::accounting::prices::ProviderPricing::default(),
            prefill: None,
        };
        let request = RequestHead {
            method: "POST".into(),
            path: String::new(),
            query: "a=1".into(),
            headers: fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect(),
            ..RequestHead::default()
        };
        let route = Route::new(operation, path);
        let client_request = ClientRequest::new(route, &request, ControlHeaders::default());
        let input = RenderInput {
            model: "",
            user: "",
            is_streaming: false,
            mode: TransformMode::Unchanged,
            content_type: None,
            anthropic_betas: None,
            anthropic_version: None,
            page_token: None,
            body_length: BodyLength::Known(2),
            issued_credential: None,
        };
        let bytes = render_head(&client_request, &target, input, &[]).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    const CLIENT_HEADERS: &[(&str, &str)] = &[
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
    fn known_operation_forwards_only_required_headers() {
        let text = render_request("openai", Operation::ChatComplete, "/chat/completions", Some("sk-1"), CLIENT_HEADERS);
        assert_eq!(
            text,
            "POST /v1/chat/completions?a=1 HTTP/1.1\r\nhost: api.example\r\nx-team: red\r\n\
             content-type: application/json\r\nauthorization: Bearer sk-1\r\ncontent-length: 2\r\n\r\n"
        );
    }

    #[test]
    fn proxy_forwards_all_but_connection_and_gateway_headers() {
        let text = render_request("openai", Operation::Proxy, "/files", Some("sk-1"), CLIENT_HEADERS);
        assert!(text.contains("x-other: 2") && text.contains("accept-encoding: gzip"));
        for absent in ["x-hop", "pk", "sk-client", "cookie", "content-length: 9"] {
            assert!(!text.contains(absent), "{absent} in {text}");
        }
    }

    #[test]
    fn anthropic_gets_its_key_and_version_headers() {
        let text = render_request("anthropic", Operation::Messages, "/messages", Some("sk-1"), &[]);
        assert!(text.contains("x-api-key: sk-1\r\n") && text.contains("anthropic-version: 2023-06-01\r\n"));
        let oauth = render_request("anthropic", Operation::Messages, "/messages", Some("sk-ant-oat01-1"), &[]);
        assert!(oauth.contains("authorization: Bearer sk-ant-oat01-1\r\n"));
    }

    #[test]
    fn forwards_provider_options_sent_as_headers() {
        let fields = [("HTTP-Referer", "https://app.example"), ("X-Title", "App"), ("Stability-Client-Id", "s")];
        let text = |provider| render_request(provider, Operation::ChatComplete, "/chat/completions", None, &fields);
        let openrouter = text("openrouter");
        assert!(openrouter.contains("http-referer: https://app.example\r\nx-title: App\r\n"), "{openrouter}");
        assert!(!openrouter.contains("stability") && !text("openai").contains("App"));
        assert!(text("stability-ai").contains("stability-client-id: s\r\n"));
    }

    #[test]
    fn removes_duplicate_version_from_path() {
        assert!(render_request("openai", Operation::Proxy, "/v1/files", None, &[]).starts_with("POST /v1/files?a=1 "));
    }
}
