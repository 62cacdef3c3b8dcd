//! A file on its way into a bucket: in one question where it is small, else in parts, so that no more of it is held than one part.

use penstock_llm::{
    files::{self, Bucket, Place},
    xml,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    bucket::within_reach,
    upload::{self, Named, PART, Sink},
};
use crate::endpoints::files::store_client::{Answered, Talk, broken};
use crate::{
    error::Error,
    ingress::body::{self, Body},
    request::internal_request::Question,
    state::shared::memory_budget::Share,
    upstream::Incoming,
};

/// What may stand in a query as it is: as Amazon signs it.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// What is answered about an upload is far smaller.
const MOST_OF_ANSWER: usize = 1024 * 1024;
/// The type of a file that says none.
const BYTES: &str = "application/octet-stream";

/// How far it is.
pub struct Parts<'p> {
    talk: &'p Talk<'p>,
    bucket: &'static Bucket,
    begun: Option<Begun>,
    /// What is to be sent.
    ready: Vec<u8>,
    /// What that takes of the room for bodies, where it is no small file.
    share: Option<Share>,
    /// Where it is sent in parts.
    upload: Option<Upload>,
    /// So many were sent.
    bytes: u64,
}

/// Where it goes, with what is said of it.
struct Begun {
    place: Place,
    path: String,
    purpose: &'static str,
    headers: Vec<(String, String)>,
}

/// What has arrived of a file that is too large for one question.
struct Upload {
    id: String,
    tags: Vec<String>,
}

impl<'p> Parts<'p> {
    pub fn new(talk: &'p Talk<'p>, bucket: &'static Bucket) -> Self {
        Self { talk, bucket, begun: None, ready: Vec::new(), share: None, upload: None, bytes: 0 }
    }

    /// Takes room for a part.
    fn in_room(&mut self, more: usize) -> Answered<()> {
        if self.share.is_some() || self.ready.len() + more <= body::SMALL {
            return Ok(());
        }
        let gateway = self.talk.gateway;
        let mut share = gateway.shared.bodies.share();
        if !share.grow(PART.min(gateway.body_limits.bytes)) {
            return Err(Error::NoRoom.into());
        }
        self.share = Some(share);
        Ok(())
    }

    fn begun(&self) -> Answered<&Begun> {
        self.begun.as_ref().ok_or_else(|| broken("no upload").into())
    }

    /// A small file, in one question.
    async fn put(&mut self) -> Answered<Incoming> {
        self.bytes = self.ready.len() as u64;
        let body = Body::Whole(std::mem::take(&mut self.ready).into());
        let begun = self.begun()?;
        let question = Question { fields: &begun.headers, body, ..Question::new("PUT", &begun.path) };
        Ok(self.talk.ask(question).await?.0)
    }

    /// So many bytes of what is ready, as the next part.
    async fn send_part(&mut self, length: usize) -> Answered<()> {
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => self.initiated().await?,
        };
        let rest = self.ready.split_off(length.min(self.ready.len()));
        let body = std::mem::replace(&mut self.ready, rest);
        self.bytes += body.len() as u64;
        let query = format!("partNumber={}&uploadId={}", upload.tags.len() + 1, upload.id);
        let sent = self.sent(&query, body).await;
        if let Ok(tag) = &sent {
            upload.tags.push(tag.clone());
        }
        self.upload = Some(upload);
        sent.map(|_| ())
    }

    /// The tag of a part that was sent.
    async fn sent(&self, query: &str, body: Vec<u8>) -> Answered<String> {
        let question = Question { query, body: Body::Whole(body.into()), ..Question::new("PUT", &self.begun()?.path) };
        let (incoming, _) = self.talk.ask(question).await?;
        let tag = incoming.head.headers.text("etag").map(ToOwned::to_owned);
        Ok(tag.ok_or_else(|| broken("it has no etag"))?)
    }

    /// The beginning of an upload in parts.
    async fn initiated(&self) -> Answered<Upload> {
        let begun = self.begun()?;
        let question = Question { query: "uploads=", fields: &begun.headers, ..Question::new("POST", &begun.path) };
        let (mut incoming, mut deadline) = self.talk.ask(question).await?;
        let answer = self.talk.read(&mut incoming, &mut deadline, MOST_OF_ANSWER).await?;
        let id = xml::text(&answer, "UploadId").ok_or_else(|| broken("it has no upload id"))?;
        Ok(Upload { id: utf8_percent_encode(&id, PLAIN).to_string(), tags: Vec::new() })
    }

    /// The end of a file that was sent in parts. It may be refused after the answer has begun as if all were well.
    async fn complete(&mut self) -> Answered<Incoming> {
        if !self.ready.is_empty() {
            self.send_part(PART).await?;
        }
        let upload = self.upload.as_ref().ok_or_else(|| broken("no upload"))?;
        let query = format!("uploadId={}", upload.id);
        let fields = [("content-type".to_owned(), "application/xml".to_owned())];
        let body = Body::Whole(files::completion(&upload.tags).into());
        let question = Question { query: &query, fields: &fields, body, ..Question::new("POST", &self.begun()?.path) };
        let (mut incoming, mut deadline) = self.talk.ask(question).await?;
        let answer = self.talk.read(&mut incoming, &mut deadline, MOST_OF_ANSWER).await?;
        if xml::all(&answer, "Error").next().is_some() {
            incoming.head.status = 500;
            return Err(self.talk.refused(incoming, &answer));
        }
        Ok(incoming)
    }
}

impl Sink for Parts<'_> {
    async fn begin(&mut self, file: &Named) -> Answered<()> {
        let (talk, bucket) = (self.talk, self.bucket);
        let lacks = |message| talk.lacks(message);
        let options = &talk.target.options;
        let place = bucket.fresh(options, (file.purpose, &file.name), &file.unique).map_err(lacks)?;
        within_reach(talk, bucket, &place)?;
        let is_plain = |kind: &&str| kind.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        let kind = file.kind.as_deref().filter(is_plain).unwrap_or(BYTES);
        let headers = bucket.headers(options, file.purpose, kind).map_err(lacks)?;
        self.begun = Some(Begun { path: bucket.path(&place), place, purpose: file.purpose, headers });
        Ok(())
    }

    async fn write(&mut self, bytes: Vec<u8>) -> Answered<()> {
        self.in_room(bytes.len())?;
        self.ready.extend_from_slice(&bytes);
        while self.ready.len() >= PART {
            self.send_part(PART).await?;
        }
        Ok(())
    }

    async fn end(&mut self) -> Answered {
        let incoming = if self.upload.is_some() { self.complete().await? } else { self.put().await? };
        let begun = self.begun()?;
        let file = self.bucket.shown(&begun.place, Some(begun.purpose), (self.bytes, upload::now().as_secs()));
        Ok(self.talk.told(incoming, file.told()))
    }

    /// Parts of what is not completed would be kept, and paid for.
    async fn give_up(&mut self) {
        if let (Some(begun), Some(upload)) = (&self.begun, self.upload.take()) {
            let query = format!("uploadId={}", upload.id);
            // Who refuses that says nothing that the caller would want to know.
            let _ = self.talk.ask(Question { query: &query, ..Question::new("DELETE", &begun.path) }).await;
        }
    }
}
