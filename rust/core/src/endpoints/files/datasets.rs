//! Files as datasets of a provider: a dataset is created first, then its content is uploaded.

use std::{
    pin::{Pin, pin},
    sync::Arc,
};

use bytes::Bytes;
use penstock_llm::{
    api_format::ApiFormat,
    avro::AvroDecoder,
    files::{self, DatasetStore, FileObject, FileState, datasets},
    operation::Operation,
    translation,
};
use penstock_net::{
    Deadline, DeferredBody, IncomingResponse, ResponseBody, ResponseHead,
    body::{self, Body, BodyEnd, Feeder},
};
use tokio::sync::Notify;

use super::{
    MAX_LIST_BYTES, parse_limit, query_param,
    upload::{self, FileInfo, UploadSink},
};
use crate::{
    accounting::record::RequestLog,
    endpoints::files::{
        batch_results::{BatchOutputTranslator, set_file_content_type, translate_output},
        store_client::{FileStoreClient, FileStoreError, FileStoreResult, PreparedFetch, broken_response},
    },
    error::Result,
    request::internal_request::InternalRequest,
    resolve::target_resolver::ClientRequest,
    response::delivery::UpstreamResponse,
};

/// Maximum number of datasets that a provider lists in one response.
const MAX_LISTED_DATASETS: usize = 200;
const JSON_CONTENT_TYPE: &str = "application/json";

pub async fn handle_request(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    kind: DatasetStore,
    body: Body,
    log: &mut RequestLog,
) -> FileStoreResult {
    match client.operation {
        Operation::UploadFile => {
            upload::upload_file(client, client_request, body, log, DatasetUpload::new(client, kind)).await
        }
        Operation::ListFiles => list_files(client, client_request, kind).await,
        Operation::DeleteFile => {
            let (incoming, _) = client.send(InternalRequest::new("DELETE", client_request.route.path)).await?;
            let id = client_request.route.path.rsplit('/').next().unwrap_or_default();
            Ok(client.success_response(incoming, files::deletion_body(id)))
        }
        Operation::RetrieveFileContent => retrieve_content(client, client_request, kind).await,
        _ => {
            let (incoming, dataset) =
                request_json(client, InternalRequest::new("GET", client_request.route.path)).await?;
            let file = kind.parse_file(&dataset).ok_or_else(|| broken_response("it has no dataset id"))?;
            Ok(client.success_response(incoming, file.to_json_bytes()))
        }
    }
}

/// Sends a request and parses the JSON response. A body that contains an error is treated as one, even if its status is
/// a success.
async fn request_json(
    client: &FileStoreClient<'_>,
    request: InternalRequest<'_>,
) -> FileStoreResult<(IncomingResponse, serde_json::Value)> {
    let (mut incoming, mut deadline) = client.send(request).await?;
    let response = read_json(client, &mut incoming, &mut deadline).await?;
    Ok((incoming, response))
}

async fn read_json(
    client: &FileStoreClient<'_>,
    incoming: &mut IncomingResponse,
    deadline: &mut Deadline,
) -> FileStoreResult<serde_json::Value> {
    let response = client.read_text(incoming, deadline, MAX_LIST_BYTES).await?;
    if let Some(status) = translation::hidden_error_status(Operation::RetrieveFile, response.as_bytes()) {
        let head = ResponseHead { status, headers: std::mem::take(&mut incoming.head.headers) };
        let failure = IncomingResponse { head, body: ResponseBody::from_bytes(Bytes::new()) };
        return Err(client.upstream_error(failure, &response));
    }
    Ok(serde_json::from_str(&response).map_err(|error| broken_response(&format!("it cannot be read: {error}")))?)
}

/// Lists files. The provider returns all datasets at once; filters and pagination are applied here.
async fn list_files(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    kind: DatasetStore,
) -> FileStoreResult {
    let most = parse_limit(client, client_request, MAX_LISTED_DATASETS)?;
    let query = kind.list_query(MAX_LISTED_DATASETS);
    let (incoming, response) =
        request_json(client, InternalRequest { query: &query, ..InternalRequest::new("GET", "/files") }).await?;
    let has_requested_purpose =
        |file: &FileObject| query_param(client_request, "purpose").is_none_or(|purpose| purpose == file.purpose);
    let all: Vec<_> = kind.parse_file_list(&response).into_iter().filter(has_requested_purpose).collect();
    let after = query_param(client_request, "after")
        .map(|id| all.iter().position(|file| file.id == id).map_or(all.len(), |at| at + 1));
    let rest = &all[after.unwrap_or_default()..];
    let part = &rest[..rest.len().min(most)];
    Ok(client.success_response(incoming, files::list_body(part, part.len() < rest.len())))
}

