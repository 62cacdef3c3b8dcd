//! Amazon Bedrock's models by their vendors' own bodies: embeddings and images, which Converse does not have.

use serde_json::{Value, json};

use super::{Broken, Found, Listener, Wire, chat, converse::Converse};
use crate::translation::{
    asked::{Asked, Refusal},
    embedding::{Texts, Vectors},
    picture::{Drawn, Picture},
    piece::Taker,
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
fn vendor(model: &str) -> &str {
    let first = model.split('.').next().unwrap_or_default();
    if matches!(first, "us" | "eu" | "apac" | "us-gov" | "global" | "jp" | "au" | "ca") {
        return &model[first.len() + 1..];
    }
    // An ARN ends with the name.
    model.rsplit('/').next().unwrap_or(model)
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
pub(super) fn artifacts(picture: &mut Picture) -> Value {
    let mut prompts = vec![json!({"text": picture.prompt, "weight": 1})];
    if let Some(text) = picture.fields.shift_remove("negative_prompt") {
        prompts.push(json!({"text": text, "weight": -1}));
    }
    let mut out = json!({"text_prompts": prompts});
    picture.hand_count(&mut out, "samples");
    picture.hand_sides(&mut out, ("width", "height"));
    picture.hand_all(
        &["cfg_scale", "clip_guidance_preset", "sampler", "seed", "steps", "style_preset", "extras"],
        &mut out,
    );
    out
}

fn canvas(picture: &mut Picture) -> Value {
    let mut params = json!({"text": picture.prompt});
    picture.hand("negative_prompt", &mut params, "negativeText");
    let mut config = json!({});
    picture.hand_count(&mut config, "numberOfImages");
    picture.hand_sides(&mut config, ("width", "height"));
    picture.hand("cfg_scale", &mut config, "cfgScale");
    picture.hand_all(&["quality", "seed"], &mut config);
    json!({"taskType": "TEXT_IMAGE", "textToImageParams": params, "imageGenerationConfig": config})
}

fn titan(texts: &mut Texts) -> Result<Value, Refusal> {
    let [text] = texts.inputs.as_mut_slice() else {
        return Err(Refusal::new(texts.path, "this model embeds one text at a time"));
    };
    let mut out = json!({"inputText": std::mem::take(text)});
    for (key, value) in [("dimensions", texts.dimensions.take()), ("normalize", texts.fields.shift_remove("normalize"))]
    {
        if let Some(value) = value {
            out[key] = value;
        }
    }
    Ok(out)
}

impl Wire for Invoke {
    fn embed(&self, texts: &mut Texts) -> Result<Vec<u8>, Refusal> {
        let out = match self {
            Self::Titan => titan(texts)?,
            Self::Cohere => super::cohere::embed(texts),
            _ => return Err(Refusal::new("model", "this model embeds nothing")),
        };
        Ok(out.to_string().into_bytes())
    }

    fn embedded(&self, answer: &Value) -> Option<Vectors> {
        if let Some(vector) = answer.get("embedding") {
            return Some(Vectors { vectors: vec![vector.clone()], tokens: answer["inputTextTokenCount"].as_u64() });
        }
        // By kind, or the only kind there is.
        let vectors = answer.pointer("/embeddings/float").or_else(|| answer.get("embeddings"))?.as_array()?.clone();
        Some(Vectors { vectors, tokens: None })
    }

    fn draw(&self, picture: &mut Picture) -> Result<Vec<u8>, Refusal> {
        let out = match self {
            Self::Artifacts => artifacts(picture),
            Self::Canvas => canvas(picture),
            Self::StableImage => {
                picture.refuse_several()?;
                let mut out = json!({"prompt": picture.prompt});
                picture.hand_ratio(&mut out, "aspect_ratio");
                let more = ["negative_prompt", "aspect_ratio", "seed", "mode", "image", "strength", "output_format"];
                picture.hand_all(&more, &mut out);
                out
            }
            _ => return Err(Refusal::new("model", "this model makes no images")),
        };
        Ok(out.to_string().into_bytes())
    }

    fn drawn(&self, answer: &Value) -> Option<Drawn> {
        let at = if *self == Self::Artifacts { "/artifacts" } else { "/images" };
        Drawn::found(answer, at, "base64", "b64_json")
    }

    fn write(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        Converse.write(asked)
    }

    fn read(&self, answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
        Converse.read(answer, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Converse.listener()
    }

    fn error(&self, answer: &[u8]) -> Found {
        chat::error(answer)
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
