//! Values of conditions, in which `*` stands for any text. Each request is compared with the values of all policies, so
//! the usual kinds of values take one comparison.

use super::rule::TargetSubject;

/// Value of a condition, in which `*` stands for any text.
#[derive(Debug)]
pub(super) struct ValuePattern {
    text: Box<str>,
    kind: PatternKind,
    /// True if the value starts with `@`, so that it names a saved provider and a model.
    names_provider: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternKind {
    /// No wildcard.
    Exact,
    /// A single wildcard at the end: the compared text must begin with everything before it.
    Prefix,
    Wildcards,
}

impl ValuePattern {
    pub fn new(text: Box<str>) -> Self {
        let names_provider = text.starts_with('@');
        match text.split_once('*') {
            None => Self { text, kind: PatternKind::Exact, names_provider },
            Some((prefix, "")) => Self { text: prefix.into(), kind: PatternKind::Prefix, names_provider },
            Some(_) => Self { text, kind: PatternKind::Wildcards, names_provider },
        }
    }

    pub fn matches(&self, value: &str) -> bool {
        match self.kind {
            PatternKind::Exact => *self.text == *value,
            PatternKind::Prefix => value.starts_with(&*self.text),
            PatternKind::Wildcards => self.matches_wildcards(value),
        }
    }

    /// Compares in time linear in both lengths for each wildcard, without backtracking.
    fn matches_wildcards(&self, value: &str) -> bool {
        let mut chunks = self.text.split('*');
        let Some(mut rest) = chunks.next().and_then(|first| value.strip_prefix(first)) else { return false };
        let mut chunks = chunks.peekable();
        if chunks.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(chunk) = chunks.next() {
            if chunks.peek().is_none() {
                return rest.ends_with(chunk);
            }
            match rest.find(chunk) {
                Some(at) => rest = &rest[at + chunk.len()..],
                None => return false,
            }
        }
        true
    }

    /// Compares with a model: `@slug/model` names the saved provider too.
    pub fn matches_model(&self, target: &TargetSubject<'_>) -> bool {
        if !self.names_provider {
            return self.matches(target.model);
        }
        target.saved.is_some_and(|saved| self.matches_slug_and_model(saved.slug, target.model))
    }

    /// Compares with `@slug/model`, in most cases without building that string.
    fn matches_slug_and_model(&self, slug: &str, model: &str) -> bool {
        let text = &self.text[1..];
        let model_part = || text.strip_prefix(slug)?.strip_prefix('/');
        match self.kind {
            PatternKind::Exact => model_part() == Some(model),
            PatternKind::Prefix if text.len() <= slug.len() => slug.starts_with(text),
            PatternKind::Prefix => model_part().is_some_and(|start| model.starts_with(start)),
            PatternKind::Wildcards => self.matches_wildcards(&format!("@{slug}/{model}")),
        }
    }
}
