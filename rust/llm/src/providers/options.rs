//! What a provider is told besides a credential, by a request's headers or a config's keys.

use std::fmt;

/// An option that a provider knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The key in a config.
    pub key: &'static str,
    /// The header's name after `x-gateway-`.
    pub header: &'static str,
    /// The (lower-case) header in which the provider itself takes it.
    pub sent_as: Option<&'static str>,
}

/// An option that decides the address or the credential.
pub(super) const fn known(key: &'static str, header: &'static str) -> Known {
    Known { key, header, sent_as: None }
}

/// An option that the provider takes as a header.
pub(super) const fn sent(key: &'static str, header: &'static str) -> Known {
    Known { key, header, sent_as: Some(header) }
}

/// The options of a family of providers, and those that one of them has besides.
pub(super) const fn joined<const A: usize, const B: usize, const ALL: usize>(
    family: [Known; A],
    own: [Known; B],
) -> [Known; ALL] {
    assert!(ALL == A + B, "as many as both together");
    let mut all = [known("", ""); ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { family[at] } else { own[at - A] };
        at += 1;
    }
    all
}

/// Options and their values. Usually there are none, which costs nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(Known, String)>);

impl Options {
    /// The first value counts.
    pub fn put(&mut self, option: Known, value: String) {
        if self.get(option.key).is_none() {
            self.0.push((option, value));
        }
    }

    /// Those of the given ones that are known, by their keys.
    #[cfg(test)]
    pub(crate) fn of(known: &[Known], given: &[(&str, &str)]) -> Self {
        let mut options = Self::default();
        for (key, value) in given {
            if let Some(option) = known.iter().find(|option| option.key == *key) {
                options.put(*option, (*value).to_owned());
            }
        }
        options
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(option, _)| option.key == key).map(|(_, value)| value.as_str())
    }

    /// Names and values of the headers in which the provider takes them.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().filter_map(|(option, value)| Some((option.sent_as?, value.as_str())))
    }
}

/// Without the values: one of them may be a credential.
impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|(option, _)| option.key)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_counts_and_none_is_printed() {
        let mut options = Options::default();
        options.put(known("azure_ad_token", "azure-ad-token"), "secret".into());
        options.put(known("azure_ad_token", "azure-ad-token"), "other".into());
        assert_eq!(options.get("azure_ad_token"), Some("secret"));
        assert_eq!(format!("{options:?}"), r#"["azure_ad_token"]"#);
    }
}
