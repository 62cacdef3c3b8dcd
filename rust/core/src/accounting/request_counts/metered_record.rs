//! Fields of a record from which request metrics are computed.

use std::borrow::Cow;

use penstock_llm::json::object::{decode_string, read_object};

use super::RequestLabel;

/// Number of histograms per label set.
pub const HISTOGRAM_COUNT: usize = 10;
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"];
/// Value of the label `endpoint` for requests that are passed through.
const PASS_THROUGH: &str = "proxy";
/// Value of the label `endpoint` for unknown paths.
const UNKNOWN_ENDPOINT: &str = "unknown";
/// Maximum length of the values of optional labels.
pub const MAX_LABEL_CHARS: usize = 128;
/// Label value for unknown methods, and for all further values when a maximum of `CountBounds` is reached.
pub const OTHER: &str = "other";

/// A record. Fields that are needed only sometimes stay JSON. Durations are in milliseconds.
#[derive(Debug, Default)]
pub struct MeteredRecord<'j> {
    request_method: Cow<'j, str>,
    operation: Cow<'j, str>,
    is_proxy_call: bool,
    status: i64,
    provider: Cow<'j, str>,
    model: Cow<'j, str>,
    source: Option<Cow<'j, str>>,
    stream_mode: bool,
    cache_status: Option<Cow<'j, str>>,
    config: Cow<'j, str>,
    api_key_name: Cow<'j, str>,
    api_key_id: Cow<'j, str>,
    workspace_slug: Cow<'j, str>,
    metadata: &'j [u8],
    attempts: Option<&'j [u8]>,
    response_time: Option<f64>,
    time_to_first_byte: Option<f64>,
    gateway_processing_time: Option<f64>,
    request_parsing_time: Option<f64>,
    pre_processing_time: Option<f64>,
    response_parsing_time: Option<f64>,
    cache_processing_time: Option<f64>,
    authentication_time: Option<f64>,
    limit_check_time: Option<f64>,
    pub tokens: i64,
    pub nanodollars: i64,
    pub hook_results: Option<&'j [u8]>,
    pub is_amendment: bool,
}

/// Error of a record in which a field has an unexpected type.
struct InvalidField;

impl<'j> MeteredRecord<'j> {
    /// Reads a record or an amendment. Returns `None` if it is not valid JSON, or if a field has another type.
    pub fn read(line: &'j [u8]) -> Option<Self> {
        let mut record = Self::default();
        let mut is_valid = true;
        read_object(line, |key, value| is_valid &= record.set(key, value).is_ok()).ok()?;
        is_valid.then_some(record)
    }

