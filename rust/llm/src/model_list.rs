//! Model lists of all providers in the format of the client's API, with the owner of each model.

use serde_json::{Value, json};

use crate::timestamp;

/// Format of a model list. An SDK reads only the format of its own API.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum ModelListShape {
    #[default]
    OpenAi,
    Anthropic,
    Gemini,
    Cohere,
}

/// Model in a list, under the ID that requests use.
pub struct ListedModel {
    pub id: String,
    /// Creation time in seconds since 1970; 0 if unknown.
    pub created: u64,
    pub owner: String,
}

/// Encodes all models as a single page.
pub fn encode_list(shape: ModelListShape, models: Vec<ListedModel>, provider: &str) -> Vec<u8> {
    match shape {
        ModelListShape::OpenAi => encode_openai_list(models, provider),
        ModelListShape::Anthropic => encode_anthropic_list(&models),
        ModelListShape::Gemini => encode_named_list(
            &models,
            |id| json!({"name": format!("models/{}", id.trim_start_matches("models/")), "displayName": id}),
        ),
        ModelListShape::Cohere => encode_named_list(&models, |id| json!({"name": id})),
    }
}

/// Encodes a model list of Google's or Cohere's API, which identifies models by name.
fn encode_named_list(models: &[ListedModel], encode_model: impl Fn(&str) -> Value) -> Vec<u8> {
    let models: Vec<Value> = models.iter().map(|model| encode_model(&model.id)).collect();
    json!({"models": models}).to_string().into_bytes()
}

fn encode_openai_list(models: Vec<ListedModel>, provider: &str) -> Vec<u8> {
    let build_model = |model: ListedModel| {
        let owner = if model.owner.is_empty() { provider.to_owned() } else { model.owner };
        // Mistral's SDK cannot read models without a type.
        json!({"id": model.id, "object": "model", "created": model.created, "owned_by": owner, "type": "model"})
    };
    let data: Vec<Value> = models.into_iter().map(build_model).collect();
    json!({"object": "list", "data": data, "provider": provider}).to_string().into_bytes()
}

fn encode_anthropic_list(models: &[ListedModel]) -> Vec<u8> {
    let build_model = |model: &ListedModel| {
        let (id, created_at) = (&model.id, timestamp::format_rfc3339(model.created));
        json!({"type": "model", "id": id, "display_name": id, "created_at": created_at})
    };
    let data: Vec<Value> = models.iter().map(build_model).collect();
    let id = |model: Option<&ListedModel>| model.map(|model| model.id.clone());
    let (first, last) = (id(models.first()), id(models.last()));
    json!({"data": data, "has_more": false, "first_id": first, "last_id": last}).to_string().into_bytes()
}

/// Converts a model list to the client's format and drops additional fields. `None` if it is not a model list, or is in
/// Anthropic's format already.
pub fn normalise_list(response: &[u8], provider: &str, shape: ModelListShape) -> Option<Vec<u8>> {
    let response: Value = serde_json::from_slice(response).ok()?;
    let is_anthropic = response.get("has_more").is_some() && response.get("first_id").is_some();
    if shape == ModelListShape::Anthropic && is_anthropic {
        return None;
    }
    Some(encode_list(shape, parse_models(&response)?, provider))
}

/// Parses a model list: an array, an object with one array, or an object with several arrays as Deepgram sends.
pub fn parse_models(response: &Value) -> Option<Vec<ListedModel>> {
    let mut lists = ["data", "models", "results", "output"].iter().filter_map(|key| response[key].as_array());
    if let Some(list) = lists.next().or_else(|| response.as_array()) {
        return Some(list.iter().filter_map(parse_model).collect());
    }
    let voice_lists: Vec<_> = ["stt", "tts"].iter().filter_map(|key| response[key].as_array()).collect();
    (!voice_lists.is_empty()).then(|| voice_lists.into_iter().flatten().filter_map(parse_model).collect())
}

/// Parses a model of a list. Its ID is the name that requests use.
fn parse_model(item: &Value) -> Option<ListedModel> {
    let text = |keys: &[&str]| keys.iter().find_map(|key| item[key].as_str()).map(ToOwned::to_owned);
    let created_at = &item["created_at"];
    let created = item["created"]
        .as_u64()
        .or_else(|| created_at.as_u64())
        .or_else(|| timestamp::parse_rfc3339(created_at.as_str()?));
    // The `id` in Azure's registry cannot be used in requests.
    let id = text(&["id", "modelId", "canonical_name", "name"]).filter(|id| !id.starts_with("azureml://"));
    let id = id.or_else(|| text(&["name"]))?;
    // Providers that host models of many owners identify a model by owner and name.
    let owner = text(&["owner"]);
    Some(ListedModel {
        id: owner.as_ref().filter(|_| item.get("id").is_none()).map_or(id.clone(), |owner| format!("{owner}/{id}")),
        created: created.unwrap_or_default(),
        owner: text(&["owned_by", "organization", "publisher"]).or(owner).unwrap_or_default(),
    })
}

