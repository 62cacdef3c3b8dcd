//! The body of a request on its way from target to target: as it came, as each of them gets it.

use bytes::Bytes;
use penstock_llm::{
    api_format::{self, gemini},
    json::edit,
    operation::Operation,
};
use serde_json::Value;

use crate::{
    accounting::record::Facts,
    error::{Error, Result},
    features::parameters::Parameters,
    ingress::body::{Body, Lent},
    request::param_map,
    resolve::target_resolver::Call,
};

/// JSON up to this size is changed in far less than a millisecond.
const CHANGED_HERE: usize = 256 * 1024;

/// What can be looked into and changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// A JSON object, which was read.
    Object,
    /// JSON that is between caller and provider: an object or a list.
    PassedOn,
    Opaque,
}

/// A body that is whole may be sent to many; one that is still arriving goes to the first and is gone.
pub struct Carried {
    whole: Option<Bytes>,
    once: Option<Body>,
    /// The same while it is at a target.
    lent: Option<Lent>,
    content: Content,
    /// Model and stream were said in the path: while it is routed the body names the model too, as everybody else's.
    is_by_path: bool,
    /// The model that the caller asks for.
    pub model: String,
    pub stream: bool,
}

/// A body as one target gets it.
pub struct Prepared {
    pub body: Body,
    pub model: String,
    pub stream: bool,
}

impl Carried {
    /// `is_json`: it is JSON, and was read where its operation is known.
    pub async fn new(call: &Call<'_>, mut body: Body, is_json: bool, facts: &Facts) -> Result<Self> {
        let (model, stream) = (facts.model.clone(), facts.stream);
        let is_by_path = call.route.model().is_some();
        if is_by_path && matches!(body, Body::Whole(_)) {
            body.change(param_map::naming(call, model.clone())).await?;
        }
        let (whole, once) = match body {
            Body::Whole(bytes) => (Some(bytes), None),
            fed @ Body::Fed(..) => (None, Some(fed)),
        };
        let content = match call.route.operation {
            _ if !is_json => Content::Opaque,
            Operation::Proxy => Content::PassedOn,
            _ => Content::Object,
        };
        Ok(Self { whole, once, lent: None, content, is_by_path, model, stream })
    }

    /// Whether it can be sent once more.
    pub fn is_there(&self) -> bool {
        self.whole.is_some() || self.once.is_some() || self.lent.as_ref().is_some_and(Lent::is_back)
    }

    /// A body on its way to a target. Where nothing was read of it there it comes back.
    pub fn lend(&mut self, body: Body) -> Body {
        let (body, lent) = body.lend();
        self.lent = lent;
        body
    }

    /// What came back of what is still arriving.
    pub fn take_back(&mut self) -> Option<Body> {
        self.once.take().or_else(|| self.lent.take()?.back())
    }

    /// It did not leave.
    pub fn give_back(&mut self, body: Body) {
        if self.whole.is_none() {
            self.once = Some(body);
        }
    }

    /// The same once more, where it is whole.
    pub fn again(&self) -> Option<Self> {
        let whole = self.whole.clone()?;
        Some(Self {
            whole: Some(whole),
            once: None,
            lent: None,
            content: self.content,
            is_by_path: self.is_by_path,
            model: self.model.clone(),
            stream: self.stream,
        })
    }

    pub fn json(&self) -> Option<&Bytes> {
        self.whole.as_ref().filter(|_| self.content != Content::Opaque)
    }

    /// The values of these fields, where it is JSON.
    pub fn pick(&self, names: &[String]) -> Vec<Option<Value>> {
        match self.json() {
            Some(bytes) if !names.is_empty() => edit::pick(bytes, names),
            _ => vec![None; names.len()],
        }
    }

    /// The body for a target with these parameters.
    pub async fn prepare(&mut self, parameters: &Parameters) -> Result<Prepared> {
        let (model, stream) = (self.model.clone(), self.stream);
        let Some(bytes) = &self.whole else {
            let body = self.take_back().ok_or(Error::BrokenBody)?;
            return Ok(Prepared { body, model, stream });
        };
        let same = Prepared { body: Body::Whole(bytes.clone()), model, stream };
        if parameters.is_none() || self.content == Content::Opaque || bytes.is_empty() {
            return Ok(same);
        }
        let changed = if bytes.len() <= CHANGED_HERE {
            changed(parameters, bytes)
        } else {
            let (parameters, bytes) = (parameters.clone(), bytes.clone());
            let elsewhere = tokio::task::spawn_blocking(move || changed(&parameters, &bytes)).await;
            elsewhere.map_err(|_| Error::Panicked)?
        };
        let stream = same.stream;
        let changed = match (changed, self.content) {
            (Err(_), Content::PassedOn) => same,
            (changed, _) => changed?.unwrap_or(same),
        };
        Ok(if self.is_by_path { Prepared { stream, ..changed } } else { changed })
    }
}

fn changed(parameters: &Parameters, bytes: &[u8]) -> Result<Option<Prepared>> {
    let invalid = |found: api_format::PeekError| Error::BodyInvalid { at: found.at, message: found.message };
    let Some(changed) = parameters.applied(bytes).map_err(invalid)? else { return Ok(None) };
    let peek = api_format::peek(&changed).map_err(invalid)?;
    let (stream, model) = (peek.streams(), peek.model.unwrap_or_default());
    Ok(Some(Prepared { body: Body::Whole(changed.into()), model, stream }))
}

/// The same without the model, for whom the path names it; `None` where there is none in it.
fn nameless(bytes: &[u8]) -> Option<Vec<u8>> {
    let path = edit::Path::parse("model").ok()?;
    edit::remove(bytes, &[path]).ok().flatten()
}

impl Prepared {
    /// The same with another name of the model.
    pub async fn name_model(&mut self, call: &Call<'_>, model: &str) -> Result<()> {
        model.clone_into(&mut self.model);
        self.body.change(param_map::naming(call, model.to_owned())).await
    }

    /// The body as its target gets it.
    pub async fn into_body(self, call: &Call<'_>) -> Result<Body> {
        let Self { mut body, model, .. } = self;
        let is_batch = call.route.operation == Operation::BatchEmbedContents;
        if matches!(body, Body::Whole(_)) && (is_batch || call.route.model().is_some()) {
            let change = move |bytes: &[u8]| {
                let rest = nameless(bytes);
                let named = is_batch.then(|| gemini::renamed(rest.as_deref().unwrap_or(bytes), &model)).flatten();
                named.or(rest)
            };
            body.change(change).await?;
        }
        Ok(body)
    }
}
