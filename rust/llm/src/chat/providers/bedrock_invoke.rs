//! Bedrock `InvokeModel` bodies in the formats of the model vendors. Used for embeddings and images, which Converse
//! does not support.

use serde_json::{Value, json};

use super::{ErrorDetails, MalformedResponse, ProviderFormat, StreamDecoder};
use crate::{
    chat::providers::{bedrock_converse::ConverseFormat, openai_chat},
    images::image_formats,
};
use crate::{
    chat::{
        event::EventSink,
        request::{ChatRequest, RequestError, Source},
    },
    embeddings::request::{EmbeddingInput, EmbeddingRequest, EmbeddingResponse},
    images::request::{ImageRequest, ImageResponse},
};

/// Vendor format of an invoke body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvokeFormat {
    Titan,
    Cohere,
    /// Stable Diffusion XL.
    StableDiffusionXl,
    /// Stable Image, and Stable Diffusion 3 or later.
    StableImage,
    /// Amazon's own image models.
    AmazonImage,
}

pub static TITAN: InvokeFormat = InvokeFormat::Titan;
pub static COHERE: InvokeFormat = InvokeFormat::Cohere;
pub static STABLE_DIFFUSION_XL: InvokeFormat = InvokeFormat::StableDiffusionXl;
pub static STABLE_IMAGE: InvokeFormat = InvokeFormat::StableImage;
pub static AMAZON_IMAGE: InvokeFormat = InvokeFormat::AmazonImage;

/// Returns the model id without the region prefix of an inference profile.
pub(crate) fn strip_region(model: &str) -> &str {
    // In an ARN, the model id follows the resource type.
    let model = model.strip_prefix("arn:").and_then(|arn| arn.split_once('/')).map_or(model, |(_, name)| name);
    match model.split_once('.') {
        Some(("us" | "eu" | "apac" | "us-gov" | "global" | "jp" | "au" | "ca", name)) => name,
        _ => model,
    }
}

pub fn embedding_format(model: &str) -> Option<&'static InvokeFormat> {
    match strip_region(model).split('.').next().unwrap_or_default() {
        "cohere" => Some(&COHERE),
        "amazon" | "" => Some(&TITAN),
        _ => None,
    }
}

pub fn image_format(model: &str) -> Option<&'static InvokeFormat> {
    match strip_region(model) {
        name if name.starts_with("stability.stable-diffusion-xl") => Some(&STABLE_DIFFUSION_XL),
        name if name.starts_with("stability.") => Some(&STABLE_IMAGE),
        name if name.starts_with("amazon.") || name.is_empty() => Some(&AMAZON_IMAGE),
        _ => None,
    }
}

/// Writes the Stable Diffusion XL body, which Bedrock and Stability's own API share.
pub(crate) fn stable_diffusion_xl_body(picture: &mut ImageRequest) -> Value {
    let mut prompts = vec![json!({"text": picture.prompt, "weight": 1})];
    if let Some(text) = picture.fields.shift_remove("negative_prompt") {
        prompts.push(json!({"text": text, "weight": -1}));
    }
    let mut out = json!({"text_prompts": prompts});
    picture.move_count(&mut out, "samples");
    picture.move_dimensions(&mut out, ("width", "height"));
    picture.move_fields(
        &["cfg_scale", "clip_guidance_preset", "sampler", "seed", "steps", "style_preset", "extras"],
        &mut out,
    );
    out
}

fn amazon_image_body(picture: &mut ImageRequest) -> Value {
    let mut params = json!({"text": picture.prompt});
    picture.move_field("negative_prompt", &mut params, "negativeText");
    let mut config = json!({});
    picture.move_count(&mut config, "numberOfImages");
    picture.move_dimensions(&mut config, ("width", "height"));
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

impl ProviderFormat for InvokeFormat {
    fn can_embed_images(&self, model: &str) -> bool {
        *self == Self::Cohere || is_titan_image_embedding(model)
    }

    fn write_embedding_request(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        let out = match self {
            Self::Titan => titan_embedding_body(texts)?,
            Self::Cohere => super::cohere::build_embed_body(texts)?,
            _ => return Err(RequestError::new("model", "this model does not support embeddings")),
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
        let vectors = response.pointer("/embeddings/float").or_else(|| response.get("embeddings"))?.as_array()?.clone();
        Some(EmbeddingResponse { vectors, ..EmbeddingResponse::default() })
    }

    fn write_image_request(&self, picture: &mut ImageRequest) -> Result<Vec<u8>, RequestError> {
        let out = match self {
            Self::StableDiffusionXl => stable_diffusion_xl_body(picture),
            Self::AmazonImage => amazon_image_body(picture),
            Self::StableImage => {
                picture.reject_multiple_images()?;
                let mut out = json!({"prompt": picture.prompt});
                let is = |part: &str| picture.model.contains(part);
                let kind = (is(".sd3"), is("-core"));
                image_formats::write_source_image(picture, kind, &mut out)?;
                picture.move_aspect_ratio(&mut out, "aspect_ratio", &image_formats::STABILITY_RATIOS);
                let more = ["negative_prompt", "aspect_ratio", "seed", "mode", "strength", "output_format"];
                picture.move_fields(&more, &mut out);
                out
            }
            _ => return Err(RequestError::new("model", "this model does not generate images")),
        };
        Ok(out.to_string().into_bytes())
    }

    fn read_images(&self, response: &Value) -> Option<ImageResponse> {
        let at = if *self == Self::StableDiffusionXl { "/artifacts" } else { "/images" };
        ImageResponse::parse_images_at(response, at, "base64", "b64_json")
    }

    fn write_request(&self, request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        ConverseFormat.write_request(request)
    }

    fn read_response(&self, response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        ConverseFormat.read_response(response, sink)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        ConverseFormat.stream_decoder()
    }

    fn parse_error(&self, response: &[u8]) -> ErrorDetails {
        openai_chat::parse_error(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_format_by_vendor() {
        for (model, embeds) in [
            ("amazon.titan-embed-text-v2:0", Some(&TITAN)),
            ("us.cohere.embed-v4:0", Some(&COHERE)),
            ("arn:aws:bedrock:eu-west-1::foundation-model/cohere.embed-english-v3", Some(&COHERE)),
            ("arn:aws:bedrock:us-east-1:1:inference-profile/us.cohere.embed-v4:0", Some(&COHERE)),
            ("anthropic.claude-v2", None),
        ] {
            assert_eq!(embedding_format(model), embeds, "{model}");
        }
        assert_eq!(image_format("stability.stable-diffusion-xl-v1"), Some(&STABLE_DIFFUSION_XL));
        assert_eq!(image_format("stability.sd3-5-large-v1:0"), Some(&STABLE_IMAGE));
        assert_eq!(image_format("amazon.nova-canvas-v1:0"), Some(&AMAZON_IMAGE));
        assert_eq!(image_format("meta.llama"), None);
    }
}
