//! Prompts and partials of workspaces, as the control process publishes them.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny},
};
use serde_json::value::RawValue;

use super::{
    compressed_json::CompressedJson,
    prompt::CompiledPrompt,
    template::{PartialSource, Template},
};
use crate::error::PromptError;

/// A prompt with the versions that callers can use: the published one, the latest, and those with a label.
#[derive(Debug)]
pub struct SavedPrompt {
    pub id: Arc<str>,
    pub slug: Arc<str>,
    /// Id of the workspace that it belongs to.
    pub workspace: Arc<str>,
    /// Number of the published version.
    pub default: Option<u32>,
    pub latest: u32,
    labels: Labels,
    pub shared_with: Option<SharedWith>,
    versions: SavedVersions,
}

/// A prompt as the control process publishes it. Deserialization has validated all of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPrompt<'a> {
    id: Arc<str>,
    slug: Arc<str>,
    #[serde(default, rename = "name")]
    _name: IgnoredAny,
    workspace: Arc<str>,
    #[serde(default)]
    default: Option<u32>,
    latest: u32,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    shared_with: Option<SharedWith>,
    #[serde(borrow)]
    versions: VersionsJson<'a>,
}

/// The JSON of a list of versions.
struct VersionsJson<'a>(&'a RawValue);

/// Version numbers by label, sorted. A map would take ten times the memory for a single label.
#[derive(Debug, Default)]
struct Labels(Box<[(Box<str>, u32)]>);

/// The versions of a prompt. A worker uses few prompts, so it parses the versions at the first use of one of them.
/// Versions hardly differ from each other, so they are compressed together.
#[derive(Debug)]
struct SavedVersions {
    json: CompressedJson,
    parsed: OnceLock<Box<[Arc<SavedVersion>]>>,
}

/// Other workspaces that may use a prompt.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum SharedWith {
    Workspaces(Vec<Box<str>>),
    /// `*`: all workspaces of the organisation.
    Everyone(Box<str>),
}

/// One version of a prompt. It is compiled at its first use.
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
    pub id: Arc<str>,
    pub slug: Arc<str>,
    pub workspace: Arc<str>,
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

/// Name of a prompt, and a selector of one of its versions, as in `slug@production`.
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

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(|numbers| Self(numbers.into_iter().collect()))
    }
}

impl Labels {
    fn find(&self, label: &str) -> Option<u32> {
        let index = self.0.binary_search_by(|(name, _)| (**name).cmp(label)).ok()?;
        Some(self.0[index].1)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for VersionsJson<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Version<'v> {
            #[serde(rename = "number")]
            _number: u32,
            #[serde(rename = "id", borrow)]
            _id: Cow<'v, str>,
            #[serde(rename = "content")]
            _content: IgnoredAny,
        }
        let json = <&RawValue>::deserialize(deserializer)?;
        // The versions are parsed again at their first use, so this ensures that they are readable then.
        serde_json::from_str::<Vec<Version<'_>>>(json.get()).map_err(D::Error::custom)?;
        Ok(Self(json))
    }
}

impl PublishedPrompt<'_> {
    /// Returns the prompt in the form that a worker stores.
    pub fn into_saved(self) -> SavedPrompt {
        let Self { id, slug, workspace, default, latest, labels, shared_with, versions, _name } = self;
        let versions = SavedVersions { json: CompressedJson::new(versions.0.get()), parsed: OnceLock::new() };
        SavedPrompt { id, slug, workspace, default, latest, labels, shared_with, versions }
    }
}

impl SavedVersions {
    fn parsed(&self) -> &[Arc<SavedVersion>] {
        let parse = || {
            let json = self.json.decompress()?;
            let versions: Vec<SavedVersion> = serde_json::from_slice(&json).ok()?;
            Some(versions.into_iter().map(Arc::new).collect())
        };
        self.parsed.get_or_init(|| parse().unwrap_or_default())
    }
}

impl<'n> PromptReference<'n> {
    pub fn parse(text: &'n str) -> Self {
        let Some((name, version)) = text.split_once('@') else {
            return Self { name: text, version: VersionSelector::Published };
        };
        let version = match version {
            "" | "default" => VersionSelector::Published,
            "latest" => VersionSelector::Latest,
            // Labels may begin with a sign.
            other if !other.bytes().all(|byte| byte.is_ascii_digit()) => VersionSelector::Label(other),
            other => other.parse().map_or(VersionSelector::Label(other), VersionSelector::Number),
        };
        Self { name, version }
    }
}

impl VersionSelector<'_> {
    /// Returns the label; `None` for other selectors.
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
                self.default.ok_or_else(|| PromptError::Unpublished { prompt: Box::from(&*self.slug) })
            }
            VersionSelector::Number(number) if (1..=self.latest).contains(&number) => Ok(number),
            VersionSelector::Number(number) => Err(self.unknown_version(&number.to_string())),
            VersionSelector::Label(label) => self.labels.find(label).ok_or_else(|| self.unknown_version(label)),
        }
    }

    /// Returns a version; `None` if it must be fetched from the control process.
    pub fn find_version(&self, number: u32) -> Option<&Arc<SavedVersion>> {
        self.versions.parsed().iter().find(|version| version.number == number)
    }

    /// Builds the error for a version or label that the prompt does not have.
    pub fn unknown_version(&self, version: &str) -> PromptError {
        let labels = self.labels.0.iter().fold(String::new(), |labels, (label, _)| labels + ", `" + label + "`");
        PromptError::UnknownVersion { prompt: Box::from(&*self.slug), version: version.to_owned(), labels }
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
                let lines: Vec<_> =
                    problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
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
        assert_eq!(version("p@+1"), VersionSelector::Label("+1"));
        assert_eq!(PromptReference::parse("p@prod").name, "p");
    }

    #[test]
    fn versions_are_selected_by_number_and_label() {
        let published: PublishedPrompt<'_> = serde_json::from_str(
            r#"{"id": "i", "slug": "s", "workspace": "w", "default": 2, "latest": 4, "labels": {"prod": 1, "test": 4},
                "versions": [{"number": 2, "id": "v2", "content": {"string": "{{a}}"}}]}"#,
        )
        .unwrap();
        let prompt = published.into_saved();
        let number = |text: &str| prompt.version_number(PromptReference::parse(text).version);
        assert_eq!((number("s"), number("s@latest"), number("s@prod"), number("s@3")), (Ok(2), Ok(4), Ok(1), Ok(3)));
        let message = |text: &str| number(text).unwrap_err().to_string();
        let allowed = "allowed are a number, `latest`, `prod`, `test`";
        assert_eq!(message("s@x"), format!("prompt `s` has no version `x`; {allowed}"));
        assert_eq!(message("s@5"), format!("prompt `s` has no version `5`; {allowed}"));
        assert!(prompt.find_version(2).unwrap().compiled().is_ok());
        assert!(prompt.find_version(3).is_none());
    }

    #[test]
    fn versions_that_could_not_be_read_later_are_rejected() {
        let parse = |versions: &str| {
            let json = format!(r#"{{"id": "i", "slug": "s", "workspace": "w", "latest": 1, "versions": {versions}}}"#);
            serde_json::from_str::<PublishedPrompt<'_>>(&json).map(PublishedPrompt::into_saved).map(drop)
        };
        assert!(parse("[]").is_ok());
        for versions in ["{}", r#"[{"number": 1, "id": "v"}]"#, r#"[{"number": -1, "id": "v", "content": {}}]"#] {
            assert!(parse(versions).is_err(), "{versions}");
        }
    }
}
