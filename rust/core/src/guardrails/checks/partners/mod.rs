//! Checks by services of other companies. Each function is a row: how it is called and how its reply is read. The rest,
//! such as limits, errors and replaced texts, is the same for all.

mod acuvity;
mod azure;
mod bedrock;
mod conversations;
mod findings;
mod moderation;
mod network_security;
mod pangea;
mod patronus;
mod placeholders;
mod promptfoo;
mod qualifire;
mod scanners;
#[cfg(test)]
mod tests;
mod text_spans;
mod web_search;

use std::{fmt, sync::Arc, time::Duration};

use penstock_llm::{
    catalog::Grant,
    texts::{TextKind, TextPart, TextRole, request_texts},
};
use penstock_net::BaseUrl;
use serde_json::{Map, Value, json};

use self::{findings::Findings, placeholders::fill_placeholders};
use super::forwarded_headers::{find_forwarded, validate_names};
use crate::guardrails::{
    check::{
        AwsSignature, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, ExternalCall, Stage,
        Stages, read_parameters,
    },
    text_scope::TextScope,
};

/// Rows of all partners.
pub(super) fn rows() -> impl Iterator<Item = &'static CheckRow> {
    let partners = [
        azure::ROWS,
        bedrock::ROWS,
        moderation::ROWS,
        pangea::ROWS,
        patronus::ROWS,
        conversations::ROWS,
        scanners::ROWS,
        promptfoo::ROWS,
        acuvity::ROWS,
        qualifire::ROWS,
        web_search::ROWS,
        network_security::ROWS,
    ];
    partners.into_iter().flatten()
}

/// Parameters of most partners.
const SHARED: &[&str] = &["credentials", "scope", "baseURL", "forwardHeaders", "timeout=5000"];
/// Schema of a row that has only shared parameters.
const CREDENTIALS_ONLY: &str = r#"{"required":["credentials"]}"#;

/// Fields that most rows have in common.
const ROW: CheckRow = CheckRow {
    id: "",
    alias: None,
    name: "",
    description: "",
    stages: Stages::Both,
    secrets: &["credentials"],
    schema: CREDENTIALS_ONLY,
    shared: SHARED,
    compile: |_| Err((String::new(), String::new())),
};

/// Fields that most partners have in common.
const PARTNER: Partner = Partner {
    name: "",
    variant: "",
    base: "",
    path: "",
    headers: &[],
    prepare: |_| Ok(()),
    build_body: |_| Value::Null,
    can_check: |_| true,
    read_reply: |_| None,
    may_change: |_| false,
    sign: |_| None,
    grant: |_| None,
    output_path: "",
};

/// Header field of partners that take the key as a bearer token.
const BEARER: &[HeaderTemplate] = &[("authorization", "Bearer {credentials.apiKey}")];

/// Name of a header field, and its value with placeholders.
type HeaderTemplate = (&'static str, &'static str);

/// Where a parameter is invalid, and why.
type ParameterProblem = (String, String);

