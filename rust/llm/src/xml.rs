//! The little of XML that Amazon's and Google's older services answer in: texts of elements, by their names.

use std::borrow::Cow;

/// What may stand for a character in a text.
const ENTITIES: [(&str, &str); 5] = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];

/// The text of the first element of this name.
pub fn text<'x>(xml: &'x str, name: &str) -> Option<Cow<'x, str>> {
    all(xml, name).next().map(|inner| unescaped(inner.trim()))
}

/// What is within each element of this name.
pub fn all<'x>(xml: &'x str, name: &str) -> impl Iterator<Item = &'x str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (inner, behind) = after.split_once(&close)?;
        rest = behind;
        Some(inner)
    })
}

/// As the text of an element.
pub fn escaped(text: &str) -> String {
    ENTITIES.iter().rev().fold(text.to_owned(), |text, (entity, one)| text.replace(one, entity))
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    ENTITIES.iter().fold(text.to_owned(), |text, (entity, one)| text.replace(entity, one)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_the_names_of_their_elements_and_read_as_they_were_meant() {
        let xml = "<List><Item><Key> a&amp;lt;&lt;b </Key></Item><Item><Key>c</Key></Item><Key>open</List>";
        assert_eq!(text(xml, "Key").as_deref(), Some("a&lt;<b"));
        let keys: Vec<_> = all(xml, "Item").filter_map(|item| text(item, "Key")).collect();
        assert_eq!(keys, ["a&lt;<b", "c"]);
        assert_eq!((text(xml, "Other"), text("<a>", "a")), (None, None));
        assert_eq!(escaped("a&lt;<\"b'>"), "a&amp;lt;&lt;&quot;b&apos;&gt;");
    }
}