/// Returns the token of the next page of a list; `None` if this is the last page.
pub fn next_page_token(response: &[u8]) -> Option<String> {
    let response: Value = serde_json::from_slice(response).ok()?;
    let token = ["nextPageToken", "next_page_token"].iter().find_map(|key| response[key].as_str())?;
    (!token.is_empty()).then(|| token.to_owned())
}

/// Parses the models in the array at a JSON pointer. The ID is the string at `key` without the prefix `before`.
pub fn parse_models_at(response: &Value, pointer: &str, key: &str, before: &str) -> Option<Vec<ListedModel>> {
    let entry = |item: &Value| {
        let id = item[key].as_str()?;
        Some(ListedModel { id: id.trim_start_matches(before).to_owned(), created: 0, owner: String::new() })
    };
    Some(response.pointer(pointer)?.as_array()?.iter().filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_lists_of_every_shape_and_ignores_other_bodies() {
        let normalised = |response: &str| {
            normalise_list(response.as_bytes(), "p", ModelListShape::OpenAi)
                .map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let list = |data: &str| Some(format!(r#"{{"object":"list","data":[{data}],"provider":"p"}}"#));
        let model = r#"{"id":"m","object":"model","created":5,"owned_by":"o","type":"model"}"#;
        assert_eq!(
            normalised(r#"{"data":[{"id":"m","created":5,"owned_by":"o","context_length":9}],"object":"x"}"#),
            list(model)
        );
        assert_eq!(normalised(r#"[{"id":"m","created_at":5,"organization":"o"}]"#), list(model));
        let bare = r#"{"id":"m","object":"model","created":0,"owned_by":"p","type":"model"}"#;
        assert_eq!(normalised(r#"{"models":[{"name":"m"},{"x":1}]}"#), list(bare));
        assert_eq!(normalised(r#"{"data":[]}"#), list(""));
        for (list, id, owner) in [
            (r#"{"stt":[{"name":"general","canonical_name":"nova-3"}],"tts":[]}"#, "nova-3", "p"),
            (r#"{"next":null,"results":[{"owner":"o","name":"m"}]}"#, "o/m", "o"),
            (r#"{"error":null,"output":[{"task":"chat","modelId":"o/m","name":"m"}]}"#, "o/m", "p"),
            (r#"[{"id":"azureml://registries/r/models/m/versions/1","name":"m","publisher":"P"}]"#, "m", "P"),
        ] {
            let parsed: Value = serde_json::from_str(&normalised(list).unwrap()).unwrap();
            let first = &parsed["data"][0];
            assert_eq!((first["id"].as_str(), first["owned_by"].as_str()), (Some(id), Some(owner)), "{list}");
        }
        for none in [r#"{"voices":[]}"#, "1", "", "[", r#"{"data":{"id":"m"}}"#] {
            assert_eq!(normalised(none), None, "{none}");
        }
    }

    #[test]
    fn converts_lists_to_the_anthropic_format() {
        let normalised = |response: &str| {
            let bytes = normalise_list(response.as_bytes(), "p", ModelListShape::Anthropic)?;
            serde_json::from_slice::<Value>(&bytes).ok()
        };
        let models = r#"{"object":"list","data":[{"id":"a","created":1700000000},{"id":"b"}]}"#;
        let data = json!([
            {"type": "model", "id": "a", "display_name": "a", "created_at": "2023-11-14T22:13:20Z"},
            {"type": "model", "id": "b", "display_name": "b", "created_at": "1970-01-01T00:00:00Z"},
        ]);
        assert_eq!(normalised(models), Some(json!({"data": data, "has_more": false, "first_id": "a", "last_id": "b"})));
        let none = json!({"data": [], "has_more": false, "first_id": null, "last_id": null});
        assert_eq!(normalised(r#"{"data":[]}"#), Some(none.clone()));
        assert_eq!((normalised(&none.to_string()), normalised("1")), (None, None));
    }

    #[test]
    fn converts_lists_to_the_formats_of_google_and_cohere() {
        let theirs = br#"{"object":"list","data":[{"id":"a","created":5},{"id":"models/b"}]}"#;
        let normalised = |shape| serde_json::from_slice::<Value>(&normalise_list(theirs, "p", shape).unwrap()).unwrap();
        assert_eq!(
            normalised(ModelListShape::Gemini),
            json!({"models": [{"name": "models/a", "displayName": "a"},
                {"name": "models/b", "displayName": "models/b"}]})
        );
        assert_eq!(normalised(ModelListShape::Cohere), json!({"models": [{"name": "a"}, {"name": "models/b"}]}));
    }
}
