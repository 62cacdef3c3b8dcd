//! Bounds that the JSON body of a text request sets: the length of its responses and the number of its images. Also
//! finds parts that make its usage unpredictable, such as a file that the provider stores.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};

use super::body_parts::{self, BodyField};

/// Upper bounds of the usage of a request that its body sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BodyBounds {
    /// Maximum number of tokens of one response. `None` if the request sets no limit.
    each_output: Option<u64>,
    /// Number of responses to each prompt.
    choices: u64,
    /// Number of prompts, each of which gets its own responses.
    prompts: u64,
    /// Number of images in the request, each of which may have more tokens than bytes.
    pub images: u64,
    pub has_tools: bool,
    /// Description of the first part of the body whose usage has no bound, for the error message.
    pub unbounded: Option<String>,
}

impl BodyBounds {
    /// Reads a body. A body that cannot be parsed has no bound; most of these are rejected before.
    pub fn parse(body: &[u8]) -> Self {
        let mut bounds = Self { choices: 1, prompts: 1, ..Self::default() };
        let mut reader = serde_json::Deserializer::from_slice(body);
        if BodySeed(&mut bounds).deserialize(&mut reader).is_err() {
            bounds.each_output = None;
            bounds.mark_unbounded("a body that cannot be read");
        }
        bounds
    }

    /// Returns the maximum number of tokens of all responses together; `None` without a limit.
    pub fn output_tokens(&self) -> Option<u64> {
        self.each_output.map(|each| each.saturating_mul(self.responses()))
    }

    /// Returns the number of responses to all prompts, or of images.
    pub fn responses(&self) -> u64 {
        self.choices.saturating_mul(self.prompts)
    }

    /// Adds a limit on the tokens of one response. The largest of several limits counts, because it is not known which
    /// of them the provider respects.
    fn limit_output(&mut self, most: Option<u64>) {
        self.each_output = self.each_output.max(most);
    }

    /// Returns the number in a field. Any other value makes the request unbounded, because each provider reads it in
    /// its own way.
    fn read_count(&mut self, field: &str, count: Option<&Count>) -> Option<u64> {
        let number = count?.whole();
        if number.is_none() {
            self.mark_unbounded(format!("`{field}`, which is no whole number"));
        }
        number
    }

    fn mark_unbounded(&mut self, what: impl Into<String>) {
        if self.unbounded.is_none() {
            self.unbounded = Some(what.into());
        }
    }

    /// Adds one of the tools. A tool that the provider runs makes the request unbounded: it costs extra, and its
    /// results become input.
    fn add_tool(&mut self, kind: Option<&str>, names: &[Cow<'_, str>]) {
        self.has_tools = true;
        let is_run_by_client = match kind {
            Some(kind) => {
                CLIENT_TOOLS.contains(&kind) || CLIENT_TOOL_PREFIXES.iter().any(|prefix| kind.starts_with(prefix))
            }
            None => names.iter().any(|name| CLIENT_TOOL_FIELDS.contains(&&**name)),
        };
        if !is_run_by_client {
            let name = kind.unwrap_or_else(|| names.first().map_or("", |name| name));
            self.mark_unbounded(format!("the provider's tool `{}`", shorten(name)));
        }
    }
}

/// Types of tools that the client runs.
const CLIENT_TOOLS: [&str; 5] = ["function", "custom", "local_shell", "apply_patch", "computer_use_preview"];
/// Prefixes of further types of tools that the client runs.
const CLIENT_TOOL_PREFIXES: [&str; 4] = ["bash_", "text_editor_", "computer_", "memory_"];
/// Fields of those tools without a type that the client runs. A cache point is an entry of Bedrock's list of tools.
const CLIENT_TOOL_FIELDS: [&str; 5] =
    ["functionDeclarations", "function_declarations", "toolSpec", "input_schema", "cachePoint"];
/// Maximum length of a name in an error message.
const MAX_NAME_CHARS: usize = 64;
/// Number of bytes at the start of a text in which the `://` of a URL is searched.
const MAX_SCHEME_BYTES: usize = 16;

fn shorten(name: &str) -> Cow<'_, str> {
    if name.chars().count() <= MAX_NAME_CHARS { name.into() } else { name.chars().take(MAX_NAME_CHARS).collect() }
}

/// A number of tokens or responses, as a body contains it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Whole(u64),
    Other(serde::de::IgnoredAny),
}

impl Count {
    /// Returns the number. `None` for a value that only some providers read as a number, such as `"5"`, 5.0 or -1.
    fn whole(&self) -> Option<u64> {
        if let Self::Whole(count) = self { Some(*count) } else { None }
    }
}

/// Reads the top level of a body, or an object in it that contains further parameters. Null is an object without any.
struct BodySeed<'b>(&'b mut BodyBounds);

