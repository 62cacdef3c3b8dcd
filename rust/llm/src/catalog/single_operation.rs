//! Providers that offer only images or only embeddings, each through its own API; one table row each.

use crate::{
    catalog::{
        options::{Options, forwarded_option},
        path_info::PathInfo,
        path_segment,
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{Credential, ProviderRow},
    },
    embeddings::embedding_formats,
    images::image_formats,
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct MediaOnlyProvider {
    row: ProviderRow,
    operation: Operation,
    format_for_model: fn(&str) -> &'static ProviderFormat,
    target_for_model: fn(&str) -> Result<String, String>,
}

pub(crate) static ROWS: &[MediaOnlyProvider] = &[
    MediaOnlyProvider {
        row: ProviderRow {
            has_model_list: false,
            model_in_path: generated_model,
            ..ProviderRow::new("nomic", "https://api-atlas.nomic.ai/v1", &[])
        },
        operation: Operation::Embed,
        format_for_model: |_| &embedding_formats::NOMIC,
        target_for_model: |_| Ok("/embedding/text".into()),
    },
    MediaOnlyProvider {
        row: ProviderRow {
            credential: Credential::Header("x-api-key"),
            has_model_list: false,
            model_in_path: |path| Some(path_segment::first_segment(path.strip_prefix("/v1").unwrap_or(path))),
            ..ProviderRow::new("segmind", "https://api.segmind.com/v1", &[])
        },
        operation: Operation::ImageGenerate,
        format_for_model: |_| &image_formats::SEGMIND,
        target_for_model: |model| Ok(format!("/{}", path_segment::encode_model(model)?)),
    },
    MediaOnlyProvider {
        row: ProviderRow {
            options: &[
                forwarded_option("stability_client_id", "stability-client-id"),
                forwarded_option("stability_client_user_id", "stability-client-user-id"),
                forwarded_option("stability_client_version", "stability-client-version"),
            ],
            has_model_list: false,
            model_in_path: generated_model,
            ..ProviderRow::new("stability-ai", "https://api.stability.ai", &[])
        },
        operation: Operation::ImageGenerate,
        format_for_model: |model| {
            if is_legacy_engine(model) { &image_formats::STABILITY_V1 } else { &image_formats::STABILITY_V2 }
        },
        target_for_model: stability_path,
    },
];

/// Finds the model in the path of a generation.
fn generated_model(path: &str) -> Option<&str> {
    path_segment::segment_after(path, &["/generation/", "/generate/"])
}

/// Returns true for engines of Stability AI's older v1 API.
fn is_legacy_engine(model: &str) -> bool {
    model.starts_with("stable-diffusion-")
}

fn stability_path(model: &str) -> Result<String, String> {
    if is_legacy_engine(model) {
        return Ok(format!("/v1/generation/{}/text-to-image", path_segment::encode_model(model)?));
    }
    let name = if model.starts_with("sd3") { "sd3" } else { model };
    Ok(format!("/v2beta/stable-image/generate/{}", path_segment::encode_model(name)?))
}

impl MediaOnlyProvider {
    fn supports_operation(&self, operation: Operation) -> bool {
        operation == self.operation || (operation.is_embedding() && self.operation.is_embedding())
    }
}

impl ProviderFormats for MediaOnlyProvider {
    fn row(&self) -> &ProviderRow {
        &self.row
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        self.supports_operation(operation).then(|| (self.format_for_model)(model))
    }
}

impl ProviderAddress for MediaOnlyProvider {
    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        _options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.supports_operation(path_info.operation) {
            out.extend_from_slice((self.target_for_model)(path_info.model)?.as_bytes());
        } else {
            write_path(self, path_info, out);
        }
        Ok(())
    }
}

impl ProviderCredentials for MediaOnlyProvider {}

impl ProviderModels for MediaOnlyProvider {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_engines_use_the_v1_path() {
        let old = "stable-diffusion-xl-1024-v1-0";
        assert_eq!(stability_path(old).unwrap(), format!("/v1/generation/{old}/text-to-image"));
        assert_eq!(stability_path("core").unwrap(), "/v2beta/stable-image/generate/core");
        assert_eq!(stability_path("sd3.5-large").unwrap(), "/v2beta/stable-image/generate/sd3");
        assert!(stability_path("").is_err());
    }
}
