//! Query for the next page of a model list.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::catalog::path_info::PathInfo;

/// Appends the page token from the previous page to the query of a model list.
pub(crate) fn write_page_token(path_info: &PathInfo<'_>, name: &str, out: &mut Vec<u8>) {
    if !path_info.query.is_empty() {
        out.extend_from_slice(format!("&{name}={}", utf8_percent_encode(path_info.query, NON_ALPHANUMERIC)).as_bytes());
    }
}
