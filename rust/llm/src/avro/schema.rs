//! Avro schema parser: resolves the schema in a file header to a table of types.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::avro::primitives::DecodeError;

/// Type of a value. It refers to other types by their index in the schema.
#[derive(Debug)]
pub enum AvroType {
    Null,
    Boolean,
    /// Both `int` and `long`, which have the same encoding.
    Long,
    Float,
    Double,
    Bytes,
    String,
    Fixed(usize),
    Enum(Vec<String>),
    Array(usize),
    Map(usize),
    Union(Vec<usize>),
    Record(Vec<(String, usize)>),
}

/// All types that a file declares.
#[derive(Debug, Default)]
pub struct Schema {
    types: Vec<AvroType>,
    /// Indices of the named types by their full names, for references.
    types_by_name: HashMap<String, usize>,
}

/// Maximum number of types; real schemas are far smaller.
const MAX_TYPES: usize = 10_000;

impl Schema {
    pub fn parse(json: &[u8]) -> Result<Self, DecodeError> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| DecodeError::Invalid(format!("its schema is not valid JSON: {error}")))?;
        let mut schema = Self::default();
        // Registers the type of the records at index 0.
        schema.parse_type(&value, "")?;
        Ok(schema)
    }

    pub fn type_at(&self, type_index: usize) -> &AvroType {
        &self.types[type_index]
    }

    fn parse_type(&mut self, value: &Value, space: &str) -> Result<usize, DecodeError> {
        if self.types.len() >= MAX_TYPES {
            return Err(DecodeError::invalid("its schema is too large"));
        }
        match value {
            Value::String(name) => match primitive_type(name) {
                Some(kind) => Ok(self.push_type(kind)),
                None => self.resolve_name(name, space).ok_or_else(|| unknown_type_error(name)),
            },
            Value::Array(branches) => {
                let type_index = self.push_type(AvroType::Null);
                let branches =
                    branches.iter().map(|branch| self.parse_type(branch, space)).collect::<Result<_, _>>()?;
                self.types[type_index] = AvroType::Union(branches);
                Ok(type_index)
            }
            Value::Object(object) => self.parse_complex_type(object, space),
            other => Err(unknown_type_error(&other.to_string())),
        }
    }

    fn parse_complex_type(&mut self, object: &Map<String, Value>, space: &str) -> Result<usize, DecodeError> {
        let lacks = |missing: &str| DecodeError::Invalid(format!("its schema lacks {missing}"));
        let type_value = object.get("type").ok_or_else(|| lacks("a type"))?;
        let Some(name) = type_value.as_str().filter(|name| primitive_type(name).is_none()) else {
            return self.parse_type(type_value, space);
        };
        let inner = |key: &str| object.get(key).ok_or_else(|| lacks(key));
        // Reserves the index before the inner types are parsed, because they may refer to this type.
        let type_index = self.push_type(AvroType::Null);
        self.types[type_index] = match name {
            "array" => AvroType::Array(self.parse_type(inner("items")?, space)?),
            "map" => AvroType::Map(self.parse_type(inner("values")?, space)?),
            "fixed" => {
                self.register_name(object, space, type_index)?;
                let size = inner("size")?.as_u64().and_then(|size| usize::try_from(size).ok());
                AvroType::Fixed(size.ok_or_else(|| lacks("a size"))?)
            }
            "enum" => {
                self.register_name(object, space, type_index)?;
                let symbols = inner("symbols")?.as_array().into_iter().flatten();
                AvroType::Enum(symbols.map(|symbol| symbol.as_str().unwrap_or_default().to_owned()).collect())
            }
            "record" | "error" => {
                let space = self.register_name(object, space, type_index)?;
                let fields = inner("fields")?.as_array().into_iter().flatten();
                let field = |field: &Value| {
                    let name = field["name"].as_str().ok_or_else(|| lacks("the name of a field"))?;
                    Ok((name.to_owned(), self.parse_type(&field["type"], &space)?))
                };
                AvroType::Record(fields.map(field).collect::<Result<_, DecodeError>>()?)
            }
            other => return self.resolve_name(other, space).ok_or_else(|| unknown_type_error(other)),
        };
        Ok(type_index)
    }

    /// Registers the name of a type and returns the namespace for the types inside it.
    fn register_name(
        &mut self,
        object: &Map<String, Value>,
        space: &str,
        type_index: usize,
    ) -> Result<String, DecodeError> {
        let name =
            object.get("name").and_then(Value::as_str).ok_or_else(|| DecodeError::invalid("a type has no name"))?;
        let namespace = object.get("namespace").and_then(Value::as_str).unwrap_or(space);
        let (space, name) = name.rsplit_once('.').unwrap_or((namespace, name));
        self.types_by_name.insert(full_name(space, name), type_index);
        Ok(space.to_owned())
    }

    fn resolve_name(&self, name: &str, space: &str) -> Option<usize> {
        let near = (!name.contains('.')).then(|| full_name(space, name));
        near.and_then(|near| self.types_by_name.get(&near)).or_else(|| self.types_by_name.get(name)).copied()
    }

    fn push_type(&mut self, kind: AvroType) -> usize {
        self.types.push(kind);
        self.types.len() - 1
    }
}

fn full_name(space: &str, name: &str) -> String {
    if space.is_empty() { name.to_owned() } else { format!("{space}.{name}") }
}

fn primitive_type(name: &str) -> Option<AvroType> {
    Some(match name {
        "null" => AvroType::Null,
        "boolean" => AvroType::Boolean,
        "int" | "long" => AvroType::Long,
        "float" => AvroType::Float,
        "double" => AvroType::Double,
        "bytes" => AvroType::Bytes,
        "string" => AvroType::String,
        _ => return None,
    })
}

fn unknown_type_error(name: &str) -> DecodeError {
    DecodeError::Invalid(format!(
        "its schema refers to {} without a definition",
        name.chars().take(60).collect::<String>()
    ))
}
