//! Restores values that guardrails replaced in a request, in the response that the client receives. Logs, caches and
//! guardrails of the response only see the placeholder names.

use std::sync::Arc;

use aho_corasick::AhoCorasick;
use bytes::Bytes;
use penstock_llm::texts::{TextKind, frames::StreamEncoding, remove_token_lists, response_texts};
use serde_json::Value;

use super::{restorations::Restorations, stream_window::StreamWindow};
use crate::{
    guardrails::{
        checks::{Check, CheckError, CheckInput, CheckOutcome, CompiledCheck, Stages},
        hook::{Hook, HookCheck},
        text_scope::TextScope,
        window::{PlaceholderNames, WindowCheck, WindowMatch},
    },
    response::{client_rewriter::RewriteForClient, delivery::StreamFraming},
};

/// Returns the rewriter that restores values in a response with this framing; `None` if there are no values.
pub fn build_rewriter(
    restorations: &Restorations,
    framing: Option<StreamFraming>,
) -> Option<Box<dyn RewriteForClient>> {
    let table = Arc::new(NameTable::new(restorations.values())?);
    let encoding = match framing {
        Some(StreamFraming::SseEvents) => Some(StreamEncoding::SseEvents),
        Some(StreamFraming::AwsFrames) => Some(StreamEncoding::AwsFrames),
        Some(StreamFraming::JsonArrayItems) | None => None,
    };
    let window = encoding.and_then(|encoding| StreamWindow::of_every_event(encoding, restoring_hook(&table)));
    Some(Box::new(Restorer { table, window, held: Vec::new() }))
}

/// Placeholder names, and the values that replace them: in a text, and in a text that is JSON.
#[derive(Debug)]
struct NameTable {
    names: Vec<String>,
    finder: AhoCorasick,
    values: Vec<String>,
    json_values: Vec<String>,
    longest_name: usize,
}

impl NameTable {
    fn new(values: &[(String, String)]) -> Option<Self> {
        let names: Vec<_> = values.iter().map(|(name, _)| name.clone()).collect();
        let longest_name = names.iter().map(String::len).max()?;
        let finder = AhoCorasick::new(&names).ok()?;
        let json = |(_, value): &(String, String)| {
            let quoted = Value::from(value.as_str()).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        };
        let values_of = values.iter().map(|(_, value)| value.clone()).collect();
        Some(Self { names, finder, values: values_of, json_values: values.iter().map(json).collect(), longest_name })
    }

    /// Returns the position at which the end of a text may be the beginning of a name. Returns the length of the text
    /// if there is none.
    fn open_from(&self, text: &[u8]) -> usize {
        let earliest = text.len().saturating_sub(self.longest_name);
        let is_begin = |at: &usize| self.names.iter().any(|name| name.as_bytes().starts_with(&text[*at..]));
        (earliest..text.len()).find(is_begin).unwrap_or(text.len())
    }

    fn replacements(&self, is_json: bool) -> &[String] {
        if is_json { &self.json_values } else { &self.values }
    }
}

/// Restores values in the texts of a stream.
#[derive(Debug)]
struct RestoringCheck {
    table: Arc<NameTable>,
    /// True for arguments of tools, which are JSON.
    is_json: bool,
}

impl WindowCheck for RestoringCheck {
    fn scope(&self) -> TextScope {
        TextScope::All
    }

    fn includes(&self, kind: TextKind) -> bool {
        (kind == TextKind::ToolArguments) == self.is_json
    }

    fn longest_match(&self) -> usize {
        self.table.longest_name
    }

    fn settled_end(&self, text: &str) -> usize {
        self.table.open_from(text.as_bytes())
    }

    fn find(&self, text: &str, settled: usize, _names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let values = self.table.replacements(self.is_json);
        let found = self.table.finder.find_iter(text).filter(|found| found.start() < settled);
        found
            .map(|found| WindowMatch {
                range: found.range(),
                replacement: Some(values[found.pattern().as_usize()].clone()),
                kind: "restored",
            })
            .collect()
    }
}

impl Check for RestoringCheck {
    fn run(&self, _input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        Ok(CheckOutcome::new(true, Value::Null))
    }

    fn window(&self) -> Option<&dyn WindowCheck> {
        Some(self)
    }
}

fn restoring_hook(table: &Arc<NameTable>) -> Arc<Hook> {
    let check = |is_json: bool| HookCheck {
        check: CompiledCheck {
            id: String::new(),
            stages: Stages::Output,
            check: Box::new(RestoringCheck { table: Arc::clone(table), is_json }),
            fails_on_error: false,
            memory_bytes: 0,
        },
        is_soft: false,
    };
    Arc::new(Hook { checks: vec![check(false), check(true)], ..Hook::default() })
}

struct Restorer {
    table: Arc<NameTable>,
    /// Reads the events of a stream. `None` if the response has none.
    window: Option<StreamWindow>,
    /// Bytes that may be the beginning of a name, for a response without events.
    held: Vec<u8>,
}

impl Restorer {
    /// Replaces the names in a part of a JSON body that is too large to be read as a whole.
    fn replace_bytes(&mut self, is_end: bool) -> Bytes {
        let settled = if is_end { self.held.len() } else { self.table.open_from(&self.held) };
        let rest = self.held.split_off(settled);
        let part = std::mem::replace(&mut self.held, rest);
        self.table.finder.replace_all_bytes(&part, &self.table.json_values).into()
    }
}

