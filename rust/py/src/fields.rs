//! An answer's header fields as the server takes them. What answers say again and again is made once.

use std::cell::Cell;

use penstock_core::ingress::headers::Headers;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyList, PyTuple},
};

/// Names that are remembered, with the value that each had last.
const CACHE_SLOTS: usize = 64;
/// Longer values are not kept.
const MAX_CACHED_VALUE_BYTES: usize = 64;

thread_local! {
    static LAST: [Cell<Option<CachedField>>; CACHE_SLOTS] = const { [const { Cell::new(None) }; CACHE_SLOTS] };
}

struct CachedField {
    name: Py<PyBytes>,
    value: Py<PyBytes>,
    pair: Py<PyTuple>,
}

/// A list of pairs of bytes.
pub fn header_list<'py>(py: Python<'py>, headers: &Headers) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, headers.iter().map(|(name, value)| HeaderField { name, value }))
}

struct HeaderField<'h> {
    name: &'h [u8],
    value: &'h [u8],
}

impl<'py> IntoPyObject<'py> for HeaderField<'_> {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        LAST.with(|last| {
            let place = &last[self.cache_slot()];
            // Taken out: what Python does while an object is made may come here again.
            let known = place.take().filter(|known| known.name.as_bytes(py) == self.name);
            let known = match known {
                Some(known) if known.value.as_bytes(py) == self.value => known,
                known => self.create_cached_field(py, known.map(|known| known.name))?,
            };
            let pair = known.pair.clone_ref(py).into_bound(py);
            if self.value.len() <= MAX_CACHED_VALUE_BYTES {
                place.set(Some(known));
            }
            Ok(pair)
        })
    }
}

impl HeaderField<'_> {
    fn create_cached_field(&self, py: Python<'_>, name: Option<Py<PyBytes>>) -> PyResult<CachedField> {
        let name = name.unwrap_or_else(|| PyBytes::new(py, self.name).unbind());
        let value = PyBytes::new(py, self.value).unbind();
        let pair = PyTuple::new(py, [&name, &value])?.unbind();
        Ok(CachedField { name, value, pair })
    }

    /// Names that share a place take turns: that costs what it would cost to remember none.
    fn cache_slot(&self) -> usize {
        let letter = |at: usize| self.name.get(at).map_or(0, |byte| usize::from(*byte));
        let length = self.name.len();
        (length * 7 + letter(length / 2) * 3 + letter(length.wrapping_sub(1))) % CACHE_SLOTS
    }
}
