//! Behaviour options of the mock provider. A request sets them with `model: "mock?key=value&…"`, `?mock-key=value` or
//! `x-mock-key: value`.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

use crate::faults::Fault;

/// Options that a request may set. Options that it does not set have ordinary defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each option is independent of the others")]
pub struct Behaviour {
    /// Response status. Any number is allowed, including invalid HTTP statuses.
    pub status: Option<u32>,
    /// Delay before the first byte.
    pub first_ms: Option<u64>,
    /// Content chunks of a stream, not counting the opening and closing events.
    pub chunks: u32,
    /// Size of a chunk's text in bytes.
    pub chunk_bytes: Option<usize>,
    /// Delay between two chunks.
    pub chunk_ms: Option<u64>,
    /// True if the stream is sent in one write.
    pub burst: bool,
    /// Body size of a complete response in bytes.
    pub response_bytes: Option<usize>,
    pub fault: Option<Fault>,
    /// True to gzip the response if the request accepts gzip. Works only in the model name (`mock?gzip=true`).
    pub gzip: bool,
    /// Number of chunks before the fault.
    pub after: Option<u32>,
    /// Number of first requests for the model to which status and fault apply.
    pub times: Option<u32>,
    /// Error code in the body of an error response.
    pub code: Option<String>,
    /// Reaction to an assistant prefill in the last message: true to continue it, false to reject it.
    pub prefix: Option<bool>,
    /// Text of the response that follows the prefill.
    pub rest: Option<String>,
    /// Value of the `retry-after` header.
    pub retry_after: Option<String>,
    /// True if each chunk's text contains the monotonic time of its write, in nanoseconds.
    pub stamp: bool,
    /// True to always send token usage, false to never send it; `None` to send it when the provider would.
    pub usage: Option<bool>,
    /// Tool to call, unless the request contains a tool result.
    pub call: Option<String>,
    /// Arguments of the tool call, as JSON.
    pub arguments: Option<String>,
    /// True if the response has the headers that a large provider sends: identifiers, rate limits, caching, policies.
    pub headers: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            status: None,
            first_ms: None,
            chunks: 8,
            chunk_bytes: None,
            chunk_ms: None,
            burst: false,
            response_bytes: None,
            fault: None,
            gzip: false,
            after: None,
            times: None,
            code: None,
            prefix: None,
            rest: None,
            retry_after: None,
            stamp: false,
            usage: None,
            call: None,
            arguments: None,
            headers: false,
        }
    }
}

impl Behaviour {
    /// Applies the options after the first `?` of a model name.
    pub fn apply_model(&mut self, model: &str) -> Result<(), String> {
        let Some((_, query)) = model.split_once('?') else {
            return Ok(());
        };
        query_pairs(query).try_for_each(|(key, value)| self.set_option(key, &percent_decode(value)))
    }

    /// Applies the `mock-` keys of a URL's query and ignores other keys.
    pub fn apply_query(&mut self, target: &str) -> Result<(), String> {
        let Some((_, query)) = target.split_once('?') else {
            return Ok(());
        };
        query_pairs(query)
            .filter_map(|(key, value)| Some((key.strip_prefix("mock-")?, value)))
            .try_for_each(|(key, value)| self.set_option(key, &percent_decode(value)))
    }

