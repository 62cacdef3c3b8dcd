//! Limits as the control process publishes them, and which requests they count.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use serde::{Deserialize, de::IgnoredAny};

use super::{
    group_counts::{TenantId, tenant_id},
    header_items::HeaderItems,
    value_pattern::ValuePattern,
    window::{LimitWindow, RateUnit},
};
use crate::{accounting::record::metadata::Metadata, error::Problem};

/// Maximum bytes of a group value. A longer one is replaced by its digest.
const MAX_GROUP_VALUE_BYTES: usize = 256;
/// Separates the group values of a limit that groups by several keys.
const GROUP_SEPARATOR: char = '|';
const METADATA_PREFIX: &str = "metadata.";

/// Object that a limit belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerKind {
    Policy,
    Workspace,
    ApiKey,
    Provider,
    Integration,
    Token,
}

impl OwnerKind {
    /// Returns the kind as the API names it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Workspace => "workspace",
            Self::ApiKey => "api_key",
            Self::Provider => "provider",
            Self::Integration => "integration",
            Self::Token => "token",
        }
    }

    /// Returns the kind as error messages name it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Workspace => "workspace",
            Self::ApiKey => "API key",
            Self::Provider => "provider",
            Self::Integration => "integration",
            Self::Token => "token of",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitOwner {
    pub kind: OwnerKind,
    pub id: Box<str>,
    /// Slug of the owner, which error messages and headers show.
    pub slug: Box<str>,
}

/// Quantity that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    Requests,
    Tokens,
    /// Nano-dollars.
    Cost,
}

impl Measure {
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Cost => "cost",
        }
    }
}

/// How much of a budget a request reserves before its usage is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// Reserves the usual usage of a request.
    #[default]
    Soft,
    /// Reserves the maximum that the request can use.
    Hard,
}

/// Field of a request that conditions and groups refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectKey {
    ApiKey,
    Workspace,
    Metadata(Box<str>),
    VirtualKey,
    Provider,
    Config,
    Prompt,
    Model,
    EndpointType,
}

impl SubjectKey {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "api_key" => Self::ApiKey,
            "workspace_id" => Self::Workspace,
            "virtual_key" => Self::VirtualKey,
            "provider" => Self::Provider,
            "config" => Self::Config,
            "prompt" => Self::Prompt,
            "model" => Self::Model,
            "endpoint_type" => Self::EndpointType,
            _ => Self::Metadata(text.strip_prefix(METADATA_PREFIX)?.into()),
        })
    }

    /// Returns true if the value is known only after the target of an attempt was chosen.
    fn depends_on_target(&self) -> bool {
        matches!(self, Self::VirtualKey | Self::Provider | Self::Model)
    }
}

/// Slug and id of a saved object. Conditions may contain either.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectNames<'r> {
    pub slug: &'r str,
    pub id: &'r str,
}

/// Target of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct TargetSubject<'r> {
    pub provider: &'r str,
    /// Saved provider, if one is used.
    pub saved: Option<ObjectNames<'r>>,
    pub model: &'r str,
}

/// Properties of a request that the conditions and groups of limits refer to.
#[derive(Clone, Copy)]
pub struct LimitSubject<'r> {
    pub api_key: Option<ObjectNames<'r>>,
    pub workspace: Option<ObjectNames<'r>>,
    pub metadata: &'r Metadata,
    pub config: Option<ObjectNames<'r>>,
    pub prompt: Option<ObjectNames<'r>>,
    pub endpoint_type: &'r str,
    /// Target of the attempt; `None` while no target is chosen.
    pub target: Option<TargetSubject<'r>>,
}

