//! Tools of the client that the provider gets as plain functions: tools that take free text instead of JSON (`custom`),
//! and tools in namespaces. Calls of these functions are converted back to calls of the tools.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

/// Argument name of a function that represents a custom tool.
pub(crate) const CUSTOM_INPUT: &str = "input";

/// Tools of the client that the provider gets as functions, by the names of these functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTools {
    /// Names of the functions that represent custom tools.
    custom: HashSet<String>,
    /// Tools in namespaces, by the name of the function that represents each.
    namespaced: HashMap<String, NamespacedTool>,
}

/// Tool in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamespacedTool {
    namespace: String,
    name: String,
}

impl ClientTools {
    /// Returns true if this function represents a custom tool.
    pub fn is_custom(&self, function: &str) -> bool {
        self.custom.contains(function)
    }

    /// Records a custom tool.
    pub fn add_custom(&mut self, function: &str) {
        self.custom.insert(function.to_owned());
    }

    /// Records a tool in a namespace and returns the name of the function that represents it. The name is the same in
    /// the tool definitions and in the conversation history.
    pub fn add_namespaced(&mut self, namespace: &str, name: &str) -> String {
        let function = format!("{namespace}__{name}");
        let tool = || NamespacedTool { namespace: namespace.to_owned(), name: name.to_owned() };
        self.namespaced.entry(function.clone()).or_insert_with(tool);
        function
    }

    /// Returns the namespace and the name of the tool that a function represents.
    pub fn namespace_and_name<'n>(&'n self, function: &'n str) -> (Option<&'n str>, &'n str) {
        let namespaced_tool = self.namespaced.get(function);
        namespaced_tool.map_or((None, function), |tool| (Some(&tool.namespace), &tool.name))
    }
}

/// Returns the arguments of the function that represents a custom tool.
pub(crate) fn custom_arguments(input: &str) -> String {
    json!({CUSTOM_INPUT: input}).to_string()
}

/// Returns the text in the arguments of a function that represents a custom tool. Arguments of another shape are
/// returned as text.
pub(crate) fn custom_input(arguments: &str) -> String {
    match serde_json::from_str::<Value>(arguments) {
        Ok(Value::Object(mut fields)) => match fields.shift_remove(CUSTOM_INPUT) {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None if fields.is_empty() => String::new(),
            None => arguments.to_owned(),
        },
        Ok(Value::String(text)) => text,
        _ => arguments.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_custom_call_survives_both_ways() {
        for text in ["", "+ a line\n", "{\"input\": 1}", "\"quoted\""] {
            assert_eq!(custom_input(&custom_arguments(text)), text);
        }
        for (arguments, text) in
            [("plain", "plain"), ("{}", ""), ("{\"input\":{\"a\":1}}", "{\"a\":1}"), ("\"x\"", "x")]
        {
            assert_eq!(custom_input(arguments), text);
        }
    }
}
