//! Renders templates. The work and the output are bounded, whatever the template and the variables are.

use std::{borrow::Cow, fmt::Write as _};

use serde_json::Value;

use super::{MAX_DEPTH, Template, TemplateNode, VariablePath};

/// How much work a template may take.
#[derive(Debug, Clone, Copy)]
pub struct RenderLimits {
    /// Maximum length in bytes of all texts that a renderer writes.
    pub output_bytes: usize,
    /// Maximum number of steps. Each rendered node, looked-up name and byte of an indented partial counts as one.
    pub steps: usize,
}

impl RenderLimits {
    /// Limits of a template that is rendered on the thread that serves requests; it takes far less than a millisecond.
    pub const INLINE: Self = Self { output_bytes: 128 * 1024, steps: 10_000 };
    /// Limits of a template that is rendered on a blocking thread.
    pub const FULL: Self = Self { output_bytes: 4 * 1024 * 1024, steps: 4 * 1024 * 1024 };
}

/// How values are escaped. Text of the template is never escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// Values are inserted as they are.
    None,
    /// Values are inserted as the content of a JSON string, without its quotation marks.
    Json,
    /// Values are escaped as HTML, as the Mustache specification demands, except for `{{{name}}}` and `{{&name}}`.
    Html,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderError {
    /// The template includes a partial that does not exist.
    UnknownPartial(Box<str>),
    /// A partial with indentation is no valid template.
    InvalidPartial(Box<str>),
    /// A value outside of a JSON string would be something other than a number, `true`, `false` or `null`.
    OutsideString(Box<str>),
    TooDeep,
    TooLarge {
        limit: usize,
    },
    TooMuchWork {
        limit: usize,
    },
}

impl RenderError {
    /// Returns true if higher limits may help.
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::TooMuchWork { .. })
    }
}

impl std::fmt::Display for RenderError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownPartial(name) => write!(formatter, "the partial `{name}` does not exist"),
            Self::InvalidPartial(name) => write!(formatter, "the partial `{name}` is not a valid template"),
            Self::OutsideString(name) => write!(
                formatter,
                "the value of `{name}` stands outside of a JSON string, where only a number, `true`, `false`, `null` or \
                 an empty text is allowed; put the tag between quotation marks"
            ),
            Self::TooDeep => write!(formatter, "partials are nested deeper than {MAX_DEPTH}"),
            Self::TooLarge { limit } => write!(formatter, "the rendered text is longer than {limit} bytes"),
            Self::TooMuchWork { limit } => write!(formatter, "rendering takes more than {limit} steps"),
        }
    }
}

/// A partial as a renderer needs it: its source and its parsed form.
pub struct PartialSource<'p> {
    pub source: &'p str,
    pub template: &'p Template,
}

/// Renders templates with the same variables and partials.
pub struct Renderer<'r, F> {
    variables: &'r Value,
    find_partial: F,
    escape: Escape,
    limits: RenderLimits,
    steps: usize,
    /// Bytes that earlier templates have written.
    written: usize,
    /// Length of the output before the current template.
    start: usize,
    /// Names without a value, each once.
    missing: Vec<String>,
    partial_depth: usize,
    /// Position of the end of the output within JSON; used with `Escape::Json`.
    json: JsonPosition,
}

/// Tracks whether the end of the JSON that is being written is within a string. A value outside a string could add a
/// message.
#[derive(Default)]
struct JsonPosition {
    /// Bytes of the output that have been read.
    read: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonPosition {
    /// Reads the bytes that were added to the output. Returns true if its end is within a string.
    fn is_in_string(&mut self, output: &str) -> bool {
        for byte in &output.as_bytes()[self.read..] {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.is_in_string,
                b'"' => self.is_in_string = !self.is_in_string,
                _ => (),
            }
        }
        self.read = output.len();
        self.is_in_string
    }
}

/// Values of the sections around a node, the innermost last.
type Scope<'v> = Vec<&'v Value>;

