//! Batches that providers run, where only some models may be used: what their lines name is looked at when a file goes there, and
//! once more in the file itself when a batch is made of it, whoever brought it there.

use std::{borrow::Cow, sync::Arc};

use penstock_llm::{
    api_format::{Dialect, Lines},
    http_form::batch_lines::{self, Fault, FormLines, messages},
    operation::Operation,
};
use percent_encoding::utf8_percent_encode;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    accounting::record::Facts,
    endpoints::batches::SEGMENT,
    error::{Error, Result},
    gateway::Gateway,
    ingress::{body::Body, headers::Head, route::Route},
    process::deadline::Deadline,
    resolve::{models::Models, target::Target, target_resolver::Call},
    upstream::Incoming,
};

/// Where Anthropic has batches.
const MESSAGES: &str = "/messages/batches";

/// What makes a batch, as far as it is known where its lines are: in one file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "they are known by their names, and nothing is read of them")]
struct Made<'b> {
    #[serde(borrow)]
    input_file_id: Cow<'b, str>,
    endpoint: Option<IgnoredAny>,
    completion_window: Option<IgnoredAny>,
    metadata: Option<IgnoredAny>,
    output_expires_after: Option<IgnoredAny>,
    model: Option<IgnoredAny>,
}

impl Target<'_> {
    /// Whose lines are to be looked at, where this request brings or names some and only some models may be used.
    pub fn reads_lines(&self, call: &Call<'_>) -> Option<&Arc<Models>> {
        let is_one = match call.route.operation {
            // Elsewhere files become no batches, or a job names the model of all lines.
            Operation::UploadFile | Operation::CreateBatch => self.provider.offers_itself(Operation::CreateBatch),
            Operation::Proxy => call.route.path == MESSAGES && self.is_of_messages(call),
            _ => false,
        };
        if !is_one {
            return None;
        }
        self.saved?.models.as_ref().filter(|models| models.are_restricted())
    }

    /// Whether a request asks for the end of a batch of messages, for which no model is asked.
    pub fn ends_messages(&self, call: &Call<'_>) -> bool {
        let below = call.route.path.strip_prefix(MESSAGES).and_then(|rest| rest.strip_prefix('/'));
        let id = below.and_then(|rest| rest.strip_suffix("/cancel"));
        id.is_some_and(|id| !id.is_empty() && !id.contains(['/', '.', '%'])) && self.is_of_messages(call)
    }

    fn is_of_messages(&self, call: &Call<'_>) -> bool {
        call.head.method == "POST" && self.provider.dialect() == Dialect::Anthropic
    }
}

/// The body as it may go on. An error says why it may not.
pub async fn admitted(
    gateway: &Gateway,
    call: &Call<'_>,
    target: &Target<'_>,
    body: Body,
    facts: &mut Facts,
) -> Result<Body> {
    let Some(models) = target.reads_lines(call) else { return Ok(body) };
    match call.route.operation {
        Operation::UploadFile => return uploaded(call, Arc::clone(models), gateway.body_limits.bytes, body),
        Operation::Proxy => return together(Arc::clone(models), body).await,
        _ => (),
    }
    let head = asking(call, target, body.whole())?;
    let (incoming, mut deadline) = shown(gateway, (call, &head), target, facts).await?;
    deadline.bound(look(incoming, models, gateway.body_limits.bytes)).await?;
    Ok(body)
}

/// A batch of messages, all of which come in one body.
async fn together(models: Arc<Models>, body: Body) -> Result<Body> {
    let bytes = body.collect().await?;
    let (looked, whole) = (bytes.clone(), bytes);
    let look = move || messages(&looked, &|model| models.admits(model));
    // Looking neither panics nor is cancelled, unless the process ends; here others would wait.
    tokio::task::spawn_blocking(look).await.map_err(|_| Error::Draining)?.map_err(refused)?;
    Ok(Body::Whole(whole))
}

