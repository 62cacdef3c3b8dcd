//! Response writer that converts citations of text blocks to character ranges. Needed for client formats without
//! content blocks.

use serde_json::Value;

use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
        response_writer::ResponseWriter,
    },
    citations::{
        cited_text::{Citation, CitationSet},
        to_anthropic,
    },
};

const CITATIONS_FIELD: &str = "citations";

pub struct BlockCitationWriter<T> {
    writer: T,
    /// Number of characters written so far.
    char_count: usize,
    /// Number of characters before the current block.
    block_start: usize,
    /// Citations of the current block in Anthropic's format.
    sources: Vec<Value>,
    /// Citations of the current block as the provider sent them.
    provider_citations: Vec<Value>,
}

impl<T: ResponseWriter> BlockCitationWriter<T> {
    pub fn new(writer: T) -> Self {
        Self { writer, char_count: 0, block_start: 0, sources: Vec::new(), provider_citations: Vec::new() }
    }

    /// Ends the current block and writes its citations. Their range is known only when the block ends.
    fn finish_block(&mut self) {
        let claim = std::mem::replace(&mut self.block_start, self.char_count)..self.char_count;
        if self.provider_citations.is_empty() {
            return;
        }
        let json = Value::from(std::mem::take(&mut self.provider_citations)).to_string();
        let cited = std::mem::take(&mut self.sources)
            .into_iter()
            .map(|citation| Citation::without_marker(claim.clone(), citation));
        let cited: Vec<_> = cited.collect();
        let all = CitationSet {
            scope: FieldScope::Block,
            name: CITATIONS_FIELD,
            json: &json,
            citations: &cited,
            untranslated_fields: &[],
        };
        self.writer.push_event(ResponseEvent::Citations(all));
    }
}

impl<T: ResponseWriter> EventSink for BlockCitationWriter<T> {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Text(text) => self.char_count += text.chars().count(),
            ResponseEvent::ExtraField { scope: FieldScope::Block, name: CITATIONS_FIELD, json } => {
                let list = serde_json::from_str::<Value>(json).unwrap_or_default();
                if let (Some(sources), Value::Array(citation_values)) = (to_anthropic(&list), list) {
                    self.sources.extend(sources);
                    self.provider_citations.extend(citation_values);
                    return;
                }
            }
            ResponseEvent::Start { .. }
            | ResponseEvent::ExtraField { .. }
            | ResponseEvent::Citations(_)
            | ResponseEvent::Usage(_)
            | ResponseEvent::ToolCallArguments { .. }
            | ResponseEvent::Thinking("")
            | ResponseEvent::Refusal("") => (),
            _ => self.finish_block(),
        }
        self.writer.push_event(event);
    }
}

impl<T: ResponseWriter> ResponseWriter for BlockCitationWriter<T> {
    fn take_output(&mut self) -> Vec<u8> {
        self.writer.take_output()
    }
}
