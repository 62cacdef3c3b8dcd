//! Image generation formats that are specific to one provider: the writer of the request body, and the position of the
//! images in the response.
#![allow(clippy::unnecessary_wraps, reason = "all body writers have one signature, though not all of them can fail")]

use base64::{Engine, engine::general_purpose::STANDARD};
use memchr::memmem;
use serde_json::{Value, json};

use crate::{
    api_format::format::ApiFormat,
    errors::RequestError,
    images::request::{AspectRatio, ImageRequest, ImageResponse},
    provider_format::{ImageFormat, ProviderFormat},
    usage::UsageCounts,
};

/// Writer of a request body.
type BodyWriter = fn(&mut ImageRequest) -> Result<Value, RequestError>;

/// Image generation format of one provider.
pub struct ImageApi {
    write_body: BodyWriter,
    /// JSON pointer to the images in the response.
    images_pointer: &'static str,
    /// Key of the data or the URL in each image, if the images are objects.
    image_key: &'static str,
    /// Key of an image in the client's response: `url` or `b64_json`.
    output_key: &'static str,
    /// True if the request body is a multipart form.
    is_form: bool,
}

/// Creates a format whose images are returned as base64.
const fn base64_format(body: BodyWriter, at: &'static str, key: &'static str) -> ImageApi {
    ImageApi { write_body: body, images_pointer: at, image_key: key, output_key: "b64_json", is_form: false }
}

pub static SILICONFLOW: ProviderFormat = ProviderFormat::of_images(&ImageApi {
    write_body: siliconflow_body,
    images_pointer: "/images",
    image_key: "url",
    output_key: "url",
    is_form: false,
});
pub static HYPERBOLIC: ProviderFormat = ProviderFormat::of_images(&base64_format(hyperbolic_body, "/images", "image"));
pub static SEGMIND: ProviderFormat = ProviderFormat::of_images(&base64_format(segmind_body, "/image", ""));
pub static FIREWORKS: ProviderFormat = ProviderFormat::of_images(&base64_format(fireworks_body, "", "base64"));
pub static WORKERS_AI: ProviderFormat = ProviderFormat::of_images(&base64_format(workers_ai_body, "/result/image", ""));
/// Format of Stability's v1 engines, which take JSON.
pub static STABILITY_V1: ProviderFormat =
    ProviderFormat::of_images(&base64_format(stability_v1_body, "/artifacts", "base64"));
/// Format of Stability's v2 endpoints, which take forms.
pub static STABILITY_V2: ProviderFormat =
    ProviderFormat::of_images(&ImageApi { is_form: true, ..base64_format(stability_v2_body, "/image", "") });
/// Format of Imagen, both in the Gemini API and on Vertex AI.
pub static IMAGEN: ProviderFormat =
    ProviderFormat::of_images(&base64_format(imagen_body, "/predictions", "bytesBase64Encoded"));
/// Format of Gemini models that return images among the parts of a message.
pub static GEMINI: ProviderFormat = ProviderFormat::of_images(&base64_format(gemini_body, "", ""));

/// Field with the source image of image-to-image generation.
const IMAGE_FIELD: &str = "image";

/// Aspect ratios that Stability's models support, according to its API reference.
pub(crate) const STABILITY_RATIOS: [AspectRatio; 9] =
    [(1, 1), (2, 3), (3, 2), (4, 5), (5, 4), (9, 16), (16, 9), (9, 21), (21, 9)];
/// Aspect ratios that Imagen supports, according to Google's API reference.
const IMAGEN_RATIOS: [AspectRatio; 5] = [(1, 1), (3, 4), (4, 3), (9, 16), (16, 9)];
/// Aspect ratios that Gemini's image models support, according to Google's API reference.
const GEMINI_RATIOS: [AspectRatio; 10] =
    [(1, 1), (2, 3), (3, 2), (3, 4), (4, 3), (4, 5), (5, 4), (9, 16), (16, 9), (21, 9)];

/// Boundary of multipart forms. A field that contains it is rejected.
const BOUNDARY: &str = "penstock-form-5f0c1d7e9ab24836";

fn siliconflow_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    let mut out = json!({"model": picture.model, "prompt": picture.prompt});
    if let Some((wide, high)) = picture.size.take() {
        out["image_size"] = format!("{wide}x{high}").into();
    }
    picture.move_count(&mut out, "batch_size");
    picture.move_fields(
        &["image_size", "batch_size", "num_inference_steps", "guidance_scale", "negative_prompt", "seed"],
        &mut out,
    );
    // SiliconFlow returns only URLs.
    if picture.fields.shift_remove("response_format").is_some_and(|format| format != "url") {
        picture.dropped_params.add("response_format");
    }
    Ok(out)
}

