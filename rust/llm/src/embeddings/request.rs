//! Embeddings: texts out, vectors back, in the shape of who asked.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    chat::{
        providers::Broken,
        request::{Fields, Refusal, Source, body, string},
        response_context::Answering,
    },
    translation::dropped::Lost,
};

/// How a caller reads vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shape {
    #[default]
    Numbers,
    /// As base64 of their numbers.
    Packed,
    /// One, as Google's own clients read it.
    Content,
    /// Any number, likewise.
    Contents,
}

/// What a vector is for, in Google's word and in the one that `Cohere` and `Nomic` have for it.
const PURPOSES: &[(&str, &str)] = &[
    ("RETRIEVAL_QUERY", "search_query"),
    ("RETRIEVAL_DOCUMENT", "search_document"),
    ("CLASSIFICATION", "classification"),
    ("CLUSTERING", "clustering"),
];

/// A picture that is to be embedded, perhaps together with a text; or a text among pictures.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Item {
    pub text: Option<String>,
    pub image: Option<Source>,
    pub video: Option<Video>,
}

impl Item {
    pub fn text(text: String) -> Self {
        Self { text: Some(text), ..Self::default() }
    }
}

/// A film that is to be embedded, piece by piece.
#[derive(Debug, PartialEq, Eq)]
pub struct Video {
    pub source: Source,
    /// Where it begins and ends, and how long a piece is: in seconds, of which each may be missing.
    pub segment: [Option<Value>; 3],
}

/// What is to be embedded.
#[derive(Debug, Default)]
pub struct Texts {
    pub model: String,
    pub inputs: Vec<String>,
    /// All that is to be embedded, where there are pictures among it; then there are no `inputs`.
    pub items: Vec<Item>,
    pub dimensions: Option<Value>,
    /// Where they stand in the caller's body.
    pub path: &'static str,
    pub shape: Shape,
    /// Everything else, of which a wire takes what it knows.
    pub fields: Fields,
}

impl Texts {
    pub fn read(json: &[u8]) -> Result<Self, Refusal> {
        let mut fields = body(json)?;
        let mut items = match fields.shift_remove("input") {
            Some(Value::String(text)) => vec![Item::text(text)],
            Some(Value::Array(items)) => items.into_iter().enumerate().map(item).collect::<Result<_, _>>()?,
            _ => return Err(Refusal::new("input", "must be a string, or an array of strings and pictures")),
        };
        let shape = match fields.get("encoding_format") {
            Some(format) if format == "base64" => Shape::Packed,
            _ => Shape::Numbers,
        };
        // Vectors come as numbers or as these bytes: who wants bits or small numbers is told that they got others.
        if fields.get("encoding_format").is_some_and(|format| format == "float" || shape == Shape::Packed) {
            fields.shift_remove("encoding_format");
        }
        let mut inputs = Vec::new();
        if items.iter().all(|item| item.image.is_none() && item.video.is_none()) {
            inputs = std::mem::take(&mut items).into_iter().filter_map(|item| item.text).collect();
        }
        Ok(Self {
            model: string(&mut fields, "model").unwrap_or_default(),
            inputs,
            items,
            dimensions: fields.shift_remove("dimensions").filter(|dimensions| !dimensions.is_null()),
            path: "input",
            shape,
            fields,
        })
    }

    /// What the vectors are for, in the word of `Cohere` and `Nomic`; what they have no word for stays.
    pub fn purpose(&mut self) -> Option<Value> {
        let said = self.fields.get("task_type")?.as_str()?;
        let word = match PURPOSES.iter().find(|(googles, _)| *googles == said) {
            Some((_, word)) => *word,
            None if said.bytes().any(|byte| byte.is_ascii_uppercase()) => return None,
            None => said,
        };
        let word = Value::from(word);
        self.fields.shift_remove("task_type");
        Some(word)
    }