    fn set(&mut self, key: &[u8], value: &'j [u8]) -> Result<(), InvalidField> {
        match key {
            b"request_method" => self.request_method = text(value)?,
            b"operation" => self.operation = text(value)?,
            b"is_proxy_call" => self.is_proxy_call = flag(value)?,
            b"response_status_code" => self.status = integer(value)?,
            b"ai_org" => self.provider = text(value)?,
            b"ai_model" => self.model = text(value)?,
            b"source" => self.source = Some(text(value)?),
            b"stream_mode" => self.stream_mode = flag(value)?,
            b"cache_status" => self.cache_status = Some(text(value)?),
            b"config" => self.config = text(value)?,
            b"api_key_name" => self.api_key_name = text(value)?,
            b"api_key_id" => self.api_key_id = text(value)?,
            b"workspace_slug" => self.workspace_slug = text(value)?,
            b"metadata" => self.metadata = value,
            b"attempts" => self.attempts = Some(value),
            b"response_time" => self.response_time = number(value)?,
            b"time_to_first_byte" => self.time_to_first_byte = number(value)?,
            b"gateway_processing_time" => self.gateway_processing_time = number(value)?,
            b"request_parsing_time" => self.request_parsing_time = number(value)?,
            b"pre_processing_time" => self.pre_processing_time = number(value)?,
            b"response_parsing_time" => self.response_parsing_time = number(value)?,
            b"cache_processing_time" => self.cache_processing_time = number(value)?,
            b"authentication_time" => self.authentication_time = number(value)?,
            b"limit_check_time" => self.limit_check_time = number(value)?,
            b"total_units" => self.tokens = integer(value)?,
            b"cost_nanodollars" => self.nanodollars = integer(value)?,
            b"hook_results" => self.hook_results = Some(value),
            b"is_amendment" => self.is_amendment = flag(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Returns the value of each histogram, in the order of `HISTOGRAMS` in `python/penstock/logs/request_metrics.py`.
    pub fn measure_times(&self) -> [Option<f64>; HISTOGRAM_COUNT] {
        let elapsed = self.response_time;
        // Without attempts, no request was sent to a provider.
        let at_provider = elapsed.filter(|_| self.attempts.is_some());
        let without = |part: Option<f64>| Some((at_provider? - part?).max(0.0));
        [
            elapsed.map(|elapsed| elapsed / 1000.0),
            elapsed,
            without(self.gateway_processing_time),
            without(self.time_to_first_byte),
            self.gateway_processing_time,
            self.pre_processing_time.map(|before| before + self.request_parsing_time.unwrap_or_default()),
            self.response_parsing_time,
            self.cache_processing_time,
            self.authentication_time,
            self.limit_check_time,
        ]
    }

    /// Appends the values of the labels that every series has, in the order of `LABELS` in
    /// `python/penstock/logs/request_metrics.py`.
    pub fn push_labels(&self, labels: &mut LabelValues) {
        let method = METHODS.iter().find(|method| method.eq_ignore_ascii_case(&self.request_method));
        labels.push(method.copied().unwrap_or(OTHER));
        labels.push(match &*self.operation {
            "" if self.is_proxy_call => PASS_THROUGH,
            "" => UNKNOWN_ENDPOINT,
            operation => operation,
        });
        labels.push(&self.status.to_string());
        labels.push(&self.provider);
        labels.push(self.source.as_deref().unwrap_or("gateway"));
        labels.push(if self.stream_mode { "true" } else { "false" });
        labels.push(self.cache_status.as_deref().unwrap_or("disabled"));
    }

    /// Appends the value of an optional label, or nothing if the metadata is not valid.
    pub fn push_optional(&self, label: &RequestLabel, labels: &mut LabelValues) -> Option<()> {
        let value = match label {
            RequestLabel::Model => &self.model,
            RequestLabel::Config => &self.config,
            RequestLabel::Key if self.api_key_name.is_empty() => &self.api_key_id,
            RequestLabel::Key => &self.api_key_name,
            RequestLabel::Workspace => &self.workspace_slug,
            RequestLabel::Metadata(key) => &self.read_metadata(key)?,
        };
        let end = value.char_indices().nth(MAX_LABEL_CHARS).map_or(value.len(), |(at, _)| at);
        labels.push(&value[..end]);
        Some(())
    }

    /// Returns the value of a key of the metadata; `None` unless the metadata is an object of strings.
    fn read_metadata(&self, name: &str) -> Option<Cow<'j, str>> {
        let (mut value_of_key, mut is_valid) = (Cow::default(), true);
        if self.metadata.is_empty() {
            return Some(value_of_key);
        }
        let read = read_object(self.metadata, |key, value| match decode_string(value) {
            Some(text) if key == name.as_bytes() => value_of_key = text,
            Some(_) => {}
            None => is_valid = false,
        });
        (read.is_ok() && is_valid).then_some(value_of_key)
    }
}

fn text(json: &[u8]) -> Result<Cow<'_, str>, InvalidField> {
    if json == b"null" { Ok(Cow::default()) } else { decode_string(json).ok_or(InvalidField) }
}

fn flag(json: &[u8]) -> Result<bool, InvalidField> {
    match json {
        b"true" => Ok(true),
        b"false" | b"null" => Ok(false),
        _ => Err(InvalidField),
    }
}

fn integer(json: &[u8]) -> Result<i64, InvalidField> {
    if json == b"null" { Ok(0) } else { serde_json::from_slice(json).map_err(|_| InvalidField) }
}

fn number(json: &[u8]) -> Result<Option<f64>, InvalidField> {
    if json == b"null" { Ok(None) } else { serde_json::from_slice(json).map(Some).map_err(|_| InvalidField) }
}

/// Values of the labels of a request. Each is its length, as four bytes, and its text, so that equal bytes mean equal
/// values.
#[derive(Debug, Default)]
pub struct LabelValues {
    bytes: Vec<u8>,
}

impl LabelValues {
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    pub fn push(&mut self, value: &str) {
        self.bytes.extend((value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn values(&self) -> impl Iterator<Item = &str> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk()?;
            let (value, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = after;
            std::str::from_utf8(value).ok()
        })
    }
}

impl<'v> FromIterator<&'v str> for LabelValues {
    fn from_iter<V: IntoIterator<Item = &'v str>>(values: V) -> Self {
        let mut all = Self::default();
        values.into_iter().for_each(|value| all.push(value));
        all
    }
}
