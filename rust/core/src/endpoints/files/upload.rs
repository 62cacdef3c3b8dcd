//! A file taken out of its form as it comes, and given to whoever keeps it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_llm::{
    api_format::UploadParser,
    catalog::PathOptions,
    files,
    translation::{DroppedFields, DroppedParams, RequestError},
};

use crate::endpoints::files::{
    batch_rows::{BatchInputTranslator, LineOverrides},
    store_client::{FileStoreClient, FileStoreError, FileStoreResult},
};
use crate::{
    accounting::record::{self, RequestLog},
    error::{Error, Result},
    ingress::body::Body,
    resolve::{target::Target, target_resolver::Call},
};

/// Buckets want the length of what they are sent before they are sent it, which is known of a part of this size. They take
/// ten thousand of them, each but the last of 5 MiB at least. No more than this is held of any file.
pub const PART_BYTES: usize = 8 * 1024 * 1024;
/// Pieces up to this size are said in far less than a millisecond for each of their lines.
const MAX_INLINE_TRANSLATION_BYTES: usize = 128 * 1024;
/// The one field of the form that is kept.
pub const PURPOSE_FIELD: &str = "purpose";
const BATCH_PURPOSE: &str = "batch";

/// What is known of a file before any of it is sent on.
pub struct FileInfo {
    pub purpose: &'static str,
    pub name: String,
    /// Its type, where it has one.
    pub content_type: Option<String>,
    /// What no other file is called.
    pub unique_id: String,
}

/// Who keeps a file.
pub trait UploadSink {
    async fn begin(&mut self, file: &FileInfo) -> FileStoreResult<()>;
    async fn write(&mut self, bytes: Vec<u8>) -> FileStoreResult<()>;
    /// The file, told to its caller.
    async fn finish(&mut self) -> FileStoreResult;
    /// Nothing of it is to be kept.
    async fn abort(&mut self);
}

/// Sends on a form's file.
pub async fn upload_file<S: UploadSink>(
    talk: &FileStoreClient<'_>,
    call: &Call<'_>,
    body: Body,
    facts: &mut RequestLog,
    mut sink: S,
) -> FileStoreResult {
    let kind = call.head.headers.get_str("content-type").unwrap_or_default();
    let form = UploadParser::from_content_type(kind).ok_or_else(|| Error::HeaderInvalid {
        name: "content-type",
        message: "uploadFile takes multipart/form-data".into(),
    })?;
    let mut arriving =
        FormUpload { client: talk, form, pending: Vec::new(), received_bytes: 0, is_started: false, translator: None };
    let sent = arriving.forward_form(body, &mut sink).await;
    if sent.is_err() {
        sink.abort().await;
    }
    facts.dropped_params = arriving.dropped_params();
    facts.dropped_fields = Some(DroppedFields::default());
    sent
}

/// What has come of a form.
struct FormUpload<'a> {
    client: &'a FileStoreClient<'a>,
    form: UploadParser,
    /// What came of the file before it was known what it is for.
    pending: Vec<u8>,
    /// All of it that came so far.
    received_bytes: u64,
    is_started: bool,
    /// Of a file for a batch.
    translator: Option<BatchInputTranslator>,
}

