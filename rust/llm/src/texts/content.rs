//! Texts in the content of one message, whatever its format: a string, or parts of many kinds.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE},
};
use serde_json::Value;

use super::{TextCollector, TextKind, TextRole, unknown_fields::MIN_BASE64_BYTES};

/// Depth of nested content that is read. Tool results nest once.
const MAX_DEPTH: usize = 8;

impl TextCollector {
    /// Adds the texts of a message's content.
    pub(super) fn collect_content(&mut self, content: &Value, kind: TextKind) {
        self.collect_nested(content, kind, 0);
    }

    fn collect_nested(&mut self, content: &Value, kind: TextKind, depth: usize) {
        match content {
            Value::String(_) => self.push_string(kind, content),
            Value::Array(_) if depth < MAX_DEPTH => {
                self.at_items(content, |collector, _, part| match part {
                    Value::String(_) => collector.push_string(kind, part),
                    part => collector.collect_part(part, kind, depth),
                });
            }
            Value::Object(_) if depth < MAX_DEPTH => self.collect_part(content, kind, depth),
            _ => (),
        }
    }

    fn collect_part(&mut self, part: &Value, kind: TextKind, depth: usize) {
        let is_thought = part.get("thought") == Some(&Value::Bool(true));
        let text_kind = if is_thought { TextKind::Reasoning } else { kind };
        self.at_key(part, "text", |collector, text| match text {
            // Bedrock's `guardContent` holds its text one level deeper.
            Value::Object(_) => collector.at_key(text, "text", |inner, text| inner.push_string(text_kind, text)),
            _ => collector.push_string(text_kind, text),
        });
        self.at_key(part, "refusal", |collector, text| collector.push_string(TextKind::Refusal, text));
        self.at_key(part, "thinking", |collector, text| collector.push_string(TextKind::Reasoning, text));
        let is_tool_use = part["type"].as_str().is_some_and(|name| name.ends_with("tool_use"));
        if is_tool_use {
            self.at_key(part, "input", |collector, input| collector.push_json(TextKind::ToolArguments, input));
        }
        let is_result = part["type"].as_str().is_some_and(|name| name.ends_with("tool_result"));
        if is_result {
            self.at_key(part, "content", |collector, content| {
                collector.collect_nested(content, TextKind::ToolResult, depth + 1);
            });
        }
        // Search results and other parts hold parts of their own.
        if !is_result {
            self.at_key(part, "content", |collector, content| collector.collect_nested(content, kind, depth + 1));
        }
        self.at_key(part, "parts", |collector, parts| collector.collect_nested(parts, kind, depth + 1));
        self.collect_document(part, kind, depth);
        self.collect_google_part(part);
        self.collect_amazon_part(part, depth);
        for name in ["guardContent", "citationsContent"] {
            self.at_key(part, name, |collector, inner| collector.collect_nested(inner, kind, depth + 1));
        }
        if is_result {
            self.collect_unknown(part, TextKind::ToolResult);
        }
    }

    /// Adds calls and results of tools in Gemini's format.
    fn collect_google_part(&mut self, part: &Value) {
        for name in ["functionCall", "function_call"] {
            self.at_key(part, name, |collector, call| {
                collector.at_key(call, "args", |inner, args| inner.push_json(TextKind::ToolArguments, args));
                // Arguments that Google streams by their paths.
                collector.at_key(call, "partialArgs", |inner, args| {
                    inner.at_items(args, |inner, _, arg| {
                        inner
                            .at_key(arg, "stringValue", |inner, text| inner.push_string(TextKind::ToolArguments, text));
                    });
                });
            });
        }
        for name in ["functionResponse", "function_response"] {
            self.at_key(part, name, |collector, result| {
                collector
                    .at_key(result, "response", |inner, response| inner.push_value(TextKind::ToolResult, response));
            });
        }
        self.at_key(part, "executableCode", |collector, code| {
            collector.at_key(code, "code", |inner, code| inner.push_string(TextKind::ToolArguments, code));
        });
        self.at_key(part, "codeExecutionResult", |collector, result| {
            collector.at_key(result, "output", |inner, output| inner.push_string(TextKind::ToolResult, output));
        });
    }

    /// Adds calls and results of tools, and reasoning, in Bedrock's format.
    fn collect_amazon_part(&mut self, part: &Value, depth: usize) {
        self.at_key(part, "toolUse", |collector, call| {
            collector.at_key(call, "input", |inner, input| inner.push_json(TextKind::ToolArguments, input));
        });
        self.at_key(part, "toolResult", |collector, result| {
            collector.at_key(result, "content", |inner, content| {
                inner.at_items(content, |inner, _, part| {
                    inner.at_key(part, "text", |inner, text| inner.push_string(TextKind::ToolResult, text));
                    inner.at_key(part, "json", |inner, json| inner.push_value(TextKind::ToolResult, json));
                    inner.collect_document(part, TextKind::ToolResult, depth);
                });
            });
            collector.collect_unknown(result, TextKind::ToolResult);
        });
        self.at_key(part, "reasoningContent", |collector, reasoning| {
            collector.at_key(reasoning, "reasoningText", |inner, text| {
                inner.at_key(text, "text", |inner, text| inner.push_string(TextKind::Reasoning, text));
            });
        });
    }

