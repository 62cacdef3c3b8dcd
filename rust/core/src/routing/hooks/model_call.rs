//! Questions of checks to models of saved providers. They are handled like every other request: target, credential,
//! limits, translation and a log of their own in the same trace. No guardrail checks them, so no guardrail can cause
//! itself to run. They count for limits on tokens and cost, but not as requests of the caller.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use penstock_net::{body::Body, headers::Headers};
use serde_json::{Value, json};

use crate::{
    accounting::record::{Detail, Record, RequestLog},
    auth::{
        caller::{self, Caller},
        gateway_key::GatewayKey,
    },
    error::{Error, Result},
    gateway_state::GatewayState,
    guardrails::{check::CheckError, host_access::ModelQuestion},
    ingress::{control_headers::ControlHeaders, message::RequestHead, route::Route},
    process::settings::WorkloadIdentity,
    resolve::{
        route_plan::RoutePlan,
        target_resolver::{ClientRequest, TargetResolver},
    },
    response::{
        client_response::ClientResponseBody,
        delivery::{UpstreamResponse, deliver_response, respond_with_error},
    },
};

const PATH: &str = "/v1/chat/completions";
/// Maximum number of tokens of a model's response.
const MAX_RESPONSE_TOKENS: u32 = 1000;
/// Maximum bytes of a model's response.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;
/// Maximum number of questions that one request may cause, at all targets together.
const MAX_QUESTIONS: usize = 100;
/// Maximum number of characters of an error message that the results show.
const MAX_MESSAGE_CHARS: usize = 200;

/// Access of one request's checks to the models of its workspace.
pub struct ModelAccess {
    state: Arc<GatewayState>,
    /// The caller, without the config and the guardrails of its key.
    key: Option<GatewayKey>,
    trace_id: Option<String>,
    route: RouteQuestion,
    /// Number of questions that the request has caused so far, at all of its targets.
    question_count: Arc<AtomicUsize>,
    /// True if the logs of the questions have no bodies: guardrails redact the texts in them, or the log of the request
    /// has no bodies either.
    hides_texts: bool,
}

/// Function that routes a request. The executor, which also runs the hooks, passes it here.
pub type RouteQuestion = for<'r> fn(
    &'r GatewayState,
    &'r TargetResolver<'r>,
    &'r RoutePlan<'r>,
    Body,
    &'r mut RequestLog,
) -> BoxFuture<'r, Result<UpstreamResponse>>;

/// Returns the key with which questions are sent. It has no config and no guardrails.
fn build_question_key(id: Box<str>, workspace: Option<Arc<str>>, user_id: Option<Arc<str>>) -> GatewayKey {
    let (name, expires_at, defaults, limits) = (Box::default(), None, None, None);
    GatewayKey { id, name, expires_at, workspace, user_id, defaults, limits, may_render: false }
}

impl ModelAccess {
    /// Returns the access for a request of a caller. The logs of the questions belong to the trace of the request.
    pub fn new(
        state: Arc<GatewayState>,
        caller: &Caller<'_>,
        trace_id: Option<String>,
        question_count: Arc<AtomicUsize>,
        hides_texts: bool,
        route: RouteQuestion,
    ) -> Arc<Self> {
        let key = caller.key.map(|key| GatewayKey {
            name: key.name.clone(),
            expires_at: key.expires_at,
            limits: key.limits.clone(),
            ..build_question_key(key.id.clone(), key.workspace.clone(), key.user_id.clone())
        });
        Arc::new(Self { state, key, trace_id, route, question_count, hides_texts })
    }

    /// Returns the access for a trial of a guardrail in a workspace. Questions count for the limits of the workspace,
    /// and for those of the key with this id if there is one.
    pub fn for_trial(state: Arc<GatewayState>, id: Box<str>, workspace: Arc<str>, route: RouteQuestion) -> Arc<Self> {
        let key = Some(build_question_key(id, Some(workspace), None));
        Arc::new(Self { state, key, trace_id: None, route, question_count: Arc::default(), hides_texts: false })
    }

