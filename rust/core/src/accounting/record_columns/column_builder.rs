//! Builders of single columns from JSON values.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use arrow_array::{
    ArrayRef,
    builder::{
        BooleanBuilder, FixedSizeBinaryBuilder, Float64Builder, Int64Builder, MapBuilder, StringBuilder,
        TimestampMicrosecondBuilder,
    },
};
use arrow_schema::{ArrowError, DataType, Field};
use penstock_llm::{
    json::object::{decode_string, read_object},
    timestamp::parse_rfc3339_micros,
};
use uuid::Uuid;

/// Key in the metadata of a field whose 16 bytes are a UUID.
const EXTENSION_KEY: &str = "ARROW:extension:name";
/// Value for `EXTENSION_KEY` that marks a UUID.
const UUID_EXTENSION: &str = "arrow.uuid";
const UUID_BYTES: i32 = 16;

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    Uuid,
    Text,
    /// String that is empty instead of null.
    Key,
    Integer,
    Float,
    Boolean,
    Timestamp,
    Json,
    /// Map of strings to strings.
    Map,
}

impl ColumnType {
    /// Returns the type with this name in the list of columns of the log store.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "UUID" => Self::Uuid,
            "string" | "category" => Self::Text,
            "integer" => Self::Integer,
            "number" => Self::Float,
            "boolean" => Self::Boolean,
            "timestamp" => Self::Timestamp,
            "JSON" => Self::Json,
            "map of strings" => Self::Map,
            _ => return None,
        })
    }

    /// Returns the field of a column of this type.
    pub(super) fn field(self, name: &str, data_type: &DataType) -> Field {
        let field = Field::new(name, data_type.clone(), true);
        if self != Self::Uuid {
            return field;
        }
        field.with_metadata(HashMap::from([(EXTENSION_KEY.to_owned(), UUID_EXTENSION.to_owned())]))
    }
}

/// Column that is being filled. Rows without a value are added when the next value comes, so that they cost nothing in
/// columns that a batch does not use.
pub(super) struct ColumnBuilder {
    /// Number of rows so far, with or without a value.
    rows: usize,
    values: ValueBuilder,
}

enum ValueBuilder {
    Uuid(FixedSizeBinaryBuilder),
    Text(StringBuilder),
    Key(StringBuilder),
    Integer(Int64Builder),
    Float(Float64Builder),
    Boolean(BooleanBuilder),
    Timestamp(TimestampMicrosecondBuilder),
    Json(StringBuilder),
    Map(Box<MapBuilder<StringBuilder, StringBuilder>>),
}

impl ColumnBuilder {
    pub(super) fn new(column_type: ColumnType) -> Self {
        let text = || StringBuilder::with_capacity(0, 0);
        let values = match column_type {
            ColumnType::Uuid => ValueBuilder::Uuid(FixedSizeBinaryBuilder::with_capacity(0, UUID_BYTES)),
            ColumnType::Text => ValueBuilder::Text(text()),
            ColumnType::Key => ValueBuilder::Key(text()),
            ColumnType::Integer => ValueBuilder::Integer(Int64Builder::with_capacity(0)),
            ColumnType::Float => ValueBuilder::Float(Float64Builder::with_capacity(0)),
            ColumnType::Boolean => ValueBuilder::Boolean(BooleanBuilder::with_capacity(0)),
            ColumnType::Timestamp => ValueBuilder::Timestamp(TimestampMicrosecondBuilder::with_capacity(0)),
            ColumnType::Json => ValueBuilder::Json(text()),
            ColumnType::Map => ValueBuilder::Map(Box::new(MapBuilder::with_capacity(None, text(), text(), 0))),
        };
        Self { rows: 0, values }
    }

