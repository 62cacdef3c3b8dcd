//! Deferred billing of background responses. A background response is charged once, when a client first reads its
//! usage, not when it starts.

use std::sync::Arc;

use penstock_llm::api_format::unfinished_response_id;

use super::RequestLog;
use crate::{
    state::shared::pending_charges::{PendingCharge, PendingCharges},
};

/// How a request about a response object is charged.
#[derive(Debug)]
pub enum DeferredBilling {
    /// The request may start a background response, whose charge is deferred.
    MayStart(Arc<PendingCharges>),
    /// The request reads an earlier response. `None` if that one was already charged.
    Existing(Option<PendingCharge>),
}

impl DeferredBilling {
    /// Returns true if the response was already charged.
    pub fn is_already_charged(&self) -> bool {
        matches!(self, Self::Existing(None))
    }
}

impl RequestLog {
    /// Defers the charge if the response body says that the response is still in progress. Returns true if it was
    /// deferred.
    pub fn defer_charge_if_in_progress(&self, response: &[u8]) -> bool {
        matches!(self.billing.deferred_billing, Some(DeferredBilling::MayStart(_)))
            && unfinished_response_id(response).is_some_and(|id| self.defer_charge(&id))
    }

    /// Defers the charge of the response with this id, which continues after its stream has ended. Returns true if it
    /// was deferred.
    pub fn defer_charge(&self, id: &str) -> bool {
        let Some(DeferredBilling::MayStart(charges)) = &self.billing.deferred_billing else { return false };
        charges.add(self.provider, id, (&self.model, self.provider_model.as_deref()));
        true
    }

    /// Returns true if another worker may charge the same response at this moment.
    pub(crate) fn needs_charge_claim(&self) -> bool {
        let Some(DeferredBilling::Existing(Some(charge))) = &self.billing.deferred_billing else { return false };
        self.billing.usage.is_some() && charge.is_shared()
    }

    /// Claims the charge. Drops it if another worker claimed it first.
    pub(crate) async fn claim_charge(&mut self) {
        if let Some(DeferredBilling::Existing(charge)) = &mut self.billing.deferred_billing
            && let Some(owed) = charge.as_ref()
            && !owed.claim_first_payment().await
        {
            *charge = None;
        }
    }

    /// Charges the usage to this request at the price of the model of the original request. Clears the usage if it was
    /// already charged.
    pub(crate) fn apply_deferred_charge(&mut self) {
        let Some(DeferredBilling::Existing(charge)) = self.billing.deferred_billing.take() else { return };
        let Some((model, provider_model)) =
            charge.filter(|_| self.billing.usage.is_some()).and_then(PendingCharge::settle)
        else {
            self.billing.usage = None;
            return;
        };
        self.billing.tariff = self.billing.tariff.for_other_model(&model);
        (self.model, self.provider_model) = (model, provider_model);
    }
}
