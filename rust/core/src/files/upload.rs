//! A file on its way into a bucket: taken out of its form as it comes, sent on in parts, so that no more of it is held than one part.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_llm::{
    dialect::Upload,
    files::{self, Place},
    translation::{Lost, Refusal, Unsaid},
    xml,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    rows::Rows,
    talk::{Answered, Question, Refused, Talk},
    within_reach,
};
use crate::{
    body::Body,
    call::Call,
    error::{Error, Result},
    record::{self, Facts},
    upstream::Incoming,
};

/// What may stand in a query as it is: as Amazon signs it.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Buckets want the length of what they are sent before they are sent it, which is known of a part of this size. They take
/// ten thousand of them, each but the last of 5 MiB at least.
const PART: usize = 8 * 1024 * 1024;
/// Pieces up to this size are said in far less than a millisecond for each of their lines.
const SAID_HERE: usize = 128 * 1024;
/// What is answered about an upload is far smaller.
const MOST_OF_ANSWER: usize = 1024 * 1024;
/// The one field of the form that a bucket keeps.
const PURPOSE: &str = "purpose";
const BATCH: &str = "batch";
/// The type of a file that says none.
const BYTES: &str = "application/octet-stream";

/// Sends on a form's file.
pub async fn upload(talk: &Talk<'_>, call: &Call<'_>, body: Body, facts: &mut Facts) -> Answered {
    let kind = call.head.headers.text("content-type").unwrap_or_default();
    let form = Upload::of(kind).ok_or_else(|| Error::HeaderInvalid {
        name: "content-type",
        message: "uploadFile takes multipart/form-data".into(),
    })?;
    let mut sending = Sending { talk, form, begun: None, raw: Vec::new(), ready: Vec::new(), parts: None, bytes: 0 };
    let sent = sending.send(body).await;
    if sent.is_err() {
        sending.give_up().await;
    }
    facts.lost = sending.lost();
    facts.unsaid = Some(Unsaid::default());
    sent
}

/// How far an upload is.
struct Sending<'s> {
    talk: &'s Talk<'s>,
    form: Upload,
    /// Once it is known what the file is for.
    begun: Option<Begun>,
    /// What came of it before that.
    raw: Vec<u8>,
    /// What is to be sent.
    ready: Vec<u8>,
    /// Where it is sent in parts.
    parts: Option<Parts>,
    /// So many were sent.
    bytes: u64,
}

/// A file of which it is known where it goes.
struct Begun {
    place: Place,
    purpose: &'static str,
    headers: Vec<(String, String)>,
    /// Of a batch.
    rows: Option<Rows>,
}

/// What has arrived of a file that is too large for one question.
struct Parts {
    id: String,
    tags: Vec<String>,
}