    pub fn into_lost(self) -> Lost {
        let mut lost = Lost::default();
        self.fields.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, _)| lost.add(key));
        lost
    }
}

/// A text, `{"text", "image": {"base64" or "url", "mime_type"}, "video": {likewise, "start_offset", "end_offset", "interval"}}`, or
/// a part as chats have it.
fn item((at, value): (usize, Value)) -> Result<Item, Refusal> {
    let path = || format!("input[{at}]");
    let mut fields = match value {
        Value::String(text) => return Ok(Item::text(text)),
        Value::Object(fields) => fields,
        _ => return Err(Refusal::new(path(), "must be a string, or an object with `text` or `image`")),
    };
    let kind = string(&mut fields, "type");
    let text = string(&mut fields, "text");
    let key = if kind.as_deref() == Some("image_url") { "image_url" } else { "image" };
    let image = fields.shift_remove(key).map(|image| {
        source(image).ok_or_else(|| Refusal::new(format!("input[{at}].{key}"), "must have `base64` or `url`"))
    });
    let image = image.transpose()?;
    let video = fields.shift_remove("video").map(|video| {
        film(video).ok_or_else(|| Refusal::new(format!("input[{at}].video"), "must have `base64` or `url`"))
    });
    let video = video.transpose()?;
    if let Some(other) = fields.keys().next() {
        return Err(Refusal::new(format!("input[{at}].{other}"), "cannot be embedded here: `text` and `image` can"));
    }
    if text.is_none() && image.is_none() && video.is_none() {
        return Err(Refusal::new(path(), "must have `text` or `image`"));
    }
    Ok(Item { text, image, video })
}

fn film(video: Value) -> Option<Video> {
    let mut video = video;
    let fields = video.as_object_mut()?;
    let segment = ["start_offset", "end_offset", "interval"].map(|key| fields.shift_remove(key));
    source(video).map(|source| Video { source, segment })
}

fn source(image: Value) -> Option<Source> {
    let mut fields = match image {
        Value::String(url) => return Some(Source::of_url(url, None)),
        Value::Object(fields) => fields,
        _ => return None,
    };
    let mime = string(&mut fields, "mime_type");
    if let Some(data) = string(&mut fields, "base64") {
        // Some send it as an address.
        let plain = |data| Source::Data { mime: mime.clone().unwrap_or_else(|| "image/png".to_owned()), data };
        return Some(if data.starts_with("data:") { Source::of_url(data, mime) } else { plain(data) });
    }
    string(&mut fields, "url").map(|url| Source::of_url(url, mime))
}

/// The vectors of an answer, and the tokens that they cost where the provider says so.
#[derive(Default)]
#[allow(clippy::struct_field_names, reason = "they are what it is for")]
pub struct Vectors {
    pub vectors: Vec<Value>,
    pub tokens: Option<u64>,
    /// What else there is of each, where something was shown that has several.
    pub beside: Vec<Fields>,
}

impl Vectors {
    /// As the caller is told.
    pub fn told(self, answering: &Answering, shape: Shape) -> Result<Vec<u8>, Broken> {
        if matches!(shape, Shape::Content | Shape::Contents) {
            return self.into_contents(shape);
        }
        let mut data = Vec::with_capacity(self.vectors.len());
        for (index, vector) in self.vectors.into_iter().enumerate() {
            let embedding = if shape == Shape::Packed { packed(&vector)? } else { vector };
            let mut one = json!({"object": "embedding", "index": index, "embedding": embedding});
            if let (Some(one), Some(more)) = (one.as_object_mut(), self.beside.get(index)) {
                one.extend(more.clone());
            }
            data.push(one);
        }
        let mut answer =
            json!({"object": "list", "data": data, "model": answering.model, "provider": answering.provider});
        if let Some(tokens) = self.tokens {
            answer["usage"] = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        }
        Ok(answer.to_string().into_bytes())
    }