impl<'r, F: Fn(&str) -> Option<PartialSource<'r>>> Renderer<'r, F> {
    /// `variables` are usually an object. `find_partial` returns a partial by its name.
    pub fn new(variables: &'r Value, escape: Escape, limits: RenderLimits, find_partial: F) -> Self {
        Self {
            variables,
            find_partial,
            escape,
            limits,
            steps: 0,
            written: 0,
            start: 0,
            missing: Vec::new(),
            partial_depth: 0,
            json: JsonPosition::default(),
        }
    }

    /// Appends the rendered template to `output`. The limits apply to all templates of a renderer together.
    pub fn render(&mut self, template: &Template, output: &mut String) -> Result<(), RenderError> {
        self.start = output.len();
        self.render_nodes(&template.nodes, &mut Vec::new(), output)?;
        self.written += output.len() - self.start;
        Ok(())
    }

    /// Writes the rendered template to `output`, which must be empty, with values escaped for JSON.
    pub fn render_json(&mut self, template: &Template, output: &mut String) -> Result<(), RenderError> {
        let escape = std::mem::replace(&mut self.escape, Escape::Json);
        self.json = JsonPosition::default();
        let result = self.render(template, output);
        self.escape = escape;
        result
    }

    /// Returns the names that had no value so far, in the order of their first use.
    pub fn into_missing(self) -> Vec<String> {
        self.missing
    }

    fn render_nodes<'v>(
        &mut self,
        nodes: &[TemplateNode],
        scope: &mut Scope<'v>,
        output: &mut String,
    ) -> Result<(), RenderError>
    where
        'r: 'v,
    {
        for node in nodes {
            self.count_steps(1)?;
            match node {
                TemplateNode::Text(text) => output.push_str(text),
                TemplateNode::Variable { path, is_unescaped } => {
                    self.render_variable(path, *is_unescaped, scope, output)?;
                }
                TemplateNode::Section { path, is_inverted, nodes } => {
                    self.render_section(path, *is_inverted, nodes, scope, output)?;
                }
                TemplateNode::Partial { name, indent } => self.render_partial(name, indent, scope, output)?,
            }
            if self.written + output.len() - self.start > self.limits.output_bytes {
                return Err(RenderError::TooLarge { limit: self.limits.output_bytes });
            }
        }
        Ok(())
    }

    fn render_variable(
        &mut self,
        path: &VariablePath,
        is_unescaped: bool,
        scope: &Scope<'_>,
        output: &mut String,
    ) -> Result<(), RenderError> {
        let Some(value) = self.find(path, scope) else {
            self.note_missing(path);
            return Ok(());
        };
        let text = match value {
            Value::Null => return Ok(()),
            Value::String(text) => Cow::Borrowed(text.as_str()),
            other => Cow::Owned(other.to_string()),
        };
        match self.escape {
            Escape::Json if !self.json.is_in_string(output) && !is_scalar(&text) => {
                return Err(RenderError::OutsideString(path.to_string().into()));
            }
            Escape::Json => push_json_escaped(output, &text),
            Escape::Html if !is_unescaped => push_html_escaped(output, &text),
            Escape::None | Escape::Html => output.push_str(&text),
        }
        Ok(())
    }

    fn render_section<'v>(
        &mut self,
        path: &VariablePath,
        is_inverted: bool,
        nodes: &[TemplateNode],
        scope: &mut Scope<'v>,
        output: &mut String,
    ) -> Result<(), RenderError>
    where
        'r: 'v,
    {
        let value = self.find(path, scope).filter(|value| is_truthy(value));
        match value {
            None if is_inverted => self.render_nodes(nodes, scope, output),
            Some(_) if is_inverted => Ok(()),
            None => Ok(()),
            Some(Value::Array(items)) => items.iter().try_for_each(|item| {
                self.count_steps(1)?;
                scope.push(item);
                let result = self.render_nodes(nodes, scope, output);
                scope.pop();
                result
            }),
            Some(value) => {
                scope.push(value);
                let result = self.render_nodes(nodes, scope, output);
                scope.pop();
                result
            }
        }
    }

    fn render_partial<'v>(
        &mut self,
        name: &str,
        indent: &str,
        scope: &mut Scope<'v>,
        output: &mut String,
    ) -> Result<(), RenderError>
    where
        'r: 'v,
    {
        let partial = (self.find_partial)(name).ok_or_else(|| RenderError::UnknownPartial(name.into()))?;
        if self.partial_depth == MAX_DEPTH {
            return Err(RenderError::TooDeep);
        }
        self.partial_depth += 1;
        let result = if indent.is_empty() {
            self.render_nodes(&partial.template.nodes, scope, output)
        } else {
            let source = indent_lines(partial.source, indent);
            self.count_steps(source.len())?;
            let template = Template::parse(&source).map_err(|_| RenderError::InvalidPartial(name.into()))?;
            self.render_nodes(&template.nodes, scope, output)
        };
        self.partial_depth -= 1;
        result
    }

    /// Looks a name up. The first part of a dotted name is looked up in all scopes, the others only in its value.
    fn find<'v>(&mut self, path: &VariablePath, scope: &Scope<'v>) -> Option<&'v Value>
    where
        'r: 'v,
    {
        let Some((first, rest)) = path.0.split_first() else { return Some(scope.last().unwrap_or(&self.variables)) };
        self.steps += scope.len() + rest.len();
        let in_scope = scope.iter().rev().find_map(|value| value.as_object()?.get(&**first));
        let mut value = in_scope.or_else(|| self.variables.as_object()?.get(&**first))?;
        for part in rest {
            value = value.as_object()?.get(&**part)?;
        }
        Some(value)
    }

    fn note_missing(&mut self, path: &VariablePath) {
        let name = path.to_string();
        // A list is fast enough, because it has at most `MAX_REPORTED_NAMES` names.
        if self.missing.len() < MAX_REPORTED_NAMES && !self.missing.contains(&name) {
            self.missing.push(name);
        }
    }

    fn count_steps(&mut self, steps: usize) -> Result<(), RenderError> {
        self.steps += steps;
        let limit = self.limits.steps;
        if self.steps > limit { Err(RenderError::TooMuchWork { limit }) } else { Ok(()) }
    }
}