/// How a function of a partner is called, and how its reply is read.
struct Partner {
    /// Name in explanations and errors.
    name: &'static str,
    /// Distinguishes functions that share their code, such as the name of an evaluator.
    variant: &'static str,
    /// Scheme and host, with placeholders. The parameter `baseURL` replaces it.
    base: &'static str,
    /// Path and query, with placeholders.
    path: &'static str,
    /// Path and query for responses, if it differs from `path`.
    output_path: &'static str,
    /// Header fields. One whose placeholder has no value is not sent.
    headers: &'static [HeaderTemplate],
    /// Validates parameters beyond their schema, and adds parameters that follow from others.
    prepare: fn(&mut Value) -> Result<(), ParameterProblem>,
    /// Returns the body of the request; `Null` if there is nothing to check.
    build_body: fn(&PartnerInput<'_>) -> Value,
    /// Returns true if a request or response has the texts that the function needs.
    can_check: fn(&CheckInput<'_>) -> bool,
    /// Reads a reply; `None` if it has no verdict.
    read_reply: fn(&PartnerReply<'_>) -> Option<Findings>,
    /// Returns true if the function can change texts with these parameters.
    may_change: fn(&Value) -> bool,
    /// Returns the keys with which the request is signed.
    sign: fn(&Value) -> Option<AwsSignature>,
    /// Returns how the token of the request is fetched.
    grant: fn(&Value) -> Option<Grant>,
}

/// A text that is sent to a partner.
#[derive(Debug, Clone)]
struct SentText {
    /// Index in the texts of the input.
    index: usize,
    role: TextRole,
    kind: TextKind,
    text: String,
}

impl SentText {
    fn new(index: usize, part: &TextPart) -> Self {
        Self { index, role: part.role, kind: part.kind, text: part.text.clone() }
    }

    /// Returns the text as a message of a chat.
    fn to_message(&self) -> Value {
        let role = match self.role {
            TextRole::System => "system",
            TextRole::User => "user",
            TextRole::Assistant => "assistant",
            TextRole::Tool => "tool",
        };
        json!({"role": role, "content": self.text})
    }
}

/// Input from which the body of a request to a partner is built.
struct PartnerInput<'i> {
    check: &'i CheckInput<'i>,
    variant: &'static str,
    parameters: &'i Value,
    texts: &'i [SentText],
}

impl PartnerInput<'_> {
    /// Returns all texts, one in each line.
    fn text(&self) -> String {
        self.texts().join("\n")
    }

    fn texts(&self) -> Vec<&str> {
        self.texts.iter().map(|sent| sent.text.as_str()).collect()
    }

    fn messages(&self) -> Vec<Value> {
        self.texts.iter().map(SentText::to_message).collect()
    }

    /// Returns the texts of the request's last message.
    fn request_text(&self) -> String {
        let texts = request_texts(self.check.request);
        let indexes = TextScope::LastMessage.select(Stage::Input, &texts, false);
        indexes.iter().map(|index| texts[*index].text.as_str()).collect::<Vec<_>>().join("\n")
    }

    fn is_output(&self) -> bool {
        self.check.stage == Stage::Output
    }
}

/// A reply of a partner, with the parameters and texts of its request.
struct PartnerReply<'r> {
    json: Value,
    variant: &'static str,
    parameters: &'r Value,
    texts: &'r [SentText],
    stage: Stage,
}

impl PartnerReply<'_> {
    /// Returns true if the parameters request that texts are replaced.
    fn redacts(&self) -> bool {
        self.parameters["redact"] == true
    }
}

/// A function of a partner with its parameters.
struct PreparedPartner {
    partner: &'static Partner,
    parameters: Value,
    url: String,
    output_url: String,
    headers: Vec<(String, String)>,
    forward_headers: Vec<String>,
    scope: TextScope,
    /// Scope of requests, if the partner has a parameter of its own for it.
    request_scope: Option<TextScope>,
    timeout: Duration,
}

/// Check by a partner. It is in an `Arc`, because `ExternalCall::read` needs it after `Check::external_call` has
/// returned.
struct PartnerCheck(Arc<PreparedPartner>);

impl fmt::Debug for PartnerCheck {
    // Prints only the name, because the parameters contain credentials.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("PartnerCheck").field(&self.0.partner.name).finish()
    }
}

/// Compiles a function of a partner. The parameters have the defaults of their schema.
fn compile(partner: &'static Partner, mut parameters: Value) -> CompileResult {
    (partner.prepare)(&mut parameters)?;
    let names = parameters["forwardHeaders"].as_array().into_iter().flatten();
    let forward_headers: Vec<String> = names.filter_map(Value::as_str).map(ToOwned::to_owned).collect();
    validate_names(&forward_headers).map_err(|message| (".forwardHeaders".to_owned(), message))?;
    let url = build_url(partner, partner.path, &parameters)?;
    let output_path = if partner.output_path.is_empty() { partner.path } else { partner.output_path };
    let output_url = build_url(partner, output_path, &parameters)?;
    let mut headers = Vec::new();
    for (name, template) in partner.headers {
        let Ok(value) = fill_placeholders(template, &parameters, false) else { continue };
        if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            let parameter = template.split(['{', '}']).nth(1).unwrap_or_default();
            return Err((format!(".{parameter}"), "has a character that a header field cannot have".to_owned()));
        }
        headers.push(((*name).to_owned(), value));
    }
    let scope: Option<TextScope> = read_parameters(parameters["scope"].clone())?;
    let timeout = Duration::from_millis(parameters["timeout"].as_u64().unwrap_or_default());
    let scope = scope.unwrap_or_default();
    let request_scope = read_parameters(parameters["requestScope"].clone())?;
    Ok(Box::new(PartnerCheck(Arc::new(PreparedPartner {
        partner,
        parameters,
        url,
        output_url,
        headers,
        forward_headers,
        scope,
        request_scope,
        timeout,
    }))))
}