    /// Applies the `x-mock-` headers.
    pub fn apply_headers(&mut self, headers: &[(String, String)]) -> Result<(), String> {
        headers
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("x-mock-")?, value)))
            .try_for_each(|(key, value)| self.set_option(key, value))
    }

    // Rejects unknown keys and values, so that a typing mistake does not look like an ordinary response.
    fn set_option(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key.replace('-', "_").as_str() {
            "status" => self.status = Some(parse_number(key, value)?),
            "first_ms" => self.first_ms = Some(parse_number(key, value)?),
            "chunks" => self.chunks = parse_number(key, value)?,
            "chunk_bytes" => self.chunk_bytes = Some(parse_number(key, value)?),
            "chunk_ms" => self.chunk_ms = Some(parse_number(key, value)?),
            "burst" => self.burst = parse_switch(key, value)?,
            "response_bytes" => self.response_bytes = Some(parse_number(key, value)?),
            "fault" => self.fault = Some(parse_fault(value)?),
            "gzip" => self.gzip = parse_switch(key, value)?,
            "after" => self.after = Some(parse_number(key, value)?),
            "times" => self.times = Some(parse_number(key, value)?),
            "code" => self.code = Some(value.to_owned()),
            "prefix" => self.prefix = Some(parse_switch(key, value)?),
            "retry_after" => self.retry_after = Some(value.to_owned()),
            "stamp" => self.stamp = parse_switch(key, value)?,
            "usage" => self.usage = Some(parse_switch(key, value)?),
            "call" => self.call = Some(value.to_owned()),
            "arguments" => self.arguments = Some(value.to_owned()),
            "headers" => self.headers = parse_switch(key, value)?,
            _ => return Err(format!("unknown mock key \"{key}\"")),
        }
        Ok(())
    }

    /// Clears status and fault once `times` requests have received them.
    pub fn recover_after(&mut self, requests: u32) {
        if self.times.is_some_and(|times| requests >= times) {
            (self.status, self.fault) = (None, None);
        }
    }

    /// Limits the response to the text that follows the prefill.
    pub fn continue_with(&mut self, rest: &str) {
        self.chunks = rest.split_inclusive(' ').count() as u32;
        self.rest = Some(rest.to_owned());
    }

    /// Returns the number of chunks before a fault in the middle of a response.
    pub fn chunks_before_fault(&self) -> u32 {
        self.after.unwrap_or(self.chunks / 2).min(self.chunks)
    }

    pub fn chunk_interval(&self) -> Duration {
        Duration::from_millis(self.chunk_ms.filter(|_| !self.burst).unwrap_or(0))
    }
}

fn query_pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "on")))
}

fn parse_number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|_| format!("mock key \"{key}\" takes a number, not \"{value}\""))
}

fn parse_switch(key: &str, value: &str) -> Result<bool, String> {
    match value.trim() {
        "on" | "true" | "1" | "yes" => Ok(true),
        "off" | "false" | "0" | "no" => Ok(false),
        _ => Err(format!("mock key \"{key}\" takes on or off, not \"{value}\"")),
    }
}

fn parse_fault(value: &str) -> Result<Fault, String> {
    Fault::from_name(value.trim())
        .ok_or_else(|| format!("unknown mock fault \"{value}\", known: {}", Fault::names().join(" ")))
}

pub fn percent_decode(value: &str) -> Cow<'_, str> {
    if !value.contains(['%', '+']) {
        return Cow::Borrowed(value);
    }
    let (mut out, mut rest) = (Vec::with_capacity(value.len()), value.as_bytes());
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'%').then(|| tail.get(..2)).flatten();
        let byte = escaped.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        out.push(byte.unwrap_or(if first == b'+' { b' ' } else { first }));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_overrides_model_option() {
        let mut behaviour = Behaviour::default();
        behaviour.apply_model("gpt?chunks=3&burst&retry_after=Wed%2C+21").unwrap();
        behaviour.apply_query("/v1/x?chunks=9&mock-usage=off").unwrap();
        behaviour
            .apply_headers(&[("x-mock-chunks".into(), "5".into()), ("x-mock-first-ms".into(), "7".into())])
            .unwrap();
        assert_eq!((behaviour.chunks, behaviour.burst, behaviour.first_ms), (5, true, Some(7)));
        assert_eq!((behaviour.retry_after.as_deref(), behaviour.usage), (Some("Wed, 21"), Some(false)));
    }

    #[test]
    fn rejects_unknown_keys_and_values() {
        for model in ["m?chunk=3", "m?chunks=x", "m?burst=maybe", "m?fault=none"] {
            assert!(Behaviour::default().apply_model(model).is_err(), "{model}");
        }
        assert_eq!(Behaviour::default().apply_model("plain"), Ok(()));
    }
}
