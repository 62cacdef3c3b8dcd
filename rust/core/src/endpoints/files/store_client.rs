//! Questions to who keeps files in the name of one request, each with a credential, a signature and a time of its own.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use penstock_llm::{
    api_format::Dialect,
    files::{self, Keeper},
    operation::Operation,
};

use crate::{
    endpoints::batches::azure_blob_output::Blob,
    error::{Error, Result},
    gateway::Gateway,
    ingress::body::Body,
    process::{coarse_timer::Grace, deadline::Deadline},
    request::{internal_request::Question, translate::retyped},
    resolve::target::Target,
    response::delivery::Served,
    upstream::{self, AnswerBody, Incoming, Origin, Outgoing, Upstream},
};

/// A refusal that is larger says no more than its status.
const MOST_OF_REFUSAL: usize = 1024 * 1024;
/// Of the bytes of a file, whatever they are called where they are kept: nobody here reads them.
const BYTES: &[u8] = b"application/octet-stream";

/// Why there is no answer: something here, or the words of who keeps the files.
pub enum Refused {
    Here(Error),
    There(Box<Served>),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Here(error)
    }
}

pub type Answered<T = Served> = std::result::Result<T, Refused>;

/// Who asks, and whom.
pub struct Talk<'t> {
    pub gateway: &'t Gateway,
    pub target: &'t Target<'t>,
    pub operation: Operation,
    pub keeper: Keeper,
    /// For the heads of all answers, in nanoseconds.
    pub waited: AtomicU64,
}

/// A question to somebody else that is still to be asked.
pub struct Fetching {
    upstream: Arc<Upstream>,
    grace: Grace,
    limit: Duration,
    origin: Origin,
    outgoing: Outgoing,
}

impl Fetching {
    pub async fn answered(self) -> Result<(Incoming, Deadline)> {
        let mut deadline = Deadline::new(self.limit, &Body::empty(), &self.grace);
        let sending = pin!(self.upstream.send(&self.origin, self.outgoing));
        let incoming = deadline.bound(sending).await?;
        Ok((incoming, deadline))
    }
}

impl Talk<'_> {
    /// The answer to a question, where it is a good one.
    pub async fn ask(&self, question: Question<'_>) -> Answered<(Incoming, Deadline)> {
        let (mut incoming, mut deadline) = self.exchange(question).await?;
        if incoming.head.status < 300 {
            return Ok((incoming, deadline));
        }
        let answer = self.read(&mut incoming, &mut deadline, MOST_OF_REFUSAL).await.unwrap_or_default();
        Err(self.refused(incoming, &answer))
    }

    /// What is refused there, in `OpenAI`'s shape.
    pub fn refused(&self, incoming: Incoming, answer: &str) -> Refused {
        let Incoming { head, .. } = &incoming;
        let request_id = head.headers.text(self.keeper.request_id());
        let told = files::refused(self.target.provider.slug(), head.status, answer.as_bytes(), request_id);
        Refused::There(Box::new(self.served(incoming, told)))
    }

    async fn exchange(&self, question: Question<'_>) -> Result<(Incoming, Deadline)> {
        let (gateway, target) = (self.gateway, self.target);
        let outgoing = question.outgoing(gateway, target, self.operation).await?;
        let mut deadline = Deadline::new(target.timeout, &outgoing.body, &gateway.grace);
        let began = Instant::now();
        let sending = pin!(gateway.upstream.send(&target.base.origin, outgoing));
        let incoming = deadline.bound(sending).await?;
        self.waited.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok((incoming, deadline.answered()))
    }

    /// What is at an address elsewhere.
    pub async fn fetch(&self, url: &str) -> Answered<(Incoming, Deadline)> {
        let (mut incoming, mut deadline) = self.fetching(url)?.answered().await?;
        if incoming.head.status == 200 {
            return Ok((incoming, deadline.answered()));
        }
        let answer = self.read(&mut incoming, &mut deadline, MOST_OF_REFUSAL).await.unwrap_or_default();
        Err(self.refused(incoming, &answer))
    }

    /// Asks for it, once that is wanted. Its address is signed: nobody's credential goes there.
    pub fn fetching(&self, url: &str) -> Result<Fetching> {
        let wrong = |why: &str| self.lacks(format!("what is in this file is at no address that can be read: {why}"));
        let blob = Blob::of(url).map_err(|why| wrong(&why))?;
        if !blob.is_private(&self.gateway.upstream) {
            return Err(wrong("it is not https"));
        }
        let (upstream, grace) = (Arc::clone(&self.gateway.upstream), self.gateway.grace.clone());
        Ok(Fetching { outgoing: blob.asked(""), origin: blob.base.origin, upstream, grace, limit: self.target.timeout })
    }

    /// An answer as text.
    pub async fn read(&self, incoming: &mut Incoming, deadline: &mut Deadline, most: usize) -> Result<String> {
        let collecting = pin!(upstream::collect(&mut incoming.body, most));
        let bytes = deadline.bound(collecting).await?;
        let bytes = bytes.ok_or_else(|| Error::UpstreamBroke { cause: "it is too large".into() })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A good answer, in `OpenAI`'s words.
    pub fn told(&self, mut incoming: Incoming, json: Vec<u8>) -> Served {
        // Who deleted something has nothing more to say.
        incoming.head.status = 200;
        self.served(incoming, json)
    }

    pub fn served(&self, incoming: Incoming, json: Vec<u8>) -> Served {
        let mut head = incoming.head;
        head.headers = retyped(head.headers, b"application/json");
        let incoming = Incoming { head, body: AnswerBody::whole(json.into()) };
        let deadline = Deadline::new(self.target.timeout, &Body::empty(), &self.gateway.grace);
        Served::new(incoming, Dialect::OpenAi, deadline)
    }

    /// Something is missing, or leads where it must not.
    pub fn lacks(&self, message: String) -> Error {
        Error::OptionInvalid { provider: self.target.provider.slug(), message }
    }

    /// Something in the request that cannot be.
    pub fn unsaid(&self, path: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Untranslatable { provider: self.target.provider.slug(), path: path.into(), message: message.into() }
    }
}

/// An answer that is none.
pub fn broken(cause: &str) -> Error {
    Error::UpstreamBroke { cause: cause.into() }
}

/// The bytes of a file as they come.
pub fn passed_on(incoming: Incoming, deadline: Deadline) -> Served {
    let Incoming { mut head, body } = incoming;
    head.headers.retain(|name| name != b"content-type");
    head.headers.push(b"content-type", BYTES);
    Served::new(Incoming { head, body }, Dialect::OpenAi, deadline)
}
