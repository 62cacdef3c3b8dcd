//! Message of the gateway that replaces a model's response, in the client's format.

use std::sync::Arc;

use super::client_format::{ClientChatFormat, ClientFormat};
use crate::{
    chat::{
        client_tools::ClientTools, event::ResponseEvent, response_context::ResponseContext,
        response_writer::ResponseWriter,
    },
    fields::Fields,
    operation::Operation,
    provider_format::EventFraming,
    reports::ResponseReport,
};

/// Text of the response, and the properties of the request that it responds to.
#[derive(Debug, Clone, Copy)]
pub struct SyntheticResponse<'n> {
    pub operation: Operation,
    pub model: &'n str,
    pub is_streaming: bool,
    pub text: &'n str,
    /// Unix time in seconds.
    pub created: u64,
    /// Unique part of the id of the response.
    pub id_suffix: &'n str,
}

/// Returns content type and body of the response; `None` if the operation generates no text.
pub fn write_synthetic_response(response: &SyntheticResponse<'_>) -> Option<(&'static str, Vec<u8>)> {
    let Some(ClientFormat::Chat(format)) = ClientFormat::from_operation(response.operation) else { return None };
    let context = ResponseContext {
        provider: "gateway",
        model: response.model.to_owned(),
        created: response.created,
        id_suffix: response.id_suffix.to_owned(),
        is_strict: true,
        should_show_thinking: false,
        should_show_images: false,
        echoed_fields: Fields::default(),
        document_names: Arc::default(),
        report: ResponseReport::default(),
        renamed_tools: Arc::default(),
        client_tools: Arc::new(ClientTools::default()),
        tool_call_signatures: None,
    };
    let (kind, mut writer): (_, Box<dyn ResponseWriter>) = if response.is_streaming {
        (stream_type(format), format.stream_writer(context))
    } else {
        ("application/json", format.response_builder(context))
    };
    for event in [
        ResponseEvent::Start { id: "", model: response.model },
        ResponseEvent::Text(response.text),
        ResponseEvent::Finish { reason: "stop", stop_sequence: None },
        ResponseEvent::End,
    ] {
        writer.push_event(event);
    }
    Some((kind, writer.take_output()))
}

fn stream_type(format: ClientChatFormat) -> &'static str {
    let framing =
        if format.has_aws_event_stream() { EventFraming::AwsEventStream } else { EventFraming::ServerSentEvents };
    framing.content_type()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::texts::{frames::StreamEncoding, response_texts, stream::StreamTexts};

    const OPERATIONS: [Operation; 6] = [
        Operation::ChatComplete,
        Operation::Complete,
        Operation::Messages,
        Operation::CreateModelResponse,
        Operation::GenerateContent,
        Operation::Converse,
    ];

    #[test]
    fn every_chat_format_says_the_text() {
        for operation in OPERATIONS {
            let response = SyntheticResponse {
                operation,
                model: "m",
                is_streaming: false,
                text: "denied",
                created: 1,
                id_suffix: "x",
            };
            let (kind, body) = write_synthetic_response(&response).unwrap();
            let texts = response_texts(&serde_json::from_slice(&body).unwrap());
            assert_eq!((kind, texts.len(), texts[0].text.as_str()), ("application/json", 1, "denied"), "{operation:?}");
            let (kind, stream) =
                write_synthetic_response(&SyntheticResponse { is_streaming: true, ..response }).unwrap();
            if kind == "text/event-stream" {
                let texts = StreamTexts::read(StreamEncoding::SseEvents, &Bytes::from(stream)).unwrap();
                assert_eq!(texts.parts()[0].text, "denied", "{operation:?}");
            }
        }
        let embed = SyntheticResponse {
            operation: Operation::Embed,
            model: "m",
            is_streaming: false,
            text: "x",
            created: 1,
            id_suffix: "",
        };
        assert!(write_synthetic_response(&embed).is_none());
    }
}
