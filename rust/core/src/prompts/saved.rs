//! Prompts and partials of workspaces, as the control process publishes them.

use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use super::{
    compressed_json::CompressedJson,
    prompt::CompiledPrompt,
    template::{PartialSource, Template},
};
use crate::error::PromptError;

/// A prompt with the versions that callers can use: the published one, the latest, and those with a label.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPrompt {
    pub id: Box<str>,
    pub slug: Box<str>,
    #[serde(default)]
    pub name: Box<str>,
    /// Id of the workspace that it belongs to.
    pub workspace: Box<str>,
    /// Number of the published version.
    #[serde(default)]
    pub default: Option<u32>,
    pub latest: u32,
    /// Version numbers by label.
    #[serde(default)]
    pub labels: std::collections::BTreeMap<Box<str>, u32>,
    #[serde(default)]
    pub shared_with: Option<SharedWith>,
    #[serde(deserialize_with = "read_versions")]
    versions: Vec<Arc<SavedVersion>>,
}

/// Other workspaces that may use a prompt.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum SharedWith {
    Workspaces(Vec<Box<str>>),
    /// `*`: all workspaces of the organisation.
    Everyone(Box<str>),
}

/// One version. It is compiled when it is used first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedVersion {
    pub number: u32,
    pub id: Box<str>,
    content: CompressedJson,
    #[serde(skip)]
    compiled: OnceLock<Result<CompiledPrompt, String>>,
}

/// A partial with its published template.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPartial {
    pub id: Box<str>,
    pub slug: Box<str>,
    pub workspace: Box<str>,
    /// Number of the published version.
    default: Option<u32>,
    /// Number of the latest version.
    #[allow(dead_code, reason = "part of what is published")]
    latest: u32,
    versions: Vec<PartialVersion>,
    #[serde(skip)]
    template: OnceLock<Option<Template>>,
}

#[derive(Debug, Deserialize)]
struct PartialVersion {
    #[serde(default)]
    #[allow(dead_code, reason = "part of what is published")]
    id: Box<str>,
    number: u32,
    string: Box<str>,
}

/// Name of a prompt and which of its versions is meant, as in `slug@production`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptReference<'n> {
    /// Id or slug.
    pub name: &'n str,
    pub version: VersionSelector<'n>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionSelector<'n> {
    Published,
    Latest,
    Number(u32),
    Label(&'n str),
}

fn read_versions<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Arc<SavedVersion>>, D::Error> {
    Vec::<SavedVersion>::deserialize(deserializer).map(|versions| versions.into_iter().map(Arc::new).collect())
}

impl<'n> PromptReference<'n> {
    pub fn parse(text: &'n str) -> Self {
        let Some((name, version)) = text.split_once('@') else {
            return Self { name: text, version: VersionSelector::Published };
        };
        let version = match version {
            "" | "default" => VersionSelector::Published,
            "latest" => VersionSelector::Latest,
            other => other.parse().map_or(VersionSelector::Label(other), VersionSelector::Number),
        };
        Self { name, version }
    }
}

impl VersionSelector<'_> {
    /// Returns the label that was asked for.
    pub fn label(&self) -> Option<&str> {
        match self {
            Self::Label(label) => Some(label),
            _ => None,
        }
    }
}

impl SavedPrompt {
    /// Returns the number of the version that a reference selects.
    pub fn version_number(&self, selector: VersionSelector<'_>) -> Result<u32, PromptError> {
        match selector {
            VersionSelector::Latest => Ok(self.latest),
            VersionSelector::Published => {
                self.default.ok_or_else(|| PromptError::Unpublished { prompt: self.slug.clone() })
            }
            VersionSelector::Number(number) if (1..=self.latest).contains(&number) => Ok(number),
            VersionSelector::Number(number) => Err(self.unknown_version(&number.to_string())),
            VersionSelector::Label(label) => self.labels.get(label).copied().ok_or_else(|| self.unknown_version(label)),
        }
    }

    /// Returns a version; `None` if the control process has to be asked for it.
    pub fn find_version(&self, number: u32) -> Option<&Arc<SavedVersion>> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// Builds the error for a version or label that the prompt does not have.
    pub fn unknown_version(&self, version: &str) -> PromptError {
        let labels = self.labels.keys().fold(String::new(), |labels, label| labels + ", `" + label + "`");
        PromptError::UnknownVersion { prompt: self.slug.clone(), version: version.to_owned(), labels }
    }

    /// Returns true if callers of another workspace may use the prompt.
    pub fn is_shared_with(&self, workspace: &str) -> bool {
        match &self.shared_with {
            None => false,
            Some(SharedWith::Everyone(_)) => true,
            Some(SharedWith::Workspaces(ids)) => ids.iter().any(|id| **id == *workspace),
        }
    }
}

impl SavedVersion {
    /// Returns the length of the content in bytes of JSON.
    pub fn content_bytes(&self) -> usize {
        self.content.len()
    }

    /// Returns the compiled version, or why it cannot be used.
    pub fn compiled(&self) -> Result<&CompiledPrompt, &str> {
        let compile = || {
            let json = self.content.decompress().ok_or("the stored version cannot be read")?;
            CompiledPrompt::parse(&json).map_err(|problems| {
                let lines: Vec<_> = problems.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
                lines.join("; ")
            })
        };
        self.compiled.get_or_init(compile).as_ref().map_err(String::as_str)
    }
}

impl SavedPartial {
    /// Returns the partial for a renderer; `None` if its template is not valid.
    pub fn source(&self) -> Option<PartialSource<'_>> {
        let published = self.versions.iter().find(|version| Some(version.number) == self.default)?;
        let template = self.template.get_or_init(|| Template::parse(&published.string).ok()).as_ref()?;
        Some(PartialSource { source: &published.string, template })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_name_a_version() {
        let version = |text| PromptReference::parse(text).version;
        assert_eq!(version("p"), VersionSelector::Published);
        assert_eq!(version("p@"), VersionSelector::Published);
        assert_eq!(version("p@default"), VersionSelector::Published);
        assert_eq!(version("p@latest"), VersionSelector::Latest);
        assert_eq!(version("p@12"), VersionSelector::Number(12));
        assert_eq!(version("p@prod"), VersionSelector::Label("prod"));
        assert_eq!(PromptReference::parse("p@prod").name, "p");
    }

    #[test]
    fn versions_are_selected_by_number_and_label() {
        let prompt: SavedPrompt = serde_json::from_str(
            r#"{"id": "i", "slug": "s", "workspace": "w", "default": 2, "latest": 4, "labels": {"prod": 1, "test": 4},
                "versions": [{"number": 2, "id": "v2", "content": {"string": "{{a}}"}}]}"#,
        )
        .unwrap();
        let number = |text: &str| prompt.version_number(PromptReference::parse(text).version);
        assert_eq!((number("s"), number("s@latest"), number("s@prod"), number("s@3")), (Ok(2), Ok(4), Ok(1), Ok(3)));
        let message = |text: &str| number(text).unwrap_err().to_string();
        let allowed = "allowed are a number, `latest`, `prod`, `test`";
        assert_eq!(message("s@x"), format!("prompt `s` has no version `x`; {allowed}"));
        assert_eq!(message("s@5"), format!("prompt `s` has no version `5`; {allowed}"));
        assert!(prompt.find_version(2).unwrap().compiled().is_ok());
        assert!(prompt.find_version(3).is_none());
    }
}
