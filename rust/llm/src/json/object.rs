//! Reader of the fields of one object, for other crates.

use super::scan::ScanError;
use super::scan::for_each_field_utf8;
pub use super::string_literal::decode_string;

/// Passes each unescaped key and its value (JSON) to `on_field`. The object must be the whole input, and UTF-8.
///
/// A repeated key is passed as often as it occurs.
pub fn read_object<'j>(json: &'j [u8], mut on_field: impl FnMut(&[u8], &'j [u8])) -> Result<(), ScanError> {
    for_each_field_utf8(json, |key, at| {
        on_field(key, &json[at]);
        Ok(())
    })
}
