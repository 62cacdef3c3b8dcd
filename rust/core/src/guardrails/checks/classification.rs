//! Classification of texts without a guardrail: their language, whether they are gibberish, and their personal data.
//! Requests and results have the JSON shapes of `POST /v1/execute-guardrails/…`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    gibberish, language,
    personal_data::{Category, PersonalData},
};

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum TextClass {
    Language,
    Gibberish,
    Pii,
}

#[derive(Deserialize)]
struct Classification {
    kind: TextClass,
    inputs: Vec<String>,
    #[serde(default)]
    categories: BTreeSet<Category>,
}

/// Classifies texts, given as JSON, and returns a list with one entry for each text.
///
/// # Errors
/// If the JSON is not a classification.
pub fn classify(json: &[u8]) -> Result<Value, String> {
    let Classification { kind, inputs, categories } =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let finder = PersonalData::for_categories(categories);
    let classify = |text: &String| match kind {
        TextClass::Language => language::detect(text)
            .map_or_else(|| json!([]), |(code, confidence)| json!([{"label": code, "score": confidence}])),
        TextClass::Gibberish => {
            json!([{"label": if gibberish::is_gibberish(text) { "gibberish" } else { "clean" }}])
        }
        TextClass::Pii => finder.classify(text),
    };
    Ok(inputs.iter().map(classify).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(body: &Value) -> Value {
        classify(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn names_language_and_gibberish_of_each_text() {
        let german = "Der schnelle braune Fuchs springt über den faulen Hund und läuft dann weiter.";
        let labels = run(&json!({"kind": "language", "inputs": [german, "12"]}));
        assert_eq!((&labels[0][0]["label"], &labels[1]), (&json!("deu_Latn"), &json!([])));
        assert!(labels[0][0]["score"].as_f64().unwrap() > 0.5, "{labels}");
        let labels = run(&json!({"kind": "gibberish", "inputs": [german, "xqzvjkpwgh fghjkdfgqw zxcvbqwrtp"]}));
        assert_eq!((&labels[0][0]["label"], &labels[1][0]["label"]), (&json!("clean"), &json!("gibberish")));
    }

    #[test]
    fn lists_personal_data_and_replaces_it() {
        let labels = run(&json!({"kind": "pii", "inputs": ["ann@example.com called 10.0.0.1", "nothing"],
            "categories": ["EMAIL_ADDRESS"]}));
        assert_eq!(
            labels,
            json!([{"entities": [{"text": "ann@example.com", "labels": {"EMAIL_ADDRESS": 1}}],
                "processed_text": "{{EMAIL_ADDRESS_1}} called 10.0.0.1"},
                {"entities": [], "processed_text": "nothing"}])
        );
    }
}
