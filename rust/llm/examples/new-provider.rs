//! Writes the golden cases of a new provider: `new-provider SLUG`.
//!
//! Each case gets the inputs that most providers with the same API format use. Existing cases stay as they are.
//! `UPDATE_GOLDEN=1 cargo test -p penstock-llm --test it golden` then writes the expectations.

#[path = "../tests/it/golden_cases/files.rs"]
mod files;
#[path = "../tests/it/golden_cases/required.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod required;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    process::ExitCode,
};

use penstock_llm::{
    catalog::{self, Provider},
    operation::Operation,
};
use serde_json::{Map, Value, json};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [slug] => catalog::find_provider(slug)
            .ok_or_else(|| io::Error::other(format!("no provider {slug}; add it to rust/llm/src/catalog first")))
            .and_then(write_cases),
        _ => Err(io::Error::other("usage: new-provider SLUG")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn write_cases(provider: &'static dyn Provider) -> io::Result<()> {
    let mut manifests: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let (mut added, mut without_inputs) = (0, Vec::new());
    for (operation, case) in required::required_cases(provider) {
        let manifest =
            manifests.entry(operation.id()).or_insert_with(|| files::read_manifest(provider.slug(), operation.id()));
        if manifest.contains_key(case) {
            continue;
        }
        match standard_inputs(provider, operation, case) {
            Some(row) => {
                manifest.insert(case.to_owned(), row);
                added += 1;
            }
            None => without_inputs.push(format!("{}/{case}", operation.id())),
        }
    }
    for (operation, manifest) in manifests.iter().filter(|(_, manifest)| !manifest.is_empty()) {
        let folder = files::golden_root().join(provider.slug()).join(operation);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("cases.json"), format_manifest(manifest))?;
    }
    let mut output = io::stdout();
    writeln!(output, "Added {added} cases of {}.", provider.slug())?;
    if !without_inputs.is_empty() {
        let cases = without_inputs.join(", ");
        writeln!(output, "No other provider has this API format; write the inputs of these cases yourself: {cases}")?;
    }
    writeln!(output, "Now run: UPDATE_GOLDEN=1 cargo test -p penstock-llm --test it golden")
}

/// Returns the request and response that most providers with the same API format have in this case.
fn standard_inputs(provider: &dyn Provider, operation: Operation, case: &str) -> Option<Value> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let peers = files::list_providers().into_iter().filter(|slug| slug != provider.slug());
    for peer in peers.filter_map(|slug| catalog::find_provider(&slug)) {
        if !has_same_format(provider, peer, operation) {
            continue;
        }
        let manifest = files::read_manifest(peer.slug(), operation.id());
        let input = |key: &str| manifest.get(case)?.get(key)?.as_str().map(ToOwned::to_owned);
        if let (request, Some(response)) = (input("request").unwrap_or_default(), input("response")) {
            *counts.entry((request, response)).or_default() += 1;
        }
    }
    // Names without a provider are shorter, and these inputs are the common ones.
    let ((request, response), _) =
        counts.into_iter().min_by_key(|((request, _), count)| (Reverse(*count), request.len()))?;
    Some(if request.is_empty() {
        json!({"response": response})
    } else {
        json!({"request": request, "response": response})
    })
}

fn has_same_format(provider: &dyn Provider, other: &dyn Provider, operation: Operation) -> bool {
    match (provider.provider_format(operation, ""), other.provider_format(operation, "")) {
        (Some(first), Some(other)) => std::ptr::eq(first, other),
        (None, None) => provider.row().api_format == other.row().api_format,
        _ => false,
    }
}

/// Writes one line per case, sorted by name.
fn format_manifest(manifest: &Map<String, Value>) -> String {
    let mut lines: Vec<_> = manifest.iter().map(|(case, row)| format!("  \"{case}\": {}", format_row(row))).collect();
    lines.sort();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

fn format_row(row: &Value) -> String {
    let Some(object) = row.as_object() else { return row.to_string() };
    let fields: Vec<_> = object.iter().map(|(key, value)| format!("\"{key}\": {}", format_row(value))).collect();
    format!("{{{}}}", fields.join(", "))
}
