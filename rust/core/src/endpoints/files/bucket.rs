//! Files as objects of a bucket: retrieve metadata and content, list and delete.

use penstock_llm::{
    api_format::ApiFormat,
    files::{self, ObjectAddress, ObjectStore},
    operation::Operation,
};
use penstock_net::body::Body;

use super::{MAX_LIST_BYTES, parse_limit, query_param, upload};
use crate::endpoints::files::{
    batch_results::{self, BatchOutputTranslator},
    multipart_upload::BucketUpload,
    store_client::{self, FileStoreClient, FileStoreResult},
};
use crate::{
    accounting::record::RequestLog,
    error::Result,
    request::internal_request::InternalRequest,
    resolve::{target::CredentialOrigin, target_resolver::ClientRequest},
    response::delivery::UpstreamResponse,
};

/// Maximum number of objects that a bucket lists in one response.
const MAX_LISTED_FILES: usize = 1000;

pub async fn handle_request(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    bucket: &'static ObjectStore,
    body: Body,
    log: &mut RequestLog,
) -> FileStoreResult {
    match client.operation {
        Operation::UploadFile => {
            upload::upload_file(client, client_request, body, log, BucketUpload::new(client, bucket)).await
        }
        Operation::ListFiles => list_files(client, client_request, bucket).await,
        Operation::DeleteFile => delete_file(client, client_request, bucket).await,
        Operation::RetrieveFileContent => retrieve_content(client, client_request, bucket).await,
        _ => retrieve_file(client, client_request, bucket).await,
    }
}

/// Resolves the object that a request names. With a stored credential, it must be in the credential's own bucket, in
/// the folder of gateway files. Other objects of the bucket's owner are not accessible.
fn resolve_object(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    bucket: &ObjectStore,
) -> Result<ObjectAddress> {
    let object =
        bucket.parse_object_address(client_request.route.path).map_err(|message| client.option_error(message))?;
    check_object_access(client, bucket, &object)?;
    Ok(object)
}

pub fn check_object_access(client: &FileStoreClient<'_>, bucket: &ObjectStore, object: &ObjectAddress) -> Result<()> {
    if client.target.credential_origin == CredentialOrigin::Request {
        return Ok(());
    }
    let name = bucket.bucket_name(&client.target.options).map_err(|message| client.option_error(message))?;
    if object.bucket == name && object.has_gateway_prefix() {
        return Ok(());
    }
    let message =
        format!("with a stored credential, files must be below `{}` of the bucket `{name}`", files::GATEWAY_PREFIX);
    Err(client.option_error(message))
}

async fn retrieve_file(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    bucket: &ObjectStore,
) -> FileStoreResult {
    let object = resolve_object(client, client_request, bucket)?;
    let path = bucket.file_path(&object);
    let (incoming, _) = client.send(InternalRequest::new("HEAD", &path)).await?;
    let file = bucket.file_from_headers(&object, |name| incoming.head.headers.get_str(name));
    Ok(client.success_response(incoming, file.to_json_bytes()))
}

/// Returns the content of an object, or the requested byte range of it.
async fn retrieve_content(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    bucket: &ObjectStore,
) -> FileStoreResult {
    let object = resolve_object(client, client_request, bucket)?;
    let path = bucket.file_path(&object);
    let results =
        BatchOutputTranslator::from_client_request(client_request, client.target.provider.slug(), bucket.line_format);
    // A range could cut a batch line, which then could not be translated.
    let range = client_request
        .head
        .headers
        .get_str("range")
        .filter(|_| results.is_none())
        .map(|range| ("range".to_owned(), range.to_owned()));
    let fields: Vec<_> = range.into_iter().collect();
    let (incoming, deadline) =
        client.send(InternalRequest { headers: &fields, ..InternalRequest::new("GET", &path) }).await?;
    Ok(match results {
        Some(results) => {
            UpstreamResponse::new(batch_results::translate_output(results, incoming), ApiFormat::OpenAi, deadline)
        }
        None => store_client::passthrough_response(incoming, deadline),
    })
}

/// Deletes an object after checking that it exists. A bucket reports success for a missing object, but the client must
/// get a 404.
async fn delete_file(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    bucket: &ObjectStore,
) -> FileStoreResult {
    let object = resolve_object(client, client_request, bucket)?;
    let path = bucket.file_path(&object);
    client.send(InternalRequest::new("HEAD", &path)).await?;
    let (incoming, _) = client.send(InternalRequest::new("DELETE", &path)).await?;
    Ok(client.success_response(incoming, files::deletion_body(&bucket.file_id(&object))))
}

/// Lists the files in the folder of gateway files, or in its subfolder for one purpose.
async fn list_files(
    client: &FileStoreClient<'_>,
    client_request: &ClientRequest<'_>,
    bucket: &ObjectStore,
) -> FileStoreResult {
    let most = parse_limit(client, client_request, MAX_LISTED_FILES)?;
    let after =
        query_param(client_request, "after").map(|id| bucket.parse_object_address(&format!("/files/{id}"))).transpose();
    let after = after.map_err(|message| client.untranslatable_error("after", message))?;
    let purpose = query_param(client_request, "purpose").map(files::parse_purpose).transpose();
    let purpose = purpose.map_err(|message| client.untranslatable_error("purpose", message))?;
    let name = bucket.bucket_name(&client.target.options).map_err(|message| client.option_error(message))?;
    let query = bucket.list_query(most, after.as_ref(), purpose);
    let (mut incoming, mut deadline) =
        client.send(InternalRequest { query: &query, ..InternalRequest::new("GET", "/files") }).await?;
    let response = client.read_text(&mut incoming, &mut deadline, MAX_LIST_BYTES).await?;
    let (listed, has_more) = bucket.parse_file_list(name, &response);
    Ok(client.success_response(incoming, files::list_body(&listed, has_more)))
}
