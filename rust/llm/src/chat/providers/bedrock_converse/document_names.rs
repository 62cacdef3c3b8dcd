//! Document names for Converse, which allows few characters and requires unique names.

use std::collections::HashMap;

use serde_json::Value;

/// Converse rejects longer names.
const MAX_NAME_CHARS: usize = 200;

/// Gives each document of a conversation a unique name. The same conversation always produces the same names.
pub fn assign_unique_names<'b>(blocks: impl Iterator<Item = &'b mut Value>) {
    let mut taken = HashMap::new();
    blocks.for_each(|block| assign_unique_name(block, &mut taken));
}

fn assign_unique_name(block: &mut Value, taken: &mut HashMap<String, usize>) {
    // Tool results can contain documents too.
    let within = block.pointer_mut("/toolResult/content").and_then(Value::as_array_mut);
    within.into_iter().flatten().for_each(|inner| assign_unique_name(inner, taken));
    let Some(Value::String(name)) = block.pointer_mut("/document/name") else { return };
    let wanted = sanitise_name(name);
    let mut unique_name = wanted.clone();
    // Continues at the last number used for this name, so that many equal names do not take quadratic time.
    let mut nth = taken.get(&wanted).copied().unwrap_or(1);
    while taken.contains_key(&unique_name) {
        nth += 1;
        let number = format!(" {nth}");
        // The name is ASCII, so slicing by bytes is safe.
        unique_name = format!("{}{number}", wanted[..wanted.len().min(MAX_NAME_CHARS - number.len())].trim_end());
    }
    taken.insert(wanted, nth);
    taken.insert(unique_name.clone(), 1);
    *name = unique_name;
}

/// Replaces characters that Converse does not allow. It allows letters, digits, dashes, brackets and single spaces.
fn sanitise_name(name: &str) -> String {
    let is_allowed = |one: char| one.is_ascii_alphanumeric() || "-()[]".contains(one) || one.is_whitespace();
    let name: String = name.chars().map(|one| if is_allowed(one) { one } else { '-' }).collect();
    let mut name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    name.truncate(MAX_NAME_CHARS);
    let name = name.trim_end();
    if name.is_empty() { "document".to_owned() } else { name.to_owned() }
}
