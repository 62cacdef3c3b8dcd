//! Embedding formats that are specific to one provider.

use serde_json::{Value, json};

use crate::{
    chat::{providers::openai_chat, request::Source},
    embeddings::request::{EmbeddingInput, EmbeddingRequest, EmbeddingResponse, Video},
    errors::RequestError,
    fields::Fields,
    provider_format::{EmbeddingFormat, ProviderFormat},
};

/// Embedding format of one provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingApi {
    Nomic,
    /// Google's models on Vertex AI (`predict`).
    VertexPredict,
    /// Voyage's multimodal models, which embed text and images together.
    VoyageMultimodal,
}

pub static NOMIC: ProviderFormat = ProviderFormat::of_embeddings(&EmbeddingApi::Nomic);
pub static VERTEX_PREDICT: ProviderFormat = ProviderFormat::of_embeddings(&EmbeddingApi::VertexPredict);
pub static VOYAGE_MULTIMODAL: ProviderFormat = ProviderFormat::of_embeddings(&EmbeddingApi::VoyageMultimodal);

fn nomic_body(texts: &mut EmbeddingRequest) -> Value {
    let mut out = json!({"model": texts.model, "texts": std::mem::take(&mut texts.texts)});
    if let Some(dimensions) = texts.dimensions.take() {
        out["dimensionality"] = dimensions;
    }
    if let Some(task) = texts.take_task_type() {
        out["task_type"] = task;
    }
    for key in ["long_text_mode", "dimensionality"] {
        if let Some(value) = texts.fields.shift_remove(key) {
            out[key] = value;
        }
    }
    out
}

/// Returns true for Google's multimodal model, which has its own request format.
fn is_multimodal(model: &str) -> bool {
    model.contains("multimodalembedding")
}

fn vertex_multimodal_body(texts: &mut EmbeddingRequest) -> Result<Value, RequestError> {
    let mut items = std::mem::take(&mut texts.multimodal_inputs);
    items.extend(std::mem::take(&mut texts.texts).into_iter().map(EmbeddingInput::from_text));
    let instances =
        items.into_iter().enumerate().map(|(at, item)| multimodal_instance(at, item)).collect::<Result<Value, _>>()?;
    let mut out = json!({"instances": instances});
    if let Some(dimensions) = texts.dimensions.take() {
        out["parameters"]["dimension"] = dimensions;
    }
    Ok(out)
}

/// Writes one instance. Its text, its image and each segment of its video get a vector each.
fn multimodal_instance(at: usize, item: EmbeddingInput) -> Result<Value, RequestError> {
    let mut out = json!({});
    if let Some(text) = item.text {
        out["text"] = text.into();
    }
    if let Some(image) = item.image {
        out["image"] = media_object(image, true, &format!("input[{at}].image"))?;
    }
    if let Some(Video { source, segment_options: segment }) = item.video {
        out["video"] = media_object(source, false, &format!("input[{at}].video"))?;
        for (key, value) in ["startOffsetSec", "endOffsetSec", "intervalSec"].into_iter().zip(segment) {
            if let Some(value) = value {
                out["video"]["videoSegmentConfig"][key] = value;
            }
        }
    }
    Ok(out)
}

/// Writes an image or a video, either as base64 data or as a Cloud Storage URI.
fn media_object(source: Source, is_typed: bool, path: &str) -> Result<Value, RequestError> {
    match source {
        Source::Data { data, mime } if is_typed => Ok(json!({"bytesBase64Encoded": data, "mimeType": mime})),
        Source::Data { data, .. } => Ok(json!({"bytesBase64Encoded": data})),
        Source::Url { url, .. } if url.starts_with("gs://") => Ok(json!({"gcsUri": url})),
        _ => Err(RequestError::new(path, "must be sent as bytes, or be an object of Google's storage (gs://)")),
    }
}