    /// As Google's own clients read them.
    fn into_contents(self, shape: Shape) -> Result<Vec<u8>, Broken> {
        let mut vectors = self.vectors.into_iter().map(|vector| json!({"values": vector}));
        let mut answer = if shape == Shape::Content {
            json!({"embedding": vectors.next().ok_or_else(|| Broken("it has no vector".into()))?})
        } else {
            json!({"embeddings": vectors.collect::<Value>()})
        };
        if let Some(tokens) = self.tokens {
            answer["usageMetadata"] = json!({"promptTokenCount": tokens, "totalTokenCount": tokens});
        }
        Ok(answer.to_string().into_bytes())
    }
}

/// Four bytes for each number, the least significant first.
fn packed(vector: &Value) -> Result<Value, Broken> {
    let numbers = vector.as_array().ok_or_else(|| Broken("a vector is no array".into()))?;
    #[allow(clippy::cast_possible_truncation)] // That is what the format is.
    let bytes = numbers.iter().flat_map(|number| (number.as_f64().unwrap_or_default() as f32).to_le_bytes());
    Ok(STANDARD.encode(bytes.collect::<Vec<_>>()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_vector_is_its_numbers_in_four_bytes_each() {
        assert_eq!(packed(&json!([1.0, -0.5])).unwrap(), "AACAPwAAAL8=");
        assert!(packed(&json!("x")).is_err());
    }

    #[test]
    fn what_vectors_are_for_has_a_word_of_each_vendors() {
        let texts = |task: &str| {
            let mut texts = Texts::default();
            texts.fields.insert("task_type".into(), task.into());
            (texts.purpose(), texts.into_lost().text())
        };
        assert_eq!(texts("RETRIEVAL_QUERY"), (Some("search_query".into()), String::new()));
        assert_eq!(texts("search_document"), (Some("search_document".into()), String::new()));
        assert_eq!(texts("FACT_VERIFICATION"), (None, "task_type".into()));
    }

    #[test]
    fn a_form_of_vectors_that_is_not_told_is_named() {
        for (format, shape, lost) in
            [("float", Shape::Numbers, ""), ("base64", Shape::Packed, ""), ("int8", Shape::Numbers, "encoding_format")]
        {
            let texts = Texts::read(json!({"input": "a", "encoding_format": format}).to_string().as_bytes()).unwrap();
            assert_eq!((texts.shape, texts.into_lost().text()), (shape, lost.into()), "{format}");
        }
    }

    #[test]
    fn tokens_are_no_texts() {
        assert_eq!(Texts::read(b"{\"input\":[1,2]}").unwrap_err().path, "input[0]");
        assert_eq!(Texts::read(b"{\"input\":\"a\"}").unwrap().inputs, ["a"]);
    }

    #[test]
    fn pictures_are_read_in_either_form_and_nothing_else_is() {
        let read = |item: Value| Texts::read(json!({"input": ["a", item]}).to_string().as_bytes());
        let png = || Source::Data { mime: "image/png".into(), data: "aGk=".into() };
        for image in [
            json!({"image": {"base64": "aGk="}}),
            json!({"image": {"base64": "data:image/png;base64,aGk="}}),
            json!({"image": "data:image/png;base64,aGk="}),
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}),
        ] {
            let texts = read(image).unwrap();
            let expected = [Item::text("a".into()), Item { image: Some(png()), ..Item::default() }];
            assert_eq!((texts.inputs.len(), &texts.items[..]), (0, &expected[..]));
        }
        assert_eq!(read(json!({"type": "text", "text": "b"})).unwrap().inputs, ["a", "b"]);
        for (item, path) in [
            (json!({"audio": {"url": "gs://a/b.mp3"}}), "input[1].audio"),
            (json!({"video": {"start_offset": 1}}), "input[1].video"),
            (json!({"image": {}}), "input[1].image"),
            (json!({}), "input[1]"),
            (json!([1]), "input[1]"),
        ] {
            assert_eq!(read(item).unwrap_err().path, path);
        }
    }
}