    /// Adds the texts of a document: the texts of its parts, or the text of a text file, which may be in base64.
    fn collect_document(&mut self, part: &Value, kind: TextKind, depth: usize) {
        if depth >= MAX_DEPTH {
            return;
        }
        for name in ["title", "context"] {
            self.at_key(part, name, |collector, text| collector.push_string(kind, text));
        }
        self.at_key(part, "source", |collector, source| {
            let is_text = source["type"] == "text" || is_text_type(source["media_type"].as_str());
            match source["type"].as_str() {
                Some("base64") if is_text => {
                    collector.at_key(source, "data", |inner, data| inner.push_base64(kind, data));
                }
                Some("base64" | "url" | "file") => (),
                Some(_) => {
                    collector.at_key(source, "data", |inner, text| inner.push_string(kind, text));
                    collector
                        .at_key(source, "content", |inner, content| inner.collect_nested(content, kind, depth + 1));
                }
                // A document of Bedrock.
                None => {
                    collector.at_key(source, "text", |inner, text| inner.push_string(kind, text));
                    collector.at_key(source, "bytes", |inner, data| inner.push_base64(kind, data));
                    collector
                        .at_key(source, "content", |inner, content| inner.collect_nested(content, kind, depth + 1));
                }
            }
        });
        for name in ["document", "searchResult"] {
            self.at_key(part, name, |collector, document| collector.collect_part(document, kind, depth + 1));
        }
        for name in ["inlineData", "inline_data"] {
            self.at_key(part, name, |collector, inline| {
                let media_type = inline.get("mimeType").or_else(|| inline.get("mime_type")).and_then(Value::as_str);
                if is_text_type(media_type) {
                    collector.at_key(inline, "data", |inner, data| inner.push_base64(kind, data));
                }
            });
        }
        self.at_key(part, "file_data", |collector, data| collector.push_data_url(kind, data));
        self.at_key(part, "file", |collector, file| {
            collector.at_key(file, "file_data", |inner, data| inner.push_data_url(kind, data));
        });
    }

    /// Adds the text in a base64 string. Ignores other data, such as an image.
    pub(super) fn push_base64(&mut self, kind: TextKind, data: &Value) {
        let Some(encoded) = data.as_str() else { return };
        if self.push_encoded(kind, "", encoded) {
            self.set_read(data);
        }
    }

    /// Adds the text of a data URL, or of a file in base64.
    pub(super) fn push_data_url(&mut self, kind: TextKind, data: &Value) {
        let Some(url) = data.as_str() else { return };
        let is_read = match url.split_once(";base64,") {
            Some((begin, _)) if is_picture_or_sound(begin) => return self.set_read(data),
            Some((begin, encoded)) => self.push_encoded(kind, &format!("{begin};base64,"), encoded),
            None => self.push_encoded(kind, "", url),
        };
        if is_read {
            self.set_read(data);
        }
    }

    /// Decodes base64 data and adds the content if it is a text. Returns true if the data are certainly base64,
    /// whatever they contain.
    fn push_encoded(&mut self, kind: TextKind, prefix: &str, encoded: &str) -> bool {
        let Ok(decoded) = STANDARD.decode(encoded).or_else(|_| URL_SAFE.decode(encoded)) else { return false };
        let text = String::from_utf8(decoded).ok().filter(|text| !text.is_empty() && !text.contains('\0'));
        // A short text may be valid base64 by chance. It is then also read without decoding.
        let is_certain = text.is_some() || encoded.len() >= MIN_BASE64_BYTES || !prefix.is_empty();
        if let Some(text) = text {
            self.push(kind, text);
            if let Some(part) = self.parts.last_mut() {
                part.encoding = Some(prefix.into());
            }
        }
        is_certain
    }

