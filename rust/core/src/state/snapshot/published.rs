//! JSON that the control process publishes, and its compilation into a snapshot.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use penstock_llm::catalog::{self, Options};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    GatewayKey, KeyDenial, SavedProvider, Snapshot, Workspace,
    tables::{ConfigNames, LookupTables, WorkspaceScoped},
};
use crate::{
    accounting::{
        prices::{self, Prices},
        record::details::ProviderIdentity,
        saved_models::{self, PublishedModels, SavedModels},
    },
    auth::{
        gateway_key::{DefaultGuardrails, PublishedDefaults, StringMap, compile_defaults},
        jwt::{self, TokenAuthenticator},
    },
    config::{Config, Strictness},
    error::Problem,
    guardrails::saved::SavedGuardrail,
    limits::rule::{PublishedLimit, WorkspaceLimits},
    process::secret::Secret,
    prompts::saved::{PublishedPrompt, SavedPartial},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedSnapshot<'a> {
    epoch: String,
    /// Epoch of the snapshot that this update is based on. Omitted parts stay unchanged.
    #[serde(default, borrow)]
    since: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    keys: Vec<PublishedKey<'a>>,
    #[serde(default)]
    providers: Vec<PublishedProvider>,
    #[serde(default)]
    models: Vec<PublishedModels>,
    #[serde(default)]
    workspaces: Vec<PublishedWorkspace>,
    #[serde(default)]
    departed: Vec<jwt::RemovedMembers>,
    #[serde(default)]
    jwt: Option<jwt::PublishedSettings>,
    /// Prices. Unchanged if omitted in an update.
    #[serde(default)]
    prices: Option<prices::PublishedPrices>,
    #[serde(default)]
    catalogue: bool,
    #[serde(default, borrow)]
    configs: Vec<PublishedConfig<'a>>,
    #[serde(default)]
    management: Vec<String>,
    /// Parts of the stored tables. Unchanged parts may be omitted.
    #[serde(default, borrow)]
    parts: Vec<PublishedPart<'a>>,
}

/// One part of the stored tables. A table that it contains replaces all previous entries of that part.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedPart<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    keys: Option<Vec<PublishedKey<'a>>>,
    #[serde(default, borrow)]
    configs: Option<Vec<PublishedConfig<'a>>>,
    #[serde(default)]
    limits: Option<Vec<PublishedWorkspaceLimits>>,
    #[serde(default, borrow)]
    prompts: Option<Vec<PublishedPrompt<'a>>>,
    #[serde(default)]
    partials: Option<Vec<SavedPartial>>,
    #[serde(default)]
    guardrails: Option<Vec<SavedGuardrail>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedWorkspaceLimits {
    workspace: Box<str>,
    limits: Vec<PublishedLimit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedKey<'a> {
    id: Box<str>,
    #[serde(default)]
    name: Box<str>,
    #[serde(borrow)]
    sha256: Cow<'a, str>,
    #[serde(default)]
    expires_at: Option<u64>,
    #[serde(default, borrow)]
    workspace: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    user_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    defaults: Option<PublishedDefaults<'a>>,
    /// Reasons why the key is denied. If the key may do nothing, no other field is stored.
    #[serde(default)]
    lacks: Option<KeyDenial>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedWorkspace {
    id: Box<str>,
    #[serde(default)]
    slug: Box<str>,
    #[serde(default)]
    organisation_id: Box<str>,
    #[serde(default)]
    block_inline_config: bool,
    #[serde(default)]
    figures_alone: bool,
    #[serde(default)]
    metadata: StringMap,
    /// Input guardrails of all requests of the workspace: those of its organisation, and its own.
    #[serde(default)]
    input_guardrails: Vec<Box<str>>,
    /// Output guardrails of all requests of the workspace: those of its organisation, and its own.
    #[serde(default)]
    output_guardrails: Vec<Box<str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedProvider {
    #[serde(default)]
    id: Option<Box<str>>,
    #[serde(default)]
    integration_id: Option<Box<str>>,
    slug: String,
    provider: String,
    #[serde(default)]
    api_key: Option<Secret>,
    #[serde(default)]
    custom_host: Option<String>,
    #[serde(default)]
    anthropic_inspect_stream_for_overloaded_error: Option<bool>,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Id of the `models` entry that applies to this provider.
    #[serde(default)]
    models: Option<String>,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(default)]
    expires_at: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedConfig<'a> {
    #[serde(default)]
    id: Option<Box<str>>,
    #[serde(default)]
    version_id: Option<Box<str>>,
    slug: String,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(borrow)]
    config: &'a RawValue,
}