/// Streams the content of a dataset's files one after the other. Each file is requested when the previous one has
/// ended.
async fn retrieve_content(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    kind: DatasetStore,
) -> FileStoreResult {
    let (_, response) = request_json(client, InternalRequest::new("GET", client_request.route.path)).await?;
    let urls = kind.download_urls(&response);
    let Some((first, remaining_urls)) = urls.split_first() else {
        return Err(no_content_error(client, kind, &response));
    };
    let defer_fetch = |url: &&str| {
        let fetching = client.prepare_fetch(url)?;
        let deferred_fetch: DeferredBody = Box::new(move || Box::pin(fetch_next_file(fetching, kind)));
        Ok(deferred_fetch)
    };
    let deferred = remaining_urls.iter().map(defer_fetch).collect::<Result<_>>()?;
    let (IncomingResponse { head, body }, mut deadline) = client.fetch(first).await?;
    let mut body = ResponseBody::from_sequence(decode_to_lines(body, kind), deferred);
    // Read the first chunk before responding, so that an unreadable file yields an error status instead of a broken
    // stream.
    deadline.enforce(pin!(body.wait_for_first_chunk())).await?;
    let incoming = IncomingResponse { head, body };
    let results = BatchOutputTranslator::from_client_request(
        client_request,
        client.target.provider.slug(),
        client.file_store.line_format(),
    );
    let incoming = match results {
        Some(results) => translate_output(results, incoming),
        None => set_file_content_type(incoming),
    };
    Ok(UpstreamResponse::new(incoming, ApiFormat::OpenAi, deadline))
}

/// Requests the next file of the dataset after the first.
async fn fetch_next_file(fetching: PreparedFetch, kind: DatasetStore) -> penstock_net::Result<ResponseBody> {
    let (IncomingResponse { head, body }, _) = fetching.send().await?;
    if head.status != 200 {
        return Err(broken_response(&format!("one of the dataset's files returned status {}", head.status)).into());
    }
    let mut body = decode_to_lines(body, kind);
    if kind == DatasetStore::Fireworks {
        // The last line of the previous file may lack a line break.
        body.put_back(Bytes::from_static(b"\n"));
    }
    Ok(body)
}

/// Converts the file content to lines of JSON.
fn decode_to_lines(body: ResponseBody, kind: DatasetStore) -> ResponseBody {
    let mut records = match kind {
        DatasetStore::Cohere => AvroDecoder::default(),
        DatasetStore::Fireworks => return body,
    };
    body.try_map_chunks(move |chunk| {
        let decoded = match chunk {
            Some(chunk) => records.decode_chunk(&chunk),
            None => records.check_complete().map(|()| Vec::new()),
        };
        decoded.map(Bytes::from).map_err(|error| broken_response(&error.0).into())
    })
}

/// Returns the error for a dataset without files.
fn no_content_error(client: &FileStoreClient<'_>, kind: DatasetStore, response: &serde_json::Value) -> FileStoreError {
    match kind.parse_file(response).map(|file| file.state) {
        Some(FileState::Pending) => client
            .untranslatable_error(
                "file_id",
                "is still being checked by the provider; it can be read once it is `processed`",
            )
            .into(),
        Some(FileState::Failed(why)) => client.untranslatable_error("file_id", format!("cannot be read: {why}")).into(),
        _ => broken_response("the dataset lists no files").into(),
    }
}

/// Future of the request that uploads the content of a dataset.
type PendingUpload<'d> = Pin<Box<dyn Future<Output = FileStoreResult<(IncomingResponse, Deadline)>> + Send + 'd>>;

/// A dataset whose content is being uploaded.
struct DatasetUpload<'d> {
    client: &'d FileStoreClient<'d>,
    kind: DatasetStore,
    /// Dataset id, if it is known before the upload.
    id: Option<String>,
    name: String,
    purpose: String,
    content_upload: Option<ContentUpload<'d>>,
    written_bytes: u64,
}

/// The multipart form through which the file is sent, and the pending upstream response.
struct ContentUpload<'d> {
    feeder: Feeder,
    capacity_available: Arc<Notify>,
    boundary: String,
    pending_response: PendingUpload<'d>,
}

impl<'d> DatasetUpload<'d> {
    fn new(client: &'d FileStoreClient<'d>, kind: DatasetStore) -> Self {
        Self {
            client,
            kind,
            id: None,
            name: String::new(),
            purpose: String::new(),
            content_upload: None,
            written_bytes: 0,
        }
    }

