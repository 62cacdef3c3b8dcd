//! Provider files stored as bucket objects. They are accessed through the S3 API, which Cloud Storage supports too.

use percent_encoding::percent_decode_str;

use super::{DEFAULT_PURPOSE, FileObject, FileState};
use crate::{
    catalog::{options::Options, path_info::PathInfo, path_segment},
    files::batch_rows::BatchLineFormat,
    timestamp, xml,
};

/// Prefix of all object keys that the gateway generates.
pub const GATEWAY_PREFIX: &str = "penstock/";
/// Prefix of the keys of files whose key the client did not choose; the purpose follows this prefix.
const FILES_PREFIX: &str = "penstock/files/";
/// Maximum length of an object key.
const MAX_KEY_BYTES: usize = 1024;
/// Maximum number of characters of a file name that are used in its key.
const MAX_FILE_NAME_CHARS: usize = 100;

/// Object storage service in which a provider stores files.
#[derive(Debug, PartialEq, Eq)]
pub struct ObjectStore {
    /// Scheme of object URIs, such as `s3` in `s3://bucket/key`.
    pub scheme: &'static str,
    /// Prefix of the service's own header fields.
    header_prefix: &'static str,
    /// Response header that carries the request id.
    pub request_id_header: &'static str,
    /// Key and header of the option that names the bucket.
    bucket_option: (&'static str, &'static str),
    /// Keys of the options that name the object; the first one that is set wins.
    object_key_options: &'static [&'static str],
    pub line_format: BatchLineFormat,
}

pub static S3: ObjectStore = ObjectStore {
    scheme: "s3",
    header_prefix: "x-amz-",
    request_id_header: "x-amz-request-id",
    bucket_option: ("aws_s3_bucket", "x-gateway-aws-s3-bucket"),
    object_key_options: &["aws_s3_object_key", "provider_file_name"],
    line_format: BatchLineFormat::Bedrock,
};

pub static GCS: ObjectStore = ObjectStore {
    scheme: "gs",
    header_prefix: "x-goog-",
    request_id_header: "x-guploader-uploadid",
    bucket_option: ("vertex_storage_bucket_name", "x-gateway-vertex-storage-bucket-name"),
    object_key_options: &["provider_file_name"],
    line_format: BatchLineFormat::Vertex,
};

/// Options for server-side encryption of S3 objects and the headers that carry them.
const ENCRYPTION_HEADERS: [(&str, &str); 2] = [
    ("amz_server_side_encryption", "x-amz-server-side-encryption"),
    ("amz_server_side_encryption_aws_kms_key_id", "x-amz-server-side-encryption-aws-kms-key-id"),
];

/// Bucket and key of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectAddress {
    pub bucket: String,
    pub key: String,
}

impl ObjectAddress {
    fn new(bucket: &str, key: &str) -> Result<Self, String> {
        if !is_valid_bucket_name(bucket) {
            return Err(INVALID_BUCKET_MESSAGE.into());
        }
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if key.len() > MAX_KEY_BYTES || key.chars().any(char::is_control) || !key.split('/').all(is_part) {
            return Err(format!(
                "the key of an object must be parts with `/` between them, {MAX_KEY_BYTES} bytes at most"
            ));
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }

    /// Returns the URL path of the object.
    pub fn url_path(&self) -> String {
        let parts: Vec<_> = self.key.split('/').map(path_segment::encode_segment).collect();
        format!("/{}/{}", self.bucket, parts.join("/"))
    }

    /// Returns true if the gateway generated the key.
    pub fn has_gateway_prefix(&self) -> bool {
        self.key.starts_with(GATEWAY_PREFIX)
    }

    fn file_name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or(&self.key)
    }

    /// Returns the file purpose that the key contains, if any.
    fn purpose(&self) -> Option<&str> {
        self.key.strip_prefix(FILES_PREFIX)?.split_once('/').map(|(purpose, _)| purpose)
    }
}

pub(crate) const INVALID_BUCKET_MESSAGE: &str =
    "the bucket name may contain only letters, digits, dashes, underscores and dots";

pub(crate) fn is_valid_bucket_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.bytes().all(is_fine) && !name.contains("..") && !name.starts_with('.')
}

