//! Upload of a file to a bucket: a single request if it is small, otherwise a multipart upload. At most one part is
//! buffered in memory.

use penstock_llm::{
    files::{self, ObjectAddress, ObjectStore},
    xml,
};
use penstock_net::{
    IncomingResponse,
    body::{self, Body},
    memory_budget::MemoryPermit,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    bucket::check_object_access,
    upload::{self, FileInfo, PART_BYTES, UploadSink},
};
use crate::{
    endpoints::files::store_client::{FileStoreClient, FileStoreResult, broken_response},
    error::Error,
    request::internal_request::InternalRequest,
};

/// Characters that are percent-encoded in a query; the rest stay as AWS signs them.
const QUERY_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Maximum size of a bucket's response about an upload; real ones are far smaller.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Content type of a file that declares none.
const DEFAULT_CONTENT_TYPE: &str = "application/octet-stream";

/// State of the upload of one file to a bucket.
pub struct BucketUpload<'p> {
    client: &'p FileStoreClient<'p>,
    bucket: &'static ObjectStore,
    destination: Option<UploadDestination>,
    /// Bytes that are not sent yet.
    buffer: Vec<u8>,
    /// Share of the memory budget for bodies that the buffer uses; `None` for a small file.
    memory_permit: Option<MemoryPermit>,
    /// Set if the file is sent in parts.
    multipart: Option<MultipartUpload>,
    /// Number of bytes that were sent.
    sent_bytes: u64,
}

/// The object to write, with its purpose and headers.
struct UploadDestination {
    object: ObjectAddress,
    path: String,
    purpose: &'static str,
    headers: Vec<(String, String)>,
}

/// A multipart upload with the `ETags` of the parts that were sent.
struct MultipartUpload {
    id: String,
    part_etags: Vec<String>,
}

impl<'p> BucketUpload<'p> {
    pub fn new(client: &'p FileStoreClient<'p>, bucket: &'static ObjectStore) -> Self {
        Self {
            client,
            bucket,
            destination: None,
            buffer: Vec::new(),
            memory_permit: None,
            multipart: None,
            sent_bytes: 0,
        }
    }

    /// Reserves memory for one part, unless the buffer stays small.
    fn reserve_memory(&mut self, more: usize) -> FileStoreResult<()> {
        if self.memory_permit.is_some() || self.buffer.len() + more <= body::MAX_UNCHARGED_BYTES {
            return Ok(());
        }
        let state = self.client.state;
        let mut share = state.shared.body_memory.new_permit();
        if !share.try_reserve(PART_BYTES.min(state.body_limits.max_bytes)) {
            return Err(Error::MemoryExhausted.into());
        }
        self.memory_permit = Some(share);
        Ok(())
    }

    fn destination(&self) -> FileStoreResult<&UploadDestination> {
        self.destination.as_ref().ok_or_else(|| broken_response("no upload").into())
    }

    /// Uploads a small file in a single request.
    async fn put_object(&mut self) -> FileStoreResult<IncomingResponse> {
        self.sent_bytes = self.buffer.len() as u64;
        let body = Body::Complete(std::mem::take(&mut self.buffer).into());
        let destination = self.destination()?;
        let request =
            InternalRequest { headers: &destination.headers, body, ..InternalRequest::new("PUT", &destination.path) };
        Ok(self.client.send(request).await?.0)
    }

    /// Sends up to `length` bytes of the buffer as the next part.
    async fn send_part(&mut self, length: usize) -> FileStoreResult<()> {
        let mut upload = match self.multipart.take() {
            Some(upload) => upload,
            None => self.initiate_multipart().await?,
        };
        let rest = self.buffer.split_off(length.min(self.buffer.len()));
        let body = std::mem::replace(&mut self.buffer, rest);
        self.sent_bytes += body.len() as u64;
        let query = format!("partNumber={}&uploadId={}", upload.part_etags.len() + 1, upload.id);
        let sent = self.upload_part(&query, body).await;
        if let Ok(tag) = &sent {
            upload.part_etags.push(tag.clone());
        }
        self.multipart = Some(upload);
        sent.map(|_| ())
    }

