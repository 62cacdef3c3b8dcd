//! Bedrock `InvokeModel` bodies in the formats of the model vendors. Used for embeddings and images, which Converse
//! does not support.

use serde_json::{Value, json};

use crate::{
    chat::request::Source,
    embeddings::request::{EmbeddingInput, EmbeddingRequest, EmbeddingResponse},
    errors::RequestError,
    images::{
        image_formats,
        request::{ImageRequest, ImageResponse},
    },
    provider_format::{EmbeddingFormat, ImageFormat, ProviderFormat},
};

/// Vendor format of an embeddings body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EmbeddingBody {
    Titan,
    /// Amazon Nova's embeddings.
    NovaEmbedding,
    Cohere,
}

/// Vendor format of an image generation body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageBody {
    StableDiffusionXl,
    /// Stable Image, and Stable Diffusion 3 or later.
    StableImage,
    /// Amazon's own image models.
    AmazonImage,
}

pub static TITAN: ProviderFormat = ProviderFormat::of_embeddings(&EmbeddingBody::Titan);
pub static NOVA_EMBEDDING: ProviderFormat = ProviderFormat::of_embeddings(&EmbeddingBody::NovaEmbedding);
pub static COHERE: ProviderFormat = ProviderFormat::of_embeddings(&EmbeddingBody::Cohere);
pub static STABLE_DIFFUSION_XL: ProviderFormat = ProviderFormat::of_images(&ImageBody::StableDiffusionXl);
pub static STABLE_IMAGE: ProviderFormat = ProviderFormat::of_images(&ImageBody::StableImage);
pub static AMAZON_IMAGE: ProviderFormat = ProviderFormat::of_images(&ImageBody::AmazonImage);

/// Returns the model id without the region prefix of an inference profile.
pub(crate) fn strip_region(model: &str) -> &str {
    // In an ARN, the model id follows the resource type.
    let model = model.strip_prefix("arn:").and_then(|arn| arn.split_once('/')).map_or(model, |(_, name)| name);
    match model.split_once('.') {
        Some(("us" | "eu" | "apac" | "us-gov" | "global" | "jp" | "au" | "ca", name)) => name,
        _ => model,
    }
}

pub fn embedding_format(model: &str) -> Option<&'static ProviderFormat> {
    match strip_region(model) {
        name if name.starts_with("cohere.") => Some(&COHERE),
        name if name.starts_with("amazon.nova") => Some(&NOVA_EMBEDDING),
        name if name.starts_with("amazon.titan") || name.is_empty() => Some(&TITAN),
        _ => None,
    }
}

pub fn image_format(model: &str) -> Option<&'static ProviderFormat> {
    match strip_region(model) {
        name if name.starts_with("stability.stable-diffusion-xl") => Some(&STABLE_DIFFUSION_XL),
        name if name.starts_with("stability.") => Some(&STABLE_IMAGE),
        name if name.starts_with("amazon.") || name.is_empty() => Some(&AMAZON_IMAGE),
        _ => None,
    }
}

fn amazon_image_body(picture: &mut ImageRequest) -> Value {
    let mut params = json!({"text": picture.prompt});
    picture.move_field("negative_prompt", &mut params, "negativeText");
    let mut config = json!({});
    picture.move_count(&mut config, "numberOfImages");
    picture.move_dimensions(&mut config, "width", "height");
    picture.move_field("cfg_scale", &mut config, "cfgScale");
    picture.move_fields(&["quality", "seed"], &mut config);
    json!({"taskType": "TEXT_IMAGE", "textToImageParams": params, "imageGenerationConfig": config})
}

/// Returns true for the one Titan model that embeds images.
fn is_titan_image_embedding(model: &str) -> bool {
    model.contains("titan-embed-image")
}

fn titan_embedding_body(texts: &mut EmbeddingRequest) -> Result<Value, RequestError> {
    let mut items = std::mem::take(&mut texts.multimodal_inputs);
    items.extend(std::mem::take(&mut texts.texts).into_iter().map(EmbeddingInput::from_text));
    let Ok([EmbeddingInput { text, image, .. }]) = <[EmbeddingInput; 1]>::try_from(items) else {
        return Err(RequestError::new(texts.input_path, "this model embeds one text at a time"));
    };
    let mut out = json!({});
    if let Some(text) = text {
        out["inputText"] = text.into();
    }
    match image {
        None => (),
        Some(Source::Data { data, .. }) => out["inputImage"] = data.into(),
        Some(_) => return Err(RequestError::new("input[0].image", "must be sent as bytes")),
    }
    if is_titan_image_embedding(&texts.model)
        && let Some(length) = texts.dimensions.take()
    {
        out["embeddingConfig"] = json!({"outputEmbeddingLength": length});
    }
    for (key, value) in [("dimensions", texts.dimensions.take()), ("normalize", texts.fields.shift_remove("normalize"))]
    {
        if let Some(value) = value {
            out[key] = value;
        }
    }
    Ok(out)
}

