//! Mustache templates: parser. Supports the required parts of the Mustache specification: variables, sections, inverted
//! sections, comments, partials and changed delimiters. Nothing in a template is code.

mod render;

use std::fmt;

pub(super) use render::push_json_escaped;
pub use render::{Escape, PartialSource, RenderError, RenderLimits, Renderer};

/// Maximum depth of nested sections.
pub const MAX_DEPTH: usize = 32;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    nodes: Vec<TemplateNode>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TemplateNode {
    Text(Box<str>),
    Variable {
        path: VariablePath,
        /// True for `{{{name}}}` and `{{&name}}`.
        is_unescaped: bool,
    },
    Section {
        path: VariablePath,
        is_inverted: bool,
        nodes: Vec<Self>,
    },
    Partial {
        name: Box<str>,
        /// Whitespace before a partial that stands alone on its line. Each line of the partial begins with it.
        indent: Box<str>,
    },
}

/// Parts of a dotted name. Empty for `.`, the current value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariablePath(pub(super) Box<[Box<str>]>);

impl VariablePath {
    fn parse(name: &str) -> Self {
        if name == "." {
            return Self(Box::default());
        }
        Self(name.split('.').map(|part| part.trim().into()).collect())
    }
}

impl fmt::Display for VariablePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_empty() { "." } else { "" })?;
        for (index, part) in self.0.iter().enumerate() {
            formatter.write_str(if index == 0 { "" } else { "." })?;
            formatter.write_str(part)?;
        }
        Ok(())
    }
}

/// A fault of a template and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Number of the character in the line, from 1.
    pub column: usize,
    pub message: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, message } = self;
        write!(formatter, "{message} (line {line}, column {column})")
    }
}

impl Template {
    /// Parses a template.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        Ok(Self { nodes: Parser::new(source).parse()? })
    }

    /// Returns the text if the template has no tags.
    pub fn as_plain_text(&self) -> Option<&str> {
        match &self.nodes[..] {
            [] => Some(""),
            [TemplateNode::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Calls `visitor` with each node and the number of sections around it, in the order of the source.
    pub(super) fn visit<'t>(&'t self, visitor: &mut impl FnMut(&'t TemplateNode, usize)) {
        visit_nodes(&self.nodes, 0, visitor);
    }
}

fn visit_nodes<'t>(nodes: &'t [TemplateNode], depth: usize, visitor: &mut impl FnMut(&'t TemplateNode, usize)) {
    for node in nodes {
        visitor(node, depth);
        if let TemplateNode::Section { nodes, .. } = node {
            visit_nodes(nodes, depth + 1, visitor);
        }
    }
}

/// A section whose end tag has not been parsed yet.
struct OpenSection<'t> {
    name: &'t str,
    is_inverted: bool,
    /// Byte offset of its tag.
    start: usize,
    /// Nodes before the section.
    before: Vec<TemplateNode>,
}

struct Parser<'t> {
    source: &'t str,
    /// Byte offset of the first character that has not been parsed yet.
    position: usize,
    delimiters: (&'t str, &'t str),
    open: Vec<OpenSection<'t>>,
    nodes: Vec<TemplateNode>,
}

/// A tag without its delimiters.
struct Tag<'t> {
    /// `{`, `&`, `#`, `^`, `/`, `>`, `!` or `=`. A space for a variable.
    kind: char,
    content: &'t str,
    start: usize,
    end: usize,
}

impl<'t> Parser<'t> {
    fn new(source: &'t str) -> Self {
        Self { source, position: 0, delimiters: ("{{", "}}"), open: Vec::new(), nodes: Vec::new() }
    }

    fn parse(mut self) -> Result<Vec<TemplateNode>, TemplateError> {
        while let Some(tag) = self.find_tag()? {
            // If a tag is alone on its line, the line is removed. Variables never count as alone, so their line stays.
            let alone = (!matches!(tag.kind, ' ' | '{' | '&')).then(|| self.lone_line(&tag)).flatten();
            let (text_end, next) = alone.unwrap_or((tag.start, tag.end));
            self.push_text(text_end);
            let indent = &self.source[text_end..tag.start];
            self.position = next;
            self.accept(&tag, indent)?;
        }
        self.push_text(self.source.len());
        match self.open.pop() {
            Some(section) => Err(self.error(section.start, format!("the section `{}` is not closed", section.name))),
            None => Ok(self.nodes),
        }
    }

