//! Request head parser for ASGI scopes.

use penstock_core::ingress::message::RequestHead;
use penstock_net::headers::Headers;
use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};

/// Body length according to the request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedBody {
    Empty,
    Length(u64),
    /// The body ends when the server reports its end.
    Unknown,
}

/// Parses method, path, query and header fields.
pub fn parse_head(scope: &Bound<'_, PyDict>) -> PyResult<RequestHead> {
    let method = scope_field(scope, intern!(scope.py(), "method"))?.cast::<PyString>()?.to_str()?.to_owned();
    build_head(scope, method)
}

/// Parses the head of a WebSocket request, whose scope has no method.
pub fn parse_websocket_head(scope: &Bound<'_, PyDict>) -> PyResult<RequestHead> {
    build_head(scope, "GET".to_owned())
}

fn build_head(scope: &Bound<'_, PyDict>, method: String) -> PyResult<RequestHead> {
    let py = scope.py();
    let list = scope_field(scope, intern!(py, "headers"))?;
    let list = list.cast::<PyList>()?;
    let mut headers = Headers::with_capacity(list.len());
    for item in list.iter() {
        let pair = item.cast::<PyTuple>()?;
        let (name, value) = (pair.get_borrowed_item(0)?, pair.get_borrowed_item(1)?);
        let (name, value) = (name.cast::<PyBytes>()?, value.cast::<PyBytes>()?);
        let (name, value) = (name.as_bytes(), value.as_bytes());
        // Skips the empty `host` that the server adds if there is none. Before HTTP/1.1 the field is optional.
        if value.is_empty() && name == b"host" && http_version(scope)?.to_str()? == "1" {
            continue;
        }
        headers.push(name, value);
    }
    let text = |name| {
        Ok::<_, PyErr>(String::from_utf8_lossy(scope_field(scope, name)?.cast::<PyBytes>()?.as_bytes()).into_owned())
    };
    Ok(RequestHead {
        method,
        path: text(intern!(py, "raw_path"))?,
        query: text(intern!(py, "query_string"))?,
        headers,
        ..RequestHead::default()
    })
}

/// Returns the body length to expect. An HTTP/1 request without `transfer-encoding` and `content-length` has no body.
pub fn expected_body(scope: &Bound<'_, PyDict>, head: &RequestHead) -> PyResult<ExpectedBody> {
    if head.headers.get("transfer-encoding").is_some() {
        return Ok(ExpectedBody::Unknown);
    }
    if let Some(length) = head.headers.get_str("content-length") {
        return Ok(match length.parse() {
            Ok(0) => ExpectedBody::Empty,
            Ok(length) => ExpectedBody::Length(length),
            Err(_) => ExpectedBody::Unknown,
        });
    }
    let is_first = http_version(scope)?.to_str()?.starts_with('1');
    Ok(if is_first || matches!(head.method.as_str(), "GET" | "HEAD") {
        ExpectedBody::Empty
    } else {
        ExpectedBody::Unknown
    })
}

fn http_version<'py>(scope: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyString>> {
    Ok(scope_field(scope, intern!(scope.py(), "http_version"))?.cast_into::<PyString>()?)
}

fn scope_field<'py>(scope: &Bound<'py, PyDict>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    scope.get_item(name)?.ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(name.to_string()))
}
