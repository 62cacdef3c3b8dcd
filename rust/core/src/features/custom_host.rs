//! A privately hosted endpoint in the place of a provider's own address. The header wins over the config.

use crate::{
    error::{Error, Result},
    upstream::Base,
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CustomHost(Option<Base>);

impl CustomHost {
    /// From a config: an http or https URL.
    pub fn parse(url: &str) -> std::result::Result<Self, String> {
        Base::parse(url).map(|base| Self(Some(base)))
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
    use super::*;

    #[test]
    fn the_header_wins_over_the_config() {
        let config = CustomHost::parse("https://a.example/v1").unwrap();
        assert_eq!(config.resolve(Some("https://b.example")).unwrap(), Base::parse("https://b.example").ok());
        assert_eq!(config.resolve(None).unwrap(), Base::parse("https://a.example/v1").ok());
    }
}
