//! The operations that an inference API offers, and the path that stands for each.

use crate::dialect::Dialect;

/// What a request asks for. `Proxy` is everything without a row of its own: forwarded as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    ChatComplete,
    Complete,
    Embed,
    Messages,
    MessagesCountTokens,
    CreateModelResponse,
    Moderate,
    Rerank,
    ImageGenerate,
    CreateSpeech,
    Models,
    Proxy,
}

struct Row {
    operation: Operation,
    method: &'static str,
    path: &'static str,
    id: &'static str,
}

const fn row(operation: Operation, method: &'static str, path: &'static str, id: &'static str) -> Row {
    Row { operation, method, path, id }
}

/// One row an operation: method, path after `/v1`, function id.
const OPERATIONS: &[Row] = &[
    row(Operation::ChatComplete, "POST", "/chat/completions", "chatComplete"),
    row(Operation::Messages, "POST", "/messages", "messages"),
    row(Operation::CreateModelResponse, "POST", "/responses", "createModelResponse"),
    row(Operation::Embed, "POST", "/embeddings", "embed"),
    row(Operation::Complete, "POST", "/completions", "complete"),
    row(Operation::MessagesCountTokens, "POST", "/messages/count_tokens", "messagesCountTokens"),
    row(Operation::Moderate, "POST", "/moderations", "moderate"),
    row(Operation::Rerank, "POST", "/rerank", "rerank"),
    row(Operation::ImageGenerate, "POST", "/images/generations", "imageGenerate"),
    row(Operation::CreateSpeech, "POST", "/audio/speech", "createSpeech"),
    row(Operation::Models, "GET", "/models", "models"),
];

impl Operation {
    /// The operation behind a method and a path (the path after `/v1`, without query).
    pub fn of(method: &str, path: &str) -> Self {
        OPERATIONS.iter().find(|row| row.path == path && row.method == method).map_or(Self::Proxy, |row| row.operation)
    }

    /// The function id that records and policies use, such as `chatComplete`.
    pub fn id(self) -> &'static str {
        OPERATIONS.iter().find(|row| row.operation == self).map_or("proxy", |row| row.id)
    }

    /// The path after `/v1` that providers of `OpenAI`'s shape serve it at; `None` where the caller's own path counts.
    pub fn path(self) -> Option<&'static str> {
        OPERATIONS.iter().find(|row| row.operation == self).map(|row| row.path)
    }

    /// The dialect in which its callers write and read.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Messages | Self::MessagesCountTokens => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }

    /// Whether its body is one JSON object, read before it is forwarded.
    pub fn takes_json(self) -> bool {
        !matches!(self, Self::Models | Self::Proxy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_operation_by_method_and_path() {
        assert_eq!(Operation::of("POST", "/chat/completions"), Operation::ChatComplete);
        assert_eq!(Operation::of("GET", "/chat/completions"), Operation::Proxy);
        assert_eq!(Operation::of("POST", "/anything"), Operation::Proxy);
    }

    #[test]
    fn every_operation_is_found_by_its_own_row() {
        for row in OPERATIONS {
            assert_eq!(Operation::of(row.method, row.path), row.operation);
            assert_eq!(row.operation.id(), row.id);
        }
    }
}
