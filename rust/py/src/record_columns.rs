//! Records of the spool as Arrow columns, which the log store reads through Arrow's capsules for Python.

use arrow_array::{RecordBatchIterator, ffi_stream::FFI_ArrowArrayStream};
use penstock_core::accounting::record_columns::{self, BodyLocation, ColumnType};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyCapsule},
};

/// Decoder of record lines into columns.
#[pyclass(frozen, module = "penstock._engine")]
pub struct RecordDecoder(record_columns::RecordDecoder);

#[pymethods]
impl RecordDecoder {
    /// Creates a decoder for columns, which are tuples of name and type. `fallback_pattern` matches the `decisions` of
    /// records for which `is_fallback` is true.
    #[new]
    fn new(columns: Vec<(String, String)>, fallback_pattern: &str) -> PyResult<Self> {
        let typed: Option<Vec<_>> =
            columns.into_iter().map(|(name, kind)| Some((name, ColumnType::from_name(&kind)?))).collect();
        typed
            .and_then(|columns| record_columns::RecordDecoder::new(columns, fallback_pattern))
            .map(Self)
            .ok_or_else(|| PyValueError::new_err("the columns lack an identifier, a time or a known type"))
    }

    /// Decodes record lines in JSON that the node `node` wrote. `locations` are tuples: record identifier, key of the
    /// pack with its bodies, and their offset and length.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 passes extracted arguments by value")]
    fn decode(
        &self,
        py: Python<'_>,
        lines: Vec<PyBackedBytes>,
        node: &str,
        locations: Vec<(PyBackedBytes, String, i64, i64)>,
    ) -> PyResult<DecodedRecords> {
        let locations = locations
            .into_iter()
            .filter_map(|(id, key, offset, length)| {
                Some((id[..].try_into().ok()?, BodyLocation { key, offset, length }))
            })
            .collect();
        let decoded = py.detach(|| {
            let lines: Vec<&[u8]> = lines.iter().map(|line| &line[..]).collect();
            self.0.decode(&lines, node, &locations)
        });
        decoded.map(DecodedRecords).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// Decoded records of a batch, by column.
#[pyclass(frozen, module = "penstock._engine")]
pub struct DecodedRecords(record_columns::DecodedRecords);

#[pymethods]
impl DecodedRecords {
    /// Number of records.
    fn __len__(&self) -> usize {
        self.0.batch.num_rows()
    }

    /// Number of lines that are no records.
    #[getter]
    fn invalid_count(&self) -> usize {
        self.0.invalid_count
    }

    /// Times of the first and the last record in microseconds since 1970; `None` without records.
    #[getter]
    fn time_range(&self) -> Option<(i64, i64)> {
        self.0.time_range()
    }

    /// Returns identifier, time in microseconds since 1970, and organisation of each record.
    fn heads<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, i64, &str)> {
        self.0.heads().map(|(head, organisation)| (PyBytes::new(py, &head.id), head.created_at, organisation)).collect()
    }

    /// Returns a capsule with an Arrow stream of one batch. May be called several times.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A producer may ignore the schema that a consumer prefers.
        drop(requested_schema);
        let batch = self.0.batch.clone();
        let schema = batch.schema();
        let reader = RecordBatchIterator::new([Ok(batch)], schema);
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
    }
}
