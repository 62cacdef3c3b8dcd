//! A privately hosted endpoint in the place of a provider's own address. The header wins over the config.

use serde_json::Value;

use crate::{
    config::Reading,
    error::{Error, Result},
    upstream::Base,
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CustomHost(Option<Base>);

impl CustomHost {
    /// From a config: an http or https URL.
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        let url = reading.text(value);
        Self(url.and_then(|url| Base::parse(&url).map_err(|message| reading.refuse(message)).ok()))
    }

    pub fn inherit(&mut self, parent: &Self) {
        if self.0.is_none() {
            self.0.clone_from(&parent.0);
        }
    }

    /// About so many bytes beside its own.
    pub fn held(&self) -> usize {
        self.0.as_ref().map_or(0, |base| size_of::<Base>() + base.prefix.len())
    }

    /// What holds for one request.
    pub fn resolve(&self, header: Option<&str>) -> Result<Option<Base>> {
        match header {
            None => Ok(self.0.clone()),
            Some(url) => Base::parse(url).map(Some).map_err(|message| Error::HostRefused { message }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Unknown;

    #[test]
    fn the_header_wins_over_the_config() {
        let config = CustomHost::parse(&json!("https://a.example/v1"), &mut Reading::new(Unknown::Refused));
        assert_eq!(config.resolve(Some("https://b.example")).unwrap(), Base::parse("https://b.example").ok());
        assert_eq!(config.resolve(None).unwrap(), Base::parse("https://a.example/v1").ok());
    }
}
