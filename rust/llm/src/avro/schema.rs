//! What the records of a file are made of, as its head says.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::avro::primitives::Fault;

/// What a value may be made of; others by their places in the schema.
#[derive(Debug)]
pub enum Kind {
    Null,
    Boolean,
    /// Of any length: they are written alike.
    Whole,
    Float,
    Double,
    Bytes,
    Text,
    Fixed(usize),
    Enum(Vec<String>),
    Array(usize),
    Map(usize),
    Union(Vec<usize>),
    Record(Vec<(String, usize)>),
}

/// All kinds of a file.
#[derive(Debug, Default)]
pub struct Schema {
    kinds: Vec<Kind>,
    /// Those that may be referred to, by their full names.
    names: HashMap<String, usize>,
}

/// Schemas are far smaller.
const MOST_KINDS: usize = 10_000;

impl Schema {
    pub fn parse(json: &[u8]) -> Result<Self, Fault> {
        let value: Value =
            serde_json::from_slice(json).map_err(|error| Fault::Wrong(format!("its schema is no JSON: {error}")))?;
        let mut schema = Self::default();
        // Its first kind is that of a record.
        schema.kind(&value, "")?;
        Ok(schema)
    }

    pub fn at(&self, place: usize) -> &Kind {
        &self.kinds[place]
    }

    fn kind(&mut self, value: &Value, space: &str) -> Result<usize, Fault> {
        if self.kinds.len() >= MOST_KINDS {
            return Err(Fault::wrong("its schema is too large"));
        }
        match value {
            Value::String(name) => match primitive(name) {
                Some(kind) => Ok(self.add(kind)),
                None => self.named(name, space).ok_or_else(|| unknown(name)),
            },
            Value::Array(branches) => {
                let place = self.add(Kind::Null);
                let branches = branches.iter().map(|branch| self.kind(branch, space)).collect::<Result<_, _>>()?;
                self.kinds[place] = Kind::Union(branches);
                Ok(place)
            }
            Value::Object(object) => self.complex(object, space),
            other => Err(unknown(&other.to_string())),
        }
    }

    fn complex(&mut self, object: &Map<String, Value>, space: &str) -> Result<usize, Fault> {
        let lacks = |what: &str| Fault::Wrong(format!("its schema lacks {what}"));
        let named = object.get("type").ok_or_else(|| lacks("a type"))?;
        let Some(name) = named.as_str().filter(|name| primitive(name).is_none()) else {
            return self.kind(named, space);
        };
        let inner = |key: &str| object.get(key).ok_or_else(|| lacks(key));
        // Before what it is made of, which may be itself.
        let place = self.add(Kind::Null);
        self.kinds[place] = match name {
            "array" => Kind::Array(self.kind(inner("items")?, space)?),
            "map" => Kind::Map(self.kind(inner("values")?, space)?),
            "fixed" => {
                self.name(object, space, place)?;
                let size = inner("size")?.as_u64().and_then(|size| usize::try_from(size).ok());
                Kind::Fixed(size.ok_or_else(|| lacks("a size"))?)
            }
            "enum" => {
                self.name(object, space, place)?;
                let symbols = inner("symbols")?.as_array().into_iter().flatten();
                Kind::Enum(symbols.map(|symbol| symbol.as_str().unwrap_or_default().to_owned()).collect())
            }
            "record" | "error" => {
                let space = self.name(object, space, place)?;
                let fields = inner("fields")?.as_array().into_iter().flatten();
                let field = |field: &Value| {
                    let name = field["name"].as_str().ok_or_else(|| lacks("the name of a field"))?;
                    Ok((name.to_owned(), self.kind(&field["type"], &space)?))
                };
                Kind::Record(fields.map(field).collect::<Result<_, Fault>>()?)
            }
            other => return self.named(other, space).ok_or_else(|| unknown(other)),
        };
        Ok(place)
    }

    /// Notes the name of a kind, and gives the space in which those within it are named.
    fn name(&mut self, object: &Map<String, Value>, space: &str, place: usize) -> Result<String, Fault> {
        let name = object.get("name").and_then(Value::as_str).ok_or_else(|| Fault::wrong("a type has no name"))?;
        let given = object.get("namespace").and_then(Value::as_str).unwrap_or(space);
        let (space, name) = name.rsplit_once('.').unwrap_or((given, name));
        self.names.insert(full(space, name), place);
        Ok(space.to_owned())
    }

    fn named(&self, name: &str, space: &str) -> Option<usize> {
        let near = (!name.contains('.')).then(|| full(space, name));
        near.and_then(|near| self.names.get(&near)).or_else(|| self.names.get(name)).copied()
    }

    fn add(&mut self, kind: Kind) -> usize {
        self.kinds.push(kind);
        self.kinds.len() - 1
    }
}

fn full(space: &str, name: &str) -> String {
    if space.is_empty() { name.to_owned() } else { format!("{space}.{name}") }
}

fn primitive(name: &str) -> Option<Kind> {
    Some(match name {
        "null" => Kind::Null,
        "boolean" => Kind::Boolean,
        "int" | "long" => Kind::Whole,
        "float" => Kind::Float,
        "double" => Kind::Double,
        "bytes" => Kind::Bytes,
        "string" => Kind::Text,
        _ => return None,
    })
}

fn unknown(name: &str) -> Fault {
    Fault::Wrong(format!("its schema names {} without saying what that is", name.chars().take(60).collect::<String>()))
}
