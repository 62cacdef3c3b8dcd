//! Google AI Studio provider: Gemini models, with the model in the path and the key in `x-goog-api-key`.

use crate::{
    catalog::{
        model_lists,
        operation_groups::{GEMINI, GEMINI_COUNT, GEMINI_EMBED, contains_operation},
        options::Options,
        path_info::PathInfo,
        path_segment,
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{Credential, PriceList, ProviderRow},
    },
    chat::providers::gemini,
    images::image_formats,
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct Google;

static ROW: ProviderRow = ProviderRow {
    credential: Credential::Header("x-goog-api-key"),
    forwarded_version: "/v1",
    unversioned_roots: &["upload", "ws"],
    model_in_path: |path| path_segment::segment_after(path, &["/models/", "/tunedModels/"]),
    // The list has the models of Vertex AI under the same name.
    price_list: PriceList { foreign_prefixes: &["claude"], foreign_suffixes: &["-maas"], ..PriceList::BY_SLUG },
    ..ProviderRow::new("google", "https://generativelanguage.googleapis.com", &[GEMINI, GEMINI_EMBED, GEMINI_COUNT])
};

impl ProviderFormats for Google {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        match operation {
            native if contains_operation(ROW.native_operations, native) => None,
            Operation::ImageGenerate => Some(image_format(model)),
            Operation::Embed | Operation::Models => Some(&gemini::AI_STUDIO),
            operation if operation.counts_tokens() => Some(&gemini::AI_STUDIO),
            _ => operation.is_chat().then_some(&gemini::AI_STUDIO),
        }
    }
}

impl ProviderAddress for Google {
    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        _options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let version = path_info.path_options.google.map_or("/v1beta", |version| version.version);
        // Versions of Vertex AI clients, such as `v1beta1`, map to `v1beta`. Experimental thinking models exist in
        // `v1alpha` only.
        let is_alpha = version == "/v1alpha" || path_info.model.contains("gemini-2.0-flash-thinking-exp");
        let version = if is_alpha { "/v1alpha" } else { "/v1beta" };
        // The version is omitted if the base URL already ends with one.
        let is_set = ["/v1beta", "/v1alpha"].iter().any(|version| path_info.prefix.ends_with(version));
        let version = if is_set { "" } else { version };
        if path_info.operation == Operation::Models {
            out.extend_from_slice(format!("{version}/models?pageSize=1000").as_bytes());
            model_lists::write_page_token(path_info, "pageToken", out);
            return Ok(());
        }
        let is_native_format = contains_operation(ROW.native_operations, path_info.operation);
        if self.provider_format(path_info.operation, path_info.model).is_none() && !is_native_format {
            write_path(self, path_info, out);
            return Ok(());
        }
        let model = path_segment::encode_model(path_info.model.strip_prefix("models/").unwrap_or(path_info.model))?;
        out.extend_from_slice(format!("{version}/models/{model}:").as_bytes());
        if is_native_format {
            write_native_verb(path_info, out);
        } else {
            out.extend_from_slice(translated_verb(path_info).as_bytes());
        }
        Ok(())
    }
}

impl ProviderCredentials for Google {}

impl ProviderModels for Google {}

/// Writes the verb of a request in Gemini's own format, with the client's query.
pub(crate) fn write_native_verb(path_info: &PathInfo<'_>, out: &mut Vec<u8>) {
    let verb = match path_info.operation {
        Operation::StreamGenerateContent => "streamGenerateContent",
        Operation::EmbedContent => "embedContent",
        Operation::BatchEmbedContents => "batchEmbedContents",
        Operation::CountTokens => "countTokens",
        _ => "generateContent",
    };
    out.extend_from_slice(verb.as_bytes());
    if !path_info.query.is_empty() {
        out.push(b'?');
        out.extend_from_slice(path_info.query.as_bytes());
    }
}

