//! JSON parser for tokens. Rejects JSON that two parsers could read differently, because the management API verifies
//! the same tokens in Python (`python/penstock/access/strict_json.py`).

use std::fmt;

use penstock_llm::json::NUMBER_KEY;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum nesting of objects and arrays; the object itself is the first level.
const MAX_DEPTH: usize = 32;

/// Parses a JSON object. Returns `None` if it is malformed, has a duplicate name, a number outside the range of a
/// double, or more than 32 levels.
pub fn parse_object(json: &[u8]) -> Option<Map<String, Value>> {
    let mut parser = serde_json::Deserializer::from_slice(json);
    let value = NestedValue { depth: 0 }.deserialize(&mut parser).ok()?;
    parser.end().ok()?;
    match value {
        Value::Object(members) => Some(members),
        _ => None,
    }
}

/// Value that is nested in `depth` objects and arrays.
#[derive(Clone, Copy)]
struct NestedValue {
    depth: usize,
}

impl NestedValue {
    fn enter<E: Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom("nested too deeply"));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for NestedValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NestedValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.enter()?;
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(inner)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut next = entries.next_key::<String>()?;
        if next.as_deref() == Some(NUMBER_KEY) {
            let digits = entries.next_value::<String>()?;
            if !digits.parse().is_ok_and(f64::is_finite) {
                return Err(A::Error::custom("number out of range"));
            }
            return digits.parse().map(Value::Number).map_err(A::Error::custom);
        }
        let inner = self.enter()?;
        let mut members = Map::new();
        while let Some(name) = next {
            if members.contains_key(&name) {
                return Err(A::Error::custom("duplicate name"));
            }
            members.insert(name, entries.next_value_seed(inner)?);
            next = entries.next_key()?;
        }
        Ok(members.into())
    }
}
