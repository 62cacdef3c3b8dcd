//! Fields of the request log that the call, the caller and the target determine.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
    time::Duration,
};

use penstock_llm::operation::Operation;
use penstock_net::{IncomingResponse, Origin};

use crate::{
    accounting::record::{
        Detail, RecordSink, RequestLog,
        deferred_billing::DeferredBilling,
        details::{Attempt, AttemptFailure},
        request_log::parse_duration_ms,
    },
    auth::caller::Caller,
    error::Result,
    resolve::{target::Target, target_resolver::ClientRequest},
    state::{shared::pending_charges::PendingCharges, snapshot::Snapshot},
};

const MAX_ATTEMPT_MODEL_BYTES: usize = 256;

static WORKSPACE_HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl RequestLog {
    /// Fills the fields that the request itself determines: operation, masking, trace and metadata.
    pub fn read_request(&mut self, client_request: &ClientRequest<'_>, sink: &RecordSink) {
        let ClientRequest { route, control, head, .. } = client_request;
        self.operation = Some(route.operation);
        self.is_proxy = route.operation == Operation::Proxy;
        self.masked_headers = control
            .sensitive_headers
            .map(|names| names.split(',').map(|name| name.trim().to_ascii_lowercase()).collect())
            .unwrap_or_default();
        self.detail = if control.is_content_logging_disabled() { Detail::MetricsOnly } else { Detail::Full };
        self.audio_duration = control
            .audio_file_duration
            .filter(|_| client_request.requested_operation().has_audio_input())
            .and_then(parse_duration_ms);
        self.set_trace(control, head);
        self.set_metadata(control, head, sink);
    }

    /// Records the authenticated caller and applies the metadata and recording policy of its key and workspace.
    pub fn set_caller(&mut self, caller: &Caller<'_>, snapshot: &Snapshot) {
        self.admitted_workspace = Some(caller.workspace().map_or(0, |workspace| WORKSPACE_HASHER.hash_one(workspace)));
        if let Some(key) = caller.key {
            self.api_key_id = Some(key.id.to_string());
            self.details.identity = snapshot.record_identity(key);
            snapshot.default_metadata(key).into_iter().for_each(|pairs| self.metadata.override_with(pairs));
        }
        // A request may lower the level of detail that its workspace sets, but not raise it.
        if snapshot.is_metrics_only(caller.workspace()) {
            self.detail = Detail::MetricsOnly;
        }
    }

    /// Records a request to a provider: the head of its response, or the error.
    pub fn record_attempt(&mut self, target: &Target<'_>, result: &Result<IncomingResponse>, duration: Duration) {
        let (start, model) = (self.details.elapsed().saturating_sub(duration), self.resolved_model());
        let attempt = Attempt {
            provider: target.provider.slug(),
            saved_provider: self.details.saved_provider.clone(),
            model: model[..model.floor_char_boundary(MAX_ATTEMPT_MODEL_BYTES)].into(),
            target_path: self.details.target_path.clone(),
            host: match &target.base_url.origin {
                Origin::Network { host, .. } => Arc::clone(host),
                Origin::Unix(_) => "unix".into(),
            },
            status: result.as_ref().ok().map(|incoming| incoming.head.status),
            start,
            duration,
            failure: result
                .as_ref()
                .err()
                .map(|error| AttemptFailure { error_code: error.code(), reason: Some(error.message().into()) }),
            provider_message: None,
        };
        self.details.add_attempt(attempt);
    }

    /// Records the saved provider of a target. Must run before the record begins, if the target is already known.
    pub fn set_saved_provider(&mut self, target: &Target<'_>) {
        self.details.saved_provider = target.saved_provider.map(|saved| Arc::clone(&saved.identity));
    }

    /// Records the provider's name of the model and where to look up its price.
    pub fn set_target(&mut self, target: &Target<'_>, operation: Operation) {
        self.details.mark_sending();
        self.provider_model = target.provider.row().model_from_options(&target.options).map(ToOwned::to_owned);
        if self.provider_model.is_some() && self.billing.backing_model.is_none() {
            let effective = target.provider.effective_model(&target.options, &self.model);
            self.billing.backing_model = (effective != self.resolved_model()).then(|| effective.to_owned());
        }
        self.set_saved_provider(target);
        self.billing.tariff.provider_pricing.clone_from(&target.price_overrides);
        if operation.returns_background_response() {
            // The charge may be deferred to a later request that names no model.
            self.billing.tariff.saved_models = target.saved_provider.and_then(|saved| saved.models.clone());
        }
    }
}

impl DeferredBilling {
    /// Returns the billing mode of a request that creates, reads or cancels a response; `None` for other operations.
    pub async fn for_request(
        charges: &Arc<PendingCharges>,
        client_request: &ClientRequest<'_>,
        provider: &str,
    ) -> Option<Self> {
        match client_request.requested_operation() {
            Operation::CreateModelResponse => Some(Self::MayStart(Arc::clone(charges))),
            Operation::GetModelResponse | Operation::CancelModelResponse => {
                let id = client_request.route.path.rsplit_once("/responses/")?.1.split('/').next()?;
                Some(Self::Existing(charges.find(provider, id).await))
            }
            _ => None,
        }
    }
}