    /// Adds the texts of a message: its content, and its tool calls.
    pub(super) fn collect_message(&mut self, message: &Value) {
        let kind = if self.role == TextRole::Tool { TextKind::ToolResult } else { TextKind::Text };
        self.at_key(message, "content", |collector, content| collector.collect_content(content, kind));
        // Messages in Cohere's chat history have their text here.
        self.at_key(message, "message", |collector, content| collector.collect_content(content, kind));
        for name in ["reasoning_content", "reasoning"] {
            self.at_key(message, name, |collector, text| collector.push_string(TextKind::Reasoning, text));
        }
        for name in ["reasoning_details", "thinking_blocks"] {
            self.at_key(message, name, |collector, blocks| {
                collector.at_items(blocks, |collector, _, block| collector.collect_reasoning(block));
            });
        }
        // These blocks repeat the content, and also contain the reasoning.
        self.at_key(message, "content_blocks", |collector, blocks| {
            collector.at_items(blocks, |collector, _, block| {
                collector.collect_content(block, TextKind::Other);
                collector.at_key(block, "delta", |collector, delta| {
                    collector.collect_content(delta, TextKind::Other);
                    collector
                        .at_key(delta, "partial_json", |inner, json| inner.push_json(TextKind::ToolArguments, json));
                });
            });
        });
        self.at_key(message, "refusal", |collector, text| collector.push_string(TextKind::Refusal, text));
        self.at_key(message, "audio", |collector, audio| {
            collector.at_key(audio, "transcript", |inner, text| inner.push_string(TextKind::Text, text));
        });
        self.at_key(message, "tool_calls", |collector, calls| {
            collector.at_items(calls, |collector, _, call| {
                collector.at_key(call, "function", Self::collect_arguments);
                // Custom tools take free text.
                collector.at_key(call, "custom", |inner, custom| {
                    inner.at_key(custom, "input", |inner, input| inner.push_value(TextKind::ToolArguments, input));
                });
            });
        });
        self.at_key(message, "function_call", Self::collect_arguments);
    }

    fn collect_reasoning(&mut self, block: &Value) {
        for name in ["text", "summary", "thinking"] {
            self.at_key(block, name, |collector, text| collector.push_string(TextKind::Reasoning, text));
        }
    }

    fn collect_arguments(&mut self, function: &Value) {
        self.at_key(function, "arguments", |collector, arguments| {
            collector.push_json(TextKind::ToolArguments, arguments);
        });
    }

    /// Adds the texts of an item of the Responses API.
    pub(super) fn collect_item(&mut self, item: &Value) {
        let kind = if self.role == TextRole::Tool { TextKind::ToolResult } else { TextKind::Text };
        self.at_key(item, "content", |collector, content| collector.collect_content(content, kind));
        self.at_key(item, "arguments", |collector, arguments| {
            collector.push_json(TextKind::ToolArguments, arguments);
        });
        if item["type"].as_str().is_some_and(|name| name.ends_with("_call")) {
            for name in ["input", "code", "action", "operation", "queries"] {
                self.at_key(item, name, |collector, input| collector.push_value(TextKind::ToolArguments, input));
            }
        }
        self.at_key(item, "output", |collector, output| match output {
            Value::String(_) | Value::Array(_) => collector.collect_content(output, TextKind::ToolResult),
            output => collector.push_value(TextKind::ToolResult, output),
        });
        self.at_key(item, "output", |collector, output| collector.collect_unknown(output, TextKind::ToolResult));
        for name in ["results", "outputs", "error"] {
            self.at_key(item, name, |collector, output| collector.push_value(TextKind::ToolResult, output));
        }
        self.at_key(item, "summary", |collector, summary| collector.collect_content(summary, TextKind::Reasoning));
        // An item may be a part itself.
        if item["type"].as_str().is_none_or(|name| name.ends_with("text")) {
            self.at_key(item, "text", |collector, text| collector.push_string(kind, text));
        }
        self.collect_unknown(item, TextKind::Other);
    }
}

/// Returns true if a data URL that begins like this contains an image, a sound or a video. Media that are text, such as
/// SVG, do not count.
fn is_picture_or_sound(begin: &str) -> bool {
    let media_type = begin.strip_prefix("data:").unwrap_or_default().split(';').next();
    let is_media =
        media_type.is_some_and(|name| ["image/", "audio/", "video/"].iter().any(|kind| name.starts_with(kind)));
    is_media && !is_text_type(media_type)
}

pub(super) fn is_text_type(media_type: Option<&str>) -> bool {
    media_type.is_some_and(|name| name.starts_with("text/") || name.ends_with("json") || name.ends_with("xml"))
}

/// Returns the author of a message, by its `role`.
pub(super) fn parse_role(message: &Value) -> TextRole {
    let is_one_of = |names: &[&str]| {
        message["role"].as_str().is_some_and(|role| names.iter().any(|name| role.eq_ignore_ascii_case(name)))
    };
    if is_one_of(&["system", "developer"]) {
        TextRole::System
    } else if is_one_of(&["assistant", "model", "chatbot"]) {
        TextRole::Assistant
    } else if is_one_of(&["tool", "function"]) {
        TextRole::Tool
    } else {
        TextRole::User
    }
}