    /// Creates a dataset. Returns the path and the query of the upload, and the form field of the file.
    async fn create_dataset(&mut self, file: &FileInfo) -> FileStoreResult<(String, String, &'static str)> {
        let client = self.client;
        let wrong = |message| client.untranslatable_error(upload::PURPOSE_FIELD, message);
        if self.kind == DatasetStore::Cohere {
            // Cohere creates the dataset with the upload itself.
            let query = datasets::cohere_dataset_query(file.purpose, &file.name).map_err(wrong)?;
            return Ok(("/files".into(), query, "data"));
        }
        let id = datasets::fireworks_dataset_id(file.purpose, &file.unique_id).map_err(wrong)?;
        let fields = [("content-type".to_owned(), JSON_CONTENT_TYPE.to_owned())];
        let body = Body::Complete(datasets::create_dataset_body(&id, &file.name).into());
        client.send(InternalRequest { headers: &fields, body, ..InternalRequest::new("POST", "/files") }).await?;
        let path = format!("/files/{id}/content");
        self.id = Some(id);
        Ok((path, String::new(), "file"))
    }

    fn start_content_upload(&self, path: String, query: String, unique: &str) -> ContentUpload<'d> {
        let (capacity, client) = (Arc::new(Notify::new()), self.client);
        let resumed = Arc::clone(&capacity);
        let (feeder, feed) = body::feed_channel(move || resumed.notify_one());
        let boundary = format!("penstock-{unique}");
        let fields = [("content-type".to_owned(), format!("multipart/form-data; boundary={boundary}"))];
        let pending_response = Box::pin(async move {
            let body = Body::Streamed(feed, None);
            client
                .send(InternalRequest { query: &query, headers: &fields, body, ..InternalRequest::new("POST", &path) })
                .await
        });
        ContentUpload { feeder, capacity_available: capacity, boundary, pending_response }
    }
}

impl ContentUpload<'_> {
    /// Forwards bytes to the upload. Polls the upstream response only while the channel is full; `finish` reads it
    /// otherwise.
    async fn push(&mut self, bytes: Vec<u8>) -> FileStoreResult<()> {
        if bytes.is_empty() || self.feeder.push(bytes.into()) {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.capacity_available.notified() => Ok(()),
            answered = &mut self.pending_response => Err(match answered {
                Err(refused) => refused,
                Ok(_) => broken_response("the provider responded before the whole file was sent").into(),
            }),
        }
    }
}

impl UploadSink for DatasetUpload<'_> {
    async fn begin_file(&mut self, file: &FileInfo) -> FileStoreResult<()> {
        let (path, query, field) = self.create_dataset(file).await?;
        let mut upload = self.start_content_upload(path, query, &file.unique_id);
        let head = format!(
            "--{}\r\ncontent-disposition: form-data; name=\"{field}\"; filename=\"file.jsonl\"\r\n\
             content-type: application/jsonl\r\n\r\n",
            upload.boundary
        );
        upload.push(head.into_bytes()).await?;
        (self.name, self.purpose) = (file.name.clone(), file.purpose.to_owned());
        self.content_upload = Some(upload);
        Ok(())
    }

    async fn write(&mut self, bytes: Vec<u8>) -> FileStoreResult<()> {
        self.written_bytes += bytes.len() as u64;
        match &mut self.content_upload {
            Some(upload) => upload.push(bytes).await,
            None => Ok(()),
        }
    }

    async fn finish(&mut self) -> FileStoreResult {
        let Some(upload) = self.content_upload.take() else { return Err(broken_response("no upload").into()) };
        let tail = format!("\r\n--{}--\r\n", upload.boundary);
        upload.feeder.push(tail.into_bytes().into());
        upload.feeder.finish(BodyEnd::Complete);
        let (mut incoming, mut deadline) = upload.pending_response.await?;
        let id = if let Some(id) = self.id.clone() {
            id
        } else {
            let dataset = read_json(self.client, &mut incoming, &mut deadline).await?;
            dataset["id"].as_str().ok_or_else(|| broken_response("it has no dataset id"))?.to_owned()
        };
        let (name, purpose) = (self.name.clone(), self.purpose.clone());
        let created = upload::unix_time().as_secs();
        let file =
            FileObject { id, bytes: self.written_bytes, created_at: created, name, purpose, state: FileState::Pending };
        Ok(self.client.success_response(incoming, file.to_json_bytes()))
    }

    /// Deletes the dataset, because one without content is not a file.
    async fn abort(&mut self) {
        self.content_upload = None;
        if let Some(id) = self.id.take() {
            // A failed cleanup is ignored, because it does not concern the client.
            let _ = self.client.send(InternalRequest::new("DELETE", &format!("/files/{id}"))).await;
        }
    }
}