fn hyperbolic_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    picture.reject_multiple_images()?;
    let mut out = json!({"model_name": picture.model, "prompt": picture.prompt});
    picture.move_dimensions(&mut out, "width", "height");
    picture.move_fields(
        &["height", "width", "backend", "steps", "cfg_scale", "negative_prompt", "seed", "enable_refiner"],
        &mut out,
    );
    Ok(out)
}

fn segmind_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    // The gateway always requests base64, whatever the client sends here.
    picture.fields.shift_remove("base64");
    let mut out = json!({"prompt": picture.prompt, "base64": true});
    picture.move_limited_count(10, &mut out, "samples");
    picture.move_dimensions(&mut out, "img_width", "img_height");
    picture.move_field("steps", &mut out, "num_inference_steps");
    picture.move_field("qr_size", &mut out, "size");
    picture.move_fields(
        &[
            "style",
            "negative_prompt",
            "scheduler",
            "guidance_scale",
            "seed",
            "strength",
            "refiner",
            "control_scale",
            "high_noise_fraction",
            "control_start",
            "control_end",
            "qr_text",
            "invert",
            "num_inference_steps",
        ],
        &mut out,
    );
    Ok(out)
}

fn fireworks_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    let mut out = json!({"prompt": picture.prompt});
    picture.move_limited_count(10, &mut out, "samples");
    picture.move_dimensions(&mut out, "width", "height");
    picture.move_fields(
        &[
            "cfg_scale",
            "sampler",
            "seed",
            "steps",
            "safety_check",
            "negative_prompt",
            "lora_adapter_name",
            "lora_weight_filename",
        ],
        &mut out,
    );
    Ok(out)
}

fn workers_ai_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    picture.reject_multiple_images()?;
    let mut out = json!({"prompt": picture.prompt});
    picture.move_dimensions(&mut out, "width", "height");
    picture.move_fields(&["negative_prompt", "steps", "num_steps", "guidance", "seed"], &mut out);
    // Each Workers AI model reads only one of the two names, so the value is sent under both.
    let steps = ["steps", "num_steps"].iter().find_map(|name| out.get(*name)).cloned();
    if let Some(steps) = steps {
        for name in ["num_steps", "steps"] {
            if out.get(name).is_none() {
                out[name] = steps.clone();
            }
        }
    }
    Ok(out)
}

fn stability_v1_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    Ok(stable_diffusion_xl_body(picture))
}

fn stability_v2_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    picture.reject_multiple_images()?;
    let mut out = json!({"prompt": picture.prompt});
    // Several models share this path.
    let is_sd3 = picture.model.starts_with("sd3");
    write_source_image(picture, is_sd3, picture.model == "core", &mut out)?;
    picture.move_aspect_ratio(&mut out, "aspect_ratio", &STABILITY_RATIOS);
    picture.move_fields(
        &["aspect_ratio", "negative_prompt", "seed", "style_preset", "mode", "strength", "output_format", "cfg_scale"],
        &mut out,
    );
    if is_sd3 {
        out["model"] = picture.model.as_str().into();
    }
    Ok(out)
}

/// Writes the source image, if there is one. Used for Stability's models in its own API and on Bedrock.
pub(crate) fn write_source_image(
    picture: &mut ImageRequest,
    is_sd3: bool,
    is_core: bool,
    out: &mut Value,
) -> Result<(), RequestError> {
    let Some(image) = picture.fields.shift_remove(IMAGE_FIELD).filter(|image| !image.is_null()) else { return Ok(()) };
    if is_core {
        return Err(RequestError::new(
            IMAGE_FIELD,
            "this model does not accept an input image; it generates images from text only",
        ));
    }
    out[IMAGE_FIELD] = image_base64(&image)?.into();
    if is_sd3 {
        out["mode"] = "image-to-image".into();
        // The output has the dimensions of the source image.
        let is_shaped = picture.size.take().is_some() | picture.fields.shift_remove("aspect_ratio").is_some();
        if is_shaped {
            picture.dropped_params.add("aspect_ratio");
        }
    }
    Ok(())
}

/// Returns the base64 data of an image that was sent as base64 or as a data URL.
fn image_base64(image: &Value) -> Result<&str, RequestError> {
    let text = image.as_str().unwrap_or_default();
    let data = match text.split_once(";base64,") {
        Some((head, data)) if head.starts_with("data:") => data,
        _ => text,
    };
    match STANDARD.decode(data) {
        Ok(bytes) if !bytes.is_empty() => Ok(data),
        _ => Err(RequestError::new(IMAGE_FIELD, "must be an image as base64, or as a data URL")),
    }
}

