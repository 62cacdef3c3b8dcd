//! Trials of guardrails whose checks send requests to models. The control process authorises a trial and returns the
//! name of its plan: the checks and the texts to try them on. The worker fetches the plan and runs it, because only
//! workers can send requests to models. Clients never see a plan, because it contains the credentials of checks.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use penstock_llm::api_format::ApiFormat;
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::timeout;

use crate::{
    endpoints::management_proxy,
    error::{Error, Problem, Result},
    gateway_state::GatewayState,
    response::client_response::{ClientResponse, ClientResponseHead},
    routing::{Trial, route_question},
    state::shared::fair_permits::FairPermits,
};

/// Response header of the control process with the name of a plan.
const PLAN_HEADER: &str = "x-penstock-trial-plan";
/// Permits to run plans: 8 at the same time, of which one workspace can have 2.
static PLANS: LazyLock<FairPermits> = LazyLock::new(|| FairPermits::new(8, 2));
/// Maximum number of trials of one plan that run at the same time.
const MAX_CONCURRENT_TRIALS: usize = 4;
/// Maximum time for all trials of a plan.
const MAX_PLAN_TIME: Duration = Duration::from_secs(20);

/// Format of the response to a plan.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResponseForm {
    /// The result of the only trial.
    Trial,
    /// One moderation of each text, in the format of the moderations API.
    Moderations,
}

#[derive(Deserialize)]
struct TrialPlan {
    form: ResponseForm,
    /// Id of the workspace whose models the checks use.
    workspace: String,
    /// Id of the key or user that requested the trial.
    caller_id: String,
    /// Checks and actions of the guardrail.
    content: Box<RawValue>,
    subjects: Vec<Box<RawValue>>,
}

/// Runs the trial plan that the control process named in its response, and returns the result of the trial. Returns
/// other responses unchanged.
pub(crate) async fn run_trial_plan(state: &Arc<GatewayState>, mut response: ClientResponse) -> ClientResponse {
    let Some(name) = response.head.headers.get_str(PLAN_HEADER).map(ToOwned::to_owned) else { return response };
    let is_replaced_header =
        |field: &[u8]| [PLAN_HEADER.as_bytes(), b"content-length", b"content-type"].contains(&field);
    response.head.headers.retain(|field| !is_replaced_header(field));
    let outcome = timeout(MAX_PLAN_TIME, Box::pin(run_plan(state, &name))).await;
    let outcome = outcome.unwrap_or_else(|_| {
        let seconds = MAX_PLAN_TIME.as_secs();
        Err(invalid(format!("the checks took longer than {seconds} s; hint: a shorter text, or a faster model")))
    });
    let (status, body) = match outcome {
        Ok(json) => (200, Bytes::from(json.to_string())),
        Err(error) => {
            let rendered = error.to_response(ApiFormat::OpenAi, None);
            (rendered.head.status, rendered.body)
        }
    };
    let mut head = ClientResponseHead::new(status, response.head.headers);
    head.headers.push(b"content-type", b"application/json");
    head.set_content_length(Some(body.len()));
    ClientResponse { head, body: body.into() }
}

async fn run_plan(state: &Arc<GatewayState>, name: &str) -> Result<Value> {
    let json = management_proxy::take_trial_plan(state, name).await?.ok_or(Error::ControlUnavailable)?;
    let plan: TrialPlan = serde_json::from_slice(&json).map_err(|_| Error::ControlUnavailable)?;
    let _permit = PLANS.try_acquire_many(Some(&plan.workspace), 1).ok_or(Error::Overloaded)?;
    let mut trials = Vec::with_capacity(plan.subjects.len());
    for subject in &plan.subjects {
        let trial = Trial::parse(plan.content.get().as_bytes(), subject.get().as_bytes());
        trials.push(trial.map_err(|problems| invalid(describe(&problems)))?);
    }
    let runs = trials.into_iter().map(|trial| trial.run_in(state, &plan.workspace, &plan.caller_id, route_question));
    let trials: Vec<Value> = stream::iter(runs).buffered(MAX_CONCURRENT_TRIALS).collect().await;
    match plan.form {
        ResponseForm::Trial => trials.into_iter().next().ok_or(Error::ControlUnavailable),
        ResponseForm::Moderations => {
            let results = trials.iter().map(to_moderation).collect::<std::result::Result<Vec<_>, String>>();
            results.map(|results| json!({"results": results})).map_err(invalid)
        }
    }
}

fn invalid(message: String) -> Error {
    Error::TrialFailed { message }
}

fn describe(problems: &[Problem]) -> String {
    let described: Vec<_> = problems.iter().map(|problem| format!("{} {}", problem.path, problem.message)).collect();
    described.join("; ")
}

/// Returns the result of a trial with one moderation check, in the format of the moderations API.
fn to_moderation(trial: &Value) -> std::result::Result<Value, String> {
    let check = &trial["results"][0]["checks"][0];
    if let Some(message) = check["error"]["message"].as_str() {
        return Err(message.to_owned());
    }
    let names = |field: &str| check["data"][field].as_array().into_iter().flatten().filter_map(Value::as_str);
    let flagged: Vec<_> = names("flaggedCategories").collect();
    let categories: Map<String, Value> =
        names("restrictedCategories").map(|name| (name.to_owned(), flagged.contains(&name).into())).collect();
    Ok(json!({"flagged": check["verdict"] == false, "categories": categories}))
}