impl<'de> DeserializeSeed<'de> for BodySeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BodySeed<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let bounds = self.0;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match BodyField::from_name(&key) {
                BodyField::OutputLimit => {
                    let count: Option<Count> = map.next_value()?;
                    let most = bounds.read_count(&key, count.as_ref());
                    // Some providers read 0 as no limit.
                    if most == Some(0) {
                        bounds.mark_unbounded(format!("`{key}` of 0"));
                    }
                    bounds.limit_output(most);
                }
                BodyField::Choices => {
                    let count: Option<Count> = map.next_value()?;
                    bounds.choices = bounds.choices.max(bounds.read_count(&key, count.as_ref()).unwrap_or(1));
                }
                BodyField::Nested => map.next_value_seed(BodySeed(bounds))?,
                BodyField::Prompt => {
                    let read = map.next_value_seed(ValueSeed { bounds, section: BodySection::Content })?;
                    bounds.prompts = bounds.prompts.max(read.texts);
                    if read.is_object {
                        bounds.mark_unbounded("`prompt`, which the provider stores");
                    }
                }
                BodyField::Tools => {
                    map.next_value_seed(ValueSeed { bounds, section: BodySection::Tools })?;
                }
                BodyField::Functions => {
                    bounds.has_tools = true;
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
                BodyField::Unbounded => {
                    if map.next_value_seed(ValueSeed { bounds, section: BodySection::Data })?.is_set {
                        bounds.mark_unbounded(format!("`{}`", shorten(&key)));
                    }
                }
                BodyField::Messages => {
                    let read = map.next_value_seed(ValueSeed { bounds, section: BodySection::Content })?;
                    if key == "images" {
                        bounds.images += read.texts;
                    }
                }
                BodyField::Other => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Role of a value in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodySection {
    /// Messages and their parts.
    Content,
    /// List of tools.
    Tools,
    /// One tool of the list.
    Tool,
    /// Anything that is text for the model.
    Data,
}

/// Properties of a value that was read.
#[derive(Debug, Default)]
struct ValueRead {
    text: Option<String>,
    /// True for the text of a URL with a host, but not for `data:` URLs.
    is_url: bool,
    /// Value of the field `type` of an object; `None` for other values.
    kind: Option<String>,
    /// Number of entries of a list that are strings or lists.
    texts: u64,
    is_object: bool,
    /// False for null, false, and an empty list.
    is_set: bool,
}

struct ValueSeed<'b> {
    bounds: &'b mut BodyBounds,
    section: BodySection,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ValueRead;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ValueRead, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = ValueRead;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<ValueRead, E> {
        Ok(ValueRead::default())
    }

    fn visit_bool<E>(self, value: bool) -> Result<ValueRead, E> {
        Ok(ValueRead { is_set: value, ..ValueRead::default() })
    }

    fn visit_i64<E>(self, _: i64) -> Result<ValueRead, E> {
        Ok(ValueRead { is_set: true, ..ValueRead::default() })
    }

    fn visit_u64<E>(self, _: u64) -> Result<ValueRead, E> {
        Ok(ValueRead { is_set: true, ..ValueRead::default() })
    }

    fn visit_f64<E>(self, _: f64) -> Result<ValueRead, E> {
        Ok(ValueRead { is_set: true, ..ValueRead::default() })
    }

    fn visit_str<E>(self, text: &str) -> Result<ValueRead, E> {
        // Types and media types are short. Long texts are not copied.
        let short = (text.len() <= 4 * MAX_NAME_CHARS).then(|| text.to_owned());
        let start = text.as_bytes().get(..MAX_SCHEME_BYTES).unwrap_or(text.as_bytes());
        let is_url = start.windows(3).any(|part| part == b"://");
        Ok(ValueRead { text: short, is_url, is_set: true, ..ValueRead::default() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ValueRead, A::Error> {
        let section = if self.section == BodySection::Tools { BodySection::Tool } else { self.section };
        let mut read = ValueRead::default();
        while let Some(entry) = list.next_element_seed(ValueSeed { bounds: self.bounds, section })? {
            read.is_set = true;
            read.texts += u64::from(!entry.is_object && entry.is_set);
        }
        Ok(read)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ValueRead, A::Error> {
        let Self { bounds, section } = self;
        let mut read = ValueRead { is_object: true, is_set: true, ..ValueRead::default() };
        let (mut source_kind, mut has_image, mut names) = (None, false, Vec::new());
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let inner =
                if section == BodySection::Content && !body_parts::is_data(&key) { section } else { BodySection::Data };
            let value = map.next_value_seed(ValueSeed { bounds, section: inner })?;
            match &*key {
                "type" => read.kind = value.text,
                "source" => source_kind = value.kind,
                "image_url" | "image" => has_image |= value.is_set,
                _ if section == BodySection::Content => bounds.read_field(&key, &value),
                _ => (),
            }
            if section == BodySection::Tool {
                names.push(key);
            }
        }
        match section {
            BodySection::Content => bounds.read_part(read.kind.as_deref(), source_kind.as_deref(), has_image),
            BodySection::Tool => bounds.add_tool(read.kind.as_deref(), &names),
            BodySection::Tools | BodySection::Data => (),
        }
        Ok(read)
    }
}

impl BodyBounds {
    /// Reads a field of a message or of a part of it.
    fn read_field(&mut self, key: &str, value: &ValueRead) {
        if !value.is_set {
            return;
        }
        match key {
            // Gemini and Bedrock name the kind of a part by its field.
            "mimeType" | "mime_type" | "media_type" => match value.text.as_deref().unwrap_or_default() {
                // Not counted for `media_type`, because `read_part` counts images of Anthropic by their type.
                kind if kind.starts_with("image/") => self.images += u64::from(key != "media_type"),
                kind if kind.starts_with("audio/") || kind.starts_with("text/") => (),
                kind => self.mark_unbounded(format!("a file of type `{}`", shorten(kind))),
            },
            "images" => self.images += value.texts,
            "audio" | "video" | "document" if value.is_object => self.mark_unbounded(format!("`{key}`")),
            "file_id" | "file_url" | "fileUri" | "file_uri" | "file_data"
                if value.text.is_some() || !value.is_object =>
            {
                self.mark_unbounded(format!("`{key}`"));
            }
            // Some providers fetch a recording if its `data` is a URL.
            "data" if value.is_url => self.mark_unbounded("`data` with a URL"),
            _ => (),
        }
    }

    /// Reads an object of a message by its type. An object whose type is not known may be anything, such as a file.
    fn read_part(&mut self, kind: Option<&str>, source_kind: Option<&str>, has_image: bool) {
        let kind = kind.unwrap_or_default();
        self.images += u64::from(has_image || body_parts::is_image(kind));
        match kind {
            "document" if !matches!(source_kind, Some("text" | "content")) => self.mark_unbounded("a document"),
            "document" => (),
            kind if body_parts::is_image(kind) || body_parts::is_bounded(kind) => (),
            kind => self.mark_unbounded(format!("a part of type `{}`", shorten(kind))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(body: &Value) -> BodyBounds {
        BodyBounds::parse(body.to_string().as_bytes())
    }

    fn content(part: &Value) -> BodyBounds {
        parse(&json!({"messages": [{"role": "user", "content": [part]}]}))
    }

    #[test]
    fn reads_limits_of_responses_in_all_formats() {
        for (body, expected) in [
            (json!({}), None),
            (json!({"max_tokens": 5}), Some(5)),
            (json!({"max_tokens": 5, "max_completion_tokens": 9, "n": 3}), Some(27)),
            (json!({"max_output_tokens": 7}), Some(7)),
            (json!({"generationConfig": {"maxOutputTokens": 4, "candidateCount": 2}}), Some(8)),
            (json!({"inferenceConfig": {"maxTokens": 6}}), Some(6)),
            (json!({"prompt": ["a", "b", [1, 2]], "max_tokens": 10, "best_of": 2}), Some(60)),
            (json!({"prompt": "a", "max_tokens": 10}), Some(10)),
            (json!({"max_tokens": null, "n": null, "generationConfig": null}), None),
            (json!({"max_tokens": "many"}), None),
            (json!({"max_tokens": -1}), None),
            // Decoders of some providers ignore the case of keys, or respect parameters of other providers.
            (json!({"max_tokens": 5, "Max_Tokens": 900, "N": 2}), Some(1800)),
            (json!({"max_tokens": 5, "max_new_tokens": 900}), Some(900)),
            (json!({"max_tokens": 5, "num_return_sequences": 3}), Some(15)),
            (json!({"inferenceConfig": {"maxTokens": 6}, "additionalModelRequestFields": {"max_tokens": 9}}), Some(9)),
        ] {
            assert_eq!(parse(&body).output_tokens(), expected, "{body}");
        }
        assert_eq!(BodyBounds::parse(b"{\"max_tokens\": 5,").output_tokens(), None);
        assert_eq!(BodyBounds::parse(br#"{"max_tokens": 5, "max_tokens": 900}"#).output_tokens(), Some(900));
    }

    #[test]
    fn counts_images_in_all_formats() {
        for part in [
            json!({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}),
            json!({"image": {"format": "png", "source": {"bytes": "AA"}}}),
            json!({"inlineData": {"mimeType": "image/png", "data": "AA"}}),
            json!({"image_url": {"url": "https://a.example/b.png"}}),
            json!({"type": "image", "image": "https://a.example/b.png"}),
            json!({"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}),
            json!({"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "x"}}),
            json!({"toolResult": {"content": [{"image": {"source": {"bytes": "AA"}}}]}}),
            json!({"functionResponse": {"response": {}, "parts": [{"inlineData": {"mimeType": "image/png"}}]}}),
        ] {
            let bounds = content(&part);
            assert_eq!((bounds.images, bounds.unbounded), (1, None), "{part}");
        }
        let images = json!({"messages": [{"role": "user", "content": "x", "images": ["AA", "AA"]}]});
        assert_eq!(parse(&images).images, 2);
        let embedded = json!({"input": [{"image": "https://a.example/b.png"}, {"text": "x"}], "images": ["AA"]});
        assert_eq!(parse(&embedded).images, 2);
    }

    #[test]
    fn finds_what_has_no_bound() {
        for part in [
            json!({"type": "file", "file": {"file_id": "f"}}),
            json!({"type": "input_file", "file_url": "https://a.example/b.pdf"}),
            json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}}),
            json!({"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}}),
            json!({"fileData": {"fileUri": "gs://a/b"}}),
            json!({"inlineData": {"mimeType": "video/mp4", "data": "AA"}}),
            json!({"document": {"format": "pdf", "source": {"bytes": "AA"}}}),
            json!({"type": "document_url", "document_url": "https://a.example/b.pdf"}),
            json!({"type": "audio_url", "audio_url": {"url": "https://a.example/b.mp3"}}),
            json!({"type": "input_audio", "input_audio": {"data": "HTTPS://a.example/b.mp3"}}),
            json!({"audio": {"format": "mp3", "source": {"s3Location": {"uri": "s3://a/b"}}}}),
            json!({"type": "image_generation_call", "id": "ig_1"}),
            json!({"type": "invented", "url": "https://a.example"}),
        ] {
            assert!(content(&part).unbounded.is_some(), "{part}");
        }
        for body in [
            json!({"previous_response_id": "r", "input": "hi"}),
            json!({"prompt": {"id": "p"}}),
            json!({"tools": [{"type": "web_search"}]}),
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            json!({"tools": [{"googleSearch": {}}]}),
            json!({"web_search_options": {}}),
            json!({"cachedContent": "c"}),
            json!({"extra_body": {"google": {"cached_content": "c"}}}),
            json!({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
            json!({"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}}),
            json!({"search_parameters": {"mode": "on"}}),
            json!({"data_sources": [{"type": "azure_search"}]}),
            json!({"models": ["another"]}),
            json!({"prediction": {"type": "content", "content": "x"}}),
            json!({"max_tokens": 0}),
            json!({"generationConfig": {"maxOutputTokens": 0}}),
            json!({"max_tokens": 5, "max_completion_tokens": "900"}),
            json!({"max_tokens": -1}),
            json!({"max_tokens": 5, "n": "1000"}),
            json!({"max_tokens": 5, "n": 1000.0}),
            json!({"max_tokens": 5, "n": [2]}),
            json!({"generationConfig": {"maxOutputTokens": 5, "candidateCount": "8"}}),
        ] {
            assert!(parse(&body).unbounded.is_some(), "{body}");
        }
        assert!(BodyBounds::parse(br#"{"max_tokens": 1e400, "n": 1000}"#).unbounded.is_some());
    }

    #[test]
    fn text_and_tools_of_clients_are_bounded() {
        for body in [
            json!({"messages": [{"role": "user", "content": "a file_id in a text"}], "tools": [{"type": "function",
                "function": {"name": "f", "parameters": {"properties": {"file_id": {"type": "file"}}}}}]}),
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read",
                "input": {"file_id": "f", "type": "file"}}]}], "tools": [{"name": "read", "input_schema": {}}]}),
            json!({"contents": [{"parts": [{"functionCall": {"name": "f", "args": {"fileUri": "x"}}}]}],
                "tools": [{"functionDeclarations": []}]}),
            json!({"messages": [{"role": "user", "content": [{"type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]}]}),
            json!({"previous_response_id": null, "tools": []}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x",
                "cache_control": {"type": "ephemeral"}}, {"type": "input_audio", "input_audio": {"data": "AA"}}]},
                {"role": "assistant", "audio": null, "annotations": [{"type": "url_citation"}], "tool_calls":
                [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]}),
            json!({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}]},
                {"type": "function_call", "arguments": "{}"}, {"type": "function_call_output", "output": "x"},
                {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}}]}),
            json!({"messages": [{"role": "user", "content": [{"text": "x"}, {"cachePoint": {"type": "default"}}]}],
                "toolConfig": {"tools": [{"toolSpec": {}}, {"cachePoint": {"type": "default"}}]}}),
        ] {
            let bounds = parse(&body);
            assert_eq!((bounds.unbounded, bounds.images), (None, 0), "{body}");
        }
    }
}