impl ObjectStore {
    /// Returns the bucket name from the options.
    pub fn bucket_name<'o>(&self, options: &'o Options) -> Result<&'o str, String> {
        let (key, header) = self.bucket_option;
        let name = options.get(key).ok_or_else(|| format!("no bucket: send {header}"))?;
        if is_valid_bucket_name(name) { Ok(name) } else { Err(INVALID_BUCKET_MESSAGE.into()) }
    }

    /// Parses the object address in a path such as `/files/:id/content`. The id is percent-encoded, and clients encode
    /// it once more.
    pub fn parse_object_address(&self, path: &str) -> Result<ObjectAddress, String> {
        let id = path.split('/').nth(2).unwrap_or_default();
        let wrong = || {
            format!(
                "the id of a file must be `{0}%3A%2F%2Fbucket%2Fkey`, which is {0}://bucket/key, percent-encoded",
                self.scheme
            )
        };
        let address = self.decode_file_id(id).ok_or_else(wrong)?;
        let (bucket, key) = address.split_once('/').ok_or_else(wrong)?;
        ObjectAddress::new(bucket, key)
    }

    /// Decodes a file id and returns the part after the scheme: bucket and key.
    fn decode_file_id(&self, id: &str) -> Option<String> {
        let mut text = id.to_owned();
        for _ in 0..3 {
            if let Some(address) = text.strip_prefix(self.scheme).and_then(|rest| rest.strip_prefix("://")) {
                return Some(address.to_owned());
            }
            text = percent_decode_str(&text).decode_utf8().ok()?.into_owned();
        }
        None
    }

    /// Returns the object URI of a file id, as the provider's batch jobs expect it; `None` if it is not a file id.
    pub fn object_uri(&self, file_id: &str) -> Option<String> {
        self.decode_file_id(file_id).map(|address| format!("{}://{address}", self.scheme))
    }

    /// Returns the address for a new file: the key from the options, or else a unique generated key.
    pub fn new_object_address(
        &self,
        options: &Options,
        purpose: &str,
        name: &str,
        unique: &str,
    ) -> Result<ObjectAddress, String> {
        let bucket = self.bucket_name(options)?;
        let key = self.object_key_options.iter().find_map(|key| options.get(key));
        let default_key = || format!("{FILES_PREFIX}{purpose}/{unique}/{}", sanitise_file_name(name));
        ObjectAddress::new(bucket, &key.map_or_else(default_key, ToOwned::to_owned))
    }

    /// Returns the gateway path of an object, such as `/files/s3%3A%2F%2Fbucket%2Fkey`.
    pub fn file_path(&self, address: &ObjectAddress) -> String {
        format!("/files/{}", self.file_id(address))
    }

    pub fn file_id(&self, address: &ObjectAddress) -> String {
        path_segment::encode_segment(&format!("{}://{}/{}", self.scheme, address.bucket, address.key))
    }

    /// Returns the request target with its query: the object, or the bucket if the path names no file.
    pub fn request_target(&self, path_info: &PathInfo<'_>, options: &Options) -> Result<String, String> {
        let names_one = path_info.path.split('/').nth(2).is_some();
        let path = if names_one {
            self.parse_object_address(path_info.path)?.url_path()
        } else {
            format!("/{}", self.bucket_name(options)?)
        };
        let mark = if path_info.query.is_empty() { "" } else { "?" };
        Ok(format!("{path}{mark}{}", path_info.query))
    }

    /// Returns the request headers for uploading a new object.
    pub fn upload_headers(
        &self,
        options: &Options,
        purpose: &str,
        kind: &str,
    ) -> Result<Vec<(String, String)>, String> {
        let mut headers = vec![
            ("content-type".to_owned(), kind.to_owned()),
            (format!("{}meta-purpose", self.header_prefix), purpose.to_owned()),
        ];
        for (key, name) in ENCRYPTION_HEADERS {
            let Some(value) = options.get(key) else { continue };
            if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!("{key} must be printable ASCII without spaces"));
            }
            headers.push((name.to_owned(), value.to_owned()));
        }
        Ok(headers)
    }

    /// Builds the file object from the response headers of an object. Missing headers become default values.
    pub fn file_from_headers<'h>(
        &self,
        address: &ObjectAddress,
        field: impl Fn(&str) -> Option<&'h str>,
    ) -> FileObject {
        let stored_purpose = field(&format!("{}meta-purpose", self.header_prefix))
            .and_then(|purpose| super::parse_purpose(purpose).ok());
        let created = field("last-modified").and_then(timestamp::parse_http_date).unwrap_or_default();
        let bytes = field("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
        self.build_file(address, stored_purpose, bytes, created)
    }

    /// Builds the file object; without a purpose, takes it from the object key.
    pub fn build_file(&self, address: &ObjectAddress, purpose: Option<&str>, bytes: u64, created: u64) -> FileObject {
        let purpose = purpose.or_else(|| address.purpose()).unwrap_or(DEFAULT_PURPOSE).to_owned();
        FileObject {
            id: self.file_id(address),
            bytes,
            created_at: created,
            name: address.file_name().to_owned(),
            purpose,
            state: FileState::Ready,
        }
    }

    /// Returns the bucket query that lists at most `max_count` files after `after`, for one purpose or for all.
    pub fn list_query(&self, max_count: usize, after: Option<&ObjectAddress>, purpose: Option<&str>) -> String {
        let prefix = purpose.map_or_else(|| FILES_PREFIX.to_owned(), |purpose| format!("{FILES_PREFIX}{purpose}/"));
        // The parameters are sorted by name because AWS signatures require that order.
        let after = after
            .map(|address| format!("&start-after={}", path_segment::encode_segment(&address.key)))
            .unwrap_or_default();
        format!("list-type=2&max-keys={max_count}&prefix={}{after}", path_segment::encode_segment(&prefix))
    }

    /// Parses the XML list response of a bucket. Returns the files, and true if the list is truncated.
    pub fn parse_file_list(&self, bucket: &str, response: &str) -> (Vec<FileObject>, bool) {
        let read = |object: &str| {
            let address = ObjectAddress::new(bucket, &xml::element_text(object, "Key")?).ok()?;
            let created = timestamp::parse_rfc3339(&xml::element_text(object, "LastModified")?).unwrap_or_default();
            Some(self.build_file(&address, None, xml::element_text(object, "Size")?.parse().ok()?, created))
        };
        let has_more = xml::element_text(response, "IsTruncated").as_deref() == Some("true");
        (xml::element_contents(response, "Contents").filter_map(read).collect(), has_more)
    }
}

