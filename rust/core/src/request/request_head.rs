//! A request as it leaves: the request line and the fields that the provider may see, in bytes.

use std::borrow::Cow;

use penstock_llm::{
    catalog::{Asked, Credential},
    operation::{Operation, Takes},
    translation::Translation,
};
use percent_encoding::percent_decode_str;

use crate::{
    auth::caller::{Caller, Looks},
    credentials::Issued,
    error::{Error, Result},
    ingress::{headers, trace_context},
    resolve::{
        target::{Coding, Target},
        target_resolver::Call,
    },
    upstream::Origin,
};

/// What the body of a request looks like on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    None,
    Known(u64),
    Chunked,
}

/// How a request is told, which decides what of its answer is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    AsItCame,
    /// Likewise, but something of the answer is changed: the usage that is asked for and taken out again, or what is mended.
    Mending,
    /// To who hosts the model, in the caller's own dialect.
    Carried,
    Translated,
}

impl Manner {
    pub fn of(translation: Option<&Translation>, mends: bool) -> Self {
        match translation {
            Some(translation) if translation.is_carried => Self::Carried,
            Some(_) => Self::Translated,
            None if mends => Self::Mending,
            None => Self::AsItCame,
        }
    }

    fn is_translated(self) -> bool {
        matches!(self, Self::Carried | Self::Translated)
    }
}

/// What a request's body says that its head depends on.
#[derive(Debug, Clone, Copy)]
pub struct Said<'s> {
    pub model: &'s str,
    pub user: &'s str,
    pub streams: bool,
    pub manner: Manner,
    /// The type of its body, where that is not what the caller's was.
    pub content_type: Option<&'s str>,
    /// What of Anthropic's betas its body asked for.
    pub betas: Option<&'s str>,
    /// Which version of Anthropic's API it asked for.
    pub version: Option<&'s str>,
    /// Where the page of a list begins, if it is not the first.
    pub next: Option<&'s str>,
    pub length: Length,
    /// A credential that was fetched for it.
    pub issued: Option<&'s Issued>,
}