impl PublishedWorkspace {
    fn to_workspace(&self) -> Workspace {
        let [id, slug, organisation_id] = [&self.id, &self.slug, &self.organisation_id].map(|text| Arc::from(&**text));
        Workspace { id, slug, organisation_id }
    }
}

/// Compiles published JSON on top of `before`. With `is_validated_only` an update is accepted whatever its `since`, and
/// the snapshot is not complete.
pub(super) fn compile(before: &Snapshot, json: &[u8], is_validated_only: bool) -> Result<Snapshot, Vec<Problem>> {
    let published: PublishedSnapshot =
        serde_json::from_slice(json).map_err(|error| vec![Problem::new("$", error.to_string())])?;
    let (mut stored, mut prices) = (LookupTables::default(), Arc::default());
    match &published.since {
        Some(since) if *since == before.epoch || is_validated_only => {
            (stored, prices) = (before.stored_tables.clone(), Arc::clone(&before.prices));
        }
        Some(_) => {
            return Err(vec![Problem::new(
                "$.since",
                "is not the epoch of the current snapshot; publish a full snapshot",
            )]);
        }
        None => {}
    }
    let mut problems = Vec::new();
    let mut settings_tables = LookupTables::default();
    add_keys(&mut settings_tables, &RowLocation::root(), published.keys, &mut problems);
    let models = compile_models(published.models, &mut problems);
    let providers = compile_providers(published.providers, &models, &mut problems);
    add_configs(&mut settings_tables, &RowLocation::root(), published.configs, &mut problems);
    replace_parts(&mut stored, published.parts, &published.workspaces, is_validated_only, &mut problems);
    if let Some(published) = published.prices {
        prices = Arc::new(Prices::compile(published, &mut problems));
    }
    let workspace_ids = |is_one: fn(&PublishedWorkspace) -> bool| {
        published.workspaces.iter().filter(|row| is_one(row)).map(|row| row.id.clone()).collect()
    };
    let workspaces: Vec<_> = published.workspaces.iter().map(PublishedWorkspace::to_workspace).collect();
    let snapshot = Snapshot {
        epoch: published.epoch,
        settings_tables,
        stored_tables: stored,
        prices,
        providers,
        inline_blocking_workspaces: workspace_ids(|row| row.block_inline_config),
        metrics_only_workspaces: workspace_ids(|row| row.figures_alone),
        workspace_indexes: workspaces.iter().enumerate().map(|(index, item)| (Arc::clone(&item.id), index)).collect(),
        workspaces,
        token_verifier: published.jwt.map(|jwt| TokenAuthenticator::compile(jwt, published.departed, &mut problems)),
        default_guardrails: published
            .workspaces
            .iter()
            .map(|row| {
                let (input, output) = (row.input_guardrails.clone(), row.output_guardrails.clone());
                (row.id.clone(), DefaultGuardrails { input, output })
            })
            .filter(|(_, guardrails)| !guardrails.is_empty())
            .collect(),
        workspace_metadata: published.workspaces.into_iter().map(|row| (row.id, row.metadata.0)).collect(),
        has_model_catalogue: published.catalogue,
        management_prefixes: compile_management(published.management, &mut problems),
    };
    if problems.is_empty() { Ok(snapshot) } else { Err(problems) }
}