/// A form whose lines are looked at on their way.
fn uploaded(call: &Call<'_>, models: Arc<Models>, longest: usize, body: Body) -> Result<Body> {
    let kind = call.head.headers.text("content-type").unwrap_or_default();
    let unread = |message: &str| Error::LinesUnreadable { message: message.into() };
    let mut form =
        FormLines::of(kind, longest).ok_or_else(|| unread("a file comes in a form (multipart/form-data)"))?;
    let mut left = body.length();
    body.guarded(Box::new(move |piece| {
        if let Some(piece) = piece {
            form.feed(piece, &|model| models.admits(model)).map_err(refused)?;
            left = left.map(|left| left.saturating_sub(piece.len() as u64));
        }
        // With the last byte the provider would have all that it gets.
        let is_last = piece.is_none() || left == Some(0);
        if is_last && !form.is_over() { Err(unread("the form does not end")) } else { Ok(()) }
    }))
}

fn refused(fault: Fault) -> Error {
    match fault {
        Fault::Model(model) => Error::ModelRefused { model },
        Fault::Unreadable(message) => Error::LinesUnreadable { message },
    }
}

/// The head of the question what is in the file that a batch is made of.
fn asking(call: &Call<'_>, target: &Target<'_>, made: &[u8]) -> Result<Head> {
    let invalid = |message: String| Error::LinesUnreadable { message };
    let made: Made<'_> = serde_json::from_slice(made).map_err(|error| invalid(error.to_string()))?;
    let id = &*made.input_file_id;
    if matches!(id, "" | "." | "..") {
        return Err(invalid("input_file_id must name a file".into()));
    }
    // Nothing that could ask for less than all of it.
    let version = call.head.query.split('&').filter(|pair| pair.starts_with("api-version="));
    let mut headers = call.head.headers.clone();
    let is_partial = |name: &[u8]| name == b"range" || name.starts_with(b"if-") || name == b"accept-encoding";
    headers.retain(|name| name.starts_with(b"openai-") || (target.forward.contains(name) && !is_partial(name)));
    Ok(Head {
        method: "GET".into(),
        path: format!("/v1/files/{}/content", utf8_percent_encode(id, SEGMENT)),
        query: version.collect::<Vec<_>>().join("&"),
        headers,
        ..Head::default()
    })
}

/// The file as the provider has it.
async fn shown(
    gateway: &Gateway,
    (call, head): (&Call<'_>, &Head),
    target: &Target<'_>,
    facts: &mut Facts,
) -> Result<(Incoming, Deadline)> {
    let operation = Operation::RetrieveFileContent;
    let route = Route { operation, path: head.path.strip_prefix("/v1").unwrap_or_default(), ..call.route };
    if target.provider.wire(operation, "").is_some() || !target.provider.serves(operation) {
        return Err(Error::Unsupported { operation: operation.id(), provider: target.provider.slug() });
    }
    let look = Call { route, head, control: call.control };
    let (incoming, deadline) = gateway.exchange(&look, target, (Body::empty(), None), facts).await?;
    let is_plain = incoming.head.headers.text("content-encoding").is_none_or(|coding| coding == "identity");
    if incoming.head.status == 200 && is_plain {
        return Ok((incoming, deadline));
    }
    let message = format!("its provider does not show the file of this batch (status {})", incoming.head.status);
    Err(Error::LinesUnreadable { message })
}

/// Looks at all lines of a file.
async fn look(mut incoming: Incoming, models: &Models, most: usize) -> Result<()> {
    let (mut lines, mut length) = (Lines::new(most), 0);
    let each = |number: usize, line: &[u8]| batch_lines::look(number, line, &|model| models.admits(model));
    while let Some(piece) = incoming.body.next().await.transpose()? {
        length += piece.len();
        if length > most {
            let message = format!("the file of this batch is larger than {most} bytes");
            return Err(Error::LinesUnreadable { message });
        }
        lines.feed(&piece, each).map_err(refused)?;
        // What is there at once may be much: others are let in between.
        tokio::task::yield_now().await;
    }
    lines.end(each).map_err(refused)
}
