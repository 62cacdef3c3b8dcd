//! Document names for Converse, which allows few characters and requires unique names.

use std::collections::HashMap;

use serde_json::Value;

/// Maximum length of a document name in Converse.
const MAX_NAME_CHARS: usize = 200;

/// Gives each document of a conversation a unique name. The same conversation always produces the same names.
pub fn assign_unique_names<'b>(blocks: impl Iterator<Item = &'b mut Value>) {
    let mut consumed = HashMap::new();
    blocks.for_each(|block| assign_unique_name(block, &mut consumed));
}

fn assign_unique_name(block: &mut Value, used_names: &mut HashMap<String, usize>) {
    // Tool results can contain documents too.
    let within = block.pointer_mut("/toolResult/content").and_then(Value::as_array_mut);
    within.into_iter().flatten().for_each(|inner| assign_unique_name(inner, used_names));
    let Some(Value::String(name)) = block.pointer_mut("/document/name") else { return };
    let sanitised = sanitise_name(name);
    let mut unique_name = sanitised.clone();
    // Continues at the last number used for this name, so that many equal names do not take quadratic time.
    let mut nth = used_names.get(&sanitised).copied().unwrap_or(1);
    while used_names.contains_key(&unique_name) {
        nth += 1;
        let number = format!(" {nth}");
        // The name is ASCII, so slicing by bytes is safe.
        unique_name = format!("{}{number}", sanitised[..sanitised.len().min(MAX_NAME_CHARS - number.len())].trim_end());
    }
    used_names.insert(sanitised, nth);
    used_names.insert(unique_name.clone(), 1);
    *name = unique_name;
}

/// Replaces characters that Converse does not allow. It allows letters, digits, dashes, brackets and single spaces.
fn sanitise_name(name: &str) -> String {
    let is_allowed =
        |character: char| character.is_ascii_alphanumeric() || "-()[]".contains(character) || character.is_whitespace();
    let name: String = name.chars().map(|character| if is_allowed(character) { character } else { '-' }).collect();
    let mut name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    name.truncate(MAX_NAME_CHARS);
    let name = name.trim_end();
    if name.is_empty() { "document".to_owned() } else { name.to_owned() }
}
