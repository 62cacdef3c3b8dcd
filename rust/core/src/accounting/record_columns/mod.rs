//! Decoder of record lines into Arrow columns. The log store takes columns at a fraction of the cost of JSON text.

mod column_builder;
mod line_reader;

use std::{
    collections::{HashMap, HashSet},
    iter::repeat_n,
    sync::Arc,
};

use arrow_array::{
    Array, ArrayRef, BooleanArray, RecordBatch, StringArray,
    builder::{Int64Builder, StringBuilder},
    cast::AsArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use penstock_llm::{json::object::decode_string, timestamp::parse_rfc3339_micros};
use regex::Regex;
use uuid::Uuid;

use column_builder::ColumnBuilder;
pub use column_builder::ColumnType;
use line_reader::LineReader;

const ID: &str = "id";
const CREATED_AT: &str = "created_at";
const ORGANISATION_ID: &str = "organisation_id";
const WORKSPACE_ID: &str = "workspace_id";
const DECISIONS: &str = "decisions";
/// Columns that every batch has; they are empty instead of null. Other columns are left out if no record of the batch
/// has a value for them.
const KEY_COLUMNS: [&str; 2] = [ORGANISATION_ID, WORKSPACE_ID];

/// Location of the bodies of a record: the key of a pack and a range of its bytes. A pack is a file with the bodies of
/// many records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyLocation {
    pub key: String,
    pub offset: i64,
    pub length: i64,
}

/// Identifier of a record.
pub type RecordId = [u8; 16];

/// Decoder for a list of columns.
pub struct RecordDecoder {
    columns: Vec<(String, ColumnType)>,
    head: HeadColumns,
    /// Pattern for the JSON of `decisions`. It matches if a target after the first one of a fallback responded.
    fallback_pattern: Regex,
}

/// Positions of the columns that a record must have, or that must be strings.
struct HeadColumns {
    id: usize,
    created_at: usize,
    organisation_id: usize,
    workspace_id: usize,
}

/// Identity and time of a decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHead {
    pub id: RecordId,
    /// Microseconds since 1970.
    pub created_at: i64,
}

/// Records of a batch by column.
#[derive(Debug)]
pub struct DecodedRecords {
    pub batch: RecordBatch,
    /// Number of lines that are not valid records.
    pub invalid_count: usize,
    heads: Vec<RecordHead>,
}

impl DecodedRecords {
    /// Returns the head and the organisation of each record.
    pub fn heads(&self) -> impl Iterator<Item = (&RecordHead, &str)> {
        let organisations = self.batch.column_by_name(ORGANISATION_ID).and_then(|column| column.as_string_opt::<i32>());
        self.heads
            .iter()
            .enumerate()
            .map(move |(row, head)| (head, organisations.map_or("", |column| column.value(row))))
    }

    /// Returns the times of the first and the last record; `None` without records.
    pub fn time_range(&self) -> Option<(i64, i64)> {
        let times = || self.heads.iter().map(|head| head.created_at);
        Some((times().min()?, times().max()?))
    }
}

impl RecordDecoder {
    /// Creates a decoder. `None` if a column that every record needs is missing, or if the pattern is not valid.
    pub fn new(mut columns: Vec<(String, ColumnType)>, fallback_pattern: &str) -> Option<Self> {
        for (name, column_type) in &mut columns {
            if KEY_COLUMNS.contains(&name.as_str()) {
                *column_type = ColumnType::Key;
            }
        }
        let find = |name: &str| columns.iter().position(|(column, _)| column == name);
        let head = HeadColumns {
            id: find(ID)?,
            created_at: find(CREATED_AT)?,
            organisation_id: find(ORGANISATION_ID)?,
            workspace_id: find(WORKSPACE_ID)?,
        };
        Some(Self { columns, head, fallback_pattern: Regex::new(fallback_pattern).ok()? })
    }

    /// Decodes lines of JSON from a node. A value of another type than its column becomes null. If several lines have
    /// the same identifier, the last one counts.
    ///
    /// A line is invalid if it is not JSON, or lacks an identifier or a time with its offset. It is also invalid if the
    /// organisation or the workspace is neither a string nor null.
    pub fn decode(
        &self,
        lines: &[&[u8]],
        node: &str,
        locations: &HashMap<RecordId, BodyLocation>,
    ) -> Result<DecodedRecords, ArrowError> {
        let mut replaced = HashSet::new();
        loop {
            let mut batch = BatchBuilder::new(&self.columns, lines.len());
            // Repetitions are rare, so rows are not removed: the batch is decoded again without them.
            let repeated = batch.append_lines(self, lines, &replaced)?;
            if repeated.is_empty() {
                return batch.finish(self, node, locations);
            }
            replaced.extend(repeated);
        }
    }