fn voyage_multimodal_body(texts: &mut EmbeddingRequest) -> Result<Value, RequestError> {
    let mut items = std::mem::take(&mut texts.multimodal_inputs);
    items.extend(std::mem::take(&mut texts.texts).into_iter().map(EmbeddingInput::from_text));
    let build_instance = |(at, EmbeddingInput { text, image, .. }): (usize, EmbeddingInput)| {
        let mut content: Vec<_> = text.iter().map(|text| json!({"type": "text", "text": text})).collect();
        match image {
            None => (),
            Some(Source::Url { url, .. }) => content.push(json!({"type": "image_url", "image_url": url})),
            Some(Source::Data { mime, data }) => {
                content.push(json!({"type": "image_base64", "image_base64": format!("data:{mime};base64,{data}")}));
            }
            Some(_) => return Err(RequestError::new(format!("input[{at}].image"), "must be sent as bytes or by URL")),
        }
        Ok(json!({"content": content}))
    };
    let inputs = items.into_iter().enumerate().map(build_instance).collect::<Result<Value, _>>()?;
    let mut out = json!({"model": texts.model, "inputs": inputs});
    for key in ["input_type", "truncation"] {
        if let Some(value) = texts.fields.shift_remove(key) {
            out[key] = value;
        }
    }
    if let Some(dimensions) = texts.dimensions.take() {
        out["output_dimension"] = dimensions;
    }
    Ok(out)
}

fn vertex_text_body(texts: &mut EmbeddingRequest) -> Value {
    let task = texts.fields.shift_remove("task_type");
    let build_instance = |text: String| {
        let mut instance = json!({"content": text});
        if let Some(task) = &task {
            instance["task_type"] = task.clone();
        }
        instance
    };
    let instances: Vec<_> = std::mem::take(&mut texts.texts).into_iter().map(build_instance).collect();
    let mut out = json!({"instances": instances});
    // Copies only an object, because fields are added to it.
    if let Some(cited_result @ Value::Object(_)) = texts.fields.get("parameters") {
        out["parameters"] = cited_result.clone();
        texts.fields.shift_remove("parameters");
    }
    if let Some(dimensions) = texts.dimensions.take() {
        out["parameters"]["outputDimensionality"] = dimensions;
    }
    out
}

fn read_predictions(response: &Value) -> Option<EmbeddingResponse> {
    let predictions = response["predictions"].as_array()?;
    let pointers = ["/textEmbedding", "/imageEmbedding", "/videoEmbeddings/0/embedding", "/embeddings/values"];
    let find_vector = |item: &Value| pointers.iter().find_map(|at| item.pointer(at)).cloned().unwrap_or_default();
    let vectors = predictions.iter().map(find_vector).collect();
    let hints = predictions.iter().map(media_embeddings).collect();
    let tokens = predictions.iter().map(|item| item["embeddings"]["statistics"]["token_count"].as_f64());
    #[allow(clippy::cast_sign_loss)] // The cast saturates: a negative value becomes zero.
    let tokens = tokens.sum::<Option<f64>>().map(|tokens| tokens as u64);
    Some(EmbeddingResponse { vectors, token_count: tokens, extra_fields: hints })
}

/// Returns the vectors of the image and the video segments, each under a field of its own.
fn media_embeddings(item: &Value) -> Fields {
    let mut out = Fields::new();
    if let Some(image) = item.get("imageEmbedding") {
        out.insert("image_embedding".into(), image.clone());
    }
    if let Some(segments) = item["videoEmbeddings"].as_array() {
        let to_entry = |(index, segment): (usize, &Value)| {
            json!({"object": "embedding", "index": index, "start_offset": segment["startOffsetSec"],
                "end_offset": segment["endOffsetSec"], "embedding": segment["embedding"]})
        };
        out.insert("video_embeddings".into(), segments.iter().enumerate().map(to_entry).collect());
    }
    out
}

impl EmbeddingFormat for EmbeddingApi {
    fn can_embed_images(&self, model: &str) -> bool {
        *self == Self::VoyageMultimodal || *self == Self::VertexPredict && is_multimodal(model)
    }

    fn can_embed_video(&self, model: &str) -> bool {
        *self == Self::VertexPredict && is_multimodal(model)
    }

    fn write_embedding_request(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        let out = match self {
            Self::Nomic => nomic_body(texts),
            Self::VertexPredict if is_multimodal(&texts.model) => vertex_multimodal_body(texts)?,
            Self::VertexPredict => vertex_text_body(texts),
            Self::VoyageMultimodal => voyage_multimodal_body(texts)?,
        };
        Ok(out.to_string().into_bytes())
    }

    fn read_embeddings(&self, response: &Value) -> Option<EmbeddingResponse> {
        match self {
            Self::Nomic => Some(EmbeddingResponse {
                vectors: response["embeddings"].as_array()?.clone(),
                token_count: response["usage"]["total_tokens"].as_u64(),
                ..EmbeddingResponse::default()
            }),
            Self::VertexPredict => read_predictions(response),
            Self::VoyageMultimodal => openai_chat::read_embeddings(response),
        }
    }
}