impl RewriteForClient for Restorer {
    fn rewrite_complete(&mut self, bytes: Bytes) -> Bytes {
        if self.table.finder.find(&bytes[..]).is_none() {
            return bytes;
        }
        let Ok(mut body) = serde_json::from_slice::<Value>(&bytes) else { return bytes };
        for part in response_texts(&body) {
            let values = self.table.replacements(part.kind == TextKind::ToolArguments);
            let restored = self.table.finder.replace_all(&part.text, values);
            if restored != part.text {
                part.replace(&mut body, &restored);
            }
        }
        remove_token_lists(&mut body);
        body.to_string().into()
    }

    fn rewrite_chunk(&mut self, chunk: Bytes) -> Bytes {
        let Some(window) = &mut self.window else {
            self.held.extend_from_slice(&chunk);
            return self.replace_bytes(false);
        };
        let mut output = Vec::new();
        window.push(Some(chunk), &mut output);
        output.into()
    }

    fn finish(&mut self) -> Bytes {
        let Some(window) = &mut self.window else { return self.replace_bytes(true) };
        let mut output = Vec::new();
        window.push(None, &mut output);
        output.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn restorations() -> Restorations {
        let mut restorations = Restorations::default();
        let value = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        restorations
            .extend(vec![value("{{EMAIL_ADDRESS_1_a1}}", "ann@x.example"), value("{{NAME_1_a1}}", "Ann \"A\" O'Neil")]);
        restorations.extend(vec![value("{{NAME_1_a1}}", "somebody else")]);
        restorations
    }

    fn rewrite(framing: Option<StreamFraming>, chunks: impl Iterator<Item = Bytes>) -> String {
        let mut rewriter = build_rewriter(&restorations(), framing).unwrap();
        let mut output: Vec<u8> = chunks.flat_map(|chunk| rewriter.rewrite_chunk(chunk)).collect();
        output.extend(rewriter.finish());
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn values_return_to_texts_and_tool_arguments() {
        let arguments = json!({"to": "{{EMAIL_ADDRESS_1_a1}}", "who": "{{NAME_1_a1}}"});
        let body = json!({"model": "{{NAME_1_a1}}", "choices": [{"message": {"content": "Hi {{NAME_1_a1}}, {{EMAIL_ADDRESS_2_a1}}",
            "tool_calls": [{"function": {"name": "mail", "arguments": arguments.to_string()}}]}}]});
        let mut rewriter = build_rewriter(&restorations(), None).unwrap();
        let restored: Value = serde_json::from_slice(&rewriter.rewrite_complete(body.to_string().into())).unwrap();
        let message = &restored["choices"][0]["message"];
        assert_eq!(message["content"], "Hi Ann \"A\" O'Neil, {{EMAIL_ADDRESS_2_a1}}");
        assert_eq!(restored["model"], "{{NAME_1_a1}}");
        let arguments: Value =
            serde_json::from_str(message["tool_calls"][0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"to": "ann@x.example", "who": "Ann \"A\" O'Neil"}));
    }

    #[test]
    fn values_return_to_streams_wherever_a_name_is_cut() {
        let event =
            |delta: Value| Bytes::from(format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]})));
        for size in [1, 2, 5, 9, 40] {
            let text = "Hi {{NAME_1_a1}}, { {{EMAIL_ADDRESS_1_a1}} {{x}} {{";
            let letters: Vec<char> = text.chars().collect();
            let deltas =
                letters.chunks(size).map(|letters| event(json!({"content": letters.iter().collect::<String>()})));
            let output =
                rewrite(Some(StreamFraming::SseEvents), deltas.chain([Bytes::from_static(b"data: [DONE]\n\n")]));
            let text: String = output
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
                .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap().to_owned())
                .collect();
            assert_eq!(text, "Hi Ann \"A\" O'Neil, { ann@x.example {{x}} {{", "{size}");
            assert!(output.ends_with("data: [DONE]\n\n"));
        }
        let call = |text: &str| event(json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}));
        let output = rewrite(Some(StreamFraming::SseEvents), [call("{\"a\":\"{{NAM"), call("E_1_a1}}\"}")].into_iter());
        let text: String = output
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
            .map(|event| {
                event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"a": "Ann \"A\" O'Neil"}));
    }

    #[test]
    fn an_event_without_a_name_leaves_at_once() {
        let mut rewriter = build_rewriter(&restorations(), Some(StreamFraming::SseEvents)).unwrap();
        let event = Bytes::from_static(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello, \"}}]}\n\n");
        assert_eq!(rewriter.rewrite_chunk(event.clone()), event);
    }

    #[test]
    fn large_bodies_are_restored_in_portions() {
        let body = json!({"content": [{"type": "text", "text": "a {{NAME_1_a1}} b"}]}).to_string();
        let chunks = body.as_bytes().chunks(3).map(Bytes::copy_from_slice);
        let restored: Value = serde_json::from_str(&rewrite(None, chunks)).unwrap();
        assert_eq!(restored["content"][0]["text"], "a Ann \"A\" O'Neil b");
    }
}
