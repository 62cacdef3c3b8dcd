//! Cohere: its own chat, and reranking as others have it from there.

use super::{Asked, Group, Options, Provider, RERANK, write_path};
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
        self.wire(operation, "").map(|_| if operation.embeds() { "/embed" } else { "/chat" })
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        let is_known = operation == Operation::Models || operation.embeds() || translation::is_talk(operation);
        is_known.then_some(&wires::cohere::Cohere)
    }

    fn write_target(&self, asked: &Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if asked.operation == Operation::Models {
            // Of the version before.
            out.extend_from_slice(b"/v1/models?page_size=1000");
        } else {
            write_path(self, asked, out);
        }
        Ok(())
    }
}
