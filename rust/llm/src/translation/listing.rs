//! Lists of models, in one shape: `OpenAI`'s, and whose they are.

use serde_json::{Value, json};

use crate::moment;

/// A model as it may be asked for.
pub struct Listed {
    pub id: String,
    /// In seconds since 1970; 0 where nobody says.
    pub created: u64,
    pub owner: String,
}

pub fn told(models: Vec<Listed>, provider: &str) -> Vec<u8> {
    let one = |model: Listed| {
        let owner = if model.owner.is_empty() { provider.to_owned() } else { model.owner };
        json!({"id": model.id, "object": "model", "created": model.created, "owned_by": owner})
    };
    let data: Vec<Value> = models.into_iter().map(one).collect();
    json!({"object": "list", "data": data, "provider": provider}).to_string().into_bytes()
}

/// The same list in the shape that everybody's have, whatever else is said of the models; `None` where it is no list.
pub fn normalised(answer: &[u8], provider: &str) -> Option<Vec<u8>> {
    Some(told(bare(&serde_json::from_slice(answer).ok()?)?, provider))
}

/// The models of a list, be it an array or an object around one.
pub fn bare(answer: &Value) -> Option<Vec<Listed>> {
    let list = ["data", "models"].iter().find_map(|key| answer[key].as_array()).or_else(|| answer.as_array())?;
    let one = |item: &Value| {
        let text = |keys: [&str; 2]| keys.iter().find_map(|key| item[key].as_str()).map(ToOwned::to_owned);
        let made = &item["created_at"];
        let created = item["created"].as_u64().or_else(|| made.as_u64()).or_else(|| moment::seconds(made.as_str()?));
        Some(Listed {
            id: text(["id", "name"])?,
            created: created.unwrap_or_default(),
            owner: text(["owned_by", "organization"]).unwrap_or_default(),
        })
    };
    Some(list.iter().filter_map(one).collect())
}

/// Where the next page of a list begins, if there is one.
pub fn next(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let token = ["nextPageToken", "next_page_token"].iter().find_map(|key| answer[key].as_str())?;
    (!token.is_empty()).then(|| token.to_owned())
}

/// The models of an array under a pointer, by the text behind a key without what stands before it.
pub fn found(answer: &Value, pointer: &str, key: &str, before: &str) -> Option<Vec<Listed>> {
    let one = |item: &Value| {
        let id = item[key].as_str()?;
        Some(Listed { id: id.trim_start_matches(before).to_owned(), created: 0, owner: String::new() })
    };
    Some(answer.pointer(pointer)?.as_array()?.iter().filter_map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_every_shape_become_one_and_what_is_no_list_stays() {
        let told = |answer: &str| normalised(answer.as_bytes(), "p").map(|told| String::from_utf8(told).unwrap());
        let list = |data: &str| Some(format!(r#"{{"object":"list","data":[{data}],"provider":"p"}}"#));
        let model = r#"{"id":"m","object":"model","created":5,"owned_by":"o"}"#;
        assert_eq!(
            told(r#"{"data":[{"id":"m","created":5,"owned_by":"o","context_length":9}],"object":"x"}"#),
            list(model)
        );
        assert_eq!(told(r#"[{"id":"m","created_at":5,"organization":"o"}]"#), list(model));
        let bare = r#"{"id":"m","object":"model","created":0,"owned_by":"p"}"#;
        assert_eq!(told(r#"{"models":[{"name":"m"},{"x":1}]}"#), list(bare));
        assert_eq!(told(r#"{"data":[]}"#), list(""));
        for none in [r#"{"stt":[]}"#, "1", "", "[", r#"{"data":{"id":"m"}}"#] {
            assert_eq!(told(none), None, "{none}");
        }
    }
}
