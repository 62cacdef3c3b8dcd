//! Deferred billing of background responses. A background response is charged once, when a client first reads its
//! usage, not when it starts.

use std::sync::Arc;

use crate::state::shared::pending_charges::{PendingCharge, PendingCharges};

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