/// Replaces the stored entries of the given parts.
fn replace_parts(
    tables: &mut LookupTables,
    parts: Vec<PublishedPart<'_>>,
    workspaces: &[PublishedWorkspace],
    is_validated_only: bool,
    problems: &mut Vec<Problem>,
) {
    let names =
        |has: fn(&PublishedPart<'_>) -> bool| parts.iter().filter(|part| has(part)).map(|part| &*part.name).collect();
    tables.remove_keys(&names(|part| part.keys.is_some()));
    tables.remove_configs(&names(|part| part.configs.is_some()));
    tables.remove_limits(&names(|part| part.limits.is_some()));
    tables.remove_guardrails(&names(|part| part.guardrails.is_some()));
    tables.reserve_keys(parts.iter().map(|part| part.keys.as_ref().map_or(0, Vec::len)).sum());
    let organisations: HashMap<_, _> = workspaces.iter().map(|row| (&*row.id, &*row.organisation_id)).collect();
    for (index, part) in parts.into_iter().enumerate() {
        let location = RowLocation { part: part.name.into(), path: format!("$.parts[{index}]") };
        add_keys(tables, &location, part.keys.unwrap_or_default(), problems);
        add_configs(tables, &location, part.configs.unwrap_or_default(), problems);
        for (index, row) in part.limits.unwrap_or_default().into_iter().enumerate() {
            let path = format!("{}.limits[{index}]", location.path);
            let organisation = organisations.get(&*row.workspace).copied().unwrap_or(&row.workspace);
            let limits = WorkspaceLimits::compile(row.limits, organisation, &path, problems);
            tables.add_limits(&location.part, row.workspace, limits);
        }
        // Skipped by a validation, because to store a prompt compresses it, which takes time.
        if let Some(prompts) = part.prompts.filter(|_| !is_validated_only) {
            tables.replace_prompts(&location.part, prompts.into_iter().map(PublishedPrompt::into_saved).collect());
        }
        for guardrail in part.guardrails.unwrap_or_default() {
            // Compiled here, on a thread of low priority, and not by the first request.
            let _ = guardrail.hook();
            tables.add_guardrail(&location.part, guardrail);
        }
        if let Some(partials) = part.partials {
            tables.replace_partials(&location.part, partials);
        }
    }
}

/// Part and JSON path of published rows, for lookups and error messages.
struct RowLocation {
    part: Arc<str>,
    path: String,
}

impl RowLocation {
    fn root() -> Self {
        Self { part: "".into(), path: "$".into() }
    }
}

fn add_keys(
    tables: &mut LookupTables,
    location: &RowLocation,
    keys: Vec<PublishedKey<'_>>,
    problems: &mut Vec<Problem>,
) {
    // Many keys belong to the same workspace or user, so their ids are stored once.
    let (mut workspaces, mut users) = (HashSet::new(), HashSet::new());
    for (index, row) in keys.into_iter().enumerate() {
        let Some(digest) = parse_digest(&row.sha256) else {
            let path = format!("{}.keys[{index}].sha256", location.path);
            problems.push(Problem::new(path, "must be 64 hexadecimal digits"));
            continue;
        };
        if let Some(denial @ (KeyDenial::Workspace | KeyDenial::Scope)) = row.lacks {
            tables.add_denied_key(&location.part, digest, denial);
            continue;
        }
        let (may_call, may_render) = (row.lacks != Some(KeyDenial::Completions), row.lacks != Some(KeyDenial::Render));
        let workspace = row.workspace.map(|id| intern(&mut workspaces, &id));
        let user_id = row.user_id.map(|id| intern(&mut users, &id));
        let defaults = row.defaults.and_then(compile_defaults);
        let PublishedKey { id, name, expires_at, .. } = row;
        let key = GatewayKey { id, name, expires_at, workspace, user_id, defaults, limits: None, may_render };
        if may_call {
            tables.add_key(&location.part, digest, key);
        } else {
            tables.add_render_key(&location.part, digest, key);
        }
    }
}

fn add_configs(
    tables: &mut LookupTables,
    location: &RowLocation,
    saved: Vec<PublishedConfig<'_>>,
    problems: &mut Vec<Problem>,
) {
    for (index, row) in saved.into_iter().enumerate() {
        let names = ConfigNames { id: row.id, version_id: row.version_id, slug: row.slug, workspace: row.workspace };
        match Config::parse(row.config.get().as_bytes(), Strictness::Strict) {
            Ok(config) => tables.add_config(&location.part, names, config),
            Err(errors) => problems.extend(errors.into_iter().map(|problem| {
                let rest = problem.path.trim_start_matches('$');
                Problem::new(format!("{}.configs[{index}].config{rest}", location.path), problem.message)
            })),
        }
    }
}

/// Returns the shared copy of a string.
fn intern(interned: &mut HashSet<Arc<str>>, text: &str) -> Arc<str> {
    if let Some(interned_text) = interned.get(text) {
        return Arc::clone(interned_text);
    }
    let text: Arc<str> = text.into();
    interned.insert(Arc::clone(&text));
    text
}

fn compile_models(published: Vec<PublishedModels>, problems: &mut Vec<Problem>) -> HashMap<String, Arc<SavedModels>> {
    let rows = published.into_iter().enumerate();
    rows.map(|(index, row)| {
        (row.id.clone(), Arc::new(SavedModels::compile(row, &format!("$.models[{index}]"), problems)))
    })
    .collect()
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, index) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[index..index + 2], 16).ok()?;
    }
    Some(digest)
}

