//! Splits record lines into the JSON values of their columns.

use std::collections::HashMap;

use penstock_llm::json::object::read_object;

use super::ColumnType;

/// Reader of lines that mostly have the same keys in the same order.
pub(super) struct LineReader<'c, 'l> {
    names: Vec<&'c [u8]>,
    by_name: HashMap<&'c [u8], usize>,
    /// Column that followed each column in an earlier line; the last one is for the start of a line. Comparing one name
    /// is cheaper than a look-up.
    followers: Vec<usize>,
    /// JSON of each column in the current line.
    values: Vec<Option<&'l [u8]>>,
    /// Columns of the current line, in its order.
    present: Vec<usize>,
}

impl<'c, 'l> LineReader<'c, 'l> {
    pub(super) fn new(columns: &'c [(String, ColumnType)]) -> Self {
        let names: Vec<_> = columns.iter().map(|(name, _)| name.as_bytes()).collect();
        let by_name = names.iter().enumerate().map(|(index, name)| (*name, index)).collect();
        let (followers, values) = (vec![0; names.len() + 1], vec![None; names.len()]);
        Self { names, by_name, followers, values, present: Vec::new() }
    }

    /// Reads a line; false if it is not a JSON object in UTF-8. Keys without a column are ignored; the last one of
    /// repeated keys counts.
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
