//! The providers: what is the same for all of them as a trait's defaults, and the one list of who there is.

mod anthropic;
mod compatible;

use crate::{dialect::Dialect, operation::Operation};

/// How a credential is written into a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// `authorization: Bearer <key>`
    Bearer,
    /// The key as it is, in the header of this (lower-case) name.
    Header(&'static str),
}

/// What differs between providers; `OpenAI`'s behaviour is the default.
pub trait Provider: Sync {
    /// The name that `x-gateway-provider` and configs use.
    fn slug(&self) -> &'static str;

    /// Where its API starts, version segment included, without a trailing slash. Empty where only a custom host makes sense.
    fn base_url(&self) -> &'static str;

    /// The path after the base URL that serves an operation; `None` means it is not offered.
    fn path(&self, operation: Operation) -> Option<&'static str> {
        operation.path()
    }

    /// Where a credential goes.
    fn credential(&self, _key: &str) -> Credential {
        Credential::Bearer
    }

    /// A header that must be present, with the value to send when the caller set none.
    fn required_header(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// The dialect of its errors and of paths without an operation of their own.
    fn dialect(&self) -> Dialect {
        Dialect::OpenAi
    }
}

/// Every provider, by slug.
pub fn all() -> impl Iterator<Item = &'static dyn Provider> {
    let modules: [&'static dyn Provider; 1] = [&anthropic::Anthropic];
    let rows = compatible::ROWS.iter().map(|row| row as &'static dyn Provider);
    modules.into_iter().chain(rows)
}

/// The provider of this slug.
pub fn find(slug: &str) -> Option<&'static dyn Provider> {
    all().find(|provider| provider.slug() == slug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_unique_and_lower_case() {
        let mut slugs: Vec<_> = all().map(Provider::slug).collect();
        let count = slugs.len();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), count);
        assert!(
            slugs.iter().all(|slug| slug.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        );
    }

    #[test]
    fn base_urls_are_https_and_have_no_trailing_slash() {
        for provider in all().filter(|provider| !provider.base_url().is_empty()) {
            let local = provider.base_url().starts_with("http://localhost");
            assert!(provider.base_url().starts_with("https://") || local, "{}", provider.slug());
            assert!(!provider.base_url().ends_with('/'), "{}", provider.slug());
        }
    }
}
