//! Custom host: a private endpoint that replaces the provider's own base URL. The header takes precedence over the
//! config.

use penstock_net::BaseUrl;
use serde_json::Value;

use crate::{
    error::{Error, Result},
    parse::document_reader::ConfigReader,
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CustomHost(Option<BaseUrl>);

impl CustomHost {
    /// Parses an http or https URL from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let url = reading.read_string(value);
        Self(url.and_then(|url| BaseUrl::parse(&url).map_err(|message| reading.report_problem(message)).ok()))
    }

    pub fn inherit(&mut self, parent: &Self) {
        if self.0.is_none() {
            self.0.clone_from(&parent.0);
        }
    }

    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the approximate heap memory in bytes, without the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |base| size_of::<BaseUrl>() + base.prefix.len())
    }

    /// Returns the custom host of one request; `None` if neither the header nor the config sets one.
    pub fn resolve(&self, header: Option<&str>) -> Result<Option<BaseUrl>> {
        match header {
            None => Ok(self.0.clone()),
            Some(url) => BaseUrl::parse(url).map(Some).map_err(|message| Error::CustomHostInvalid { message }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    #[test]
    fn header_overrides_config() {
        let config = CustomHost::parse(&json!("https://a.example/v1"), &mut ConfigReader::new(Strictness::Strict));
        assert_eq!(config.resolve(Some("https://b.example")).unwrap(), BaseUrl::parse("https://b.example").ok());
        assert_eq!(config.resolve(None).unwrap(), BaseUrl::parse("https://a.example/v1").ok());
    }
}
