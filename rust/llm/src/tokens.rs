//! Counts tokens where a provider did not say: vocabularies come with the binary and are unpacked at first use.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A vocabulary and its way of cutting text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Encoding(&'static str);

impl Encoding {
    pub const O200K_BASE: Self = Self("o200k_base");
    pub const CL100K_BASE: Self = Self("cl100k_base");
    pub const P50K_BASE: Self = Self("p50k_base");
    pub const R50K_BASE: Self = Self("r50k_base");

    /// The encoding of this name, such as `cl100k_base`.
    pub fn named(name: &str) -> Option<Self> {
        tiktoken::list_encodings().iter().find(|known| **known == name).map(|known| Self(known))
    }

    pub fn name(self) -> &'static str {
        self.0
    }
}