impl<'r> LimitSubject<'r> {
    /// Returns the value by which a limit groups requests. Empty if the request has none.
    fn group_value(&self, key: &SubjectKey) -> &'r str {
        let id = |names: Option<ObjectNames<'r>>| names.map_or("", |names| names.id);
        match key {
            SubjectKey::ApiKey => id(self.api_key),
            SubjectKey::Workspace => id(self.workspace),
            SubjectKey::Config => self.config.map_or("", |names| names.slug),
            SubjectKey::Prompt => self.prompt.map_or("", |names| names.slug),
            SubjectKey::Metadata(name) => self.metadata.get(name).unwrap_or(""),
            SubjectKey::EndpointType => self.endpoint_type,
            SubjectKey::VirtualKey => self.target.and_then(|target| target.saved).map_or("", |names| names.slug),
            SubjectKey::Provider => self.target.map_or("", |target| target.provider),
            SubjectKey::Model => self.target.map_or("", |target| target.model),
        }
    }

    fn matches(&self, key: &SubjectKey, pattern: &ValuePattern) -> bool {
        let either = |names: Option<ObjectNames<'_>>| {
            names.is_some_and(|names| pattern.matches(names.slug) || pattern.matches(names.id))
        };
        match key {
            SubjectKey::ApiKey => either(self.api_key),
            SubjectKey::Workspace => either(self.workspace),
            SubjectKey::Config => either(self.config),
            SubjectKey::Prompt => either(self.prompt),
            SubjectKey::VirtualKey => either(self.target.and_then(|target| target.saved)),
            SubjectKey::Model => self.target.is_some_and(|target| pattern.matches_model(&target)),
            SubjectKey::Metadata(name) => self.metadata.get(name).is_some_and(|value| pattern.matches(value)),
            SubjectKey::EndpointType | SubjectKey::Provider => pattern.matches(self.group_value(key)),
        }
    }
}

#[derive(Debug)]
struct LimitCondition {
    key: SubjectKey,
    values: Vec<ValuePattern>,
    excludes: bool,
}

/// A compiled limit.
#[derive(Debug)]
pub struct LimitRule {
    pub id: Box<str>,
    /// Name of the counters of the limit. A rate limit whose window changes gets new counters.
    pub counter_id: Box<str>,
    pub owner: LimitOwner,
    /// Organisation to which the limit belongs.
    pub tenant: TenantId,
    pub measure: Measure,
    /// Amount that the limit allows: requests, tokens or nano-dollars.
    pub limit: u64,
    /// Amount at which an alert is sent; only in limits of tokens, because the control process knows the others.
    pub alert: Option<u64>,
    pub window: LimitWindow,
    pub enforcement: Enforcement,
    /// True if the limit only counts and reports.
    pub is_dry_run: bool,
    conditions: Vec<LimitCondition>,
    group_by: Vec<SubjectKey>,
    /// True if the limit applies to attempts at targets instead of requests.
    applies_to_targets: bool,
    /// Items of the limit in header fields, composed once.
    pub header_items: HeaderItems,
}

impl LimitRule {
    /// Returns a limit that counts all requests of its owner.
    pub(super) fn for_all_requests(
        owner: LimitOwner,
        tenant: TenantId,
        measure: Measure,
        limit: u64,
        window: LimitWindow,
        id: Box<str>,
    ) -> Self {
        Self {
            header_items: HeaderItems::new(&owner, measure, limit, window),
            counter_id: counter_id(&id, window),
            id,
            owner,
            tenant,
            measure,
            limit,
            alert: None,
            window,
            enforcement: Enforcement::Soft,
            is_dry_run: false,
            conditions: Vec::new(),
            group_by: Vec::new(),
            applies_to_targets: false,
        }
    }

    /// Returns true for a budget, which limits the usage in a period, and false for a rate limit.
    pub fn is_budget(&self) -> bool {
        self.window.is_budget()
    }

    /// Returns true if the limit counts each group of requests for itself.
    pub fn is_grouped(&self) -> bool {
        !self.group_by.is_empty()
    }

    /// Returns true if the limit applies to attempts at targets instead of requests.
    pub fn applies_to_targets(&self) -> bool {
        self.applies_to_targets
    }

