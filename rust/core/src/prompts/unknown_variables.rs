//! Variables that a caller sends and that no template reads, most often because a name is misspelt.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    prompt::CompiledPrompt,
    template::{PartialSource, RenderError, Template, TemplateNode},
};

/// Maximum number of names that are reported.
const MAX_REPORTED_NAMES: usize = 100;
/// Maximum bytes of a reported name.
const MAX_NAME_BYTES: usize = 100;

/// Returns the names of variables that neither the prompt nor a partial in it reads, in the order in which they were
/// sent. Sections that these variables hide are searched too, because the same name may be needed with other values.
///
/// # Errors
/// If the template and its partials have more than `max_nodes` nodes.
pub(super) fn find_unknown_variables<'p>(
    prompt: &CompiledPrompt,
    variables: &Value,
    max_nodes: usize,
    find_partial: impl Fn(&str) -> Option<PartialSource<'p>>,
) -> Result<Vec<String>, RenderError> {
    let Some(sent) = variables.as_object().filter(|sent| !sent.is_empty()) else { return Ok(Vec::new()) };
    let mut names = UsedNames::default();
    let mut nodes: usize = prompt.templates().map(|template| names.add(template)).sum();
    while let Some(name) = names.pending.pop() {
        if nodes > max_nodes {
            return Err(RenderError::TooMuchWork { limit: max_nodes });
        }
        if let Some(partial) = find_partial(&name) {
            nodes += names.add(partial.template);
        }
    }
    if names.has_all {
        return Ok(Vec::new());
    }
    let unknown = sent.keys().filter(|name| !names.variables.contains(name.as_str())).take(MAX_REPORTED_NAMES);
    Ok(unknown.map(|name| name[..name.floor_char_boundary(MAX_NAME_BYTES)].to_owned()).collect())
}

/// Names that templates read.
#[derive(Default)]
struct UsedNames {
    /// Names of variables and sections up to the first dot, such as `user` for `user.name`.
    variables: HashSet<Box<str>>,
    /// True if a template may insert all variables as one value: `{{.}}` outside of sections.
    has_all: bool,
    /// Names of all partials that were found.
    partials: HashSet<Box<str>>,
    /// Names of the partials that have not been searched yet.
    pending: Vec<Box<str>>,
}

impl UsedNames {
    /// Adds the names in a template. Returns the number of its nodes.
    fn add(&mut self, template: &Template) -> usize {
        let mut nodes = 0;
        template.visit(&mut |node, depth| {
            nodes += 1;
            match node {
                TemplateNode::Text(_) => (),
                TemplateNode::Variable { path, .. } | TemplateNode::Section { path, .. } => match path.0.first() {
                    Some(first) if self.variables.contains(first) => (),
                    Some(first) => drop(self.variables.insert(first.clone())),
                    None => self.has_all |= depth == 0,
                },
                TemplateNode::Partial { name, .. } => {
                    if self.partials.insert(name.clone()) {
                        self.pending.push(name.clone());
                    }
                }
            }
        });
        nodes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn find(string: &str, variables: &Value, max_nodes: usize) -> Result<Vec<String>, RenderError> {
        let prompt = CompiledPrompt::parse(json!({"string": string}).to_string().as_bytes()).unwrap();
        let partial = Template::parse("{{inner}}{{>tone}}{{#list}}{{.}}{{/list}}").unwrap();
        find_unknown_variables(&prompt, variables, max_nodes, |name| {
            (name == "tone").then_some(PartialSource { source: "", template: &partial })
        })
    }

    #[test]
    fn names_that_no_template_reads_are_reported() {
        let variables = json!({"a": 1, "aa": 1, "b": 1, "c": 1, "inner": 1, "list": [], "A": 1});
        let unknown = |string: &str| find(string, &variables, 100).unwrap();
        assert_eq!(unknown("{{a.x}}{{#b}}{{c}}{{/b}}{{>tone}}"), ["aa", "A"]);
        assert_eq!(unknown("{{a}}{{>gone}}"), ["aa", "b", "c", "inner", "list", "A"]);
        assert_eq!(unknown("{{.}}"), [""; 0]);
        assert_eq!(unknown("{{#a}}{{.}}{{/a}}").len(), 6);
        assert_eq!(find("no variable", &json!({}), 100).unwrap(), [""; 0]);
        assert_eq!(find("{{>tone}}{{x}}", &variables, 1), Err(RenderError::TooMuchWork { limit: 1 }));
    }
}
