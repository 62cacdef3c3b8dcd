//! Azure AI Content Safety and Azure AI Language.

use serde_json::{Value, json};

use super::{
    HeaderTemplate, PARTNER, ParameterProblem, Partner, PartnerInput, PartnerReply, ROW, compile, findings::Findings,
    without_nulls,
};
use crate::guardrails::check::{CheckRow, Stages};
use penstock_llm::{catalog::Grant, texts::TextKind};
use penstock_net::BaseUrl;

/// Fields that all functions of Content Safety have in common.
const SAFETY: Partner = Partner {
    name: "Azure AI Content Safety",
    base: "https://{credentials.contentSafety.resourceName}.cognitiveservices.azure.com",
    headers: SAFETY_HEADERS,
    prepare: |parameters| prepare_resource(parameters, "contentSafety"),
    grant: |parameters| find_grant(parameters, "contentSafety"),
    ..PARTNER
};
const SAFETY_HEADERS: &[HeaderTemplate] = &[("ocp-apim-subscription-key", "{credentials.contentSafety.apiKey}")];
const LANGUAGE_HEADERS: &[HeaderTemplate] = &[("ocp-apim-subscription-key", "{credentials.pii.apiKey}")];
const DEFAULT_AUTHORITY: &str = "https://login.microsoftonline.com";
/// Resource of tokens for Azure AI services, and their scope.
const RESOURCE: &str = "https://cognitiveservices.azure.com";
const SCOPE: &str = "https://cognitiveservices.azure.com/.default";
const SHARED: &[&str] = &["scope", "baseURL", "forwardHeaders", "timeout=5000"];

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "azure.contentSafety",
        name: "Azure content safety",
        description: "fails if Azure AI Content Safety finds harmful content of a severity, or a term of a blocklist",
        schema: r##"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["contentSafety"],"additionalProperties":false,"properties":{"contentSafety":{"$ref":"#/$defs/resource"}}},"severity":{"type":"integer","minimum":0,"maximum":7,"default":2,"description":"severity from which content fails"},"categories":{"type":"array","minItems":1,"items":{"enum":["Hate","SelfHarm","Sexual","Violence"]},"default":["Hate","SelfHarm","Sexual","Violence"]},"blocklistNames":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1},"default":[]},"apiVersion":{"type":"string","minLength":1,"default":"2024-09-01"}},"$defs":{"resource":{"type":"object","additionalProperties":false,"properties":{"azureAuthMode":{"enum":["apiKey","entra","managed"],"description":"`entra`: uses the token of an application in Entra ID instead of `apiKey`; `managed`: uses that of the managed identity of the gateway's machine, and `clientId` selects one of several"},"resourceName":{"type":"string","pattern":"^[A-Za-z0-9-]+$"},"apiKey":{"type":"string","minLength":1},"tenantId":{"type":"string","pattern":"^[A-Za-z0-9][A-Za-z0-9.-]*$"},"clientId":{"type":"string","minLength":1},"clientSecret":{"type":"string","minLength":1},"authorityHost":{"type":"string","pattern":"^https?://","description":"Entra ID of a national cloud"},"customHost":{"type":"string","pattern":"^https?://"}}}}}"##,
        shared: SHARED,
        compile: |parameters| {
            const ANALYZE: Partner = Partner {
                path: "/contentsafety/text:analyze?api-version={apiVersion}",
                build_body: |input| {
                    json!({"text": input.text(), "categories": input.parameters["categories"],
                        "blocklistNames": input.parameters["blocklistNames"]})
                },
                read_reply: read_content_safety_reply,
                ..SAFETY
            };
            compile(const { &ANALYZE }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "azure.shieldPrompt",
        name: "Azure prompt shields",
        description: "fails if Azure AI Content Safety finds an attack in the prompt or in results of tools",
        stages: Stages::Input,
        schema: SAFETY_SCHEMA,
        shared: SHARED,
        compile: |parameters| {
            const SHIELD: Partner = Partner {
                path: "/contentsafety/text:shieldPrompt?api-version={apiVersion}",
                build_body: build_shield_body,
                read_reply: read_prompt_shields_reply,
                ..SAFETY
            };
            compile(const { &SHIELD }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "azure.protectedMaterial",
        name: "Azure protected material",
        description: "fails if Azure AI Content Safety finds protected material, such as lyrics, in a response",
        stages: Stages::Output,
        schema: SAFETY_SCHEMA,
        shared: SHARED,
        compile: |parameters| {
            const PROTECTED: Partner = Partner {
                path: "/contentsafety/text:detectProtectedMaterial?api-version={apiVersion}",
                build_body: |input| json!({"text": input.text()}),
                read_reply: |reply| {
                    let is_detected = reply.json["protectedMaterialAnalysis"]["detected"].as_bool()?;
                    Some(Findings::failed_if(is_detected, "protected material"))
                },
                ..SAFETY
            };
            compile(const { &PROTECTED }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "azure.pii",
        name: "Azure personal data",
        description: "fails if Azure AI Language finds personal data, or replaces it",
        schema: r##"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["pii"],"additionalProperties":false,"properties":{"pii":{"$ref":"#/$defs/resource"}}},"redact":{"type":"boolean","default":false,"description":"true: replaces what is found, and passes"},"domain":{"enum":["none","phi"],"default":"none","description":"`phi`: health data only"},"language":{"type":"string","minLength":1,"default":"en"},"piiCategories":{"type":"array","maxItems":200,"items":{"type":"string","minLength":1},"description":"categories that are looked for"},"modelVersion":{"type":"string","minLength":1,"default":"latest"},"apiVersion":{"type":"string","minLength":1,"default":"2024-11-01"}},"$defs":{"resource":{"type":"object","additionalProperties":false,"properties":{"azureAuthMode":{"enum":["apiKey","entra","managed"],"description":"`entra`: uses the token of an application in Entra ID instead of `apiKey`; `managed`: uses that of the managed identity of the gateway's machine, and `clientId` selects one of several"},"resourceName":{"type":"string","pattern":"^[A-Za-z0-9-]+$"},"apiKey":{"type":"string","minLength":1},"tenantId":{"type":"string","pattern":"^[A-Za-z0-9][A-Za-z0-9.-]*$"},"clientId":{"type":"string","minLength":1},"clientSecret":{"type":"string","minLength":1},"authorityHost":{"type":"string","pattern":"^https?://","description":"Entra ID of a national cloud"},"customHost":{"type":"string","pattern":"^https?://"}}}}}"##,
        shared: SHARED,
        compile: |parameters| {
            const LANGUAGE: Partner = Partner {
                name: "Azure AI Language",
                base: "https://{credentials.pii.resourceName}.cognitiveservices.azure.com",
                path: "/language/:analyze-text?api-version={apiVersion}",
                headers: LANGUAGE_HEADERS,
                prepare: |parameters| prepare_resource(parameters, "pii"),
                grant: |parameters| find_grant(parameters, "pii"),
                build_body: build_pii_body,
                read_reply: read_azure_pii_reply,
                may_change: |parameters| parameters["redact"] == true,
                ..PARTNER
            };
            compile(const { &LANGUAGE }, parameters)
        },
        ..ROW
    },
];

/// Schema of the functions of Content Safety without own parameters.
const SAFETY_SCHEMA: &str = r##"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["contentSafety"],"additionalProperties":false,"properties":{"contentSafety":{"$ref":"#/$defs/resource"}}},"apiVersion":{"type":"string","minLength":1,"default":"2024-09-01"}},"$defs":{"resource":{"type":"object","additionalProperties":false,"properties":{"azureAuthMode":{"enum":["apiKey","entra","managed"],"description":"`entra`: uses the token of an application in Entra ID instead of `apiKey`; `managed`: uses that of the managed identity of the gateway's machine, and `clientId` selects one of several"},"resourceName":{"type":"string","pattern":"^[A-Za-z0-9-]+$"},"apiKey":{"type":"string","minLength":1},"tenantId":{"type":"string","pattern":"^[A-Za-z0-9][A-Za-z0-9.-]*$"},"clientId":{"type":"string","minLength":1},"clientSecret":{"type":"string","minLength":1},"authorityHost":{"type":"string","pattern":"^https?://","description":"Entra ID of a national cloud"},"customHost":{"type":"string","pattern":"^https?://"}}}}}"##;

/// Uses the custom host of a resource as base URL, and validates its credentials: a key, an application of Entra ID, or
/// the managed identity of the machine.
fn prepare_resource(parameters: &mut Value, resource: &str) -> Result<(), ParameterProblem> {
    let host = parameters["credentials"][resource]["customHost"].clone();
    if host.is_string() && parameters["baseURL"].is_null() {
        parameters["baseURL"] = host;
    }
    let Some(credentials) = parameters["credentials"][resource].as_object_mut() else { return Ok(()) };
    let mode = credentials.get("azureAuthMode").and_then(Value::as_str).unwrap_or("apiKey").to_owned();
    let required: &[&str] = match mode.as_str() {
        "entra" => &["tenantId", "clientId", "clientSecret"],
        "managed" => &[],
        _ => &["apiKey"],
    };
    let at = |name: &str| format!(".credentials.{resource}.{name}");
    if let Some(name) = required.iter().find(|name| !credentials.contains_key(**name)) {
        return Err((at(name), "is required".to_owned()));
    }
    if mode != "apiKey" {
        // A key that is stored besides is not sent.
        credentials.shift_remove("apiKey");
    }
    if mode == "entra" {
        let authority = credentials.get("authorityHost").and_then(Value::as_str).unwrap_or(DEFAULT_AUTHORITY);
        BaseUrl::parse(authority).map_err(|message| (at("authorityHost"), message))?;
    }
    Ok(())
}

/// Returns how the token is fetched; `None` if the resource is used with a key.
fn find_grant(parameters: &Value, resource: &str) -> Option<Grant> {
    let credentials = &parameters["credentials"][resource];
    let text = |name: &str| credentials[name].as_str().map(ToOwned::to_owned);
    match credentials["azureAuthMode"].as_str()? {
        "managed" => Some(Grant::ManagedIdentity { resource: RESOURCE.to_owned(), client_id: text("clientId") }),
        "entra" => Some(Grant::EntraApplication {
            authority: text("authorityHost").unwrap_or_else(|| DEFAULT_AUTHORITY.to_owned()),
            tenant: text("tenantId")?,
            client_id: text("clientId")?,
            client_secret: text("clientSecret")?,
            scope: SCOPE.to_owned(),
        }),
        _ => None,
    }
}

fn read_content_safety_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let least = reply.parameters["severity"].as_u64()?;
    let analysed = reply.json["categoriesAnalysis"].as_array()?;
    let is_severe = |category: &&Value| category["severity"].as_u64().is_some_and(|severity| severity >= least);
    let names = analysed.iter().filter(is_severe).filter_map(|category| category["category"].as_str());
    let mut failed: Vec<String> = names.map(ToOwned::to_owned).collect();
    if reply.json["blocklistsMatch"].as_array().is_some_and(|matches| !matches.is_empty()) {
        failed.push("a term of a blocklist".to_owned());
    }
    Some(Findings::failed(failed))
}

/// Builds the body with the results of tools as the document, and all other texts as the prompt.
fn build_shield_body(input: &PartnerInput<'_>) -> Value {
    let join = |is_result: bool| {
        let texts = input.texts.iter().filter(|sent| (sent.kind == TextKind::ToolResult) == is_result);
        texts.map(|sent| sent.text.as_str()).collect::<Vec<_>>().join("\n")
    };
    let (prompt, document) = (join(false), join(true));
    let documents = if document.is_empty() { Value::Null } else { json!([document]) };
    without_nulls(json!({"userPrompt": prompt, "documents": documents}))
}

fn read_prompt_shields_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let prompt = reply.json["userPromptAnalysis"]["attackDetected"].as_bool();
    let documents: Vec<bool> = reply.json["documentsAnalysis"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|document| document["attackDetected"].as_bool())
        .collect::<Option<_>>()?;
    if prompt.is_none() && documents.is_empty() {
        return None;
    }
    let mut findings = Findings::failed_if(prompt == Some(true), "an attack in the prompt");
    if documents.contains(&true) {
        findings.failed.push("an attack in the result of a tool".to_owned());
    }
    Some(findings)
}

fn build_pii_body(input: &PartnerInput<'_>) -> Value {
    let parameters = input.parameters;
    let documents: Vec<Value> = input
        .texts()
        .iter()
        .enumerate()
        .map(|(number, text)| json!({"id": number.to_string(), "language": parameters["language"], "text": text}))
        .collect();
    let options = without_nulls(json!({"domain": parameters["domain"], "modelVersion": parameters["modelVersion"],
        "piiCategories": parameters["piiCategories"]}));
    json!({"kind": "PiiEntityRecognition", "parameters": options, "analysisInput": {"documents": documents}})
}

fn read_azure_pii_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let results = &reply.json["results"];
    if results["errors"].as_array().is_some_and(|errors| !errors.is_empty()) {
        return None;
    }
    let documents = results["documents"].as_array()?;
    let (mut findings, mut replaced) = (Findings::default(), Vec::new());
    for number in 0..reply.texts.len() {
        let document = documents.iter().find(|document| document["id"].as_str() == Some(&*number.to_string()))?;
        let categories = document["entities"].as_array()?.iter().filter_map(|entity| entity["category"].as_str());
        findings.replaceable.extend(categories.map(ToOwned::to_owned));
        replaced.extend(document["redactedText"].as_str().map(ToOwned::to_owned));
    }
    findings.replaced = reply.redacts().then_some(replaced);
    Some(findings)
}