    /// Uploads one part and returns its `ETag`.
    async fn upload_part(&self, query: &str, body: Vec<u8>) -> FileStoreResult<String> {
        let request = InternalRequest {
            query,
            body: Body::Complete(body.into()),
            ..InternalRequest::new("PUT", &self.destination()?.path)
        };
        let (incoming, _) = self.client.send(request).await?;
        let tag = incoming.head.headers.get_str("etag").map(ToOwned::to_owned);
        Ok(tag.ok_or_else(|| broken_response("it has no etag"))?)
    }

    /// Starts a multipart upload and returns it with its id.
    async fn initiate_multipart(&self) -> FileStoreResult<MultipartUpload> {
        let destination = self.destination()?;
        let request = InternalRequest {
            query: "uploads=",
            headers: &destination.headers,
            ..InternalRequest::new("POST", &destination.path)
        };
        let (mut incoming, mut deadline) = self.client.send(request).await?;
        let response = self.client.read_text(&mut incoming, &mut deadline, MAX_RESPONSE_BYTES).await?;
        let id = xml::element_text(&response, "UploadId").ok_or_else(|| broken_response("it has no upload id"))?;
        Ok(MultipartUpload { id: utf8_percent_encode(&id, QUERY_ENCODE_SET).to_string(), part_etags: Vec::new() })
    }

    /// Completes a multipart upload. A bucket may report an error in the body of a 200 response.
    async fn complete_multipart(&mut self) -> FileStoreResult<IncomingResponse> {
        if !self.buffer.is_empty() {
            self.send_part(PART_BYTES).await?;
        }
        let upload = self.multipart.as_ref().ok_or_else(|| broken_response("no upload"))?;
        let query = format!("uploadId={}", upload.id);
        let fields = [("content-type".to_owned(), "application/xml".to_owned())];
        let body = Body::Complete(files::complete_multipart_body(&upload.part_etags).into());
        let request = InternalRequest {
            query: &query,
            headers: &fields,
            body,
            ..InternalRequest::new("POST", &self.destination()?.path)
        };
        let (mut incoming, mut deadline) = self.client.send(request).await?;
        let response = self.client.read_text(&mut incoming, &mut deadline, MAX_RESPONSE_BYTES).await?;
        if xml::element_contents(&response, "Error").next().is_some() {
            incoming.head.status = 500;
            return Err(self.client.upstream_error(incoming, &response));
        }
        Ok(incoming)
    }
}

impl UploadSink for BucketUpload<'_> {
    async fn begin_file(&mut self, file: &FileInfo) -> FileStoreResult<()> {
        let (client, bucket) = (self.client, self.bucket);
        let lacks = |message| client.option_error(message);
        let options = &client.target.options;
        let object = bucket.new_object_address(options, file.purpose, &file.name, &file.unique_id).map_err(lacks)?;
        check_object_access(client, bucket, &object)?;
        let is_plain = |kind: &&str| kind.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        let kind = file.content_type.as_deref().filter(is_plain).unwrap_or(DEFAULT_CONTENT_TYPE);
        let headers = bucket.upload_headers(options, file.purpose, kind).map_err(lacks)?;
        self.destination =
            Some(UploadDestination { path: bucket.file_path(&object), object, purpose: file.purpose, headers });
        Ok(())
    }

    async fn write(&mut self, bytes: Vec<u8>) -> FileStoreResult<()> {
        self.reserve_memory(bytes.len())?;
        self.buffer.extend_from_slice(&bytes);
        while self.buffer.len() >= PART_BYTES {
            self.send_part(PART_BYTES).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> FileStoreResult {
        let incoming =
            if self.multipart.is_some() { self.complete_multipart().await? } else { self.put_object().await? };
        let destination = self.destination()?;
        let file = self.bucket.build_file(
            &destination.object,
            Some(destination.purpose),
            self.sent_bytes,
            upload::unix_time().as_secs(),
        );
        Ok(self.client.success_response(incoming, file.to_json_bytes()))
    }

    /// Aborts a multipart upload. The bucket would otherwise store its parts and charge for them.
    async fn abort(&mut self) {
        if let (Some(destination), Some(upload)) = (&self.destination, self.multipart.take()) {
            let query = format!("uploadId={}", upload.id);
            // A failed cleanup is ignored, because it does not concern the client.
            let _ = self
                .client
                .send(InternalRequest { query: &query, ..InternalRequest::new("DELETE", &destination.path) })
                .await;
        }
    }
}
