//! A file taken out of its form as it comes, and given to whoever keeps it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_llm::{
    api_format::Upload,
    catalog::Stated,
    files,
    translation::{Lost, Refusal, Unsaid},
};

use crate::endpoints::files::{
    batch_rows::{ForAll, Rows},
    store_client::{Answered, Refused, Talk},
};
use crate::{
    accounting::record::{self, Facts},
    error::{Error, Result},
    ingress::body::Body,
    resolve::{target::Target, target_resolver::Call},
};

/// Buckets want the length of what they are sent before they are sent it, which is known of a part of this size. They take
/// ten thousand of them, each but the last of 5 MiB at least. No more than this is held of any file.
pub const PART: usize = 8 * 1024 * 1024;
/// Pieces up to this size are said in far less than a millisecond for each of their lines.
const SAID_HERE: usize = 128 * 1024;
/// The one field of the form that is kept.
pub const PURPOSE: &str = "purpose";
const BATCH: &str = "batch";

/// What is known of a file before any of it is sent on.
pub struct Named {
    pub purpose: &'static str,
    pub name: String,
    /// Its type, where it has one.
    pub kind: Option<String>,
    /// What no other file is called.
    pub unique: String,
}

/// Who keeps a file.
pub trait Sink {
    async fn begin(&mut self, file: &Named) -> Answered<()>;
    async fn write(&mut self, bytes: Vec<u8>) -> Answered<()>;
    /// The file, told to its caller.
    async fn end(&mut self) -> Answered;
    /// Nothing of it is to be kept.
    async fn give_up(&mut self);
}

/// Sends on a form's file.
pub async fn upload<S: Sink>(talk: &Talk<'_>, call: &Call<'_>, body: Body, facts: &mut Facts, mut sink: S) -> Answered {
    let kind = call.head.headers.text("content-type").unwrap_or_default();
    let form = Upload::of(kind).ok_or_else(|| Error::HeaderInvalid {
        name: "content-type",
        message: "uploadFile takes multipart/form-data".into(),
    })?;
    let mut arriving = Arriving { talk, form, raw: Vec::new(), bytes: 0, is_begun: false, rows: None };
    let sent = arriving.send(body, &mut sink).await;
    if sent.is_err() {
        sink.give_up().await;
    }
    facts.lost = arriving.lost();
    facts.unsaid = Some(Unsaid::default());
    sent
}

/// What has come of a form.
struct Arriving<'a> {
    talk: &'a Talk<'a>,
    form: Upload,
    /// What came of the file before it was known what it is for.
    raw: Vec<u8>,
    /// All of it that came so far.
    bytes: u64,
    is_begun: bool,
    /// Of a file for a batch.
    rows: Option<Rows>,
}

impl Arriving<'_> {
    async fn send(&mut self, mut body: Body, sink: &mut impl Sink) -> Answered {
        while let Some(piece) = body.next().await {
            self.form.feed(&piece?).map_err(|message| self.talk.unsaid("$", message))?;
            self.take(sink).await?;
        }
        let wrong = |path: &str, message: &str| Refused::from(self.talk.unsaid(path, message));
        if !self.form.is_over() {
            return Err(wrong("$", "the form ends before it is complete"));
        }
        if self.form.file().is_none() {
            return Err(wrong("file", "must be sent"));
        }
        if !self.is_begun {
            return Err(wrong(PURPOSE, "must be sent"));
        }
        self.refuse_other_size()?;
        sink.end().await
    }

    /// Gives on what came of the file.
    async fn take(&mut self, sink: &mut impl Sink) -> Answered<()> {
        let came = self.form.take();
        self.bytes += came.len() as u64;
        self.raw.extend(came);
        if !self.is_begun
            && let Some(file) = self.named()?
        {
            self.rows = (file.purpose == BATCH).then(|| self.fresh_rows());
            // Nothing is begun for lines that are wrong.
            let said = self.said().await?;
            sink.begin(&file).await?;
            self.is_begun = true;
            return sink.write(said).await;
        }
        if self.is_begun {
            let said = self.said().await?;
            return sink.write(said).await;
        }
        if self.raw.len() > PART {
            let message = "must stand before the file in the form where that is larger than 8 MiB";
            return Err(self.talk.unsaid(PURPOSE, message).into());
        }
        Ok(())
    }

    /// A file that is not as long as was said is not the one that was meant.
    fn refuse_other_size(&self) -> Result<()> {
        let Some(said) = self.talk.target.options.get("file_upload_size") else { return Ok(()) };
        let size: u64 = said.parse().map_err(|_| self.talk.lacks(format!("file_upload_size `{said}` is no number")))?;
        if size == self.bytes {
            return Ok(());
        }
        Err(self.talk.lacks(format!("file_upload_size is {size}, and {} bytes of the file came", self.bytes)))
    }

    /// What the file is, once the form says that.
    fn named(&self) -> Result<Option<Named>> {
        let beside = || self.talk.target.options.get("file_purpose");
        let purpose = self.form.field(PURPOSE).or_else(beside);
        let (Some(file), Some(purpose)) = (self.form.file(), purpose) else { return Ok(None) };
        let purpose = files::purpose(purpose).map_err(|message| self.talk.unsaid(PURPOSE, message))?;
        let unique = record::new_id(now()).simple().to_string();
        Ok(Some(Named { purpose, name: file.name.clone(), kind: file.kind.clone(), unique }))
    }

    fn fresh_rows(&self) -> Rows {
        let Target { provider, options, .. } = self.talk.target;
        let text = |found: Option<&str>| found.map(ToOwned::to_owned);
        let for_all = ForAll {
            model: text(provider.pinned(options, Stated::default())),
            endpoint: text(options.get("provider_batch_endpoint")),
        };
        Rows::new(provider.slug(), self.talk.keeper.words(), for_all)
    }

    /// What is sent for what came; a last line may have no end.
    async fn said(&mut self) -> Result<Vec<u8>> {
        let content = std::mem::take(&mut self.raw);
        let Some(mut rows) = self.rows.take() else { return Ok(content) };
        let (is_large, is_last) = (content.len() > SAID_HERE, self.form.is_over());
        let work = move || {
            let fed = rows.feed(&content);
            let fed = if is_last { fed.and_then(|()| rows.finish()) } else { fed };
            (rows, fed)
        };
        // Saying neither panics nor is cancelled, unless the process ends.
        let done =
            if is_large { tokio::task::spawn_blocking(work).await.map_err(|_| Error::Draining)? } else { work() };
        let (rows, fed) = done;
        self.looked_at(rows, fed)
    }

    fn looked_at(&mut self, mut rows: Rows, fed: std::result::Result<(), Refusal>) -> Result<Vec<u8>> {
        if let Some((model, _)) = &rows.first {
            self.talk.target.admit_line(model)?;
        }
        let out = rows.take();
        self.rows = Some(rows);
        fed.map_err(|refusal| self.talk.unsaid(refusal.path, refusal.message))?;
        Ok(out)
    }

    /// What was said of the file that is kept nowhere, and of its lines that their model cannot be told.
    fn lost(&self) -> Lost {
        let mut lost = self.rows.as_ref().map(|rows| rows.lost.clone()).unwrap_or_default();
        self.form.fields().filter(|(name, _)| *name != PURPOSE).for_each(|(name, _)| lost.add(name));
        lost
    }
}

pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