impl FormUpload<'_> {
    async fn forward_form(&mut self, mut body: Body, sink: &mut impl UploadSink) -> FileStoreResult {
        while let Some(piece) = body.next().await {
            self.form.feed(&piece?).map_err(|message| self.client.untranslatable_error("$", message))?;
            self.forward_received(sink).await?;
        }
        let wrong = |path: &str, message: &str| FileStoreError::from(self.client.untranslatable_error(path, message));
        if !self.form.is_finished() {
            return Err(wrong("$", "the form ends before it is complete"));
        }
        if self.form.file_info().is_none() {
            return Err(wrong("file", "must be sent"));
        }
        if !self.is_started {
            return Err(wrong(PURPOSE_FIELD, "must be sent"));
        }
        self.check_declared_size()?;
        sink.finish().await
    }

    /// Gives on what came of the file.
    async fn forward_received(&mut self, sink: &mut impl UploadSink) -> FileStoreResult<()> {
        let came = self.form.take_content();
        self.received_bytes += came.len() as u64;
        self.pending.extend(came);
        if !self.is_started
            && let Some(file) = self.file_info()?
        {
            self.translator = (file.purpose == BATCH_PURPOSE).then(|| self.new_translator());
            // Nothing is begun for lines that are wrong.
            let said = self.translate_pending().await?;
            sink.begin(&file).await?;
            self.is_started = true;
            return sink.write(said).await;
        }
        if self.is_started {
            let said = self.translate_pending().await?;
            return sink.write(said).await;
        }
        if self.pending.len() > PART_BYTES {
            let message = "must stand before the file in the form where that is larger than 8 MiB";
            return Err(self.client.untranslatable_error(PURPOSE_FIELD, message).into());
        }
        Ok(())
    }

    /// A file that is not as long as was said is not the one that was meant.
    fn check_declared_size(&self) -> Result<()> {
        let Some(said) = self.client.target.options.get("file_upload_size") else { return Ok(()) };
        let size: u64 =
            said.parse().map_err(|_| self.client.option_error(format!("file_upload_size `{said}` is no number")))?;
        if size == self.received_bytes {
            return Ok(());
        }
        Err(self
            .client
            .option_error(format!("file_upload_size is {size}, and {} bytes of the file came", self.received_bytes)))
    }

    /// What the file is, once the form says that.
    fn file_info(&self) -> Result<Option<FileInfo>> {
        let beside = || self.client.target.options.get("file_purpose");
        let purpose = self.form.field_value(PURPOSE_FIELD).or_else(beside);
        let (Some(file), Some(purpose)) = (self.form.file_info(), purpose) else { return Ok(None) };
        let purpose = files::parse_purpose(purpose)
            .map_err(|message| self.client.untranslatable_error(PURPOSE_FIELD, message))?;
        let unique = record::new_id(unix_time()).simple().to_string();
        Ok(Some(FileInfo {
            purpose,
            name: file.name.clone(),
            content_type: file.content_type.clone(),
            unique_id: unique,
        }))
    }

    fn new_translator(&self) -> BatchInputTranslator {
        let Target { provider, options, .. } = self.client.target;
        let text = |found: Option<&str>| found.map(ToOwned::to_owned);
        let for_all = LineOverrides {
            model: text(provider.model_override(options, PathOptions::default())),
            endpoint: text(options.get("provider_batch_endpoint")),
        };
        BatchInputTranslator::new(provider.slug(), self.client.file_store.line_format(), for_all)
    }

    /// What is sent for what came; a last line may have no end.
    async fn translate_pending(&mut self) -> Result<Vec<u8>> {
        let content = std::mem::take(&mut self.pending);
        let Some(mut rows) = self.translator.take() else { return Ok(content) };
        let (is_large, is_last) = (content.len() > MAX_INLINE_TRANSLATION_BYTES, self.form.is_finished());
        let work = move || {
            let fed = rows.feed(&content);
            let fed = if is_last { fed.and_then(|()| rows.finish()) } else { fed };
            (rows, fed)
        };
        // Saying neither panics nor is cancelled, unless the process ends.
        let done =
            if is_large { tokio::task::spawn_blocking(work).await.map_err(|_| Error::Draining)? } else { work() };
        let (rows, fed) = done;
        self.check_translated(rows, fed)
    }

    fn check_translated(
        &mut self,
        mut rows: BatchInputTranslator,
        fed: std::result::Result<(), RequestError>,
    ) -> Result<Vec<u8>> {
        if let Some((model, _)) = &rows.model_and_endpoint {
            self.client.target.check_line_model(model)?;
        }
        let out = rows.take_output();
        self.translator = Some(rows);
        fed.map_err(|refusal| self.client.untranslatable_error(refusal.path, refusal.message))?;
        Ok(out)
    }

    /// What was said of the file that is kept nowhere, and of its lines that their model cannot be told.
    fn dropped_params(&self) -> DroppedParams {
        let mut lost = self.translator.as_ref().map(|rows| rows.dropped_params.clone()).unwrap_or_default();
        self.form.fields().filter(|(name, _)| *name != PURPOSE_FIELD).for_each(|(name, _)| lost.add(name));
        lost
    }
}

pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
