//! Who cancels a job is told how it stands; providers that say nothing of it are asked.

use penstock_llm::operation::Operation;

use crate::{call::Call, headers::Head, route::Route};

/// The head of the question how a cancelled job stands.
pub fn head_of_look(call: &Call<'_>) -> Option<Head> {
    let is_cancelled = call.route.operation == Operation::CancelFinetune;
    is_cancelled.then(|| Head { method: "GET".into(), ..call.head.clone() })
}

/// That question.
pub fn look<'c>(call: &Call<'c>, head: &'c Head) -> Call<'c> {
    let path = call.route.path.strip_suffix("/cancel").unwrap_or(call.route.path);
    Call { route: Route { operation: Operation::RetrieveFinetune, path, ..call.route }, head, control: call.control }
}