    /// Returns the group value of a request; `None` if the limit does not count the request.
    pub fn group_of<'r>(&self, subject: &LimitSubject<'r>) -> Option<Cow<'r, str>> {
        let is_met = |condition: &LimitCondition| {
            condition.values.iter().any(|value| subject.matches(&condition.key, value)) != condition.excludes
        };
        if !self.conditions.iter().all(is_met) {
            return None;
        }
        Some(match &self.group_by[..] {
            [] => Cow::Borrowed(""),
            [key] => shorten(Cow::Borrowed(subject.group_value(key))),
            keys => shorten(Cow::Owned(join_groups(keys.iter().map(|key| subject.group_value(key))))),
        })
    }
}

/// Joins group values so that different values never give the same text.
fn join_groups<'v>(values: impl Iterator<Item = &'v str>) -> String {
    let mut joined = String::new();
    for (index, value) in values.enumerate() {
        if index > 0 {
            joined.push(GROUP_SEPARATOR);
        }
        joined.push_str(&value.replace('%', "%25").replace(GROUP_SEPARATOR, "%7C"));
    }
    joined
}

/// Replaces a value that is too long by its digest, and one with U+0000, because not each store accepts that.
fn shorten(value: Cow<'_, str>) -> Cow<'_, str> {
    if value.len() <= MAX_GROUP_VALUE_BYTES && !value.contains('\0') { value } else { Cow::Owned(digest_text(&value)) }
}

/// Returns the SHA-256 digest of a text as the ledger shows it.
pub(super) fn digest_text(text: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Limits of one workspace and of its objects.
#[derive(Debug, Default)]
pub struct WorkspaceLimits {
    /// Limits of the workspace itself, and of its policies.
    pub all: Option<Arc<[LimitRule]>>,
    /// Limits by id of the API key.
    pub api_keys: LimitsById,
    /// Limits by id of the provider.
    pub providers: LimitsById,
    /// Limits by id of the integration.
    pub integrations: LimitsById,
}

type LimitsById = HashMap<Box<str>, Arc<[LimitRule]>>;

impl WorkspaceLimits {
    /// Compiles the limits of a workspace of an organisation. `path` is their JSON path.
    pub fn compile(
        published: Vec<PublishedLimit>,
        organisation: &str,
        path: &str,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let tenant = tenant_id(organisation);
        let mut all = Vec::new();
        let mut by_owner: HashMap<(OwnerKind, Box<str>), Vec<LimitRule>> = HashMap::new();
        for (index, row) in published.into_iter().enumerate() {
            match compile_limit(row, tenant) {
                Ok(rule) if matches!(rule.owner.kind, OwnerKind::Policy | OwnerKind::Workspace) => all.push(rule),
                Ok(rule) => by_owner.entry((rule.owner.kind, rule.owner.id.clone())).or_default().push(rule),
                Err((field, message)) => {
                    problems.push(Problem::new(format!("{path}.limits[{index}].{field}"), message));
                }
            }
        }
        let mut limits = Self { all: (!all.is_empty()).then(|| all.into()), ..Self::default() };
        for ((kind, id), rules) in by_owner {
            let table = match kind {
                OwnerKind::ApiKey => &mut limits.api_keys,
                OwnerKind::Provider => &mut limits.providers,
                _ => &mut limits.integrations,
            };
            table.insert(id, rules.into());
        }
        limits
    }
}

/// A limit as the control process publishes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedLimit {
    id: Box<str>,
    owner: LimitOwner,
    #[serde(rename = "type")]
    measure: Measure,
    /// `rate` or `usage`. Not read, because `window` and `period` show the kind too.
    #[serde(default, rename = "kind")]
    _kind: IgnoredAny,
    /// Threshold of an alert. Not read, because the ledger sends alerts.
    #[serde(default, rename = "alert")]
    _alert: IgnoredAny,
    limit: u64,
    #[serde(default)]
    window: Option<PublishedWindow>,
    #[serde(default)]
    period: Option<PublishedPeriod>,
    #[serde(default)]
    enforcement: Enforcement,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    conditions: Vec<PublishedCondition>,
    #[serde(default)]
    group_by: Vec<Box<str>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedWindow {
    unit: RateUnit,
    #[serde(default)]
    sliding: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedPeriod {
    start: u64,
    #[serde(default)]
    end: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedCondition {
    key: Box<str>,
    values: Vec<Box<str>>,
    #[serde(default)]
    excludes: bool,
}

/// Returns the name of the counters of a limit. For a budget, it is the id of the limit, which the ledger uses too.
fn counter_id(id: &str, window: LimitWindow) -> Box<str> {
    match window {
        LimitWindow::Fixed(unit) => format!("{id}:fixed:{}", unit.name()).into(),
        LimitWindow::Sliding(unit) => format!("{id}:sliding:{}", unit.name()).into(),
        LimitWindow::Period { .. } | LimitWindow::Recurring(_) => id.into(),
    }
}

/// Parses the window of a rate limit from the name of its counters.
pub fn parse_counter_window(counter_id: &str) -> Option<LimitWindow> {
    let (rest, unit_name) = counter_id.rsplit_once(':')?;
    let unit = RateUnit::ALL.into_iter().find(|unit| unit.name() == unit_name)?;
    match rest.rsplit_once(':')?.1 {
        "fixed" => Some(LimitWindow::Fixed(unit)),
        "sliding" => Some(LimitWindow::Sliding(unit)),
        _ => None,
    }
}

fn compile_limit(row: PublishedLimit, tenant: TenantId) -> Result<LimitRule, (&'static str, String)> {
    let window = match (row.window, row.period) {
        (Some(PublishedWindow { unit, sliding: true }), None) => LimitWindow::Sliding(unit),
        (Some(PublishedWindow { unit, sliding: false }), None) => LimitWindow::Fixed(unit),
        (None, Some(period)) => LimitWindow::Period { start_ms: period.start, end_ms: period.end },
        _ => return Err(("window", "either this or `period` is required".into())),
    };
    let parse = |field, text: &str| SubjectKey::parse(text).ok_or((field, format!("`{text}` is no key of a request")));
    let conditions = row.conditions.into_iter().map(|condition| {
        Ok(LimitCondition {
            key: parse("conditions", &condition.key)?,
            values: condition.values.into_iter().map(ValuePattern::new).collect(),
            excludes: condition.excludes,
        })
    });
    let conditions: Vec<LimitCondition> = conditions.collect::<Result<_, _>>()?;
    let group_by: Vec<SubjectKey> = row.group_by.iter().map(|key| parse("group_by", key)).collect::<Result<_, _>>()?;
    let mut keys = conditions.iter().map(|condition| &condition.key).chain(&group_by);
    let applies_to_targets = matches!(row.owner.kind, OwnerKind::Provider | OwnerKind::Integration)
        || keys.any(SubjectKey::depends_on_target);
    Ok(LimitRule {
        header_items: HeaderItems::new(&row.owner, row.measure, row.limit, window),
        conditions,
        group_by,
        applies_to_targets,
        counter_id: counter_id(&row.id, window),
        id: row.id,
        owner: row.owner,
        tenant,
        measure: row.measure,
        limit: row.limit,
        alert: None,
        window,
        enforcement: row.enforcement,
        is_dry_run: row.dry_run,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(fields: &Value) -> LimitRule {
        let mut row = json!({"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "requests",
            "limit": 1, "window": {"unit": "minute"}});
        row.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        compile_limit(serde_json::from_value(row).unwrap(), 1).unwrap()
    }

    fn subject(metadata: &Metadata) -> LimitSubject<'_> {
        LimitSubject {
            api_key: Some(ObjectNames { slug: "dev", id: "k-1" }),
            workspace: Some(ObjectNames { slug: "here", id: "w-1" }),
            metadata,
            config: None,
            prompt: None,
            endpoint_type: "chatComplete",
            target: Some(TargetSubject {
                provider: "openai",
                saved: Some(ObjectNames { slug: "prod", id: "p-1" }),
                model: "gpt-4o-mini",
            }),
        }
    }

    #[test]
    fn all_conditions_must_be_met() {
        let metadata = Metadata::parse(r#"{"team":"red","plan":"free"}"#);
        let group = |conditions: Value| {
            rule(&json!({"conditions": conditions})).group_of(&subject(&metadata)).map(Cow::into_owned)
        };
        let met = Some(String::new());
        assert_eq!(
            group(json!([{"key": "api_key", "values": ["k-1"]}, {"key": "provider", "values": ["openai"]}])),
            met
        );
        assert_eq!(
            group(json!([{"key": "api_key", "values": ["dev"]}, {"key": "provider", "values": ["groq"]}])),
            None
        );
        assert_eq!(group(json!([{"key": "metadata.team", "values": ["blue", "red"]}])), met);
        assert_eq!(group(json!([{"key": "metadata.team", "values": ["red"], "excludes": true}])), None);
        assert_eq!(group(json!([{"key": "metadata.other", "values": ["*"]}])), None);
        assert_eq!(group(json!([{"key": "metadata.other", "values": ["x"], "excludes": true}])), met);
        assert_eq!(group(json!([{"key": "config", "values": ["*"]}])), None);
        assert_eq!(group(json!([{"key": "endpoint_type", "values": ["embed"]}])), None);
        for model in [
            "gpt-4o-mini",
            "gpt-*",
            "*",
            "*4o*",
            "g*o-m*i",
            "@prod/*",
            "@prod/gpt-4o-mini",
            "@pr*",
            "@prod*",
            "@*/gpt-4o-mini",
        ] {
            assert_eq!(group(json!([{"key": "model", "values": [model]}])), met, "{model}");
        }
        for model in
            ["gpt-4o", "o-*", "*-4", "@dev/*", "@prod/gpt-4o", "@prod/o*", "@production*", "@prod", "gpt-4o-mini*x"]
        {
            assert_eq!(group(json!([{"key": "model", "values": [model]}])), None, "{model}");
        }
    }

    #[test]
    fn groups_are_unambiguous_and_bounded() {
        let metadata = Metadata::parse(r#"{"a":"x|y","b":"z"}"#);
        let group = |keys: Value, metadata: &Metadata| {
            rule(&json!({"group_by": keys})).group_of(&subject(metadata)).unwrap().into_owned()
        };
        assert_eq!(group(json!(["metadata.a", "metadata.b"]), &metadata), "x%7Cy|z");
        assert_eq!(group(json!(["api_key", "metadata.none"]), &metadata), "k-1|");
        assert_eq!(group(json!(["metadata.none"]), &metadata), "");
        let long = Metadata::parse(&json!({"a": "\u{1f600}".repeat(100)}).to_string());
        let short = group(json!(["metadata.a"]), &long);
        assert!(short.starts_with("sha256:") && short.len() == 71, "{short}");
        // PostgreSQL cannot store U+0000.
        let nul = Metadata::parse(r#"{"a":"\u0000","b":"z"}"#);
        for keys in [json!(["metadata.a"]), json!(["metadata.b", "metadata.a"])] {
            let stored = group(keys, &nul);
            assert!(stored.starts_with("sha256:") && stored.len() == 71, "{stored:?}");
        }
    }

    #[test]
    fn recognises_limits_of_targets() {
        assert!(!rule(&json!({"group_by": ["api_key", "metadata.a", "endpoint_type", "config"]})).applies_to_targets());
        for key in ["model", "provider", "virtual_key"] {
            assert!(rule(&json!({"group_by": [key]})).applies_to_targets(), "{key}");
        }
        let owner = json!({"owner": {"kind": "integration", "id": "i", "slug": "i"}});
        assert!(rule(&owner).applies_to_targets());
    }

    #[test]
    fn reports_what_is_wrong_with_a_published_limit() {
        let row = json!([{"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "cost", "limit": 1},
            {"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "cost", "limit": 1,
             "period": {"start": 1}, "group_by": ["colour"]}]);
        let mut problems = Vec::new();
        let limits = WorkspaceLimits::compile(serde_json::from_value(row).unwrap(), "o", "$", &mut problems);
        assert!(limits.all.is_none());
        let paths: Vec<_> = problems.iter().map(|problem| &*problem.path).collect();
        assert_eq!(paths, ["$.limits[0].window", "$.limits[1].group_by"]);
    }
}
