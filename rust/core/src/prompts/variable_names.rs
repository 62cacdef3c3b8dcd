//! Names that a template uses, as the management API shows them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::template::{Template, TemplateNode};

/// Names in a template, each once, in the order of their first use.
#[derive(Debug, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VariableNames {
    /// Variables outside of sections.
    pub variables: Vec<String>,
    pub sections: Vec<String>,
    pub partials: Vec<String>,
    /// Variables within each outermost section.
    pub section_variables: BTreeMap<String, Vec<String>>,
    /// Partials whose name is a variable. Templates have none.
    pub variable_partials: Vec<String>,
}

impl VariableNames {
    /// Adds the names in a template.
    pub fn add(&mut self, template: &Template) {
        let mut outermost = String::new();
        template.visit(&mut |node, depth| match node {
            TemplateNode::Text(_) => (),
            TemplateNode::Variable { path, .. } if depth == 0 => push_new(&mut self.variables, path.to_string()),
            TemplateNode::Variable { path, .. } => {
                push_new(self.section_variables.entry(outermost.clone()).or_default(), path.to_string());
            }
            TemplateNode::Section { path, .. } => {
                let name = path.to_string();
                if depth == 0 {
                    outermost.clone_from(&name);
                }
                push_new(&mut self.sections, name);
            }
            TemplateNode::Partial { name, .. } => push_new(&mut self.partials, name.to_string()),
        });
    }
}

fn push_new(names: &mut Vec<String>, name: String) {
    if !names.contains(&name) {
        names.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_by_their_place() {
        let mut names = VariableNames::default();
        names.add(
            &Template::parse("{{a}}{{#s}}{{b}}{{#t}}{{c}}{{/t}}{{/s}}{{>p}}{{{a}}}{{^u.v}}{{.}}{{/u.v}}").unwrap(),
        );
        let expected = serde_json::json!({
            "variables": ["a"],
            "sections": ["s", "t", "u.v"],
            "partials": ["p"],
            "sectionVariables": {"s": ["b", "c"], "u.v": ["."]},
            "variablePartials": [],
        });
        assert_eq!(serde_json::to_value(names).unwrap(), expected);
    }
}
