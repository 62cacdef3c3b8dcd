//! From a request for a WebSocket to a provider that agrees to it.

use std::{borrow::Cow, time::Instant};

use penstock_llm::api_format::Dialect;

use super::offered;
use crate::{
    accounting::record::Facts,
    auth::caller,
    credentials::{self, Issued, Payload},
    error::{Error, Result},
    features::timeout,
    gateway::Gateway,
    ingress::{body::Body, headers::Head},
    process::deadline::Deadline,
    request::request_head::{self, Length, Manner, Said},
    resolve::{target::Target, target_resolver::Call},
    response::delivery::Served,
    routing,
    state::snapshot::Snapshot,
    upstream::{Handshake, Socket, Upgraded},
};

/// A WebSocket that a provider agreed to.
pub struct Opened {
    pub socket: Box<Socket>,
    /// The protocol that the provider chose.
    pub protocol: Option<String>,
}

/// Admits, and goes to whichever target of the config agrees: its answer is a 101 with a socket, or a refusal.
pub async fn open(gateway: &Gateway, snapshot: &Snapshot, call: &Call<'_>, facts: &mut Facts) -> Result<Served> {
    if gateway.is_full() {
        return Err(Error::Overloaded);
    }
    let (fields, control) = (&call.head.headers, &call.control);
    let passport = caller::passport(snapshot, fields, control)?;
    let caller = caller::admit(passport.as_ref(), snapshot, gateway.settings.require_key, fields, control)?;
    facts.called_by(&caller, snapshot);
    let choice = gateway.choice(snapshot, call, &caller);
    let plan = choice.plan()?;
    facts.config = plan.slug.map(ToOwned::to_owned);
    facts.metadata.check()?;
    facts.stream = true;
    facts.model = model(&call.head.query);
    if !plan.config.is_plain || control.is_to_be_explained() {
        return routing::open(gateway, &choice, &plan, facts).await;
    }
    let until = control.patience.and_then(timeout::until);
    let asked = facts.model.clone();
    let (mut target, named) = choice.target(&plan, &plan.config.root, &asked)?;
    facts.provider = target.provider.slug();
    if let Some(model) = named {
        model.clone_into(&mut facts.model);
    }
    target.adopt(call, &facts.model, b"")?;
    target.end_by(until);
    ask(gateway, call, &target, &asked, facts).await
}

/// Asks one target; `asked` is the model as the query names it.
pub(crate) async fn ask(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    asked: &str,
    facts: &mut Facts,
) -> Result<Served> {
    let operation = call.route.operation;
    if !target.provider.serves(operation) || target.provider.wire(operation, &facts.model).is_some() {
        return Err(Error::Unsupported { operation: operation.id(), provider: target.provider.slug() });
    }
    refuse_others(target, &call.head.query, asked)?;
    facts.paid.tariff.own.clone_from(&target.priced);
    facts.paid.tariff.others = target.saved.and_then(|saved| saved.models.clone());
    let issued = match &target.grant {
        None => None,
        Some(grant) => Some(Box::pin(credentials::fetch(gateway, target, grant)).await?),
    };
    let named = Some(&*facts.model).filter(|model| *model != asked);
    let head = render(gateway, call, target, named, issued.as_deref())?;
    let handshake = Handshake::new(&offered(&call.head.headers));
    let mut deadline = Deadline::new(target.timeout, &Body::empty(), &gateway.grace);
    let sent = Instant::now();
    let upgraded = deadline.bound(gateway.upstream.upgrade(&target.base.origin, head, &handshake)).await?;
    facts.upstream = Some(sent.elapsed());
    match upgraded {
        Upgraded::Open(socket, fields) => {
            let protocol = fields.text("sec-websocket-protocol").map(|name| name.trim().to_owned());
            Ok(Served::opened(Opened { socket, protocol }, deadline.answered()))
        }
        Upgraded::Refused(incoming) if incoming.head.status < 400 => {
            let cause = format!("it answered with {} and not with a WebSocket", incoming.head.status);
            Err(Error::UpstreamBroke { cause })
        }
        Upgraded::Refused(incoming) => Ok(Served::new(*incoming, Dialect::OpenAi, deadline.answered())),
    }
}

/// The head for a provider; where part of the model's name said who is meant, without that part.
fn render(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    named: Option<&str>,
    issued: Option<&Issued>,
) -> Result<Vec<u8>> {
    let query = match named {
        Some(model) => with_model(&call.head.query, model),
        None => call.head.query.clone(),
    };
    let model = named.map_or_else(|| model(&query), ToOwned::to_owned);
    let head = Head { query, ..call.head.clone() };
    let call = Call { route: call.route, head: &head, control: call.control };
    let said = Said {
        model: &model,
        user: "",
        streams: true,
        manner: Manner::AsItCame,
        content_type: None,
        betas: None,
        version: None,
        next: None,
        length: Length::None,
        issued,
    };
    let mut bytes = request_head::head(&call, target, said, &gateway.settings.header_aliases)?;
    credentials::sign(target, call.route.operation, issued, (&mut bytes, &Payload::of(b"")))?;
    Ok(bytes)
}

/// The model that a query names, or the deployment that stands for one; empty where it names none.
pub(crate) fn model(query: &str) -> String {
    let found = named(query, "model").next();
    found.or_else(|| named(query, "deployment").next()).unwrap_or_default()
}

fn named<'q>(query: &'q str, wanted: &'q str) -> impl Iterator<Item = String> + 'q {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.filter(move |(name, _)| name == wanted).map(|(_, value)| value.into_owned())
}

/// Whoever reads another one of several names must find none that may not be used.
fn refuse_others(target: &Target<'_>, query: &str, asked: &str) -> Result<()> {
    let mut all = named(query, "model").chain(named(query, "deployment"));
    all.try_for_each(|name| if name == asked { Ok(()) } else { target.admit_line(&name) })
}

/// A query with another model, and everything else as it was.
fn with_model(query: &str, model: &str) -> String {
    let escaped: String = url::form_urlencoded::byte_serialize(model.as_bytes()).collect();
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key @ ("model" | "deployment"), _)) => Cow::Owned(format!("{key}={escaped}")),
        _ => Cow::Borrowed(pair),
    });
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_query_is_read_and_replaced_and_nothing_else() {
        let query = "a=1&model=%40mine%2Fgpt-realtime&b=%20";
        assert_eq!((model(query).as_str(), model("a=1").as_str()), ("@mine/gpt-realtime", ""));
        assert_eq!((model("deployment=d").as_str(), model("deployment=d&mod%65l=m").as_str()), ("d", "m"));
        assert_eq!(with_model(query, "gpt realtime"), "a=1&model=gpt+realtime&b=%20");
        assert_eq!(with_model("deployment=%40az%2Fgood", "good"), "deployment=good");
    }
}
