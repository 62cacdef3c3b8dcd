//! `EngineError`, the only exception that the engine raises in Python.

use penstock_core::error::Problem;
use pyo3::{exceptions::PyException, prelude::*, types::PyList};

/// Error of the engine: `code`, `status`, and `problems`, a list of `{"path", "message"}`.
#[pyclass(frozen, extends = PyException, module = "penstock._engine")]
pub struct EngineError {
    #[pyo3(get)]
    code: String,
    #[pyo3(get)]
    status: u16,
    #[pyo3(get)]
    problems: Py<PyList>,
}

#[pymethods]
impl EngineError {
    #[new]
    fn new(code: String, status: u16, problems: Py<PyList>) -> Self {
        Self { code, status, problems }
    }

    fn __str__(&self, py: Python<'_>) -> String {
        let texts: Vec<_> = self.problems.bind(py).iter().map(|problem| problem.to_string()).collect();
        format!("{}: {}", self.code, texts.join("; "))
    }
}

/// Returns an `EngineError` for problems found in a document.
pub fn validation_error(py: Python<'_>, problems: &[Problem]) -> PyErr {
    engine_error(py, "invalid", 400, problems)
}

pub fn engine_error(py: Python<'_>, code: &str, status: u16, problems: &[Problem]) -> PyErr {
    let build = || {
        let list = PyList::empty(py);
        for Problem { path, message } in problems {
            let problem = pyo3::types::PyDict::new(py);
            problem.set_item("path", path)?;
            problem.set_item("message", message)?;
            list.append(problem)?;
        }
        py.get_type::<EngineError>().call1((code, status, list))
    };
    build().map_or_else(|error| error, PyErr::from_value)
}
