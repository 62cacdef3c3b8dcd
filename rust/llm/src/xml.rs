//! Minimal XML reader for responses of older Amazon and Google services. Extracts element texts by element name.

use std::borrow::Cow;

/// XML entities and the characters they stand for.
const ENTITIES: [(&str, &str); 5] = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];

/// Returns the unescaped, trimmed text of the first element with this name.
pub fn element_text<'x>(xml: &'x str, name: &str) -> Option<Cow<'x, str>> {
    element_contents(xml, name).next().map(|inner| unescape(inner.trim()))
}

/// Iterates over the raw content of each element with this name.
pub fn element_contents<'x>(xml: &'x str, name: &str) -> impl Iterator<Item = &'x str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (inner, remainder) = after.split_once(&close)?;
        rest = remainder;
        Some(inner)
    })
}

/// Escapes text for use as element content.
pub fn escape(text: &str) -> String {
    ENTITIES.iter().rev().fold(text.to_owned(), |text, (entity, item)| text.replace(item, entity))
}

fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    ENTITIES.iter().fold(text.to_owned(), |text, (entity, item)| text.replace(entity, item)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_element_texts_by_name_and_decodes_entities() {
        let xml = "<List><Item><Key> a&amp;lt;&lt;b </Key></Item><Item><Key>c</Key></Item><Key>open</List>";
        assert_eq!(element_text(xml, "Key").as_deref(), Some("a&lt;<b"));
        let keys: Vec<_> = element_contents(xml, "Item").filter_map(|item| element_text(item, "Key")).collect();
        assert_eq!(keys, ["a&lt;<b", "c"]);
        assert_eq!((element_text(xml, "Other"), element_text("<a>", "a")), (None, None));
        assert_eq!(escape("a&lt;<\"b'>"), "a&amp;lt;&lt;&quot;b&apos;&gt;");
    }
}
