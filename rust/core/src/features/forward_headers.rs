//! Forwarded headers: client headers that are sent to the provider in addition to the default ones. The header takes
//! precedence over the config.

use penstock_net::headers;
use serde_json::Value;

use crate::{
    error::{Error, Result},
    parse::document_reader::ConfigReader,
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForwardHeaders(Option<Vec<String>>);

/// Header that lists the forwarded headers; it must not list itself.
const FORWARD_HEADERS_HEADER: &str = "x-gateway-forward-headers";

impl ForwardHeaders {
    /// Parses an array of header names from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let names = reading.read_items(value, "an array of header names", ConfigReader::read_string);
        Self::from_names(names).unwrap_or_else(|message| {
            reading.report_problem(message);
            Self::default()
        })
    }

    pub fn inherit(&mut self, parent: &Self) {
        if self.0.is_none() {
            self.0.clone_from(&parent.0);
        }
    }

    /// Returns the forwarded headers of one request. The header is a comma-separated list or a JSON array.
    pub fn resolve(&self, header: Option<&str>) -> Result<Self> {
        let Some(header) = header else { return Ok(self.clone()) };
        let refused = |message| Error::HeaderInvalid { name: FORWARD_HEADERS_HEADER, message };
        let names: Vec<String> = if header.starts_with('[') {
            serde_json::from_str(header)
                .map_err(|_| refused("must be comma-separated header names or a JSON array of strings".into()))?
        } else {
            header.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
        };
        Self::from_names(names).map_err(refused)
    }

    /// Returns the heap memory in bytes, without the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.0.iter().flatten().map(|name| size_of::<String>() + name.len()).sum()
    }

    pub fn names(&self) -> &[String] {
        self.0.as_deref().unwrap_or_default()
    }

    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.iter().flatten().any(|listed| listed.as_bytes() == name)
    }

    fn from_names(names: Vec<String>) -> std::result::Result<Self, String> {
        let names: Vec<_> = names.into_iter().map(|name| name.to_ascii_lowercase()).collect();
        if names.iter().any(|name| name.ends_with("-forward-headers") && name.starts_with("x-")) {
            return Err("must not list itself".into());
        }
        if let Some(name) = names.iter().find(|name| headers::is_cloud_metadata(name.as_bytes())) {
            return Err(format!("must not list `{name}`: it grants access to cloud metadata services"));
        }
        Ok(Self(Some(names)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    fn is_rejected(value: &Value) -> bool {
        let mut reading = ConfigReader::new(Strictness::Strict);
        ForwardHeaders::parse(value, &mut reading);
        reading.finish().is_err()
    }

    #[test]
    fn parses_names_in_any_case() {
        let listed = ForwardHeaders::default().resolve(Some("X-Team , x-user")).unwrap();
        assert!(listed.contains(b"x-team") && listed.contains(b"x-user"));
    }

    #[test]
    fn parses_json_array() {
        let listed = ForwardHeaders::default().resolve(Some(r#"["X-Team", "x-user"]"#)).unwrap();
        assert_eq!(listed.names(), ["x-team", "x-user"]);
        for invalid in ["[", "[1]", r#"["x-a","#, r#"["x-forward-headers"]"#] {
            assert!(ForwardHeaders::default().resolve(Some(invalid)).is_err(), "{invalid}");
        }
    }

    #[test]
    fn rejects_the_forward_headers_header_itself() {
        assert!(ForwardHeaders::default().resolve(Some(FORWARD_HEADERS_HEADER)).is_err());
        assert!(is_rejected(&json!(["x-a", FORWARD_HEADERS_HEADER])));
        assert!(ForwardHeaders::default().resolve(Some("x-portkey-forward-headers")).is_err());
    }

    #[test]
    fn rejects_cloud_metadata_headers() {
        for name in ["Metadata-Flavor", "x-aws-ec2-metadata-token"] {
            assert!(ForwardHeaders::default().resolve(Some(name)).is_err(), "{name}");
            assert!(is_rejected(&json!([name])), "{name}");
        }
    }
}
