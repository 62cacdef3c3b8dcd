//! File upload: extracts the file from a multipart form while it arrives, and streams it to the provider's file store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use penstock_llm::{
    catalog::PathOptions,
    files,
    http_form::upload::UploadParser,
    translation::{DroppedParams, RequestError, ResponseReport},
};
use penstock_net::body::Body;

use crate::{
    accounting::record::{self, RequestLog},
    endpoints::files::{
        batch_rows::{BatchInputTranslator, LineOverrides},
        store_client::{FileStoreClient, FileStoreError, FileStoreResult},
    },
    error::{Error, Result},
    resolve::{target::Target, target_resolver::ClientRequest},
};

/// Size of an upload part, and maximum size of a file that is buffered completely. Buckets require the length in
/// advance, which is known for a part. They accept 10,000 parts of at least 5 MiB each, except the last.
pub const PART_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of content that is translated on the async thread, which takes far less than a millisecond per line.
/// Larger content is translated on a blocking thread.
const MAX_INLINE_TRANSLATION_BYTES: usize = 128 * 1024;
/// The only form field that is used besides the file.
pub const PURPOSE_FIELD: &str = "purpose";
const BATCH_PURPOSE: &str = "batch";

/// Metadata of a file that is known before its content is sent.
pub struct FileInfo {
    pub purpose: &'static str,
    pub name: String,
    /// Content type, if the form declares one.
    pub content_type: Option<String>,
    /// Unique id, from which the stored name is derived.
    pub unique_id: String,
}

/// Destination of an uploaded file.
pub trait UploadSink {
    async fn begin_file(&mut self, file: &FileInfo) -> FileStoreResult<()>;
    async fn write(&mut self, bytes: Vec<u8>) -> FileStoreResult<()>;
    /// Completes the upload and returns the file object for the client.
    async fn finish(&mut self) -> FileStoreResult;
    /// Removes the content that was uploaded so far.
    async fn abort(&mut self);
}

/// Streams the file of a multipart form to a sink, which is aborted if anything fails.
pub async fn upload_file<S: UploadSink>(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    body: Body,
    log: &mut RequestLog,
    mut sink: S,
) -> FileStoreResult {
    let kind = client_request.head.headers.get_str("content-type").unwrap_or_default();
    let form = UploadParser::from_content_type(kind).ok_or_else(|| Error::HeaderInvalid {
        name: "content-type",
        message: "uploadFile requires multipart/form-data".into(),
    })?;
    let mut arriving =
        FormUpload { client, form, pending: Vec::new(), received_bytes: 0, is_started: false, translator: None };
    let sent = arriving.forward_form(body, &mut sink).await;
    if sent.is_err() {
        sink.abort().await;
    }
    log.dropped_params = arriving.dropped_params();
    log.response_report = Some(ResponseReport::default());
    sent
}

/// A multipart form that is being received.
struct FormUpload<'a> {
    client: &'a FileStoreClient<'a>,
    form: UploadParser,
    /// File content that is not forwarded yet, for example because the purpose is unknown.
    pending: Vec<u8>,
    /// Number of bytes of the file received so far.
    received_bytes: u64,
    is_started: bool,
    /// Translator of batch lines; `None` for other files.
    translator: Option<BatchInputTranslator>,
}

impl FormUpload<'_> {
    async fn forward_form(&mut self, mut body: Body, sink: &mut impl UploadSink) -> FileStoreResult {
        while let Some(chunk) = body.next().await {
            self.form.feed(&chunk?).map_err(|message| self.client.untranslatable_error("$", message))?;
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

    /// Forwards the file content received so far. Starts the sink once the purpose is known.
    async fn forward_received(&mut self, sink: &mut impl UploadSink) -> FileStoreResult<()> {
        let content = self.form.take_content();
        self.received_bytes += content.len() as u64;
        self.pending.extend(content);
        if !self.is_started
            && let Some(file) = self.file_info()?
        {
            self.translator = (file.purpose == BATCH_PURPOSE).then(|| self.new_translator());
            // Translate first, so that nothing is started for invalid lines.
            let translated = self.translate_pending().await?;
            sink.begin_file(&file).await?;
            self.is_started = true;
            return sink.write(translated).await;
        }
        if self.is_started {
            let translated = self.translate_pending().await?;
            return sink.write(translated).await;
        }
        if self.pending.len() > PART_BYTES {
            let message = "must precede the file in the form if the file is larger than 8 MiB";
            return Err(self.client.untranslatable_error(PURPOSE_FIELD, message).into());
        }
        Ok(())
    }

    /// Rejects a file whose length differs from the option `file_upload_size`.
    fn check_declared_size(&self) -> Result<()> {
        let Some(declared) = self.client.target.options.get("file_upload_size") else { return Ok(()) };
        let size: u64 = declared
            .parse()
            .map_err(|_| self.client.option_error(format!("file_upload_size `{declared}` is not a number")))?;
        if size == self.received_bytes {
            return Ok(());
        }
        Err(self.client.option_error(format!(
            "file_upload_size is {size}, but {} bytes of the file were received",
            self.received_bytes
        )))
    }

    /// Returns the file's metadata; `None` until the form has provided the purpose and the file.
    fn file_info(&self) -> Result<Option<FileInfo>> {
        let hints = || self.client.target.options.get("file_purpose");
        let purpose = self.form.field_value(PURPOSE_FIELD).or_else(hints);
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
        let to_owned = |text: Option<&str>| text.map(ToOwned::to_owned);
        let for_all = LineOverrides {
            model: to_owned(provider.model_override(options, PathOptions::default())),
            endpoint: to_owned(options.get("provider_batch_endpoint")),
        };
        BatchInputTranslator::new(provider.slug(), self.client.file_store.line_format(), for_all)
    }

    /// Returns the pending content to send, with batch lines translated. The last line may lack a line break.
    async fn translate_pending(&mut self) -> Result<Vec<u8>> {
        let content = std::mem::take(&mut self.pending);
        let Some(mut rows) = self.translator.take() else { return Ok(content) };
        let (is_large, is_last) = (content.len() > MAX_INLINE_TRANSLATION_BYTES, self.form.is_finished());
        let translate = move || {
            let fed = rows.feed(&content);
            let fed = if is_last { fed.and_then(|()| rows.finish()) } else { fed };
            (rows, fed)
        };
        // The task neither panics nor is cancelled, unless the process ends.
        let done = if is_large {
            tokio::task::spawn_blocking(translate).await.map_err(|_| Error::Draining)?
        } else {
            translate()
        };
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

    /// Returns the form fields that are not stored, and the parameters that were dropped from batch lines.
    fn dropped_params(&self) -> DroppedParams {
        let mut dropped = self.translator.as_ref().map(|rows| rows.dropped_params.clone()).unwrap_or_default();
        self.form.fields().filter(|(name, _)| *name != PURPOSE_FIELD).for_each(|(name, _)| dropped.add(name));
        dropped
    }
}

pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
