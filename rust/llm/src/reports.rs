//! Reports of a translation: the request parameters and response fields that it dropped, and the usage that it read.
//! The client receives the names of everything that was dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    fields::{Fields, is_default_value},
    usage::Usage,
};

/// Maximum number of names in the header. Further names are only counted.
const MAX_REPORTED_NAMES: usize = 16;
/// Maximum number of names stored.
const MAX_STORED_NAMES: usize = 256;
/// Maximum length of a name. Clients may send names of any length.
const MAX_NAME_BYTES: usize = 64;

/// Names of dropped parameters and content parts, without duplicates, in the order in which they were dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DroppedParams(Vec<String>);

impl DroppedParams {
    pub fn add(&mut self, name: &str) {
        let is_named = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte);
        let name: String =
            name.bytes().take(MAX_NAME_BYTES).map(|byte| if is_named(byte) { byte.into() } else { '_' }).collect();
        if self.0.len() < MAX_STORED_NAMES && !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// Adds the remaining fields of an object as `object.field`, except those with a default or empty value.
    pub fn add_remaining_fields(&mut self, parent: &str, rest: &Fields) {
        for (key, _) in rest.iter().filter(|(_, value)| !is_default_value(value)) {
            self.add(&format!("{parent}.{key}"));
        }
    }

    /// Adds the names of another list.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|name| self.add(name));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the names as a header value.
    pub fn header_value(&self) -> String {
        let listed = self.0[..self.0.len().min(MAX_REPORTED_NAMES)].join(", ");
        match self.0.len().saturating_sub(MAX_REPORTED_NAMES) {
            0 => listed,
            more if self.0.len() == MAX_STORED_NAMES => format!("{listed}, and at least {more} more"),
            more => format!("{listed}, and {more} more"),
        }
    }
}

/// Usage of a translated response, and its fields that the client format does not have. Both are collected while the
/// response is written, and read after its end.
#[derive(Debug, Clone, Default)]
pub struct ResponseReport(Arc<Mutex<ResponseReportState>>);

#[derive(Debug, Default)]
struct ResponseReportState {
    dropped_names: DroppedParams,
    usage: Option<Usage>,
}

impl ResponseReport {
    fn lock_state(&self) -> MutexGuard<'_, ResponseReportState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a name; returns true if it is new.
    pub fn add(&self, name: &str) -> bool {
        let mut state = self.lock_state();
        let before = state.dropped_names.len();
        state.dropped_names.add(name);
        state.dropped_names.len() > before
    }

    /// Stores the usage as the provider reported it. Not every API format has a field for each kind of token.
    pub fn set_usage(&self, usage: Usage) {
        self.lock_state().usage = Some(usage);
    }

    pub fn usage(&self) -> Option<Usage> {
        self.lock_state().usage
    }

    /// Returns the header value with everything that was dropped from the request and its response; `None` if nothing
    /// was.
    pub fn header_value(&self, dropped_params: &DroppedParams) -> Option<String> {
        let mut all = dropped_params.clone();
        self.lock_state().dropped_names.0.iter().for_each(|name| all.add(name));
        Some(all.header_value()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_each_name_once_and_escapes_header_characters() {
        let mut dropped = DroppedParams::default();
        for name in ["seed", "seed", "a\r\nx: y", "ä"] {
            dropped.add(name);
        }
        assert_eq!(dropped.header_value(), "seed, a__x__y, __");
        (0..99).for_each(|n| dropped.add(&n.to_string()));
        assert!(dropped.header_value().ends_with(", 12, and 86 more"), "{}", dropped.header_value());
        (0..999).for_each(|n| dropped.add(&n.to_string()));
        assert!(dropped.header_value().ends_with(", 12, and at least 240 more"), "{}", dropped.header_value());
        assert_eq!(dropped.len(), MAX_STORED_NAMES);
    }
}