    /// Returns true if no row has a value.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Appends the value of `row`, after nulls for the rows since the last value. A value of another type becomes null.
    pub(super) fn append(&mut self, row: usize, json: &[u8]) -> Result<(), ArrowError> {
        self.fill(row)?;
        self.rows += 1;
        match &mut self.values {
            ValueBuilder::Uuid(ids) => match decode_string(json).and_then(|text| Uuid::try_parse(&text).ok()) {
                Some(id) => ids.append_value(id.as_bytes())?,
                None => ids.append_null(),
            },
            ValueBuilder::Text(texts) => texts.append_option(decode_string(json)),
            ValueBuilder::Key(texts) => texts.append_value(decode_string(json).unwrap_or_default()),
            ValueBuilder::Integer(numbers) => numbers.append_option(parse_number::<i64>(json)),
            ValueBuilder::Float(numbers) => {
                numbers.append_option(parse_number::<f64>(json).filter(|number| number.is_finite()));
            }
            ValueBuilder::Boolean(flags) => flags.append_option(match json {
                b"true" => Some(true),
                b"false" => Some(false),
                _ => None,
            }),
            ValueBuilder::Timestamp(times) => {
                times.append_option(decode_string(json).and_then(|text| parse_rfc3339_micros(&text)));
            }
            ValueBuilder::Json(documents) => documents.append_option(std::str::from_utf8(json).ok()),
            ValueBuilder::Map(maps) => append_map(maps, json)?,
        }
        Ok(())
    }

    /// Adds nulls up to a row.
    fn fill(&mut self, row: usize) -> Result<(), ArrowError> {
        let missing = row.saturating_sub(self.rows);
        if missing == 0 {
            return Ok(());
        }
        self.rows += missing;
        match &mut self.values {
            ValueBuilder::Uuid(ids) => ids.append_nulls(missing),
            ValueBuilder::Text(texts) | ValueBuilder::Json(texts) => texts.append_nulls(missing),
            ValueBuilder::Key(texts) => (0..missing).for_each(|_| texts.append_value("")),
            ValueBuilder::Integer(numbers) => numbers.append_nulls(missing),
            ValueBuilder::Float(numbers) => numbers.append_nulls(missing),
            ValueBuilder::Boolean(flags) => flags.append_nulls(missing),
            ValueBuilder::Timestamp(times) => times.append_nulls(missing),
            ValueBuilder::Map(maps) => maps.append_nulls(missing)?,
        }
        Ok(())
    }

    pub(super) fn finish(mut self, rows: usize) -> Result<ArrayRef, ArrowError> {
        self.fill(rows)?;
        Ok(match self.values {
            ValueBuilder::Uuid(mut ids) => Arc::new(ids.finish()),
            ValueBuilder::Text(mut texts) | ValueBuilder::Key(mut texts) | ValueBuilder::Json(mut texts) => {
                Arc::new(texts.finish())
            }
            ValueBuilder::Integer(mut numbers) => Arc::new(numbers.finish()),
            ValueBuilder::Float(mut numbers) => Arc::new(numbers.finish()),
            ValueBuilder::Boolean(mut flags) => Arc::new(flags.finish()),
            ValueBuilder::Timestamp(mut times) => Arc::new(times.finish()),
            ValueBuilder::Map(mut maps) => Arc::new(maps.finish()),
        })
    }
}

/// Parses a JSON number. Integers have neither fraction nor exponent.
fn parse_number<N: std::str::FromStr>(json: &[u8]) -> Option<N> {
    // Rust also reads words such as `inf`, which are no JSON numbers.
    let is_number = matches!(json.first(), Some(b'-' | b'0'..=b'9'));
    std::str::from_utf8(json).ok().filter(|_| is_number)?.parse().ok()
}

/// Appends the entries of an object whose values are strings. If a key repeats, its last value counts, because keys of
/// a map must differ.
fn append_map(maps: &mut MapBuilder<StringBuilder, StringBuilder>, json: &[u8]) -> Result<(), ArrowError> {
    let mut entries: Vec<(String, Cow<'_, str>)> = Vec::new();
    let read = read_object(json, |key, value| {
        let (Some(value), Ok(key)) = (decode_string(value), std::str::from_utf8(key)) else { return };
        match entries.iter_mut().find(|(known, _)| known == key) {
            Some(entry) => entry.1 = value,
            None => entries.push((key.to_owned(), value)),
        }
    });
    if read.is_err() {
        return maps.append(false);
    }
    for (key, value) in entries {
        maps.keys().append_value(key);
        maps.values().append_value(value);
    }
    maps.append(true)
}