impl Sending<'_> {
    async fn send(&mut self, mut body: Body) -> Answered {
        while let Some(piece) = body.next().await {
            self.form.feed(&piece?).map_err(|message| self.talk.unsaid("$", message))?;
            self.take().await?;
            while self.ready.len() >= PART {
                self.send_part(PART).await?;
            }
        }
        self.finish().await
    }

    /// Takes what came of the file.
    async fn take(&mut self) -> Result<()> {
        self.raw.extend(self.form.take());
        if self.begun.is_none() {
            self.begun = self.begin()?;
        }
        let Some(begun) = &mut self.begun else {
            let message = "must stand before the file in the form where that is larger than 8 MiB";
            return if self.raw.len() > PART { Err(self.talk.unsaid(PURPOSE, message)) } else { Ok(()) };
        };
        let content = std::mem::take(&mut self.raw);
        let said = begun.said(self.talk, content).await?;
        self.ready.extend_from_slice(&said);
        Ok(())
    }

    /// Where the file goes, once form and options say that.
    fn begin(&self) -> Result<Option<Begun>> {
        let (Some(file), Some(purpose)) = (self.form.file(), self.form.field(PURPOSE)) else { return Ok(None) };
        let talk = self.talk;
        let purpose = files::purpose(purpose).map_err(|message| talk.unsaid(PURPOSE, message))?;
        let lacks = |message| talk.lacks(message);
        let unique = record::new_id(now()).simple().to_string();
        let options = &talk.target.options;
        let place = talk.bucket.fresh(options, (purpose, &file.name), &unique).map_err(lacks)?;
        within_reach(talk, &place)?;
        let kind = file.kind.as_deref().filter(|kind| kind.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '));
        let headers = talk.bucket.headers(options, purpose, kind.unwrap_or(BYTES)).map_err(lacks)?;
        let rows = (purpose == BATCH).then(|| Rows::new(talk.target.provider.slug(), talk.bucket));
        Ok(Some(Begun { place, purpose, headers, rows }))
    }

    async fn finish(&mut self) -> Answered {
        let wrong = |path: &str, message: &str| Refused::from(self.talk.unsaid(path, message));
        if !self.form.is_over() {
            return Err(wrong("$", "the form ends before it is complete"));
        }
        if self.form.file().is_none() {
            return Err(wrong("file", "must be sent"));
        }
        let Some(begun) = &mut self.begun else { return Err(wrong(PURPOSE, "must be sent")) };
        self.ready.extend(begun.ended(self.talk)?);
        let (place, purpose) = (begun.place.clone(), begun.purpose);
        let incoming = if self.parts.is_some() { self.complete().await? } else { self.put().await? };
        let file = self.talk.bucket.shown(&place, Some(purpose), (self.bytes, now().as_secs()));
        Ok(self.talk.told(incoming, file.told()))
    }

    /// A small file, in one question.
    async fn put(&mut self) -> Answered<Incoming> {
        let Some(begun) = &self.begun else { return Err(self.talk.unsaid(PURPOSE, "must be sent").into()) };
        self.bytes = self.ready.len() as u64;
        let body = std::mem::take(&mut self.ready).into();
        let question = Question { fields: &begun.headers, body, ..Question::new("PUT", &begun.place) };
        Ok(self.talk.ask(question).await?.0)
    }

    /// So many bytes of what is ready, as the next part.
    async fn send_part(&mut self, length: usize) -> Answered<()> {
        let Some(begun) = &self.begun else { return Ok(()) };
        if self.parts.is_none() {
            self.parts = Some(begun.parts(self.talk).await?);
        }
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let rest = self.ready.split_off(length.min(self.ready.len()));
        let body = std::mem::replace(&mut self.ready, rest);
        self.bytes += body.len() as u64;
        let query = format!("partNumber={}&uploadId={}", parts.tags.len() + 1, parts.id);
        let question = Question { query: &query, body: body.into(), ..Question::new("PUT", &begun.place) };
        let (incoming, _) = self.talk.ask(question).await?;
        let tag = incoming.head.headers.text("etag").map(ToOwned::to_owned);
        parts.tags.push(tag.ok_or_else(|| broken("it has no etag"))?);
        Ok(())
    }

    /// The end of a file that was sent in parts. It may be refused after the answer has begun as if all were well.
    async fn complete(&mut self) -> Answered<Incoming> {
        if !self.ready.is_empty() {
            self.send_part(PART).await?;
        }
        let (Some(begun), Some(parts)) = (&self.begun, &self.parts) else { return Err(broken("no upload").into()) };
        let query = format!("uploadId={}", parts.id);
        let fields = [("content-type".to_owned(), "application/xml".to_owned())];
        let body = files::completion(&parts.tags).into();
        let question = Question { query: &query, fields: &fields, body, ..Question::new("POST", &begun.place) };
        let (mut incoming, mut deadline) = self.talk.ask(question).await?;
        let answer = self.talk.read(&mut incoming, &mut deadline, MOST_OF_ANSWER).await?;
        if xml::all(&answer, "Error").next().is_some() {
            incoming.head.status = 500;
            return Err(self.talk.refused(incoming, &answer));
        }
        Ok(incoming)
    }

    /// Parts of what is not completed would be kept, and paid for.
    async fn give_up(&mut self) {
        if let (Some(begun), Some(parts)) = (&self.begun, self.parts.take()) {
            let query = format!("uploadId={}", parts.id);
            // Who refuses that says nothing that the caller would want to know.
            let _ = self.talk.ask(Question { query: &query, ..Question::new("DELETE", &begun.place) }).await;
        }
    }

    /// What was said of the file that is kept nowhere, and of its lines that their model cannot be told.
    fn lost(&self) -> Lost {
        let rows = self.begun.as_ref().and_then(|begun| begun.rows.as_ref());
        let mut lost = rows.map(|rows| rows.lost.clone()).unwrap_or_default();
        self.form.names().filter(|name| *name != PURPOSE).for_each(|name| lost.add(name));
        lost
    }
}

impl Begun {
    /// What is sent for the next bytes of the file.
    async fn said(&mut self, talk: &Talk<'_>, content: Vec<u8>) -> Result<Vec<u8>> {
        let Some(mut rows) = self.rows.take() else { return Ok(content) };
        let is_large = content.len() > SAID_HERE;
        let work = move || {
            let fed = rows.feed(&content);
            (rows, fed)
        };
        // Saying neither panics nor is cancelled, unless the process ends.
        let done =
            if is_large { tokio::task::spawn_blocking(work).await.map_err(|_| Error::Draining)? } else { work() };
        let (rows, fed) = done;
        self.looked_at(talk, rows, fed)
    }

    /// What is sent for a last line without end.
    fn ended(&mut self, talk: &Talk<'_>) -> Result<Vec<u8>> {
        let Some(mut rows) = self.rows.take() else { return Ok(Vec::new()) };
        let ended = rows.finish();
        self.looked_at(talk, rows, ended)
    }

    fn looked_at(&mut self, talk: &Talk<'_>, mut rows: Rows, fed: std::result::Result<(), Refusal>) -> Result<Vec<u8>> {
        if let Some((model, _)) = &rows.first {
            talk.target.admit_line(model)?;
        }
        let out = rows.take();
        self.rows = Some(rows);
        fed.map_err(|refusal| talk.unsaid(refusal.path, refusal.message))?;
        Ok(out)
    }

    /// The beginning of an upload in parts.
    async fn parts(&self, talk: &Talk<'_>) -> Answered<Parts> {
        let question = Question { query: "uploads=", fields: &self.headers, ..Question::new("POST", &self.place) };
        let (mut incoming, mut deadline) = talk.ask(question).await?;
        let answer = talk.read(&mut incoming, &mut deadline, MOST_OF_ANSWER).await?;
        let id = xml::text(&answer, "UploadId").ok_or_else(|| broken("it has no upload id"))?;
        let id = utf8_percent_encode(&id, PLAIN).to_string();
        Ok(Parts { id, tags: Vec::new() })
    }
}

fn broken(cause: &str) -> Error {
    Error::UpstreamBroke { cause: cause.into() }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
