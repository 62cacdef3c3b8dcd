//! Images in the bodies of requests: finds their URLs, and replaces the URLs by the bytes of the images.

use std::collections::HashMap;

use serde_json::{Value, json};

/// An image that replaces its URL in a body.
#[derive(Debug, PartialEq, Eq)]
pub struct InlineImage {
    pub media_type: &'static str,
    /// Bytes of the image in base64.
    pub data: String,
}

fn is_web_url(text: &str) -> bool {
    let has_scheme = |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    has_scheme("https://") || has_scheme("http://")
}

/// JSON shape of an image that is given by URL.
enum ImageUrl {
    /// `{"image_url": {"url": …}}` of chat completions, or `{"image_url": …}` of Responses.
    OpenAi,
    /// `{"type": "url", "url": …}` in the source of an Anthropic image.
    Anthropic,
    /// `{"fileData": {"fileUri": …}}` of Gemini.
    Gemini,
}

/// Returns the URL of an image in an object, and the shape of the object.
fn url_in(object: &Value) -> Option<(ImageUrl, &str)> {
    let image = if let Some(image) = object.get("image_url") {
        (ImageUrl::OpenAi, image.get("url").unwrap_or(image).as_str()?)
    } else if object["type"] == "image" && object["source"]["type"] == "url" {
        (ImageUrl::Anthropic, object["source"]["url"].as_str()?)
    } else {
        let file = object.get("fileData").or_else(|| object.get("file_data"))?;
        let kind = file.get("mimeType").or_else(|| file.get("mime_type"))?.as_str()?;
        let uri = file.get("fileUri").or_else(|| file.get("file_uri"))?.as_str()?;
        // Files that were uploaded to Google need no fetch.
        (kind.starts_with("image/") && !uri.contains("googleapis.com/")).then_some((ImageUrl::Gemini, uri))?
    };
    is_web_url(image.1).then_some(image)
}

/// Returns the URLs of the images in a body.
pub fn image_urls(body: &Value) -> Vec<String> {
    let mut urls = Vec::new();
    visit(body, &mut |object| urls.extend(url_in(object).map(|(_, url)| url.to_owned())));
    urls
}

/// Visits all objects of a body.
fn visit(value: &Value, see: &mut impl FnMut(&Value)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit(item, see)),
        Value::Object(fields) => {
            see(value);
            fields.values().for_each(|field| visit(field, see));
        }
        _ => (),
    }
}

/// Replaces the URLs in a body by the images.
pub(crate) fn insert_images(value: &mut Value, images: &HashMap<String, InlineImage>) {
    let image = url_in(value).and_then(|(form, url)| Some((form, images.get(url)?)));
    if let Some((form, InlineImage { media_type: kind, data })) = image {
        match form {
            ImageUrl::OpenAi => {
                let url = Value::from(format!("data:{kind};base64,{data}"));
                match &mut value["image_url"] {
                    Value::Object(image) => drop(image.insert("url".to_owned(), url)),
                    image => *image = url,
                }
            }
            ImageUrl::Anthropic => value["source"] = json!({"type": "base64", "media_type": kind, "data": data}),
            ImageUrl::Gemini => {
                if let Value::Object(fields) = value {
                    fields.shift_remove("fileData");
                    fields.shift_remove("file_data");
                    fields.insert("inlineData".to_owned(), json!({"mimeType": kind, "data": data}));
                }
            }
        }
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| insert_images(item, images)),
        Value::Object(fields) => fields.values_mut().for_each(|field| insert_images(field, images)),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_every_format_are_replaced() {
        let url = "https://a.example/i.png";
        let mut body = json!({"messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]},
            {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}],
            "input": [{"content": [{"type": "input_image", "image_url": url}]}],
            "contents": [{"parts": [{"fileData": {"mimeType": "image/png", "fileUri": url}},
                {"fileData": {"mimeType": "video/mp4", "fileUri": url}}]}],
            "kept": {"image_url": "data:image/png;base64,x"}});
        assert_eq!(image_urls(&body), [url; 4]);
        insert_images(
            &mut body,
            &HashMap::from([(url.to_owned(), InlineImage { media_type: "image/png", data: "QUJD".to_owned() })]),
        );
        let data = "data:image/png;base64,QUJD";
        assert_eq!(body["messages"][0]["content"][0]["image_url"], json!({"url": data, "detail": "low"}));
        assert_eq!(
            body["messages"][1]["content"][0]["source"],
            json!({"type": "base64", "media_type": "image/png", "data": "QUJD"})
        );
        assert_eq!(body["input"][0]["content"][0]["image_url"], data);
        assert_eq!(
            body["contents"][0]["parts"],
            json!([{"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
                {"fileData": {"mimeType": "video/mp4", "fileUri": url}}])
        );
        assert_eq!(body["kept"]["image_url"], "data:image/png;base64,x");
    }
}