/// Returns the URL of a function, whose host may come from the parameters.
fn build_url(partner: &Partner, path: &str, parameters: &Value) -> Result<String, ParameterProblem> {
    let missing = |name: &str| (format!(".{name}"), "is needed to find the host".to_owned());
    let (base, parameter) = if let Some(base) = parameters["baseURL"].as_str() {
        (base.to_owned(), ".baseURL".to_owned())
    } else {
        let parameter = partner.base.split(['{', '}']).nth(1).unwrap_or("baseURL");
        (fill_placeholders(partner.base, parameters, false).map_err(missing)?, format!(".{parameter}"))
    };
    BaseUrl::parse(&base).map_err(|message| (parameter.clone(), message))?;
    let path = fill_placeholders(path, parameters, true).map_err(missing)?;
    let url = format!("{}{path}", base.trim_end_matches('/'));
    let address = url.split('?').next().unwrap_or_default();
    BaseUrl::parse(address).map_err(|message| (parameter, message))?;
    Ok(url)
}

impl PreparedPartner {
    /// Reads the reply of the partner.
    fn read(&self, status: u16, body: &[u8], stage: Stage, texts: &[SentText]) -> Result<CheckOutcome, CheckError> {
        let name = self.partner.name;
        if !(200..300).contains(&status) {
            return Err(CheckError::new(format!("{name} returned status {status}")));
        }
        let json: Value =
            serde_json::from_slice(body).map_err(|_| CheckError::new(format!("{name} returned no valid JSON")))?;
        let (variant, parameters) = (self.partner.variant, &self.parameters);
        let findings = (self.partner.read_reply)(&PartnerReply { json, variant, parameters, texts, stage });
        let findings = findings.ok_or_else(|| CheckError::new(format!("{name} returned no verdict")))?;
        Ok(findings.conclude(name, texts))
    }
}

impl Check for PartnerCheck {
    /// Runs if `external_call` returns `None`, because there is no text to check.
    fn run(&self, _input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        Ok(CheckOutcome::new(true, json!({"verdict": true, "explanation": "there is no text to check"})))
    }

    fn external_call(&self, input: &CheckInput<'_>) -> Option<Result<ExternalCall, CheckError>> {
        let PreparedPartner { partner, parameters, scope, request_scope, .. } = &*self.0;
        let scope = request_scope.filter(|_| input.stage == Stage::Input).unwrap_or(*scope);
        let indexes = scope.select(input.stage, input.texts, false);
        let texts: Vec<SentText> = indexes
            .into_iter()
            .map(|index| SentText::new(index, &input.texts[index]))
            .filter(|sent| !sent.text.trim().is_empty())
            .collect();
        if texts.is_empty() {
            return None;
        }
        let partner_input = PartnerInput { check: input, variant: partner.variant, parameters, texts: &texts };
        if !(partner.can_check)(input) {
            return Some(Err(CheckError::new(format!("{} cannot check bodies of this format", partner.name))));
        }
        let body = match (partner.build_body)(&partner_input) {
            Value::Null => return None,
            body => body.to_string(),
        };
        let mut headers = self.0.headers.clone();
        headers.extend(find_forwarded(&self.0.forward_headers, input.headers, &headers));
        let (prepared, stage) = (Arc::clone(&self.0), input.stage);
        Some(Ok(ExternalCall {
            url: if stage == Stage::Output { self.0.output_url.clone() } else { self.0.url.clone() },
            headers,
            body,
            timeout: self.0.timeout,
            signature: (partner.sign)(parameters),
            grant: (partner.grant)(parameters),
            read: Box::new(move |status, body| prepared.read(status, body, stage, &texts)),
        }))
    }

    fn may_change(&self) -> bool {
        (self.0.partner.may_change)(&self.0.parameters)
    }
}

/// Returns an object without its members that are `Null`.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into(),
        other => other,
    }
}

/// Returns the keys of an object whose values are true.
fn true_keys(object: &Value) -> Vec<String> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(_, value)| **value == true).map(|(key, _)| key.clone()).collect()
}
