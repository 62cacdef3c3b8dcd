//! Bounds that the JSON body of a text request sets: the length of its responses and the number of its images. Also
//! finds parts that make its usage unpredictable, such as a file that the provider stores.

#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt};

use penstock_llm::operation::Operation;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::body_parts::{self, BodyField, ContentLocation, OutputLimitKind};

/// Upper bounds of the usage of a request that its body sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyBounds {
    /// The client's operation.
    operation: Operation,
    /// Maximum number of tokens of one response, in the client's API format. `None` if the request sets no limit.
    own_output: Option<u64>,
    /// The same in the format of a vendor at Bedrock.
    vendor_output: Option<u64>,
    /// The same under a name that only some targets know. They may respect it, so it raises the bound.
    foreign_output: Option<u64>,
    /// Paths of the client's own limits and of the objects around them, without case and underscores.
    limit_paths: Vec<String>,
    /// True for a body of a Claude model at Bedrock.
    is_claude_body: bool,
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
    /// Returns the bounds of a request without a body.
    pub fn new(operation: Operation) -> Self {
        Self {
            operation,
            own_output: None,
            vendor_output: None,
            foreign_output: None,
            limit_paths: Vec::new(),
            is_claude_body: false,
            choices: 1,
            prompts: 1,
            images: 0,
            has_tools: false,
            unbounded: None,
        }
    }

    /// Reads a body. A body that cannot be parsed has no bound; most of these are rejected before.
    pub fn parse(body: &[u8], operation: Operation) -> Self {
        let mut bounds = Self::new(operation);
        let mut reader = serde_json::Deserializer::from_slice(body);
        if (BodySeed { bounds: &mut bounds, object: "" }).deserialize(&mut reader).is_err() {
            (bounds.own_output, bounds.vendor_output) = (None, None);
            bounds.mark_unbounded("a body that cannot be read");
        }
        bounds
    }

    /// Returns the maximum number of tokens of all responses together. `None` without a limit that all targets respect.
    pub fn output_tokens(&self) -> Option<u64> {
        let vendor_output = self.vendor_output.filter(|_| !self.is_claude_body);
        let each = self.own_output.max(vendor_output)?;
        Some(each.saturating_mul(self.responses()).max(self.min_output_tokens()))
    }

    /// Returns the number of tokens of all responses together that the bound may not fall below, because some targets
    /// respect limits under other names.
    pub fn min_output_tokens(&self) -> u64 {
        let each = self.foreign_output.max(self.vendor_output).unwrap_or(0);
        each.saturating_mul(self.responses())
    }

    /// Returns the number of responses to all prompts, or of images.
    pub fn responses(&self) -> u64 {
        self.choices.saturating_mul(self.prompts)
    }

    /// Reads a limit on the tokens of one response. The largest of several limits counts, because it is not known which
    /// of them the provider respects.
    fn read_limit(&mut self, object: &str, key: &str, count: Option<&Count>) {
        let most = self.read_count(key, count);
        // Some providers read 0 as no limit.
        if most == Some(0) {
            self.mark_unbounded(format!("`{key}` of 0"));
        }
        let kind = OutputLimitKind::from_field(self.operation, object, key);
        if kind != OutputLimitKind::Foreign {
            self.add_limit_path(object, key);
        }
        let limit = match kind {
            OutputLimitKind::Own => &mut self.own_output,
            OutputLimitKind::Vendor => &mut self.vendor_output,
            OutputLimitKind::Foreign => &mut self.foreign_output,
        };
        *limit = (*limit).max(most);
    }

    /// Returns the path of an object in the object at the path `outer`.
    fn child_path(&mut self, outer: &str, key: Cow<'_, str>) -> String {
        if !outer.is_empty() {
            return format!("{outer}.{key}");
        }
        if body_parts::contains_output_limit(&key) {
            self.add_limit_path(outer, &key);
        }
        key.into_owned()
    }

    /// Adds a field that is or contains the client's own limit. Makes the request unbounded if the field repeats,
    /// because the reader of the second one may find no limit in it.
    fn add_limit_path(&mut self, object: &str, key: &str) {
        let path = format!("{object}.{key}").replace('_', "").to_ascii_lowercase();
        if self.limit_paths.contains(&path) {
            self.mark_unbounded(format!("`{key}`, which is set twice"));
        } else {
            self.limit_paths.push(path);
        }
    }

    /// Returns the number in a field. Any other value makes the request unbounded, because each provider reads it in
    /// its own way.
    fn read_count(&mut self, field: &str, count: Option<&Count>) -> Option<u64> {
        let number = count?.as_integer();
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
        if let Some(name) = body_parts::find_provider_tool(self.operation, kind, names) {
            self.mark_unbounded(format!("the provider's tool `{}`", shorten(name)));
        }
    }
}