    /// Finds the next tag.
    fn find_tag(&self) -> Result<Option<Tag<'t>>, TemplateError> {
        let (open, close) = self.delimiters;
        let Some(start) = self.source[self.position..].find(open).map(|offset| offset + self.position) else {
            return Ok(None);
        };
        let inner = start + open.len();
        let kind = self.source[inner..].chars().next().filter(|kind| "{&#^/>!=".contains(*kind)).unwrap_or(' ');
        let content_start = if kind == ' ' { inner } else { inner + 1 };
        let braced;
        let ending = match kind {
            '{' => {
                braced = format!("}}{close}");
                braced.as_str()
            }
            '=' => {
                braced = format!("={close}");
                braced.as_str()
            }
            _ => close,
        };
        let Some(length) = self.source[content_start..].find(ending) else {
            return Err(self.error(start, format!("the tag is not closed: `{ending}` is missing")));
        };
        let content = self.source[content_start..content_start + length].trim();
        Ok(Some(Tag { kind, content, start, end: content_start + length + ending.len() }))
    }

    /// Returns the offsets at which the line of a tag and the next line begin. `None` if there is anything else on the
    /// tag's line.
    fn lone_line(&self, tag: &Tag<'_>) -> Option<(usize, usize)> {
        let before = &self.source[self.position..tag.start];
        let line_start = self.position + before.trim_end_matches([' ', '\t']).len();
        if line_start != 0 && !self.source[..line_start].ends_with('\n') {
            return None;
        }
        let rest = &self.source[tag.end..];
        let after = rest.trim_start_matches([' ', '\t']);
        let end = self.source.len() - after.len();
        if after.is_empty() {
            return Some((line_start, end));
        }
        let newline = if after.starts_with("\r\n") { 2 } else { usize::from(after.starts_with('\n')) };
        (newline > 0).then_some((line_start, end + newline))
    }

    fn push_text(&mut self, end: usize) {
        if end > self.position {
            self.nodes.push(TemplateNode::Text(self.source[self.position..end].into()));
        }
    }

    fn accept(&mut self, tag: &Tag<'t>, indent: &str) -> Result<(), TemplateError> {
        let Tag { kind, content, start, .. } = *tag;
        if content.is_empty() && !matches!(kind, '!' | '=') {
            return Err(self.error(start, "the tag has no name".into()));
        }
        match kind {
            '!' => (),
            '=' => self.delimiters = self.parse_delimiters(tag)?,
            '>' => self.nodes.push(TemplateNode::Partial { name: content.into(), indent: indent.into() }),
            '#' | '^' => {
                if self.open.len() == MAX_DEPTH {
                    return Err(self.error(start, format!("sections are nested deeper than {MAX_DEPTH}")));
                }
                let before = std::mem::take(&mut self.nodes);
                self.open.push(OpenSection { name: content, is_inverted: kind == '^', start, before });
            }
            '/' => self.close_section(tag)?,
            _ => self
                .nodes
                .push(TemplateNode::Variable { path: VariablePath::parse(content), is_unescaped: kind != ' ' }),
        }
        Ok(())
    }

    fn close_section(&mut self, tag: &Tag<'t>) -> Result<(), TemplateError> {
        let name = tag.content;
        match self.open.pop() {
            None => Err(self.error(tag.start, format!("`{name}` is closed, but no section is open"))),
            Some(section) if section.name != name => {
                let message = format!("`{name}` is closed, but the open section is `{}`", section.name);
                Err(self.error(tag.start, message))
            }
            Some(OpenSection { is_inverted, before, .. }) => {
                let nodes = std::mem::replace(&mut self.nodes, before);
                self.nodes.push(TemplateNode::Section { path: VariablePath::parse(name), is_inverted, nodes });
                Ok(())
            }
        }
    }

    fn parse_delimiters(&self, tag: &Tag<'t>) -> Result<(&'t str, &'t str), TemplateError> {
        let mut words = tag.content.split_ascii_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(open), Some(close), None) if !open.contains('=') && !close.contains('=') => Ok((open, close)),
            _ => Err(self.error(tag.start, "the tag must have two delimiters without `=`, like `{{=<% %>=}}`".into())),
        }
    }

    fn error(&self, offset: usize, message: String) -> TemplateError {
        let before = &self.source[..offset];
        let line_start = before.rfind('\n').map_or(0, |offset| offset + 1);
        TemplateError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(source: &str) -> String {
        Template::parse(source).unwrap_err().to_string()
    }

    #[test]
    fn errors_report_their_position() {
        assert_eq!(fault("a\nü {{#x}}"), "the section `x` is not closed (line 2, column 3)");
        assert_eq!(fault("{{/x}}"), "`x` is closed, but no section is open (line 1, column 1)");
        assert_eq!(fault("{{#a}}{{/b}}"), "`b` is closed, but the open section is `a` (line 1, column 7)");
        assert_eq!(fault("x {{y"), "the tag is not closed: `}}` is missing (line 1, column 3)");
        assert_eq!(fault("{{{y}}"), "the tag is not closed: `}}}` is missing (line 1, column 1)");
        assert_eq!(fault("{{ }}"), "the tag has no name (line 1, column 1)");
        for source in ["{{=<% =}}", "{{= =}}", "{{=a b c=}}"] {
            assert!(fault(source).starts_with("the tag must have two delimiters"), "{source}");
        }
        let nested = |depth: usize| "{{#a}}".repeat(depth) + &"{{/a}}".repeat(depth);
        assert!(Template::parse(&nested(MAX_DEPTH)).is_ok());
        assert!(fault(&nested(MAX_DEPTH + 1)).starts_with("sections are nested deeper than 32"));
    }

    #[test]
    fn plain_text_has_no_tags() {
        assert_eq!(Template::parse("{{>a}}").unwrap().as_plain_text(), None);
        assert_eq!(Template::parse("a {b}").unwrap().as_plain_text(), Some("a {b}"));
        assert_eq!(Template::parse("").unwrap().as_plain_text(), Some(""));
    }
}