/// Renders the head of a request to a target.
pub fn head(call: &Call<'_>, target: &Target<'_>, said: Said<'_>, aliases: &[String]) -> Result<Vec<u8>> {
    let head = call.head;
    let (mut out, looks) = (Vec::with_capacity(1024), Looks::default());
    request_line(&mut out, call, target, said, &looks)?;
    host(&mut out, &target.base.origin);
    let of_the_connection = head.headers.of_the_connection();
    let passing = Passing { call, target, of_the_connection, said, looks: &looks };
    for (name, value) in head.headers.iter() {
        if headers::control_name(name, aliases).is_none() && passing.passes(name, value) {
            field(&mut out, name, value);
        }
    }
    if looks.are_spent() {
        let message = "its query and header fields are too many words to look for keys in";
        return Err(Error::HeaderInvalid { name: "request", message: message.into() });
    }
    for (name, value) in target.options.headers() {
        field(&mut out, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in &target.fields {
        field(&mut out, name.as_bytes(), value.as_bytes());
    }
    if let Some((name, value)) = target.provider.required_header(&target.base.prefix)
        && head.headers.get(name).is_none()
        && !target.sets(name.as_bytes())
    {
        field(&mut out, name.as_bytes(), said.version.unwrap_or(value).as_bytes());
    }
    if let Some(betas) = said.betas.filter(|betas| !betas.is_empty()) {
        field(&mut out, b"anthropic-beta", betas.as_bytes());
    }
    if let Some(kind) = said.content_type.or_else(|| passing.untold_kind()) {
        field(&mut out, b"content-type", kind.as_bytes());
    }
    if passing.is_drawn() && !target.sets(b"accept") {
        field(&mut out, b"accept", b"application/json");
    }
    if passing.asks_plainly() {
        // What comes compressed cannot be changed or read.
        field(&mut out, b"accept-encoding", b"identity");
    }
    credential(&mut out, target, said.issued);
    context(&mut out, call);
    framing(&mut out, said.length);
    out.extend_from_slice(b"\r\n");
    Ok(out)
}

/// Renders the head of a request of the gateway's own to a target: nothing of the caller's goes along.
pub(crate) fn own(
    target: &Target<'_>,
    asked: &Asked<'_>,
    (method, fields): (&str, &[(String, String)]),
    (length, issued): (Length, Option<&Issued>),
) -> Result<Vec<u8>> {
    let Target { provider, options, base, .. } = target;
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(base.prefix.as_bytes());
    let written = provider.write_target(asked, options, &mut out);
    written.map_err(|message| Error::OptionInvalid { provider: provider.slug(), message })?;
    out.extend_from_slice(b" HTTP/1.1\r\n");
    host(&mut out, &base.origin);
    let is_set = |name: &str| fields.iter().any(|(set, _)| set == name);
    for (name, value) in target.fields.iter().filter(|(name, _)| !is_set(name)) {
        field(&mut out, name.as_bytes(), value.as_bytes());
    }
    for (name, value) in fields {
        field(&mut out, name.as_bytes(), value.as_bytes());
    }
    credential(&mut out, target, issued);
    framing(&mut out, length);
    out.extend_from_slice(b"\r\n");
    Ok(out)
}

/// The path of the base, without a version in the place of which another one is asked.
fn prefix<'t>(target: &'t Target<'_>) -> &'t str {
    let prefix = &*target.base.prefix;
    let moves = target.goes_on.is_some_and(|how| how.version.is_some());
    prefix.strip_suffix(target.provider.version()).filter(|_| moves).unwrap_or(prefix)
}

fn request_line(out: &mut Vec<u8>, call: &Call<'_>, target: &Target<'_>, said: Said<'_>, looks: &Looks) -> Result<()> {
    let Target { provider, options, .. } = target;
    out.extend_from_slice(call.head.method.as_bytes());
    out.push(b' ');
    let prefix = prefix(target);
    out.extend_from_slice(prefix.as_bytes());
    let query = query(&call.head.query, &target.caller, looks);
    let asked = Asked {
        operation: call.route.operation,
        path: call.route.path,
        // What was asked beside the body was asked of another API, but for lists of the caller's own dialect.
        query: match said.manner {
            Manner::Carried if call.route.operation == Operation::Models => &query,
            manner if manner.is_translated() => said.next.unwrap_or_default(),
            _ => &query,
        },
        prefix,
        model: said.model,
        user: said.user,
        streams: said.streams,
        begun: target.goes_on.is_some(),
        stated: call.route.stated,
    };
    let written = provider.write_target(&asked, options, out);
    written.map_err(|message| Error::OptionInvalid { provider: provider.slug(), message })?;
    out.extend_from_slice(b" HTTP/1.1\r\n");
    Ok(())
}

/// The query as it came, but for a key of the gateway's, should somebody have put it there too.
fn query<'q>(query: &'q str, caller: &Caller<'_>, looks: &Looks) -> Cow<'q, str> {
    let holds = |pair: &str| {
        caller.is_told(pair, looks)
            || pair.contains('%') && caller.is_told(&percent_decode_str(pair).decode_utf8_lossy(), looks)
    };
    if query.is_empty() {
        return Cow::Borrowed(query);
    }
    let mut pairs = 0;
    let kept: Vec<_> = query.split('&').inspect(|_| pairs += 1).filter(|pair| !holds(pair)).collect();
    if kept.len() == pairs { Cow::Borrowed(query) } else { kept.join("&").into() }
}

/// A credential is written once, from where it was decided.
fn credential(out: &mut Vec<u8>, target: &Target<'_>, issued: Option<&Issued>) {
    if target.is_signed() {
        return;
    }
    let issued = issued.and_then(|issued| if let Issued::Token(token) = issued { Some(token.as_str()) } else { None });
    let token = issued.or_else(|| target.provider.token(&target.options)).map(|token| (Credential::Bearer, token));
    let given = || target.credential.as_deref().map(|key| (target.provider.credential(key, &target.base.prefix), key));
    match token.or_else(given) {
        Some((Credential::Bearer, key)) => {
            out.extend_from_slice(b"authorization: Bearer ");
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Some((Credential::Scheme(word), key)) => {
            field(out, b"authorization", format!("{word} {key}").as_bytes());
        }
        Some((Credential::Header(name), key)) => field(out, name.as_bytes(), key.as_bytes()),
        None => {
            if let Some(value) = target.authorization {
                field(out, b"authorization", value.as_bytes());
            }
        }
    }
}

/// Where the request came as part of a trace, the provider's part of it is below ours.
fn context(out: &mut Vec<u8>, call: &Call<'_>) {
    let Some(trace) = &call.control.trace else { return };
    field(out, b"traceparent", trace.onward().as_bytes());
    if let Some(state) = trace_context::state(&call.head.headers) {
        field(out, b"tracestate", state.as_bytes());
    }
}

fn host(out: &mut Vec<u8>, origin: &Origin) {
    out.extend_from_slice(b"host: ");
    origin.write_authority(out);
    out.extend_from_slice(b"\r\n");
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

/// With these begin fields that providers themselves read.
const OF_PROVIDERS: [&[u8]; 3] = [b"anthropic-", b"openai-", b"x-amzn-bedrock-"];

fn is_of_a_dialect(name: &[u8]) -> bool {
    OF_PROVIDERS.iter().any(|prefix| name.starts_with(prefix))
}

/// What of the caller's fields goes on to the provider.
struct Passing<'p> {
    call: &'p Call<'p>,
    target: &'p Target<'p>,
    of_the_connection: Vec<Vec<u8>>,
    said: Said<'p>,
    looks: &'p Looks,
}

impl Passing<'_> {
    fn passes(&self, name: &[u8], value: &[u8]) -> bool {
        if never_passes(name) || self.of_the_connection.iter().any(|named| named == name) {
            return false;
        }
        let is_wanted = match name {
            b"content-type" if self.said.content_type.is_some() => false,
            b"accept" if self.is_drawn() => false,
            b"accept-encoding" if self.asks_plainly() => false,
            _ if self.target.forward.contains(name) => true,
            headers::SESSION => false,
            // Nothing is read of these answers: whatever was asked for of them may be.
            _ if matches!(self.call.route.operation.takes(), None | Some(Takes::Nothing)) => true,
            b"accept" | b"content-type" | b"user-agent" | b"idempotency-key" => true,
            b"anthropic-beta" if self.said.manner == Manner::Carried => true,
            _ if self.said.manner.is_translated() && !self.is_of_the_provider(name) => false,
            _ => is_of_a_dialect(name) || self.is_read_there(name),
        };
        // A key of the gateway's goes no further, wherever else somebody put it.
        is_wanted && !self.target.sets(name) && !self.holds_key(name, value)
    }

    fn holds_key(&self, name: &[u8], value: &[u8]) -> bool {
        // These say what they say by chance: a provider needs them.
        let is_needed = matches!(name, b"accept" | b"content-type" | b"user-agent");
        !is_needed && self.target.caller.is_told(&String::from_utf8_lossy(value), self.looks)
    }

    /// Whether the answer must not come compressed, whoever could read it.
    fn asks_plainly(&self) -> bool {
        self.said.manner != Manner::AsItCame || self.target.coding == Coding::Plain
    }

    /// What a body is whose caller did not say it: of JSON that was read as such. A provider would not read what has no name.
    fn untold_kind(&self) -> Option<&'static str> {
        let Call { route, head, .. } = self.call;
        let is_untold = route.operation.takes_json() && head.headers.get("content-type").is_none();
        (is_untold && !self.target.sets(b"content-type")).then_some("application/json")
    }

    /// Whether images are asked for whose answer is read here: some give them as they are, where JSON is not asked for.
    fn is_drawn(&self) -> bool {
        self.said.manner.is_translated() && self.call.route.operation == Operation::ImageGenerate
    }

    /// Who is asked in another dialect is told nothing of the one that the request came in.
    fn is_of_the_provider(&self, name: &[u8]) -> bool {
        name.starts_with(self.target.provider.slug().as_bytes()) || !is_of_a_dialect(name) && self.is_read_there(name)
    }

    /// Whether the provider takes one of its options so, and under the name that it has here.
    fn is_read_there(&self, name: &[u8]) -> bool {
        let options = self.target.provider.options();
        options.iter().any(|option| option.header.as_bytes() == name && option.sent_as == Some(option.header))
    }
}

/// Fields that are written anew, belong to this connection, or hold what is nobody else's business, whoever lists them.
fn never_passes(name: &[u8]) -> bool {
    let is_ours = matches!(
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
    is_ours || headers::is_hop_by_hop(name) || headers::is_cloud_metadata(name) || name.starts_with(b"sec-websocket-")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_llm::{
        catalog::{self, Options, Stated},
        operation::Operation,
    };

    use super::*;
    use crate::{
        features::forward_headers::ForwardHeaders,
        ingress::{
            headers::{Control, Head},
            route::Route,
        },
        upstream::Base,
    };

    fn rendered(
        provider: &str,
        operation: Operation,
        path: &str,
        key: Option<&str>,
        fields: &[(&str, &str)],
    ) -> String {
        let target = Target {
            provider: catalog::find(provider).unwrap(),
            base: Base::parse("https://api.example/v1").unwrap(),
            options: Options::default(),
            credential: key.map(Into::into),
            authorization: None,
            caller: Caller::default(),
            forward: ForwardHeaders::default()
                .resolve(Some("x-team, x-hop, cookie, authorization, host, x-gateway-api-key"))
                .unwrap(),
            timeout: Duration::ZERO,
            patience: Duration::ZERO,
            inspects: false,
            coding: Coding::Any,
            telling: crate::resolve::target::Telling::Asked,
            strict: true,
            passthrough: false,
            saved: None,
            reach: crate::resolve::target::Reach::Own,
            grant: None,
            fields: Vec::new(),
            priced: crate::accounting::prices::Own::default(),
            goes_on: None,
        };
        let request = Head {
            method: "POST".into(),
            path: String::new(),
            query: "a=1".into(),
            headers: fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect(),
            ..Head::default()
        };
        let route = Route { operation, path, stated: Stated::default() };
        let call = Call { route, head: &request, control: Control::default() };
        let said = Said {
            model: "",
            user: "",
            streams: false,
            manner: Manner::AsItCame,
            content_type: None,
            betas: None,
            version: None,
            next: None,
            length: Length::Known(2),
            issued: None,
        };
        let bytes = head(&call, &target, said, &[]).unwrap();
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
    fn what_the_provider_takes_as_an_option_may_be_sent_as_it_takes_it() {
        let fields = [("HTTP-Referer", "https://app.example"), ("X-Title", "App"), ("Stability-Client-Id", "s")];
        let text = |provider| rendered(provider, Operation::ChatComplete, "/chat/completions", None, &fields);
        let openrouter = text("openrouter");
        assert!(openrouter.contains("http-referer: https://app.example\r\nx-title: App\r\n"), "{openrouter}");
        assert!(!openrouter.contains("stability") && !text("openai").contains("App"));
        assert!(text("stability-ai").contains("stability-client-id: s\r\n"));
    }

    #[test]
    fn a_version_said_twice_is_said_once() {
        assert!(rendered("openai", Operation::Proxy, "/v1/files", None, &[]).starts_with("POST /v1/files?a=1 "));
    }
}
