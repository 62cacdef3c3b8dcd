//! Tools that a request offers to its model, in every API format. A request may have fields of several formats, and its
//! provider reads one of them, so all are read.

use serde_json::Value;

use crate::parse::document_reader::to_snake_case;

/// Built-in tools of Google's API, each a field of a tool. Google reads them in snake case and in camel case.
const GOOGLE_TOOLS: [&str; 12] = [
    "code_execution",
    "computer_use",
    "enterprise_web_search",
    "external_api",
    "file_search",
    "google_maps",
    "google_search",
    "google_search_retrieval",
    "mcp_servers",
    "parallel_ai_search",
    "retrieval",
    "url_context",
];
/// Type of a tool without a `type` field.
const FUNCTION: &str = "function";
/// Type of the servers in the field `mcp_servers` of Anthropic's API.
const MCP: &str = "mcp";

/// A tool of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestTool<'r> {
    pub kind: &'r str,
    /// Name of the function; of a built-in tool, its type.
    pub name: &'r str,
}

impl RequestTool<'_> {
    /// Returns true if the tool has no name of its own.
    pub fn is_built_in(&self) -> bool {
        self.kind == self.name
    }
}

/// Returns the tools of a request. A tool with two names is listed twice, because its provider may read either one.
pub(super) fn find_tools(request: &Value) -> Vec<RequestTool<'_>> {
    let mut tools = Vec::new();
    for list in
        [&request["tools"], &request["functions"], &request["toolConfig"]["tools"], &request["tool_config"]["tools"]]
    {
        add_tools(list, &mut tools);
    }
    for server in request["mcp_servers"].as_array().into_iter().flatten() {
        tools.push(RequestTool { kind: MCP, name: server["name"].as_str().unwrap_or(MCP) });
    }
    tools
}

fn add_tools<'r>(list: &'r Value, tools: &mut Vec<RequestTool<'r>>) {
    for tool in list.as_array().into_iter().flatten() {
        add_tool(tool, tools);
    }
}

fn add_tool<'r>(tool: &'r Value, tools: &mut Vec<RequestTool<'r>>) {
    let kind = tool["type"].as_str();
    let mut names: Vec<_> = [&tool["function"]["name"], &tool["custom"]["name"], &tool["name"]]
        .into_iter()
        .filter_map(Value::as_str)
        .collect();
    names.dedup();
    let mut is_known = kind.is_some() || !names.is_empty();
    if let (Some(kind), []) = (kind, &names[..]) {
        tools.push(RequestTool { kind, name: kind });
    }
    tools.extend(names.into_iter().map(|name| RequestTool { kind: kind.unwrap_or(FUNCTION), name }));
    let fields = || tool.as_object().into_iter().flatten();
    for (key, value) in fields() {
        let name = to_snake_case(key);
        is_known |= add_field(key, &name, value, tools);
    }
    if !is_known {
        tools.extend(fields().map(|(key, _)| RequestTool { kind: key, name: key }));
        if fields().next().is_none() {
            tools.push(RequestTool { kind: FUNCTION, name: FUNCTION });
        }
    }
}

/// Adds the tools in a field of a tool, whose name in snake case is `name`. Returns false if the field holds none.
fn add_field<'r>(key: &'r str, name: &str, value: &'r Value, tools: &mut Vec<RequestTool<'r>>) -> bool {
    let function = |value: &'r Value| RequestTool { kind: FUNCTION, name: value["name"].as_str().unwrap_or(FUNCTION) };
    match name {
        "function_declarations" => tools.extend(value.as_array().into_iter().flatten().map(function)),
        // Amazon's Converse API.
        "tool_spec" => tools.push(function(value)),
        "system_tool" => tools.push(RequestTool { kind: key, name: value["name"].as_str().unwrap_or(key) }),
        "cache_point" => (),
        // A namespace of OpenAI's Responses API.
        "tools" => add_tools(value, tools),
        name if GOOGLE_TOOLS.contains(&name) => tools.push(RequestTool { kind: key, name: key }),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_of_every_format_are_found() {
        for (request, expected) in [
            (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), vec![("function", "f")]),
            (json!({"tools": [{"type": "custom", "custom": {"name": "f"}}]}), vec![("custom", "f")]),
            (json!({"functions": [{"name": "f", "parameters": {}}]}), vec![("function", "f")]),
            (
                json!({"tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]}),
                vec![("function", "f"), ("web_search", "web_search")],
            ),
            (
                json!({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]}),
                vec![("namespace", "n"), ("function", "f")],
            ),
            (
                json!({"tools": [{"name": "f", "input_schema": {}}], "mcp_servers": [{"type": "url", "name": "s"}]}),
                vec![("function", "f"), ("mcp", "s")],
            ),
            (
                json!({"tools": [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}, {"google_search": {}}]}),
                vec![("function", "f"), ("function", "g"), ("google_search", "google_search")],
            ),
            (
                json!({"toolConfig": {"tools": [{"toolSpec": {"name": "f"}}, {"cachePoint": {}}, {"systemTool": {"name": "s"}}]}}),
                vec![("function", "f"), ("systemTool", "s")],
            ),
            // Fields of two formats, and a tool of an unknown one.
            (
                json!({"tools": [{"name": "f", "function": {"name": "g"}, "googleSearch": {}}, {"newTool": {}}, {}]}),
                vec![
                    ("function", "g"),
                    ("function", "f"),
                    ("googleSearch", "googleSearch"),
                    ("newTool", "newTool"),
                    ("function", "function"),
                ],
            ),
        ] {
            let actual: Vec<_> = find_tools(&request).iter().map(|tool| (tool.kind, tool.name)).collect();
            assert_eq!(actual, expected, "{request}");
        }
    }
}