/// Maximum number of missing names that are reported.
const MAX_REPORTED_NAMES: usize = 100;

/// Returns false for values that hide a section: nothing, `false`, zero, an empty text and an empty list.
fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(_) => true,
    }
}

/// Returns true for text that cannot change the structure of JSON around it.
fn is_scalar(text: &str) -> bool {
    let text = text.trim();
    let is_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    matches!(text, "true" | "false" | "null") || text.bytes().all(is_number)
}

/// Puts the indentation before each line.
fn indent_lines(source: &str, indent: &str) -> String {
    source.split_inclusive('\n').fold(String::with_capacity(source.len() * 2), |mut indented, line| {
        indented.push_str(indent);
        indented.push_str(line);
        indented
    })
}

fn push_html_escaped(output: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => output.push_str("&amp;"),
            '<' => output.push_str("&lt;"),
            '>' => output.push_str("&gt;"),
            '"' => output.push_str("&quot;"),
            '\'' => output.push_str("&#39;"),
            other => output.push(other),
        }
    }
}

/// Appends the content of a JSON string.
pub(in crate::prompts) fn push_json_escaped(output: &mut String, text: &str) {
    let mut start = 0;
    for (index, byte) in text.bytes().enumerate() {
        let escaped = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..=0x1f => "",
            _ => continue,
        };
        output.push_str(&text[start..index]);
        start = index + 1;
        if escaped.is_empty() {
            write!(output, "\\u{byte:04x}").ok();
        } else {
            output.push_str(escaped);
        }
    }
    output.push_str(&text[start..]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, variables: &Value, escape: Escape) -> Result<String, RenderError> {
        let template = Template::parse(source).unwrap();
        let mut output = String::new();
        Renderer::new(variables, escape, RenderLimits::FULL, |_| None).render(&template, &mut output).map(|()| output)
    }

    #[test]
    fn values_are_inserted_as_they_are_or_escaped() {
        let values = json!({"a": "<\"\n\\\u{1}>", "n": 1.50, "l": [1, "x"], "o": {"k": null}, "none": null});
        let template = "{{a}}|{{{a}}}|{{n}}|{{l}}|{{o}}|{{none}}|{{o.k}}";
        let raw = "<\"\n\\\u{1}>";
        assert_eq!(
            render(template, &values, Escape::None).unwrap(),
            format!("{raw}|{raw}|1.5|[1,\"x\"]|{{\"k\":null}}||")
        );
        let template = &format!("\"{template}\"");
        let escaped = "<\\\"\\n\\\\\\u0001>";
        assert_eq!(
            render(template, &values, Escape::Json).unwrap(),
            format!("\"{escaped}|{escaped}|1.5|[1,\\\"x\\\"]|{{\\\"k\\\":null}}||\"")
        );
    }

    #[test]
    fn a_value_outside_of_a_json_string_is_a_number_or_a_word() {
        let render_value = |template: &str, value: Value| render(template, &json!({"x": value}), Escape::Json);
        for (value, expected) in [
            (json!(1.5), "{\"a\\\\\": 1.5}"),
            (json!("-2e3"), "{\"a\\\\\": -2e3}"),
            (json!(true), "{\"a\\\\\": true}"),
            (json!(""), "{\"a\\\\\": }"),
        ] {
            assert_eq!(render_value("{\"a\\\\\": {{x}}}", value).unwrap(), expected);
        }
        for value in [json!("null}, {"), json!([1]), json!({}), json!("a"), json!("1,2"), json!("\"")] {
            let fault = Err(RenderError::OutsideString("x".into()));
            assert_eq!(render_value("[{\"a\": \"\\\"\", \"b\": {{x}}}]", value.clone()), fault);
            assert!(render_value("[{\"a\": \"\\\"{{x}}\"}]", value).is_ok());
        }
    }

    #[test]
    fn falsy_values_hide_sections() {
        for value in [json!(null), json!(false), json!(0), json!(0.0), json!(""), json!([])] {
            assert_eq!(render("{{#x}}a{{/x}}{{^x}}b{{/x}}", &json!({"x": value}), Escape::None).unwrap(), "b");
        }
        for value in [json!(true), json!(1), json!("0"), json!({})] {
            assert_eq!(render("{{#x}}a{{/x}}{{^x}}b{{/x}}", &json!({"x": value}), Escape::None).unwrap(), "a");
        }
    }

    #[test]
    fn missing_names_are_reported_once() {
        let template = Template::parse("{{a}}{{b.c}}{{a}}{{d}}{{#e}}{{f}}{{/e}}").unwrap();
        let variables = json!({"d": null});
        let mut renderer = Renderer::new(&variables, Escape::None, RenderLimits::FULL, |_| None);
        renderer.render(&template, &mut String::new()).unwrap();
        assert_eq!(renderer.into_missing(), ["a", "b.c"]);
    }

    #[test]
    fn work_and_output_are_bounded() {
        let items = |count: usize| Value::Array(vec![json!(1); count]);
        let nested = json!({"a": items(300), "b": items(300), "c": items(300)});
        let template = "{{#a}}{{#b}}{{#c}}{{/c}}{{/b}}{{/a}}";
        assert_eq!(
            render(template, &nested, Escape::None),
            Err(RenderError::TooMuchWork { limit: RenderLimits::FULL.steps })
        );
        let long = json!({"a": items(5000), "t": "x".repeat(1000)});
        assert_eq!(
            render("{{#a}}{{t}}{{/a}}", &long, Escape::None),
            Err(RenderError::TooLarge { limit: RenderLimits::FULL.output_bytes })
        );
        assert_eq!(render("{{>p}}", &json!({}), Escape::None), Err(RenderError::UnknownPartial("p".into())));
    }

    #[test]
    fn output_of_several_templates_is_bounded_together() {
        let (template, variables) = (Template::parse("{{t}}").unwrap(), json!({"t": "x".repeat(100)}));
        let limits = RenderLimits { output_bytes: 1000, ..RenderLimits::FULL };
        let mut renderer = Renderer::new(&variables, Escape::None, limits, |_| None);
        let mut text = String::new();
        for _ in 0..10 {
            text.clear();
            renderer.render(&template, &mut text).unwrap();
        }
        assert_eq!(renderer.render(&template, &mut text), Err(RenderError::TooLarge { limit: 1000 }));
    }

    #[test]
    fn partials_that_include_themselves_end() {
        let partial = Template::parse("{{>p}}").unwrap();
        let variables = json!({});
        let find = |_: &str| Some(PartialSource { source: "{{>p}}", template: &partial });
        let result =
            Renderer::new(&variables, Escape::None, RenderLimits::FULL, find).render(&partial, &mut String::new());
        assert_eq!(result, Err(RenderError::TooDeep));
    }
}