/// Builds the body that completes a multipart upload from the `ETags` of its parts, in order.
pub fn complete_multipart_body(tags: &[String]) -> String {
    let part = |(index, tag): (usize, &String)| {
        format!("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", index + 1, xml::escape(tag))
    };
    let parts: String = tags.iter().enumerate().map(part).collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

/// Converts a file name to a safe last segment of an object key.
fn sanitise_file_name(name: &str) -> String {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let plain =
        |character: char| if character.is_ascii_alphanumeric() || "-_.".contains(character) { character } else { '_' };
    let plain: String = name.chars().take(MAX_FILE_NAME_CHARS).map(plain).collect();
    let plain = plain.trim_start_matches('.');
    if plain.is_empty() { "file".to_owned() } else { plain.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::find_provider;

    fn build_options(pairs: &[(&str, &str)]) -> Options {
        Options::from_pairs(find_provider("bedrock").unwrap().row().options, pairs)
    }

    #[test]
    fn decodes_file_ids_that_clients_encoded_twice() {
        let address = ObjectAddress::new("b-1", "a b/ü%20.jsonl").unwrap();
        let id = S3.file_id(&address);
        assert_eq!(id, "s3%3A%2F%2Fb-1%2Fa%20b%2F%C3%BC%2520.jsonl");
        for encoded in [id.clone(), path_segment::encode_segment(&id)] {
            assert_eq!(S3.parse_object_address(&format!("/files/{encoded}/content")).unwrap(), address, "{encoded}");
        }
        assert_eq!(S3.object_uri(&id).as_deref(), Some("s3://b-1/a b/ü%20.jsonl"));
        assert_eq!(S3.object_uri("s3://data/a.jsonl").as_deref(), Some("s3://data/a.jsonl"));
        assert_eq!(address.url_path(), "/b-1/a%20b/%C3%BC%2520.jsonl");
        for wrong in [
            "file-1",
            "s3%3A%2F%2Fb",
            "gs%3A%2F%2Fb%2Fa",
            "s3%3A%2F%2Fb%2F..%2Fc",
            "s3%3A%2F%2F..%2Fa",
            "s3%3A%2F%2Fb%2F",
            "",
        ] {
            assert!(S3.parse_object_address(&format!("/files/{wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn new_file_uses_the_key_from_the_options_or_a_unique_key() {
        let bucket = ("aws_s3_bucket", "b");
        let fresh = |pairs: &[(&str, &str)], name| S3.new_object_address(&build_options(pairs), "batch", name, "u-1");
        assert_eq!(fresh(&[bucket], "../a b.jsonl").unwrap().key, "penstock/files/batch/u-1/a_b.jsonl");
        assert_eq!(fresh(&[bucket], "..").unwrap().key, "penstock/files/batch/u-1/file");
        let address =
            fresh(&[bucket, ("aws_s3_object_key", "data/x.jsonl"), ("provider_file_name", "y")], "a").unwrap();
        assert!(address.key == "data/x.jsonl" && !address.has_gateway_prefix());
        assert_eq!(fresh(&[bucket, ("provider_file_name", "y")], "a").unwrap().key, "y");
        assert!(fresh(&[bucket, ("aws_s3_object_key", "a/../b")], "a").is_err());
        assert!(fresh(&[], "a").unwrap_err().contains("x-gateway-aws-s3-bucket"));
        assert!(fresh(&[("aws_s3_bucket", "a/b")], "a").is_err());
    }

    #[test]
    fn builds_a_file_from_object_headers() {
        let address = ObjectAddress::new("b", "penstock/files/vision/u/a.png").unwrap();
        let fields = |name: &str| match name {
            "content-length" => Some("12"),
            "last-modified" => Some("Tue, 14 Nov 2023 22:13:20 GMT"),
            _ => None,
        };
        let file = S3.file_from_headers(&address, fields);
        let expected = (12, 1_700_000_000, "a.png", "vision");
        assert_eq!((file.bytes, file.created_at, file.name.as_str(), file.purpose.as_str()), expected);
        let purpose_header = |name: &str| if name == "x-goog-meta-purpose" { Some("batch") } else { None };
        assert_eq!(GCS.file_from_headers(&address, purpose_header).purpose, "batch");
        assert_eq!(S3.file_from_headers(&ObjectAddress::new("b", "k").unwrap(), |_| None).purpose, "user_data");
    }

    #[test]
    fn lists_files_under_the_gateway_prefix() {
        let after = ObjectAddress::new("b", "penstock/files/batch/u/a&b").unwrap();
        let query = S3.list_query(20, Some(&after), None);
        assert_eq!(
            query,
            "list-type=2&max-keys=20&prefix=penstock%2Ffiles%2F&start-after=penstock%2Ffiles%2Fbatch%2Fu%2Fa%26b"
        );
        assert!(S3.list_query(1, None, Some("batch")).ends_with("&prefix=penstock%2Ffiles%2Fbatch%2F"));
        let xml = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>penstock/files/batch/u/a&amp;b</Key>\
            <LastModified>2023-11-14T22:13:20.000Z</LastModified><Size>7</Size></Contents>\
            <Contents><Key>broken</Key></Contents></ListBucketResult>";
        let (files, has_more) = S3.parse_file_list("b", xml);
        assert_eq!((files.len(), files[0].bytes, files[0].purpose.as_str(), has_more), (1, 7, "batch", true));
        assert_eq!(S3.parse_object_address(&format!("/files/{}", files[0].id)).unwrap(), after);
    }

    #[test]
    fn completes_a_multipart_upload_with_its_parts_in_order() {
        let body = complete_multipart_body(&["\"a\"".into(), "b".into()]);
        assert!(
            body.contains("<PartNumber>2</PartNumber><ETag>b</ETag>") && body.contains("<ETag>&quot;a&quot;</ETag>")
        );
    }

    #[test]
    fn sends_encryption_options_as_headers() {
        let options = build_options(&[
            ("amz_server_side_encryption", "aws:kms"),
            ("amz_server_side_encryption_aws_kms_key_id", "k"),
        ]);
        let headers = S3.upload_headers(&options, "batch", "application/jsonl").unwrap();
        let names: Vec<_> = headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            names,
            [
                "content-type=application/jsonl",
                "x-amz-meta-purpose=batch",
                "x-amz-server-side-encryption=aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id=k",
            ]
        );
        assert!(
            S3.upload_headers(&build_options(&[("amz_server_side_encryption", "a\r\nb: c")]), "batch", "k").is_err()
        );
    }
}
