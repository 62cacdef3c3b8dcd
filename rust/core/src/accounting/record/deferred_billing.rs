//! When a response is paid for that goes on in the background: not when it begins, but once, when somebody is told what it used.

use std::sync::Arc;

use penstock_llm::{api_format::unfinished_response_id, operation::Operation};

use super::RequestLog;
use crate::{
    resolve::target_resolver::Call,
    state::shared::pending_charges::{PendingCharge, PendingCharges},
};

/// What is to be done about what an answer cost.
#[derive(Debug)]
pub enum DeferredBilling {
    /// A response may begin that is not over when it is answered.
    MayStart(Arc<PendingCharges>),
    /// It is about one that began earlier, which is paid for or not.
    Existing(Option<PendingCharge>),
}

impl DeferredBilling {
    /// Of requests that are about responses.
    pub async fn for_call(dues: &Arc<PendingCharges>, call: &Call<'_>, provider: &str) -> Option<Self> {
        match call.requested_operation() {
            Operation::CreateModelResponse => Some(Self::MayStart(Arc::clone(dues))),
            Operation::GetModelResponse | Operation::CancelModelResponse => {
                let id = call.route.path.rsplit_once("/responses/")?.1.split('/').next()?;
                Some(Self::Existing(dues.find(provider, id).await))
            }
            _ => None,
        }
    }

    /// Whether what is told was paid for.
    pub fn is_already_charged(&self) -> bool {
        matches!(self, Self::Existing(None))
    }
}

impl RequestLog {
    /// Whether an answer says of a response that it has only begun: it costs nothing yet.
    pub fn defer_charge_if_in_progress(&self, answer: &[u8]) -> bool {
        matches!(self.billing.deferred_billing, Some(DeferredBilling::MayStart(_)))
            && unfinished_response_id(answer).is_some_and(|id| self.defer_charge(&id))
    }

    /// Likewise of one that goes on though its stream has ended.
    pub fn defer_charge(&self, id: &str) -> bool {
        let Some(DeferredBilling::MayStart(dues)) = &self.billing.deferred_billing else { return false };
        dues.add(self.provider, id, (&self.model, self.provider_model.as_deref()));
        true
    }

    /// Whether somebody else may be told the same at this moment, at another worker.
    pub(crate) fn needs_charge_claim(&self) -> bool {
        let Some(DeferredBilling::Existing(Some(debt))) = &self.billing.deferred_billing else { return false };
        self.billing.usage.is_some() && debt.is_shared()
    }

    /// Only the first of them all pays.
    pub(crate) async fn claim_charge(&mut self) {
        if let Some(DeferredBilling::Existing(debt)) = &mut self.billing.deferred_billing
            && let Some(owed) = debt.as_ref()
            && !owed.claim_first_payment().await
        {
            *debt = None;
        }
    }

    /// What was used earlier counts for who pays for it, at the price of the model that was asked for then.
    pub(crate) fn apply_deferred_charge(&mut self) {
        let Some(DeferredBilling::Existing(debt)) = self.billing.deferred_billing.take() else { return };
        let Some((model, own)) = debt.filter(|_| self.billing.usage.is_some()).and_then(PendingCharge::settle) else {
            self.billing.usage = None;
            return;
        };
        self.billing.tariff = self.billing.tariff.for_other_model(&model);
        (self.model, self.provider_model) = (model, own);
    }
}
