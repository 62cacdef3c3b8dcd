//! Names that a template uses, as the management API shows them.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use serde::Serialize;

use super::template::{Template, TemplateNode};

/// Names in a template, each once, in the order of their first use.
#[derive(Debug, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VariableNames {
    /// Variables outside of sections.
    pub variables: NameList,
    pub sections: NameList,
    pub partials: NameList,
    /// Variables within each outermost section.
    pub section_variables: BTreeMap<String, NameList>,
    /// Partials whose name is a variable. Always empty, because templates cannot have them.
    pub variable_partials: NameList,
}

/// Names, each once. A template may have a hundred thousand, so a name is found by its hash.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NameList {
    names: Vec<Arc<str>>,
    known: HashSet<Arc<str>>,
}

impl NameList {
    fn add(&mut self, name: &str) {
        if !self.known.contains(name) {
            let name: Arc<str> = name.into();
            self.names.push(Arc::clone(&name));
            self.known.insert(name);
        }
    }
}

impl Serialize for NameList {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names.iter().map(|name| &**name))
    }
}

impl VariableNames {
    /// Adds the names in a template.
    pub fn add(&mut self, template: &Template) {
        let mut outermost = String::new();
        template.visit(&mut |node, depth| match node {
            TemplateNode::Text(_) => (),
            TemplateNode::Variable { path, .. } if depth == 0 => self.variables.add(&path.to_string()),
            TemplateNode::Variable { path, .. } => {
                if let Some(names) = self.section_variables.get_mut(&outermost) {
                    names.add(&path.to_string());
                } else {
                    self.section_variables.entry(outermost.clone()).or_default().add(&path.to_string());
                }
            }
            TemplateNode::Section { path, .. } => {
                let name = path.to_string();
                self.sections.add(&name);
                if depth == 0 {
                    outermost = name;
                }
            }
            TemplateNode::Partial { name, .. } => self.partials.add(name),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_grouped_by_section() {
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
