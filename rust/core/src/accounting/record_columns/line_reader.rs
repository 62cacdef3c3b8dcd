//! Splits record lines into the JSON values of their columns.

use std::collections::HashMap;

use penstock_llm::json::object::read_object;

use super::ColumnType;

/// Reader of record lines. It is fast because most lines have the same keys in the same order.
pub(super) struct LineReader<'c, 'l> {
    names: Vec<&'c [u8]>,
    by_name: HashMap<&'c [u8], usize>,
    /// Expected next column for each column, learned from an earlier line. The last entry is the first column of that
    /// line. Comparing a key with this one name is cheaper than a look-up in `by_name`.
    followers: Vec<usize>,
    /// JSON of each column in the current line.
    values: Vec<Option<&'l [u8]>>,
    /// Columns of the current line, in the order of the line.
    present: Vec<usize>,
}

impl<'c, 'l> LineReader<'c, 'l> {
    pub(super) fn new(columns: &'c [(String, ColumnType)]) -> Self {
        let names: Vec<_> = columns.iter().map(|(name, _)| name.as_bytes()).collect();
        let by_name = names.iter().enumerate().map(|(index, name)| (*name, index)).collect();
        let (followers, values) = (vec![0; names.len() + 1], vec![None; names.len()]);
        Self { names, by_name, followers, values, present: Vec::new() }
    }

    /// Reads a line. Returns false if it is not a JSON object in UTF-8. Ignores keys without a column. If a key
    /// repeats, its last value counts.
    pub(super) fn read(&mut self, line: &'l [u8]) -> bool {
        for column in self.present.drain(..) {
            self.values[column] = None;
        }
        let mut before = self.names.len();
        read_object(line, |key, value| {
            let Some(column) = self.find_column(before, key) else { return };
            if self.values[column].replace(value).is_none() {
                self.present.push(column);
            }
            before = column;
        })
        .is_ok()
    }

    /// Returns the JSON of a column in the current line; `None` if it is missing or null.
    pub(super) fn value(&self, column: usize) -> Option<&'l [u8]> {
        self.values[column].filter(|value| *value != b"null")
    }

    /// Returns the columns of the current line that have a value, with their JSON.
    pub(super) fn values(&self) -> impl Iterator<Item = (usize, &'l [u8])> {
        self.present.iter().filter_map(|column| Some((*column, self.value(*column)?)))
    }

    fn find_column(&mut self, before: usize, key: &[u8]) -> Option<usize> {
        let guess = self.followers[before];
        if self.names.get(guess).is_some_and(|name| *name == key) {
            return Some(guess);
        }
        let column = *self.by_name.get(key)?;
        self.followers[before] = column;
        Some(column)
    }
}
