//! When a response is paid for that goes on in the background: not when it begins, but once, when somebody is told what it used.

use std::sync::Arc;

use penstock_llm::{api_format::begun, operation::Operation};

use super::Facts;
use crate::{
    resolve::target_resolver::Call,
    state::shared::pending_charges::{Debt, Dues},
};

/// What is to be done about what an answer cost.
#[derive(Debug)]
pub enum Later {
    /// A response may begin that is not over when it is answered.
    Begins(Arc<Dues>),
    /// It is about one that began earlier, which is paid for or not.
    Earlier(Option<Debt>),
}

impl Later {
    /// Of requests that are about responses.
    pub async fn of(dues: &Arc<Dues>, call: &Call<'_>, provider: &str) -> Option<Self> {
        match call.asked_for() {
            Operation::CreateModelResponse => Some(Self::Begins(Arc::clone(dues))),
            Operation::GetModelResponse | Operation::CancelModelResponse => {
                let id = call.route.path.rsplit_once("/responses/")?.1.split('/').next()?;
                Some(Self::Earlier(dues.look(provider, id).await))
            }
            _ => None,
        }
    }

    /// Whether what is told was paid for.
    pub fn is_paid(&self) -> bool {
        matches!(self, Self::Earlier(None))
    }
}

impl Facts {
    /// Whether an answer says of a response that it has only begun: it costs nothing yet.
    pub fn owes(&self, answer: &[u8]) -> bool {
        matches!(self.paid.later, Some(Later::Begins(_))) && begun(answer).is_some_and(|id| self.owes_for(&id))
    }

    /// Likewise of one that goes on though its stream has ended.
    pub fn owes_for(&self, id: &str) -> bool {
        let Some(Later::Begins(dues)) = &self.paid.later else { return false };
        dues.owe(self.provider, id, (&self.model, self.own_model.as_deref()));
        true
    }

    /// Whether somebody else may be told the same at this moment, at another worker.
    pub(crate) fn is_disputed(&self) -> bool {
        let Some(Later::Earlier(Some(debt))) = &self.paid.later else { return false };
        self.paid.usage.is_some() && debt.is_shared()
    }

    /// Only the first of them all pays.
    pub(crate) async fn settle_dispute(&mut self) {
        if let Some(Later::Earlier(debt)) = &mut self.paid.later
            && let Some(owed) = debt.as_ref()
            && !owed.is_first().await
        {
            *debt = None;
        }
    }

    /// What was used earlier counts for who pays for it, at the price of the model that was asked for then.
    pub(crate) fn settle_debt(&mut self) {
        let Some(Later::Earlier(debt)) = self.paid.later.take() else { return };
        let Some((model, own)) = debt.filter(|_| self.paid.usage.is_some()).and_then(Debt::pay) else {
            self.paid.usage = None;
            return;
        };
        self.paid.tariff = self.paid.tariff.of_another(&model);
        (self.model, self.own_model) = (model, own);
    }
}