    /// Identity of this machine, if the operator allows tenants to use it.
    pub fn machine_identity(&self) -> Option<&WorkloadIdentity> {
        Some(&self.state.settings.identity).filter(|identity| identity.allow_provider_use)
    }

    /// Sends a question to a model, and returns the text of its response.
    pub async fn ask(&self, question: &ModelQuestion) -> std::result::Result<String, CheckError> {
        if self.question_count.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
            return Err(CheckError::limited(format!(
                "the guardrails of one request may send at most {MAX_QUESTIONS} questions to models"
            )));
        }
        let failed = |error: &Error| {
            let message: String = error.message().chars().take(MAX_MESSAGE_CHARS).collect();
            let message = format!("{} could not be called: {message}", question.model);
            if error.exceeded_limit().is_some() { CheckError::limited(message) } else { CheckError::new(message) }
        };
        let snapshot = self.state.load_snapshot();
        let head = Arc::new(self.build_head());
        let control = ControlHeaders::parse(&head.headers, &[]);
        let route = Route::parse(&head.method, &head.path).ok_or_else(|| failed(&Error::NotFound))?;
        let client_request = ClientRequest::new(route, &head, control);
        let mut record = Record::open(Arc::clone(&head), Arc::clone(&self.state.record_sink));
        record.log.read_request(&client_request, &self.state.record_sink);
        record.log.billing.tariff.prices = Arc::clone(&snapshot.prices);
        let caller = self.key.as_ref().map(|key| caller::admit_upload(key, &snapshot)).unwrap_or_default();
        record.log.set_caller(&caller, &snapshot);
        if self.hides_texts {
            record.log.detail = Detail::MetricsOnly;
        }
        let resolver = self.state.target_resolver(&snapshot, &client_request, &caller);
        let plan = resolver.build_plan().map_err(|error| failed(&error))?;
        let body = Body::Complete(build_body(question).into());
        let routed = (self.route)(&self.state, &resolver, &plan, body, &mut record.log).await;
        let response = match routed {
            Ok(response) => Box::pin(deliver_response(&self.state, response, &client_request, record)).await,
            Err(error) => {
                let error_of_check = failed(&error);
                respond_with_error(&error, &client_request, record);
                return Err(error_of_check);
            }
        };
        let status = response.head.status;
        let bytes = read_body(response.body, &question.model).await?;
        let json: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = json["choices"][0]["message"]["content"].as_str().filter(|_| status == 200);
        text.map(ToOwned::to_owned)
            .ok_or_else(|| CheckError::new(format!("{} returned no text, and status {status}", question.model)))
    }

    fn build_head(&self) -> RequestHead {
        let mut headers = Headers::default();
        headers.push(b"content-type", b"application/json");
        if let Some(trace_id) = &self.trace_id {
            headers.push(b"x-gateway-trace-id", trace_id.as_bytes());
        }
        RequestHead {
            method: "POST".to_owned(),
            path: PATH.to_owned(),
            headers,
            is_guardrail_question: true,
            ..RequestHead::default()
        }
    }
}

fn build_body(question: &ModelQuestion) -> Vec<u8> {
    let messages = json!([{"role": "system", "content": question.instructions},
        {"role": "user", "content": question.subject}]);
    json!({"model": question.model, "messages": messages, "max_tokens": MAX_RESPONSE_TOKENS}).to_string().into_bytes()
}

async fn read_body(body: ClientResponseBody, model: &str) -> std::result::Result<Vec<u8>, CheckError> {
    let mut stream = match body {
        ClientResponseBody::Complete(bytes) => return Ok(bytes.to_vec()),
        ClientResponseBody::Stream(stream) => stream,
    };
    let mut bytes = Vec::new();
    loop {
        match stream.next().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() <= MAX_RESPONSE_BYTES => bytes.extend_from_slice(&chunk),
            Ok(None) => return Ok(bytes),
            Ok(Some(_)) | Err(_) => return Err(CheckError::new(format!("{model} returned an incomplete response"))),
        }
    }
}
