//! Files as objects of a bucket: retrieve metadata and content, list and delete.

use penstock_llm::{
    api_format::ApiFormat,
    files::{self, ObjectAddress, ObjectStore},
    operation::Operation,
};

use super::{MAX_LIST_BYTES, parse_limit, query_param, upload};
use crate::endpoints::files::{
    batch_results::{self, BatchOutputTranslator},
    multipart_upload::BucketUpload,
    store_client::{self, FileStoreClient, FileStoreResult},
};
use crate::{
    accounting::record::RequestLog,
    error::Result,
    ingress::body::Body,
    request::internal_request::InternalRequest,
    resolve::{target::CredentialOrigin, target_resolver::Call},
    response::delivery::UpstreamResponse,
};

/// Maximum number of objects that a bucket lists in one response.
const MAX_LISTED_FILES: usize = 1000;

/// The client's call and the bucket format that serves it.
type BucketCall<'a> = (&'a Call<'a>, &'static ObjectStore);

pub async fn handle_request(
    talk: &FileStoreClient<'_>,
    asked: BucketCall<'_>,
    body: Body,
    log: &mut RequestLog,
) -> FileStoreResult {
    match talk.operation {
        Operation::UploadFile => upload::upload_file(talk, asked.0, body, log, BucketUpload::new(talk, asked.1)).await,
        Operation::ListFiles => list_files(talk, asked).await,
        Operation::DeleteFile => delete_file(talk, asked).await,
        Operation::RetrieveFileContent => retrieve_content(talk, asked).await,
        _ => retrieve_file(talk, asked).await,
    }
}

/// Resolves the object that a request names. With a stored credential, it must be in the credential's own bucket, in
/// the folder of gateway files. Other objects of the bucket's owner are not accessible.
fn resolve_object(talk: &FileStoreClient<'_>, (call, bucket): BucketCall<'_>) -> Result<ObjectAddress> {
    let place = bucket.parse_object_address(call.route.path).map_err(|message| talk.option_error(message))?;
    check_object_access(talk, bucket, &place)?;
    Ok(place)
}

pub fn check_object_access(talk: &FileStoreClient<'_>, bucket: &ObjectStore, place: &ObjectAddress) -> Result<()> {
    if talk.target.credential_origin == CredentialOrigin::Request {
        return Ok(());
    }
    let name = bucket.bucket_name(&talk.target.options).map_err(|message| talk.option_error(message))?;
    if place.bucket == name && place.has_gateway_prefix() {
        return Ok(());
    }
    let message =
        format!("with a stored credential, files must be below `{}` of the bucket `{name}`", files::GATEWAY_PREFIX);
    Err(talk.option_error(message))
}

async fn retrieve_file(talk: &FileStoreClient<'_>, asked: BucketCall<'_>) -> FileStoreResult {
    let (place, (_, bucket)) = (resolve_object(talk, asked)?, asked);
    let path = bucket.file_path(&place);
    let (incoming, _) = talk.send(InternalRequest::new("HEAD", &path)).await?;
    let file = bucket.file_from_headers(&place, |name| incoming.head.headers.get_str(name));
    Ok(talk.success_response(incoming, file.to_json_bytes()))
}

/// Returns the content of an object, or the requested byte range of it.
async fn retrieve_content(talk: &FileStoreClient<'_>, asked: BucketCall<'_>) -> FileStoreResult {
    let (place, (call, bucket)) = (resolve_object(talk, asked)?, asked);
    let path = bucket.file_path(&place);
    let results = BatchOutputTranslator::from_call(call, talk.target.provider.slug(), bucket.line_format);
    // A range could cut a batch line, which then could not be translated.
    let range = call
        .head
        .headers
        .get_str("range")
        .filter(|_| results.is_none())
        .map(|range| ("range".to_owned(), range.to_owned()));
    let fields: Vec<_> = range.into_iter().collect();
    let (incoming, deadline) =
        talk.send(InternalRequest { headers: &fields, ..InternalRequest::new("GET", &path) }).await?;
    Ok(match results {
        Some(results) => {
            UpstreamResponse::new(batch_results::translate_output(results, incoming), ApiFormat::OpenAi, deadline)
        }
        None => store_client::passthrough_response(incoming, deadline),
    })
}

/// Deletes an object after checking that it exists. A bucket reports success for a missing object, but the client must
/// get a 404.
async fn delete_file(talk: &FileStoreClient<'_>, asked: BucketCall<'_>) -> FileStoreResult {
    let (place, (_, bucket)) = (resolve_object(talk, asked)?, asked);
    let path = bucket.file_path(&place);
    talk.send(InternalRequest::new("HEAD", &path)).await?;
    let (incoming, _) = talk.send(InternalRequest::new("DELETE", &path)).await?;
    Ok(talk.success_response(incoming, files::deletion_body(&bucket.file_id(&place))))
}

/// Lists the files in the folder of gateway files, or in its subfolder for one purpose.
async fn list_files(talk: &FileStoreClient<'_>, (call, bucket): BucketCall<'_>) -> FileStoreResult {
    let most = parse_limit(talk, call, MAX_LISTED_FILES)?;
    let after = query_param(call, "after").map(|id| bucket.parse_object_address(&format!("/files/{id}"))).transpose();
    let after = after.map_err(|message| talk.untranslatable_error("after", message))?;
    let purpose = query_param(call, "purpose").map(files::parse_purpose).transpose();
    let purpose = purpose.map_err(|message| talk.untranslatable_error("purpose", message))?;
    let name = bucket.bucket_name(&talk.target.options).map_err(|message| talk.option_error(message))?;
    let query = bucket.list_query(most, after.as_ref(), purpose);
    let (mut incoming, mut deadline) =
        talk.send(InternalRequest { query: &query, ..InternalRequest::new("GET", "/files") }).await?;
    let response = talk.read_text(&mut incoming, &mut deadline, MAX_LIST_BYTES).await?;
    let (found, has_more) = bucket.parse_file_list(name, &response);
    Ok(talk.success_response(incoming, files::list_body(&found, has_more)))
}
