//! Grader models of a fine-tuning job: models that it uses in addition to the one that it tunes.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};

/// Part of a fine-tuning job that configures its method. Graders are nested in it and in each other.
#[derive(Deserialize)]
struct FineTuningJob {
    #[serde(default)]
    method: ModelNames,
}

/// All strings stored under a `model` key at any depth, including duplicate keys of one object.
#[derive(Default)]
struct ModelNames(Vec<String>);

/// Returns the grader models of a job; `None` if the job cannot be parsed.
pub fn parse_grader_models(job: &[u8]) -> Option<Vec<String>> {
    serde_json::from_slice::<FineTuningJob>(job).ok().map(|job| job.method.0)
}

impl<'de> Deserialize<'de> for ModelNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut found = Vec::new();
        ModelNameSearch { names: &mut found, is_model: false }.deserialize(deserializer)?;
        Ok(Self(found))
    }
}

/// Searches a JSON value for model names. `is_model` is true if the value is stored under a `model` key.
struct ModelNameSearch<'f> {
    names: &'f mut Vec<String>,
    is_model: bool,
}

impl<'de> DeserializeSeed<'de> for ModelNameSearch<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ModelNameSearch<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if self.is_model {
            self.names.push(text.to_owned());
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            map.next_value_seed(ModelNameSearch { names: &mut *self.names, is_model: key == "model" })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(ModelNameSearch { names: &mut *self.names, is_model: false })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_grader_models_at_any_depth() {
        let parse = |job: &str| parse_grader_models(job.as_bytes()).map(|found| found.join(" "));
        let grader =
            r#"{"type":"score_model","model":"a","mod\u0065l":"b","input":[{"model":"c"},1,1.5,-1,true,null]}"#;
        let multi = format!(r#"{{"type":"multi","graders":{{"one":{grader}}}}}"#);
        let job =
            format!(r#"{{"model":"x","metadata":{{"model":"y"}},"method":{{"reinforcement":{{"grader":{multi}}}}}}}"#);
        assert_eq!(parse(&job).as_deref(), Some("a b c"));
        for none in [r#"{"model":"x"}"#, r#"{"method":null}"#, r#"{"method":{"type":"supervised"}}"#] {
            assert_eq!(parse(none).as_deref(), Some(""), "{none}");
        }
        assert_eq!((parse("["), parse(r#"{"method":{},"method":{"model":"a"}}"#)), (None, None));
    }
}
