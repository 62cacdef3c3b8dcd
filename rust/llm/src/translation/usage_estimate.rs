//! Estimated usage in translated responses whose provider reports none. Clients of most API formats require the field,
//! and a 0 there would mean that the response costs nothing.

use bytes::Bytes;

use super::{FormatPair, ResponseFailure, Transcoder, Translation};
use crate::{
    chat::{generated_text::GeneratedText, response_writer::RecordingWriter},
    errors::MalformedResponse,
    tokens::{Encoding, count_text},
    usage::Usage,
};

/// Inputs of the estimate besides the generated text.
#[derive(Debug, Clone, Copy)]
pub struct UsageEstimate {
    pub input_tokens: usize,
    /// Encoding in which the tokens of the generated text are counted.
    pub encoding: Encoding,
}

impl UsageEstimate {
    /// Returns the usage of a response with this text.
    fn for_text(self, text: &GeneratedText) -> Usage {
        let output = text.count_tokens(|text| count_text(self.encoding, text));
        Usage { input: self.input_tokens as u64, output: output as u64, is_estimated: true, ..Usage::default() }
    }

    /// Ends a stream whose end was held back because the provider reported no usage. Counting may take milliseconds.
    pub fn end_stream(self, transcoder: &mut Transcoder) -> Bytes {
        transcoder.release_end(|text| self.for_text(text))
    }
}

impl Translation {
    /// Translates a complete response without usage, with the estimate in its place. Counting may take milliseconds.
    pub fn translate_with_estimate(&self, body: &[u8], estimate: UsageEstimate) -> Result<Vec<u8>, MalformedResponse> {
        let context = &self.response_context;
        match &self.formats {
            FormatPair::Chat(client, format) => {
                let mut writer = RecordingWriter::new(client.response_builder(context.clone()), context).holding_end();
                format.read_response(body, &mut writer)?;
                Ok(writer.release_end(|text| estimate.for_text(text)))
            }
            FormatPair::Embeddings(encoding, format) => {
                let vectors = format.read_embeddings(&serde_json::from_slice(body)?);
                let mut vectors = vectors.ok_or_else(|| MalformedResponse("the response has no vectors".into()))?;
                vectors.token_count = Some(estimate.input_tokens as u64);
                let translated = vectors.into_client_json(context, *encoding)?;
                context.report.set_usage(estimate.for_text(&GeneratedText::default()));
                Ok(translated)
            }
            _ => self.translate_response(body),
        }
    }
}

impl From<ResponseFailure> for MalformedResponse {
    fn from(failure: ResponseFailure) -> Self {
        match failure {
            ResponseFailure::Malformed(fault) => fault,
            ResponseFailure::FailedGeneration(message) => Self(format!("the generation failed: {message}")),
        }
    }
}
