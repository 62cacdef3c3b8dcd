//! Replaces the URLs of images in a request by the images themselves, for providers that do not fetch URLs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use serde::Deserialize;
use serde_json::json;

use crate::guardrails::{
    check::{Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, Stages, read_parameters},
    host_access::{CheckJob, HostAccess, HostChoice, HostRequest},
    inline_image::{InlineImage, image_urls},
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "default.inlineImages",
    alias: Some("default.inlineImageUrls"),
    name: "Inline images",
    description: "fetches the images whose URLs a request has, and sends their bytes in place of the URLs; private addresses are not called, and redirects are not followed",
    stages: Stages::Input,
    secrets: &[],
    schema: r#"{"required":["providers"],"properties":{"providers":{"type":"array","minItems":1,"items":{"type":"string","minLength":1},"description":"slugs of the providers whose requests are changed"},"maxSizeBytes":{"type":"integer","minimum":1,"maximum":52428800,"default":20971520,"description":"bytes that one image may have"},"timeoutMs":{"type":"integer","minimum":1,"maximum":60000,"default":30000}}}"#,
    shared: &[],
    compile: |parameters| Ok(Box::new(read_parameters::<InlineImages>(parameters)?)),
}];

/// Maximum number of image URLs in one request.
const MAX_IMAGES: usize = 20;
/// Maximum sum of the bytes of all fetched images of one request.
const MAX_TOTAL_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of images that are fetched at the same time.
const MAX_CALLS: usize = 4;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InlineImages {
    providers: Vec<String>,
    max_size_bytes: usize,
    timeout_ms: u64,
}

/// Detects the media type of an image from its first bytes, because a host may send a wrong `content-type`.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    let brand = || bytes.get(4..12).filter(|head| head.starts_with(b"ftyp")).map(|head| &head[4..]);
    Some(match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        [b'B', b'M', ..] => "image/bmp",
        [b'I', b'I', 0x2a, 0, ..] | [b'M', b'M', 0, 0x2a, ..] => "image/tiff",
        _ => match brand()? {
            b"heic" | b"heix" | b"hevc" | b"hevx" => "image/heic",
            b"mif1" | b"msf1" | b"heim" | b"heis" => "image/heif",
            b"avif" | b"avis" => "image/avif",
            _ => return None,
        },
    })
}

/// A fetched image: its URL, its media type and its bytes.
type FetchedImage = (String, (&'static str, Bytes));

impl InlineImages {
    async fn fetch(&self, hosts: &dyn HostAccess, url: &str) -> Result<(&'static str, Bytes), CheckError> {
        let request = HostRequest {
            method: "GET",
            url: url.split('#').next().unwrap_or_default().to_owned(),
            headers: vec![("accept".to_owned(), "image/*".to_owned())],
            body: None,
            timeout: Duration::from_millis(self.timeout_ms),
            max_body_bytes: self.max_size_bytes,
            chosen_by: HostChoice::Content,
        };
        let reply = hosts.send(request).await?;
        if reply.status != 200 {
            return Err(CheckError::new(format!(
                "an image could not be fetched: its host returned status {}",
                reply.status
            )));
        }
        let kind = image_type(&reply.body).ok_or_else(|| CheckError::new("a URL of an image has no image"))?;
        Ok((kind, reply.body))
    }
}

impl Check for InlineImages {
    fn run(&self, _input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        Ok(CheckOutcome::new(true, json!({"verdict": true, "explanation": "there is no image to fetch"})))
    }

    fn job(&self, input: &CheckInput<'_>) -> Option<CheckJob> {
        if !self.providers.iter().any(|slug| slug == input.provider) {
            return None;
        }
        let urls: BTreeSet<String> = image_urls(input.request).into_iter().collect();
        if urls.is_empty() {
            return None;
        }
        let check = self.clone();
        Some(Box::new(move |hosts: Arc<dyn HostAccess>| {
            async move {
                if urls.len() > MAX_IMAGES {
                    let message =
                        format!("the request has {} images by URL; at most {MAX_IMAGES} are fetched", urls.len());
                    return Err(CheckError::new(message));
                }
                let count = urls.len();
                let fetch = |url: String| -> BoxFuture<'_, Result<FetchedImage, CheckError>> {
                    let (check, hosts) = (&check, &hosts);
                    async move { check.fetch(&**hosts, &url).await.map(|image| (url, image)) }.boxed()
                };
                let fetched: Vec<_> = urls.into_iter().map(fetch).collect();
                let (mut images, mut bytes) = (Vec::with_capacity(count), 0);
                let mut fetched = stream::iter(fetched).buffer_unordered(MAX_CALLS);
                while let Some(image) = fetched.next().await {
                    let image = image?;
                    bytes += image.1.1.len();
                    if bytes > MAX_TOTAL_BYTES {
                        return Err(CheckError::new(format!("the images have more than {MAX_TOTAL_BYTES} bytes")));
                    }
                    images.push(image);
                }
                drop(fetched);
                let encode = |(url, (media_type, bytes)): FetchedImage| {
                    (url, InlineImage { media_type, data: BASE64_STANDARD.encode(bytes) })
                };
                let job = move || images.into_iter().map(encode).collect();
                let closing = |_| CheckError::new("the gateway is shutting down");
                let images = Arc::new(tokio::task::spawn_blocking(job).await.map_err(closing)?);
                let data = json!({"verdict": true, "explanation": format!("{count} images were fetched")});
                Ok(CheckOutcome { change: Some(Change::Images(images)), ..CheckOutcome::new(true, data) })
            }
            .boxed()
        }))
    }

    fn may_change(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_recognised_by_their_bytes() {
        for (bytes, kind) in [
            (&b"\x89PNG\r\n\x1a\n..."[..], Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"GIF89a", Some("image/gif")),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some("image/webp")),
            (b"\0\0\0\x18ftypheic\0\0", Some("image/heic")),
            (b"\0\0\0\x18ftypmif1\0\0", Some("image/heif")),
            (b"<html>", None),
            (b"", None),
            (b"\0\0\0\x18ftypmp42\0\0", None),
        ] {
            assert_eq!(image_type(bytes), kind, "{bytes:?}");
        }
    }
}
