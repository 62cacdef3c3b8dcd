//! Sums over the records of the spool: usage of budgets, and request metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_core::accounting::{
    budget_sums,
    request_counts::{self, CountBounds, HISTOGRAM_COUNT, LabelSetCounts, RequestLabel},
};
use pyo3::{exceptions::PyValueError, prelude::*, pybacked::PyBackedBytes, types::PyBytes};

/// Sums of the usage by budget, group and period. Python aligns objects to 16 bytes, which is too little for the
/// vectors of a `memmem` search. So the sums are in a box.
#[pyclass(frozen, module = "penstock._engine")]
pub struct BudgetSums(Box<Mutex<budget_sums::BudgetSums>>);

/// Usage of a budget, as Python gets it: id, group, start of the period, measure, requests, tokens, nano-dollars, and
/// the part of the nano-dollars that comes from corrections.
type BudgetRow = (String, String, i64, String, i64, i64, i64, i64);
/// The `BEGIN` frame of a request, as Python gets it: record id, flags and payload.
type OpenedRequest<'py> = (Bound<'py, PyBytes>, u8, Bound<'py, PyBytes>);
/// Result of `BudgetSums::add_frames`: requests that began, ids of earlier requests that ended, and number of records.
/// Then the offset behind the last frame, whether the next one is damaged, and its length if known.
type AddedFrames<'py> = (Vec<OpenedRequest<'py>>, Vec<Bound<'py, PyBytes>>, usize, usize, bool, usize);

#[pymethods]
impl BudgetSums {
    #[new]
    fn new() -> Self {
        Self(Box::default())
    }

    /// Adds at most `limit` records from the frames of a buffer that begins at the offset `base` of its segment. An
    /// earlier call has already added the records before the offset `done` of the segment.
    fn add_frames<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        base: usize,
        limit: usize,
        done: usize,
    ) -> AddedFrames<'py> {
        let added = py.detach(|| lock(&self.0).add_frames(data, limit, done.saturating_sub(base)));
        let bytes = |content: &[u8]| PyBytes::new(py, content);
        let opened =
            added.opened.iter().map(|frame| (bytes(frame.id.as_bytes()), frame.flags, bytes(frame.payload))).collect();
        let ended = added.ended.iter().map(|id| bytes(id.as_bytes())).collect();
        (opened, ended, added.count, base + added.end, added.is_damaged, added.needed)
    }

    /// Adds a single record.
    fn add_record(&self, py: Python<'_>, payload: &[u8], flags: u8) {
        py.detach(|| lock(&self.0).add_record(payload, flags, false));
    }

    /// Returns all sums, and starts again without any.
    fn take(&self, py: Python<'_>) -> Vec<BudgetRow> {
        let row = |(key, sum): (budget_sums::BudgetKey, budget_sums::BudgetUsage)| {
            let (id, group, start, measure) = (key.limit_id, key.group, key.period_start, key.measure);
            (id, group, start, measure, sum.requests, sum.tokens, sum.nanodollars, sum.corrected)
        };
        py.detach(|| lock(&self.0).take().into_iter().map(row).collect())
    }
}

/// Counters and histograms of requests by labels.
#[pyclass(frozen, module = "penstock._engine")]
pub struct RequestCounts(Mutex<request_counts::RequestCounts>);

/// A histogram, as Python gets it: count of each bucket, and sum of the values.
type HistogramRow = (Vec<u64>, f64);
/// Counts of a label set, as Python gets them: values of the labels, requests, tokens, nano-dollars and histograms.
type LabelSetRow = (Vec<String>, u64, i64, i64, Vec<Option<HistogramRow>>);
/// Counts of verdicts, as Python gets them: id, verdict and count.
type VerdictRow = (String, &'static str, u64);

#[pymethods]
impl RequestCounts {
    /// Creates empty counts. `labels` are optional labels: `model`, `config_name`, `api_key_name`, `workspace`, or
    /// `metadata_` and a key. `buckets` are the upper bounds of each histogram.
    #[new]
    fn new(labels: Vec<String>, max_values: usize, max_sets: usize, buckets: Vec<Vec<f64>>) -> PyResult<Self> {
        let read_label = |name: String| match name.as_str() {
            "model" => Some(RequestLabel::Model),
            "config_name" => Some(RequestLabel::Config),
            "api_key_name" => Some(RequestLabel::Key),
            "workspace" => Some(RequestLabel::Workspace),
            other => other.strip_prefix("metadata_").map(|key| RequestLabel::Metadata(key.to_owned())),
        };
        let labels: Option<Vec<_>> = labels.into_iter().map(read_label).collect();
        let (Some(labels), Ok(buckets)) = (labels, <[Vec<f64>; HISTOGRAM_COUNT]>::try_from(buckets)) else {
            return Err(PyValueError::new_err("a label is not known, or a histogram is missing"));
        };
        let bounds = CountBounds { labels, max_values, max_sets, buckets };
        Ok(Self(Mutex::new(request_counts::RequestCounts::new(bounds))))
    }

    /// Counts records. Requests without a valid key (`is_refused`) have no optional labels.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 passes extracted arguments by value")]
    fn add_records(&self, py: Python<'_>, lines: Vec<PyBackedBytes>, is_refused: bool) {
        py.detach(|| {
            let mut counts = lock(&self.0);
            for line in &lines {
                counts.add(line, None, is_refused);
            }
        });
    }

    /// Counts usage that became known after its record was counted. Each line comes with its record.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 passes extracted arguments by value")]
    fn add_amendments(&self, py: Python<'_>, lines: Vec<(PyBackedBytes, PyBackedBytes)>) {
        py.detach(|| {
            let mut counts = lock(&self.0);
            for (line, original) in &lines {
                counts.add(line, Some(original), false);
            }
        });
    }

    /// Returns the counts of each label set.
    fn label_sets(&self, py: Python<'_>) -> Vec<LabelSetRow> {
        py.detach(|| lock(&self.0).sets().iter().map(to_row).collect())
    }

    /// Returns the verdicts of guardrails and of checks.
    fn verdicts(&self, py: Python<'_>) -> (Vec<VerdictRow>, Vec<VerdictRow>) {
        py.detach(|| {
            let counts = lock(&self.0);
            let rows = |verdicts: &request_counts::Verdicts| {
                verdicts.iter().map(|((id, verdict), count)| (id.clone(), *verdict, *count)).collect()
            };
            (rows(&counts.verdicts().guardrails), rows(&counts.verdicts().checks))
        })
    }

    /// Number of different label sets.
    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| lock(&self.0).sets().len())
    }

    /// Number of label values that were counted under the label `other`, because there were too many values or label
    /// sets.
    #[getter]
    fn overflow_count(&self, py: Python<'_>) -> u64 {
        py.detach(|| lock(&self.0).overflow_count())
    }

    /// Number of lines that are no records.
    #[getter]
    fn invalid_count(&self, py: Python<'_>) -> u64 {
        py.detach(|| lock(&self.0).invalid_count())
    }
}

fn to_row(set: &LabelSetCounts) -> LabelSetRow {
    let histograms = set.histograms.iter().map(|histogram| {
        let histogram = histogram.as_ref()?;
        Some((histogram.counts.clone(), histogram.total))
    });
    (set.labels.clone(), set.requests, set.tokens, set.nanodollars, histograms.collect())
}

/// Locks counts. After a panic they are used as they are. Call it only without the interpreter lock, because another
/// thread may hold these counts for a while, and nothing else in Python could run meanwhile.
fn lock<T>(counts: &Mutex<T>) -> MutexGuard<'_, T> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
