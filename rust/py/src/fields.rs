//! Response header fields as Python objects. Caches objects of recent fields, because responses repeat most of them.

use std::cell::Cell;

use penstock_net::headers::Headers;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyList, PyTuple},
};

/// Number of cache slots. Each holds one name with its last value.
const CACHE_SLOTS: usize = 64;
/// Maximum size of a cached value.
const MAX_CACHED_VALUE_BYTES: usize = 64;

thread_local! {
    static LAST: [Cell<Option<CachedField>>; CACHE_SLOTS] = const { [const { Cell::new(None) }; CACHE_SLOTS] };
}

struct CachedField {
    name: Py<PyBytes>,
    value: Py<PyBytes>,
    pair: Py<PyTuple>,
}

/// Converts headers to a Python list of pairs of bytes.
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
            let slot = &last[self.cache_slot()];
            // Taken out of the slot, because creating a Python object may run code that enters this function again.
            let cached = slot.take().filter(|field| field.name.as_bytes(py) == self.name);
            let entry = match cached {
                Some(hit) if hit.value.as_bytes(py) == self.value => hit,
                stale => self.create_cached_field(py, stale.map(|field| field.name))?,
            };
            let pair = entry.pair.clone_ref(py).into_bound(py);
            if self.value.len() <= MAX_CACHED_VALUE_BYTES {
                slot.set(Some(entry));
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

    /// Returns the slot of the name. Names that share a slot evict each other, which costs the same as no cache.
    fn cache_slot(&self) -> usize {
        let letter = |at: usize| self.name.get(at).map_or(0, |byte| usize::from(*byte));
        let length = self.name.len();
        (length * 7 + letter(length / 2) * 3 + letter(length.wrapping_sub(1))) % CACHE_SLOTS
    }
}