    /// Returns for each record if its `decisions` show that a target after the first of a fallback responded.
    fn find_fallbacks(&self, decisions: &ArrayRef) -> BooleanArray {
        let documents = decisions.as_string_opt::<i32>().into_iter().flatten();
        documents.map(|json| Some(json.is_some_and(|json| self.fallback_pattern.is_match(json)))).collect()
    }

    /// Returns the identifier and the time of the record in the current line; `None` if it is not valid.
    fn read_head(&self, line: &LineReader<'_, '_>) -> Option<RecordHead> {
        let is_text_or_null = |column: usize| line.value(column).is_none_or(|value| value.starts_with(b"\""));
        if !is_text_or_null(self.head.organisation_id) || !is_text_or_null(self.head.workspace_id) {
            return None;
        }
        Some(RecordHead {
            id: Uuid::try_parse(&decode_string(line.value(self.head.id)?)?).ok()?.into_bytes(),
            created_at: parse_rfc3339_micros(&decode_string(line.value(self.head.created_at)?)?)?,
        })
    }
}

/// Columns of a batch that is being decoded.
struct BatchBuilder<'c> {
    columns: &'c [(String, ColumnType)],
    builders: Vec<ColumnBuilder>,
    heads: Vec<RecordHead>,
    invalid_count: usize,
}

impl<'c> BatchBuilder<'c> {
    fn new(columns: &'c [(String, ColumnType)], rows: usize) -> Self {
        let builders = columns.iter().map(|(_, column_type)| ColumnBuilder::new(*column_type)).collect();
        Self { columns, builders, heads: Vec::with_capacity(rows), invalid_count: 0 }
    }

    /// Appends all lines except those at the positions `replaced`. Returns the positions of lines whose identifier
    /// occurs in a later line.
    fn append_lines(
        &mut self,
        decoder: &RecordDecoder,
        lines: &[&[u8]],
        replaced: &HashSet<usize>,
    ) -> Result<Vec<usize>, ArrowError> {
        let mut reader = LineReader::new(self.columns);
        let mut positions = HashMap::with_capacity(lines.len());
        let mut repeated = Vec::new();
        for (position, line) in lines.iter().enumerate().filter(|(position, _)| !replaced.contains(position)) {
            let Some(head) = reader.read(line).then(|| decoder.read_head(&reader)).flatten() else {
                self.invalid_count += 1;
                continue;
            };
            repeated.extend(positions.insert(head.id, position));
            let row = self.heads.len();
            for (column, value) in reader.values() {
                self.builders[column].append(row, value)?;
            }
            self.heads.push(head);
        }
        Ok(repeated)
    }

    fn finish(
        self,
        decoder: &RecordDecoder,
        node: &str,
        locations: &HashMap<RecordId, BodyLocation>,
    ) -> Result<DecodedRecords, ArrowError> {
        let rows = self.heads.len();
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        let mut fallbacks = BooleanArray::from(vec![false; rows]);
        for ((name, column_type), builder) in self.columns.iter().zip(self.builders) {
            if builder.is_empty() && !KEY_COLUMNS.contains(&name.as_str()) {
                continue;
            }
            let array = builder.finish(rows)?;
            if name == DECISIONS {
                fallbacks = decoder.find_fallbacks(&array);
            }
            fields.push(column_type.field(name, array.data_type()));
            arrays.push(array);
        }
        fields.push(Field::new("is_fallback", DataType::Boolean, true));
        arrays.push(Arc::new(fallbacks));
        fields.push(Field::new("node", DataType::Utf8, true));
        arrays.push(Arc::new(StringArray::from_iter_values(repeat_n(node, rows))));
        append_locations(&self.heads, locations, &mut fields, &mut arrays);
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
        Ok(DecodedRecords { batch, heads: self.heads, invalid_count: self.invalid_count })
    }
}

/// Adds the columns with the locations of bodies, unless `locations` is empty.
fn append_locations(
    heads: &[RecordHead],
    locations: &HashMap<RecordId, BodyLocation>,
    fields: &mut Vec<Field>,
    arrays: &mut Vec<ArrayRef>,
) {
    if locations.is_empty() {
        return;
    }
    let (mut keys, mut offsets, mut lengths) = (StringBuilder::new(), Int64Builder::new(), Int64Builder::new());
    for head in heads {
        let location = locations.get(&head.id);
        keys.append_option(location.map(|location| &location.key));
        offsets.append_option(location.map(|location| location.offset));
        lengths.append_option(location.map(|location| location.length));
    }
    fields.push(Field::new("body_key", DataType::Utf8, true));
    fields.push(Field::new("body_offset", DataType::Int64, true));
    fields.push(Field::new("body_length", DataType::Int64, true));
    arrays.push(Arc::new(keys.finish()));
    arrays.push(Arc::new(offsets.finish()));
    arrays.push(Arc::new(lengths.finish()));
}

#[cfg(test)]
mod tests;