fn compile_providers(
    saved: Vec<PublishedProvider>,
    models: &HashMap<String, Arc<SavedModels>>,
    problems: &mut Vec<Problem>,
) -> WorkspaceScoped<SavedProvider> {
    let mut compiled = WorkspaceScoped::default();
    for (index, row) in saved.into_iter().enumerate() {
        let path = |field: &str| format!("$.providers[{index}].{field}");
        if catalog::find_provider(&row.provider).is_none() {
            problems.push(Problem::new(path("provider"), format!("`{}` is not a known provider", row.provider)));
        }
        if row.api_key.as_ref().is_some_and(|key| key.expose().chars().any(char::is_control)) {
            problems.push(Problem::new(path("api_key"), "must not contain control characters"));
        }
        let row_path = format!("$.providers[{index}]");
        let custom_host = saved_models::parse_custom_host(row.custom_host.as_deref(), &row_path, problems);
        let fields = saved_models::compile_header_fields(row.headers, &row_path, problems);
        let row_models = row.models.as_ref().and_then(|id| models.get(id)).map(Arc::clone);
        if row.models.is_some() && row_models.is_none() {
            problems.push(Problem::new(path("models"), "is not among the published models"));
        }
        let inspect_stream = row.anthropic_inspect_stream_for_overloaded_error.into();
        let mut options = Options::default();
        for (option, value) in saved_models::compile_options(row.options, &row_path, problems) {
            options.insert_if_absent(option, value);
        }
        let provider = SavedProvider {
            identity: Arc::new(ProviderIdentity {
                slug: row.slug.as_str().into(),
                id: row.id,
                integration_id: row.integration_id,
            }),
            provider: row.provider,
            api_key: row.api_key,
            custom_host,
            inspect_stream,
            options,
            header_fields: fields,
            models: row_models,
            expires_at: row.expires_at,
        };
        if compiled.insert(row.workspace, row.slug, provider).is_some() {
            problems.push(Problem::new(path("slug"), "is used twice; slugs must be unique within a workspace"));
        }
    }
    compiled
}

/// Checks the published path prefixes. Paths below `/internal` are never exposed to clients, whatever was published.
fn compile_management(prefixes: Vec<String>, problems: &mut Vec<Problem>) -> Vec<String> {
    for (index, prefix) in prefixes.iter().enumerate() {
        let first = prefix.strip_prefix('/').and_then(|rest| rest.split('/').next());
        if matches!(first, None | Some("" | "internal")) {
            problems.push(Problem::new(format!("$.management[{index}]"), "must be a path outside of `/internal`"));
        }
    }
    prefixes
}