fn imagen_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    let mut parameters = json!({});
    picture.move_limited_count(8, &mut parameters, "sampleCount");
    picture.move_aspect_ratio(&mut parameters, "aspectRatio", &IMAGEN_RATIOS);
    for (key, name) in [("style", "sampleImageStyle"), ("negative_prompt", "negativePrompt")] {
        picture.move_field(key, &mut parameters, name);
    }
    let more = [
        "aspectRatio",
        "seed",
        "negativePrompt",
        "personGeneration",
        "safetySetting",
        "addWatermark",
        "sampleImageSize",
    ];
    picture.move_fields(&more, &mut parameters);
    if let Some(kind) = picture.fields.shift_remove("mimeType") {
        parameters["outputOptions"] = json!({"mimeType": kind});
    }
    if let Some(quality) = picture.fields.shift_remove("quality").filter(|quality| !quality.is_null()) {
        let quality = match quality.as_str() {
            Some("hd" | "high") => json!(100),
            Some(_) => json!(75),
            None => quality,
        };
        parameters["outputOptions"]["compressionQuality"] = quality;
    }
    Ok(json!({"instances": [{"prompt": picture.prompt}], "parameters": parameters}))
}

fn gemini_body(picture: &mut ImageRequest) -> Result<Value, RequestError> {
    picture.reject_multiple_images()?;
    let mut config = json!({"responseModalities": ["TEXT", "IMAGE"]});
    let mut image = json!({});
    picture.move_aspect_ratio(&mut image, "aspectRatio", &GEMINI_RATIOS);
    if image != json!({}) {
        config["imageConfig"] = image;
    }
    picture.move_field("seed", &mut config, "seed");
    Ok(json!({"contents": [{"role": "user", "parts": [{"text": picture.prompt}]}], "generationConfig": config}))
}

/// Reads the images among the parts of a Gemini response.
fn read_gemini_images(response: &Value) -> Option<ImageResponse> {
    let parts = response.pointer("/candidates/0/content/parts")?.as_array()?;
    let data = parts.iter().filter_map(|part| Some(json!({"b64_json": part["inlineData"]["data"].as_str()?})));
    let mut counts = UsageCounts::default();
    counts.read_usage(response["usageMetadata"].to_string().as_bytes());
    ImageResponse::from_images(data.collect())
        .map(|drawn| ImageResponse { usage: counts.to_usage(ApiFormat::Gemini), ..drawn })
}

/// Encodes a multipart form of text fields, with the source image as a file.
fn encode_form(fields: &Value) -> Result<Vec<u8>, RequestError> {
    let mut out = Vec::new();
    for (name, value) in fields.as_object().into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let (file, bytes) = match STANDARD.decode(&text) {
            Ok(bytes) if name == IMAGE_FIELD => {
                ("; filename=\"image\"\r\ncontent-type: application/octet-stream", bytes)
            }
            _ => ("", text.into_bytes()),
        };
        if memmem::find(&bytes, BOUNDARY.as_bytes()).is_some() {
            return Err(RequestError::new(name, "must not contain the form's boundary"));
        }
        let head = format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&bytes);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    Ok(out)
}

/// Writes the Stable Diffusion XL body, which Bedrock and Stability's own API share.
pub(crate) fn stable_diffusion_xl_body(picture: &mut ImageRequest) -> Value {
    let mut prompts = vec![json!({"text": picture.prompt, "weight": 1})];
    if let Some(text) = picture.fields.shift_remove("negative_prompt") {
        prompts.push(json!({"text": text, "weight": -1}));
    }
    let mut out = json!({"text_prompts": prompts});
    picture.move_count(&mut out, "samples");
    picture.move_dimensions(&mut out, "width", "height");
    picture.move_fields(
        &["cfg_scale", "clip_guidance_preset", "sampler", "seed", "steps", "style_preset", "extras"],
        &mut out,
    );
    out
}

impl ImageFormat for ImageApi {
    fn write_image_request(&self, picture: &mut ImageRequest) -> Result<Vec<u8>, RequestError> {
        let body = (self.write_body)(picture)?;
        if self.is_form { encode_form(&body) } else { Ok(body.to_string().into_bytes()) }
    }

    fn read_images(&self, response: &Value) -> Option<ImageResponse> {
        if response.get("candidates").is_some() {
            return read_gemini_images(response);
        }
        ImageResponse::parse_images_at(response, self.images_pointer, self.image_key, self.output_key)
    }

    fn image_request_content_type(&self) -> String {
        if self.is_form { format!("multipart/form-data; boundary={BOUNDARY}") } else { "application/json".into() }
    }
}