/// Maximum length of a name in an error message.
const MAX_NAME_CHARS: usize = 64;
/// Number of bytes in which the scheme of a URL ends.
const MAX_SCHEME_BYTES: usize = 16;

fn shorten(name: &str) -> Cow<'_, str> {
    if name.chars().count() <= MAX_NAME_CHARS { name.into() } else { name.chars().take(MAX_NAME_CHARS).collect() }
}

/// A number of tokens or responses.
#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Whole(u64),
    Other(IgnoredAny),
}

impl Count {
    /// Returns the number. `None` for a value that only some providers read as a number, such as `"5"`, 5.0 or -1.
    fn as_integer(&self) -> Option<u64> {
        if let Self::Whole(count) = self { Some(*count) } else { None }
    }
}

/// Reads the top level of a body, or an object in it that contains further parameters. Null is an object without any.
struct BodySeed<'b> {
    bounds: &'b mut BodyBounds,
    /// Path of the object; empty at the top level.
    object: &'b str,
}

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
        let Self { bounds, object } = self;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match BodyField::from_name(&key) {
                BodyField::OutputLimit => {
                    let count: Option<Count> = map.next_value()?;
                    bounds.read_limit(object, &key, count.as_ref());
                }
                BodyField::Choices => {
                    let count: Option<Count> = map.next_value()?;
                    bounds.choices = bounds.choices.max(bounds.read_count(&key, count.as_ref()).unwrap_or(1));
                }
                BodyField::Nested => {
                    let path = bounds.child_path(object, key);
                    map.next_value_seed(BodySeed { bounds, object: &path })?;
                }
                BodyField::Prompt => {
                    let read = map.next_value_seed(ValueSeed { bounds, section: BodySection::Content })?;
                    bounds.prompts = bounds.prompts.max(read.texts);
                    if read.is_object {
                        bounds.mark_unbounded("`prompt`, which the provider stores");
                    }
                }
                BodyField::Tools => {
                    let read = map.next_value_seed(ValueSeed { bounds, section: BodySection::Tools })?;
                    if read.texts > 0 {
                        bounds.mark_unbounded("`tools` with an entry that is no object");
                    }
                }
                BodyField::Functions => {
                    bounds.has_tools = true;
                    map.next_value::<IgnoredAny>()?;
                }
                BodyField::ClaudeVersion => {
                    bounds.is_claude_body = true;
                    map.next_value::<IgnoredAny>()?;
                }
                BodyField::Unbounded => {
                    if map.next_value_seed(ValueSeed { bounds, section: BodySection::Data })?.is_set {
                        bounds.mark_unbounded(format!("`{}`", shorten(&key)));
                    }
                }
                BodyField::Messages => {
                    let read = map.next_value_seed(ValueSeed { bounds, section: BodySection::Content })?;
                    if key.eq_ignore_ascii_case("images") {
                        bounds.images += read.texts;
                    }
                }
                BodyField::Documents => {
                    map.next_value_seed(ValueSeed { bounds, section: BodySection::Documents })?;
                }
                BodyField::Other => {
                    map.next_value::<IgnoredAny>()?;
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
    /// Documents with arbitrary fields. The types of the fields do not reveal whether they are text or data.
    Documents,
    /// Document of one part of a message.
    Document,
    /// List of tools.
    Tools,
    /// One tool of the list.
    Tool,
    /// Anything that is text for the model.
    Data,
}

impl BodySection {
    /// Returns the role of a field of an object.
    fn of_field(self, name: &str) -> Self {
        match self {
            Self::Content | Self::Documents if name == "document" => Self::Document,
            Self::Content | Self::Documents if !body_parts::is_data(name) => self,
            _ => Self::Data,
        }
    }

    /// Returns the role of an entry of a list.
    fn of_entry(self) -> Self {
        match self {
            Self::Tools => Self::Tool,
            Self::Document => Self::Content,
            Self::Content | Self::Documents | Self::Tool | Self::Data => self,
        }
    }
}

/// Properties of a value that was read.
#[derive(Debug, Default)]
struct ValueRead {
    text: Option<String>,
    /// True for the text of a URL with a host, but not for `data:` URLs.
    is_url: bool,
    /// The object's own `type`.
    kind: Option<String>,
    /// Where the content of the object is stored.
    location: ContentLocation,
    /// Number of entries of a list that are strings or lists.
    texts: u64,
    is_object: bool,
    /// False for null, false, and an empty list.
    is_set: bool,
}

/// Fields of a message part, besides `type`, from which its kind follows.
#[derive(Debug, Default)]
struct PartFields {
    source_kind: Option<String>,
    source_location: ContentLocation,
    document_location: ContentLocation,
    has_image: bool,
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
        let section = self.section.of_entry();
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
        let (mut part, mut names) = (PartFields::default(), Vec::new());
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let value = map.next_value_seed(ValueSeed { bounds, section: section.of_field(&key) })?;
            if matches!(section, BodySection::Content | BodySection::Documents | BodySection::Document) {
                bounds.read_field(&key, &value);
            }
            let is_named = value.is_set && section != BodySection::Data;
            match &*key {
                "type" => read.kind = value.text,
                "source" => (part.source_kind, part.source_location) = (value.kind, value.location),
                "document" => part.document_location = value.location,
                "image_url" | "image" => part.has_image |= value.is_set,
                _ => (),
            }
            if is_named {
                names.push(key);
            }
        }
        read.location =
            ContentLocation::from_fields(read.kind.as_deref().unwrap_or_default(), &names, part.source_location);
        match section {
            BodySection::Content | BodySection::Documents => bounds.read_part(section, &read, &part),
            // An object instead of the list may be one tool.
            BodySection::Tools | BodySection::Tool => bounds.add_tool(read.kind.as_deref(), &names),
            BodySection::Document | BodySection::Data => (),
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
            _ if key.eq_ignore_ascii_case("images") => self.images += value.texts,
            "audio" | "video" | "document" if value.is_object && !value.location.is_bounded_in(key) => {
                self.mark_unbounded(format!("`{key}`"));
            }
            "file_id" | "file_url" | "fileUri" | "file_uri" | "file_data"
                if value.text.is_some() || !value.is_object =>
            {
                self.mark_unbounded(format!("`{key}`"));
            }
            // Some providers fetch a recording whose data are a URL.
            "data" if value.is_url => self.mark_unbounded("`data` with a URL"),
            _ => (),
        }
    }

    /// Reads an object of a message by its type. An object whose type is not known may be anything, such as a file.
    fn read_part(&mut self, section: BodySection, read: &ValueRead, part: &PartFields) {
        let kind = read.kind.as_deref().unwrap_or_default();
        self.images += u64::from(part.has_image || body_parts::is_image(kind));
        let is_text = match part.source_kind.as_deref() {
            Some(source_kind) => matches!(source_kind, "text" | "content"),
            None => part.document_location.is_bounded_in("document"),
        };
        match kind {
            _ if read.location == ContentLocation::Stored => self.mark_unbounded("a part that the provider stores"),
            "document" if !is_text => self.mark_unbounded("a document"),
            "document" => (),
            kind if body_parts::is_image(kind) || body_parts::is_bounded(kind) => (),
            kind if section == BodySection::Documents && !body_parts::is_media(kind) => (),
            kind => self.mark_unbounded(format!("a part of type `{}`", shorten(kind))),
        }
    }
}