/// Returns the verb of a translated request, with the stream format in the query.
pub(crate) fn translated_verb(path_info: &PathInfo<'_>) -> &'static str {
    match path_info.operation {
        Operation::Embed => "batchEmbedContents",
        operation if operation.counts_tokens() => "countTokens",
        Operation::ImageGenerate if !is_gemini_model(path_info.model) => "predict",
        _ if path_info.is_streaming => "streamGenerateContent?alt=sse",
        _ => "generateContent",
    }
}

/// Returns the format of image requests to a model: Gemini's or Imagen's.
pub(crate) fn image_format(model: &str) -> &'static ProviderFormat {
    if is_gemini_model(model) { &image_formats::GEMINI } else { &image_formats::IMAGEN }
}

fn is_gemini_model(model: &str) -> bool {
    model.contains("gemini")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{GooglePathOptions, path_info::PathOptions};

    fn request_target(model: &str, streams: bool) -> Result<String, String> {
        let operation = Operation::ChatComplete;
        let path_info = PathInfo { is_streaming: streams, ..PathInfo::for_test(operation, "/chat/completions", model) };
        let mut out = Vec::new();
        Google.write_request_target(&path_info, &Options::default(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_model_is_one_escaped_path_segment() {
        assert_eq!(request_target("gemini-2.5-pro", false).unwrap(), "/v1beta/models/gemini-2.5-pro:generateContent");
        assert!(request_target("models/gemini-2.5-pro", true).unwrap().ends_with("pro:streamGenerateContent?alt=sse"));
        let thinks = "gemini-2.0-flash-thinking-exp-01-21";
        assert_eq!(request_target(thinks, false).unwrap(), format!("/v1alpha/models/{thinks}:generateContent"));
        assert_eq!(request_target("a/../b?x", false).unwrap(), "/v1beta/models/a%2F..%2Fb%3Fx:generateContent");
        assert!(request_target("", false).unwrap_err().contains("no model") && request_target("..", false).is_err());
    }

    #[test]
    fn a_forwarded_path_has_a_version() {
        let forwarded_target = |prefix, path| {
            let path_info = PathInfo { prefix, query: "a=b", ..PathInfo::for_test(Operation::Proxy, path, "") };
            let mut out = Vec::new();
            Google.write_request_target(&path_info, &Options::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        for (prefix, path, sent) in [
            ("", "/interactions", "/v1/interactions"),
            ("", "/models/m:batchGenerateContent", "/v1/models/m:batchGenerateContent"),
            ("", "/v1beta/cachedContents", "/v1beta/cachedContents"),
            ("", "/v1alpha/auth_tokens", "/v1alpha/auth_tokens"),
            ("", "/v1/files", "/v1/files"),
            ("", "/upload/v1/files", "/upload/v1/files"),
            ("", "/ws/google.ai.BidiGenerateContent", "/ws/google.ai.BidiGenerateContent"),
            ("", "/video/v1x", "/v1/video/v1x"),
            ("/proxy", "/interactions", "/v1/interactions"),
            ("/v1beta", "/interactions", "/interactions"),
            ("/x/v1", "/v1/interactions", "/interactions"),
            ("/v1beta", "/v1beta/files", "/files"),
            ("/v1", "/v1beta/files", "/v1beta/files"),
        ] {
            assert_eq!(forwarded_target(prefix, path), format!("{sent}?a=b"), "{prefix} {path}");
        }
    }

    #[test]
    fn keeps_the_api_version_of_google_clients() {
        for (version, prefix, sent) in [
            ("/v1alpha", "", "/v1alpha/models/g:generateContent"),
            ("/v1alpha", "/x/v1alpha", "/models/g:generateContent"),
            ("/v1beta", "", "/v1beta/models/g:generateContent"),
            ("/v1beta1", "", "/v1beta/models/g:generateContent"),
        ] {
            let google = Some(GooglePathOptions { version, project_and_location: None });
            let path_info = PathInfo::for_test(Operation::GenerateContent, "/models/g:generateContent", "g");
            let path_info =
                PathInfo { prefix, path_options: PathOptions { google, ..path_info.path_options }, ..path_info };
            let mut out = Vec::new();
            Google.write_request_target(&path_info, &Options::default(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), sent);
        }
    }
}
