//! Names of documents as Converse takes them: of few characters, and each another.

use std::collections::HashMap;

use serde_json::Value;

/// A longer name is refused.
const MAX_NAME_CHARS: usize = 200;

/// Gives each document of a conversation a name of its own, the same for the same conversation.
pub fn assign_unique_names<'b>(blocks: impl Iterator<Item = &'b mut Value>) {
    let mut taken = HashMap::new();
    blocks.for_each(|block| assign_unique_name(block, &mut taken));
}

fn assign_unique_name(block: &mut Value, taken: &mut HashMap<String, usize>) {
    // Tools give documents back too.
    let within = block.pointer_mut("/toolResult/content").and_then(Value::as_array_mut);
    within.into_iter().flatten().for_each(|inner| assign_unique_name(inner, taken));
    let Some(Value::String(told)) = block.pointer_mut("/document/name") else { return };
    let wanted = sanitise_name(told);
    let mut own = wanted.clone();
    // Where the numbers of this name have got to: many may be called the same.
    let mut nth = taken.get(&wanted).copied().unwrap_or(1);
    while taken.contains_key(&own) {
        nth += 1;
        let number = format!(" {nth}");
        // Nothing but ASCII is left in it.
        own = format!("{}{number}", wanted[..wanted.len().min(MAX_NAME_CHARS - number.len())].trim_end());
    }
    taken.insert(wanted, nth);
    taken.insert(own.clone(), 1);
    *told = own;
}

/// Letters, digits, dashes, brackets and single spaces are all it takes.
fn sanitise_name(name: &str) -> String {
    let is_allowed = |one: char| one.is_ascii_alphanumeric() || "-()[]".contains(one) || one.is_whitespace();
    let name: String = name.chars().map(|one| if is_allowed(one) { one } else { '-' }).collect();
    let mut name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    name.truncate(MAX_NAME_CHARS);
    let name = name.trim_end();
    if name.is_empty() { "document".to_owned() } else { name.to_owned() }
}
