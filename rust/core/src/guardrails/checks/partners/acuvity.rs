//! Acuvity scans. The API key is a token that names the host.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{BEARER, PARTNER, Partner, PartnerInput, PartnerReply, ROW, SHARED, compile, findings::Findings};
use crate::guardrails::check::CheckRow;

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "acuvity.scan",
    alias: Some("acuvity.Acuvity"),
    name: "Acuvity",
    description: "fails if Acuvity finds attacks, harmful content, personal data or secrets; can replace the last two",
    schema: r#"{"required":["credentials"],"properties":{"prompt_injection":{"type":"boolean","default":true},"prompt_injection_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"jail_break":{"type":"boolean","default":true},"jail_break_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"malicious_url":{"type":"boolean","default":true},"malicious_url_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"toxic":{"type":"boolean","default":true},"toxic_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"biased":{"type":"boolean","default":true},"biased_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"harmful":{"type":"boolean","default":true},"harmful_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"language":{"type":"boolean","default":false,"description":"true: fails if the text is in `language_values`"},"language_values":{"enum":["english","chinese","spanish","french","german","japanese","gibberish"],"default":"english"},"pii":{"type":"boolean","default":true},"pii_categories":{"type":"array","maxItems":200,"items":{"type":"string","minLength":1},"description":"such as `email_address`; without it, all"},"pii_redact":{"type":"boolean","default":false,"description":"true: replaces the categories, and passes"},"secrets":{"type":"boolean","default":true},"secrets_categories":{"type":"array","maxItems":200,"items":{"type":"string","minLength":1},"description":"such as `github`; without it, all"},"secrets_redact":{"type":"boolean","default":false,"description":"true: replaces the categories, and passes"}}}"#,
    shared: SHARED,
    compile: |parameters| {
        const ACUVITY: Partner = Partner {
            name: "Acuvity",
            base: "{apexUrl}",
            path: "/_acuvity/scan",
            headers: BEARER,
            prepare: prepare_scan,
            build_body: build_scan,
            read_reply: read_acuvity_reply,
            may_change: |parameters| parameters["pii_redact"] == true || parameters["secrets_redact"] == true,
            ..PARTNER
        };
        compile(const { &ACUVITY }, parameters)
    },
    ..ROW
}];

/// Kinds of data with categories: the prefix of the parameters, and the name of the map in a reply.
const REDACTABLE: [(&str, &str); 2] = [("pii", "piIs"), ("secrets", "secrets")];

/// Detectors with a score: the parameter, the name of the map in a reply, and the key in that map.
const SCORED: [(&str, &str, &str); 6] = [
    ("prompt_injection", "exploits", "prompt_injection"),
    ("jail_break", "exploits", "jailbreak"),
    ("malicious_url", "exploits", "malicious_url"),
    ("toxic", "malcontents", "toxic"),
    ("biased", "malcontents", "biased"),
    ("harmful", "malcontents", "harmful"),
];

/// Minimum score at which a text counts as written in a language.
const LANGUAGE_THRESHOLD: f64 = 0.5;

/// Reads the host from the token.
fn prepare_scan(parameters: &mut Value) -> Result<(), (String, String)> {
    for (kind, _) in REDACTABLE {
        if parameters[format!("{kind}_redact")] == true && parameters[format!("{kind}_categories")].is_null() {
            return Err((format!(".{kind}_categories"), format!("is needed if `{kind}_redact` is true")));
        }
    }
    let token = parameters["credentials"]["apiKey"].as_str().unwrap_or_default();
    let claims = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok());
    let claims: Value = claims.and_then(|claims| serde_json::from_slice(&claims).ok()).unwrap_or_default();
    let url = claims["opaque"]["apex-url"].clone();
    if !url.is_string() && parameters["baseURL"].is_null() {
        let message = "must be a token of Acuvity that names a host; or set `baseURL`";
        return Err((".credentials.apiKey".to_owned(), message.to_owned()));
    }
    parameters["apexUrl"] = url;
    Ok(())
}

fn build_scan(input: &PartnerInput<'_>) -> Value {
    let mut redactions: Vec<&Value> = Vec::new();
    for (kind, _) in REDACTABLE {
        if redacts_kind(input.parameters, kind) {
            redactions.extend(input.parameters[format!("{kind}_categories")].as_array().into_iter().flatten());
        }
    }
    json!({"anonymization": "FixedSize", "messages": input.texts(), "redactions": redactions,
        "type": if input.is_output() { "Output" } else { "Input" }})
}

fn redacts_kind(parameters: &Value, kind: &str) -> bool {
    parameters[kind] == true && parameters[format!("{kind}_redact")] == true
}

fn read_acuvity_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let extractions = reply.json["extractions"].as_array().filter(|extractions| !extractions.is_empty())?;
    let parameters = reply.parameters;
    let mut findings = Findings::default();
    for extraction in extractions {
        for (parameter, map, key) in SCORED {
            let threshold = parameters[format!("{parameter}_threshold")].as_f64()?;
            let is_found = extraction[map][key].as_f64().is_some_and(|score| score >= threshold);
            if parameters[parameter] == true && is_found {
                findings.failed.push(key.to_owned());
            }
        }
        let language = parameters["language_values"].as_str()?;
        let score = extraction["languages"][language].as_f64();
        if parameters["language"] == true && score.is_some_and(|score| score >= LANGUAGE_THRESHOLD) {
            findings.failed.push(format!("language {language}"));
        }
        for (kind, map) in REDACTABLE {
            let categories = find_categories(parameters, kind, &extraction[map]);
            let list = if redacts_kind(parameters, kind) { &mut findings.replaceable } else { &mut findings.failed };
            list.extend(categories);
        }
    }
    if !findings.replaceable.is_empty() {
        let texts: Option<Vec<String>> =
            extractions.iter().map(|extraction| extraction["data"].as_str().map(ToOwned::to_owned)).collect();
        findings.replaced = texts;
    }
    Some(findings)
}

/// Returns the categories of a kind that were found, and that the parameters list.
fn find_categories(parameters: &Value, kind: &str, scores: &Value) -> Vec<String> {
    let listed = parameters[format!("{kind}_categories")].as_array();
    let is_listed = |name: &str| {
        listed.is_none_or(|listed| {
            listed.iter().filter_map(Value::as_str).any(|category| category.eq_ignore_ascii_case(name))
        })
    };
    if parameters[kind] != true {
        return Vec::new();
    }
    let names = scores.as_object().into_iter().flatten().map(|(name, _)| name);
    names.filter(|name| is_listed(name)).cloned().collect()
}
