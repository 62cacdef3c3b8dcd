//! Amazon Bedrock's models by their vendors' own bodies: embeddings and images, which Converse does not have.

use serde_json::{Value, json};

use super::{Broken, Found, Listener, Wire};
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

/// Whose bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invoke {
    Titan,
    Cohere,
    /// Stable Diffusion XL.
    Artifacts,
    /// Stable Image, Stable Diffusion 3 and later.
    StableImage,
    /// Amazon's own.
    Canvas,
}

pub static TITAN: Invoke = Invoke::Titan;
pub static COHERE: Invoke = Invoke::Cohere;
pub static ARTIFACTS: Invoke = Invoke::Artifacts;
pub static STABLE_IMAGE: Invoke = Invoke::StableImage;
pub static CANVAS: Invoke = Invoke::Canvas;

/// A model's name without the region that it is asked in.
pub(crate) fn vendor(model: &str) -> &str {
    // In an ARN the name is behind the kind of what it names.
    let model = model.strip_prefix("arn:").and_then(|arn| arn.split_once('/')).map_or(model, |(_, name)| name);
    match model.split_once('.') {
        Some(("us" | "eu" | "apac" | "us-gov" | "global" | "jp" | "au" | "ca", name)) => name,
        _ => model,
    }
}

pub fn embedding(model: &str) -> Option<&'static Invoke> {
    match vendor(model).split('.').next().unwrap_or_default() {
        "cohere" => Some(&COHERE),
        "amazon" | "" => Some(&TITAN),
        _ => None,
    }
}

pub fn drawing(model: &str) -> Option<&'static Invoke> {
    match vendor(model) {
        name if name.starts_with("stability.stable-diffusion-xl") => Some(&ARTIFACTS),
        name if name.starts_with("stability.") => Some(&STABLE_IMAGE),
        name if name.starts_with("amazon.") || name.is_empty() => Some(&CANVAS),
        _ => None,
    }
}

/// Stable Diffusion XL, at Amazon and at its maker's.
pub(crate) fn artifacts(picture: &mut ImageRequest) -> Value {
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

fn canvas(picture: &mut ImageRequest) -> Value {
    let mut params = json!({"text": picture.prompt});
    picture.move_field("negative_prompt", &mut params, "negativeText");
    let mut config = json!({});
    picture.move_count(&mut config, "numberOfImages");
    picture.move_dimensions(&mut config, ("width", "height"));
    picture.move_field("cfg_scale", &mut config, "cfgScale");
    picture.move_fields(&["quality", "seed"], &mut config);
    json!({"taskType": "TEXT_IMAGE", "textToImageParams": params, "imageGenerationConfig": config})
}

/// The one of Amazon's models that embeds pictures.
fn is_titan_of_pictures(model: &str) -> bool {
    model.contains("titan-embed-image")
}

fn titan(texts: &mut EmbeddingRequest) -> Result<Value, RequestError> {
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
    if is_titan_of_pictures(&texts.model)
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

impl Wire for Invoke {
    fn sees(&self, model: &str) -> bool {
        *self == Self::Cohere || is_titan_of_pictures(model)
    }

    fn embed(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        let out = match self {
            Self::Titan => titan(texts)?,
            Self::Cohere => super::cohere::build_embed_body(texts)?,
            _ => return Err(RequestError::new("model", "this model embeds nothing")),
        };
        Ok(out.to_string().into_bytes())
    }

    fn embedded(&self, answer: &Value) -> Option<EmbeddingResponse> {
        if let Some(vector) = answer.get("embedding") {
            let tokens = answer["inputTextTokenCount"].as_u64();
            return Some(EmbeddingResponse {
                vectors: vec![vector.clone()],
                token_count: tokens,
                ..EmbeddingResponse::default()
            });
        }
        // By kind, or the only kind there is.
        let vectors = answer.pointer("/embeddings/float").or_else(|| answer.get("embeddings"))?.as_array()?.clone();
        Some(EmbeddingResponse { vectors, ..EmbeddingResponse::default() })
    }

    fn draw(&self, picture: &mut ImageRequest) -> Result<Vec<u8>, RequestError> {
        let out = match self {
            Self::Artifacts => artifacts(picture),
            Self::Canvas => canvas(picture),
            Self::StableImage => {
                picture.reject_multiple_images()?;
                let mut out = json!({"prompt": picture.prompt});
                let is = |part: &str| picture.model.contains(part);
                let kind = (is(".sd3"), is("-core"));
                image_formats::made_of(picture, kind, &mut out)?;
                picture.move_aspect_ratio(&mut out, "aspect_ratio", &image_formats::STABLE);
                let more = ["negative_prompt", "aspect_ratio", "seed", "mode", "strength", "output_format"];
                picture.move_fields(&more, &mut out);
                out
            }
            _ => return Err(RequestError::new("model", "this model makes no images")),
        };
        Ok(out.to_string().into_bytes())
    }

    fn drawn(&self, answer: &Value) -> Option<ImageResponse> {
        let at = if *self == Self::Artifacts { "/artifacts" } else { "/images" };
        ImageResponse::parse_images_at(answer, at, "base64", "b64_json")
    }

    fn write(&self, asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        ConverseFormat.write(asked)
    }

    fn read(&self, answer: &[u8], taker: &mut dyn EventSink) -> Result<(), Broken> {
        ConverseFormat.read(answer, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        ConverseFormat.listener()
    }

    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::parse_error(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_made_a_model_decides_the_body() {
        for (model, embeds) in [
            ("amazon.titan-embed-text-v2:0", Some(&TITAN)),
            ("us.cohere.embed-v4:0", Some(&COHERE)),
            ("arn:aws:bedrock:eu-west-1::foundation-model/cohere.embed-english-v3", Some(&COHERE)),
            ("arn:aws:bedrock:us-east-1:1:inference-profile/us.cohere.embed-v4:0", Some(&COHERE)),
            ("anthropic.claude-v2", None),
        ] {
            assert_eq!(embedding(model), embeds, "{model}");
        }
        assert_eq!(drawing("stability.stable-diffusion-xl-v1"), Some(&ARTIFACTS));
        assert_eq!(drawing("stability.sd3-5-large-v1:0"), Some(&STABLE_IMAGE));
        assert_eq!(drawing("amazon.nova-canvas-v1:0"), Some(&CANVAS));
        assert_eq!(drawing("meta.llama"), None);
    }
}
