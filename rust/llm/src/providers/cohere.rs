//! Cohere: its own chat, and reranking as others have it from there.

use super::{Group, Provider, RERANK};
use crate::{
    operation::Operation,
    translation::{
        self,
        wires::{self, Wire},
    },
};

pub(super) struct Cohere;

impl Provider for Cohere {
    fn slug(&self) -> &'static str {
        "cohere"
    }

    fn base_url(&self) -> &'static str {
        "https://api.cohere.ai"
    }

    fn version(&self) -> &'static str {
        "/v2"
    }

    fn offers(&self) -> &'static [Group] {
        &[RERANK]
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        self.wire(operation, "").map(|_| if operation == Operation::Embed { "/embed" } else { "/chat" })
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        (translation::is_talk(operation) || operation == Operation::Embed).then_some(&wires::cohere::Cohere)
    }
}
