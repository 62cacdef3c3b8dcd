//! Counters and histograms of requests by labels, for Prometheus. They are counted from record lines, so that the log
//! worker needs no Python code for each record. Python renders them.

mod metered_record;
mod verdicts;

use std::collections::{HashMap, HashSet};

pub use metered_record::HISTOGRAM_COUNT;
use metered_record::{LabelValues, MAX_LABEL_CHARS, MeteredRecord, OTHER};
use verdicts::count_verdicts;
pub use verdicts::{VerdictCounts, Verdicts};

/// Label that an operator may add to the labels of every series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestLabel {
    Model,
    Config,
    Key,
    Workspace,
    /// Value of a metadata key.
    Metadata(String),
}

/// Bounds of the number of series, and the optional labels.
#[derive(Debug)]
pub struct CountBounds {
    pub labels: Vec<RequestLabel>,
    /// Maximum number of values of a label.
    pub max_values: usize,
    /// Maximum number of label sets.
    pub max_sets: usize,
    /// Upper bounds of the buckets of each histogram, in ascending order.
    pub buckets: [Vec<f64>; HISTOGRAM_COUNT],
}

/// Counts of one histogram by bucket. The last bucket has the values above all bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    pub counts: Vec<u64>,
    pub total: f64,
}

/// Counters and histograms of all requests with the same labels.
#[derive(Debug, Default)]
pub struct LabelSetCounts {
    pub labels: Vec<String>,
    pub requests: u64,
    pub tokens: i64,
    pub nanodollars: i64,
    /// Histograms in the order of `CountBounds::buckets`; `None` for a histogram without values.
    pub histograms: [Option<Histogram>; HISTOGRAM_COUNT],
}

/// Counts of requests. The number of label sets is bounded.
#[derive(Debug)]
pub struct RequestCounts {
    bounds: CountBounds,
    sets: Vec<LabelSetCounts>,
    /// Position in `sets` by `LabelValues::as_bytes`.
    positions: HashMap<Box<[u8]>, usize>,
    /// Values of each label that have occurred so far.
    known_values: Vec<HashSet<String>>,
    verdicts: VerdictCounts,
    overflow_count: u64,
    invalid_count: u64,
    /// Labels of the current record. They are a field so that their memory is reused.
    current: LabelValues,
}

impl RequestCounts {
    pub fn new(bounds: CountBounds) -> Self {
        let verdicts = VerdictCounts::new(bounds.max_values);
        Self {
            bounds,
            sets: Vec::new(),
            positions: HashMap::new(),
            known_values: Vec::new(),
            verdicts,
            overflow_count: 0,
            invalid_count: 0,
            current: LabelValues::default(),
        }
    }

    /// Returns the counts of each label set, in the order in which they first occurred.
    pub fn sets(&self) -> &[LabelSetCounts] {
        &self.sets
    }

    pub fn verdicts(&self) -> &VerdictCounts {
        &self.verdicts
    }

    /// Returns the number of values that were counted as `other`.
    pub fn overflow_count(&self) -> u64 {
        self.overflow_count + self.verdicts.overflow_count()
    }

    /// Returns the number of lines that are no records.
    pub fn invalid_count(&self) -> u64 {
        self.invalid_count
    }

    /// Counts a record, or usage that became known after its record `original` was counted. The labels are those of the
    /// original. Requests without a valid key (`is_refused`) have no optional labels: their clients must not choose
    /// label values.
    pub fn add(&mut self, line: &[u8], original: Option<&[u8]>, is_refused: bool) {
        if self.try_add(line, original, is_refused).is_none() {
            self.invalid_count += 1;
        }
    }

    fn try_add(&mut self, line: &[u8], original: Option<&[u8]>, is_refused: bool) -> Option<()> {
        let record = MeteredRecord::read(line)?;
        let original = match original {
            Some(original) => Some(MeteredRecord::read(original)?),
            None => None,
        };
        let labelled = original.as_ref().unwrap_or(&record);
        self.current.clear();
        labelled.push_labels(&mut self.current);
        for label in &self.bounds.labels {
            if is_refused {
                self.current.push("");
            } else {
                labelled.push_optional(label, &mut self.current)?;
            }
        }
        let position = self.find_set();
        let set = &mut self.sets[position];
        if record.is_amendment {
            let tokens = record.tokens.saturating_sub(labelled.tokens);
            set.add_usage(tokens, record.nanodollars.saturating_sub(labelled.nanodollars));
        } else {
            set.add_request(&record, &self.bounds.buckets);
        }
        let before = original.filter(|_| record.is_amendment).and_then(|original| original.hook_results);
        if let Some(results) = record.hook_results {
            self.verdicts.add(&count_verdicts(results)?, &count_verdicts(before.unwrap_or_default())?);
        }
        Some(())
    }

    /// Returns the position of the counts for the current labels.
    fn find_set(&mut self) -> usize {
        if let Some(position) = self.positions.get(self.current.as_bytes()) {
            return *position;
        }
        let max_values = self.bounds.max_values;
        self.known_values.resize_with(self.current.values().count(), HashSet::new);
        let limit_value = |(value, known): (_, &HashSet<String>)| {
            if known.len() < max_values || known.contains(value) { value } else { OTHER }
        };
        let mut values: LabelValues = self.current.values().zip(&self.known_values).map(limit_value).collect();
        let mut position = self.positions.get(values.as_bytes()).copied();
        let is_full = position.is_none() && self.sets.len() >= self.bounds.max_sets;
        if is_full {
            values = self.current.values().map(|_| OTHER).collect();
            position = self.positions.get(values.as_bytes()).copied();
        }
        self.overflow_count += u64::from(values.as_bytes() != self.current.as_bytes());
        position.unwrap_or_else(|| self.add_set(&values, !is_full))
    }

    fn add_set(&mut self, values: &LabelValues, is_known: bool) -> usize {
        let labels: Vec<String> = values.values().map(str::to_owned).collect();
        if is_known {
            for (value, known) in labels.iter().zip(&mut self.known_values) {
                known.insert(value.clone());
            }
        }
        self.positions.insert(values.as_bytes().into(), self.sets.len());
        self.sets.push(LabelSetCounts { labels, ..LabelSetCounts::default() });
        self.sets.len() - 1
    }
}

impl LabelSetCounts {
    fn add_request(&mut self, record: &MeteredRecord<'_>, buckets: &[Vec<f64>; HISTOGRAM_COUNT]) {
        self.requests += 1;
        self.add_usage(record.tokens, record.nanodollars);
        for ((value, bounds), histogram) in record.measure_times().into_iter().zip(buckets).zip(&mut self.histograms) {
            let Some(value) = value else { continue };
            let histogram =
                histogram.get_or_insert_with(|| Histogram { counts: vec![0; bounds.len() + 1], total: 0.0 });
            histogram.counts[bounds.partition_point(|bound| *bound < value)] += 1;
            histogram.total += value;
        }
    }

    /// Counts usage. A correction to a smaller usage is ignored, because counters must not decrease.
    fn add_usage(&mut self, tokens: i64, nanodollars: i64) {
        self.tokens = self.tokens.saturating_add(tokens.max(0));
        self.nanodollars = self.nanodollars.saturating_add(nanodollars.max(0));
    }
}