fn nova_embedding_body(texts: &mut EmbeddingRequest) -> Result<Value, RequestError> {
    let mut items = std::mem::take(&mut texts.multimodal_inputs);
    items.extend(std::mem::take(&mut texts.texts).into_iter().map(EmbeddingInput::from_text));
    let input = match <[EmbeddingInput; 1]>::try_from(items) {
        Ok([EmbeddingInput { text: Some(text), image: None, .. }]) => {
            ("text", json!({"truncationMode": "END", "value": text}))
        }
        Ok([EmbeddingInput { text: None, image: Some(Source::Data { mime, data }), .. }]) => {
            let format = mime.strip_prefix("image/").filter(|format| !format.is_empty()).unwrap_or("png");
            ("image", json!({"format": format.replace("jpg", "jpeg"), "source": {"bytes": data}}))
        }
        _ => return Err(RequestError::new(texts.input_path, "this model embeds one text or one image at a time")),
    };
    // Clients that do not set a purpose usually store the embeddings.
    let purpose =
        texts.fields.shift_remove("embeddingPurpose").or_else(|| texts.fields.shift_remove("embedding_purpose"));
    let mut params = json!({"embeddingPurpose": purpose.unwrap_or_else(|| "GENERIC_INDEX".into())});
    if let Some(dimensions) = texts.dimensions.take() {
        params["embeddingDimension"] = dimensions;
    }
    params[input.0] = input.1;
    Ok(json!({"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": params}))
}

impl EmbeddingFormat for EmbeddingBody {
    fn can_embed_images(&self, model: &str) -> bool {
        matches!(self, Self::Cohere | Self::NovaEmbedding) || is_titan_image_embedding(model)
    }

    fn write_embedding_request(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        let out = match self {
            Self::Titan => titan_embedding_body(texts)?,
            Self::NovaEmbedding => nova_embedding_body(texts)?,
            Self::Cohere => crate::chat::providers::cohere::build_embed_body(texts)?,
        };
        Ok(out.to_string().into_bytes())
    }

    fn read_embeddings(&self, response: &Value) -> Option<EmbeddingResponse> {
        if let Some(vector) = response.get("embedding") {
            let tokens = response["inputTextTokenCount"].as_u64();
            return Some(EmbeddingResponse {
                vectors: vec![vector.clone()],
                token_count: tokens,
                ..EmbeddingResponse::default()
            });
        }
        // The vectors are grouped by type, or are a plain list if there is only one type.
        let vectors = response.pointer("/embeddings/float").or_else(|| response.get("embeddings"))?.as_array()?;
        // Nova wraps each vector in an object that also names its kind.
        let vectors = vectors.iter().map(|vector| vector.get("embedding").unwrap_or(vector).clone()).collect();
        Some(EmbeddingResponse { vectors, ..EmbeddingResponse::default() })
    }
}

impl ImageFormat for ImageBody {
    fn write_image_request(&self, picture: &mut ImageRequest) -> Result<Vec<u8>, RequestError> {
        let out = match self {
            Self::StableDiffusionXl => image_formats::stable_diffusion_xl_body(picture),
            Self::AmazonImage => amazon_image_body(picture),
            Self::StableImage => {
                picture.reject_multiple_images()?;
                let mut out = json!({"prompt": picture.prompt});
                let is = |part: &str| picture.model.contains(part);
                let (is_sd3, is_core) = (is(".sd3"), is("-core"));
                image_formats::write_source_image(picture, is_sd3, is_core, &mut out)?;
                picture.move_aspect_ratio(&mut out, "aspect_ratio", &image_formats::STABILITY_RATIOS);
                let more = ["negative_prompt", "aspect_ratio", "seed", "mode", "strength", "output_format"];
                picture.move_fields(&more, &mut out);
                out
            }
        };
        Ok(out.to_string().into_bytes())
    }

    fn read_images(&self, response: &Value) -> Option<ImageResponse> {
        let at = if *self == Self::StableDiffusionXl { "/artifacts" } else { "/images" };
        ImageResponse::parse_images_at(response, at, "base64", "b64_json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_same(first: Option<&ProviderFormat>, other: Option<&ProviderFormat>) -> bool {
        first.map(std::ptr::from_ref) == other.map(std::ptr::from_ref)
    }

    #[test]
    fn selects_format_by_vendor() {
        for (model, embeds) in [
            ("amazon.titan-embed-text-v2:0", Some(&TITAN)),
            ("us.cohere.embed-v4:0", Some(&COHERE)),
            ("arn:aws:bedrock:eu-west-1::foundation-model/cohere.embed-english-v3", Some(&COHERE)),
            ("arn:aws:bedrock:us-east-1:1:inference-profile/us.cohere.embed-v4:0", Some(&COHERE)),
            ("us.amazon.nova-2-multimodal-embeddings-v1:0", Some(&NOVA_EMBEDDING)),
            ("amazon.unknown", None),
            ("anthropic.claude-v2", None),
        ] {
            assert!(is_same(embedding_format(model), embeds), "{model}");
        }
        assert!(is_same(image_format("stability.stable-diffusion-xl-v1"), Some(&STABLE_DIFFUSION_XL)));
        assert!(is_same(image_format("stability.sd3-5-large-v1:0"), Some(&STABLE_IMAGE)));
        assert!(is_same(image_format("amazon.nova-canvas-v1:0"), Some(&AMAZON_IMAGE)));
        assert!(is_same(image_format("meta.llama"), None));
    }
}
