//! Usage of budgets, summed from the frames of a spool. The usage ledger adds the sums to the store, so it needs no
//! Python code for each record.

use std::{borrow::Cow, collections::HashMap};

use memchr::memmem::Finder;
use penstock_llm::json::object::read_object;
use serde::Deserialize;
use uuid::Uuid;

use super::spool::{
    frame::{EXTERNAL_LOG_KIND, FLAG_AMENDMENT_FOLLOWS, Frame, FrameKind, FrameReader},
    frame_list::describe_rest,
};

/// Bytes that a record contains only if it counts for budgets.
const BUDGETS_MARK: &[u8] = b"\"budgets\":[{";
/// Maximum number of entries of `BudgetSums::known_lists`.
const MAX_KNOWN_LISTS: usize = 4096;

/// Identifies a sum: a budget, one of its groups, and one of its periods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BudgetKey {
    pub limit_id: String,
    pub group: String,
    /// Start of the period, in milliseconds since the Unix epoch.
    pub period_start: i64,
    /// Quantity that the budget limits: `cost`, `tokens` or `requests`.
    pub measure: String,
}

/// Sum of the usage of one budget, group and period.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct BudgetUsage {
    pub requests: i64,
    pub tokens: i64,
    pub nanodollars: i64,
    /// Part of `nanodollars` that comes from corrections of costs.
    pub corrected: i64,
}

/// Sums of the usage by budget, group and period.
pub struct BudgetSums {
    budget_finder: Finder<'static>,
    sums: Vec<(BudgetKey, BudgetUsage)>,
    positions: HashMap<BudgetKey, usize>,
    /// Parsed budgets, by the JSON of a record's `limits`. Most requests of a caller have the same JSON.
    known_lists: HashMap<Box<[u8]>, Vec<SummedBudget>>,
}

/// Budget for which a record counts.
#[derive(Clone, Copy)]
struct SummedBudget {
    /// Position in `sums`.
    position: usize,
    is_failed_attempt: bool,
    discarded: Option<DiscardedAmount>,
}

/// Amount of responses that a request did not use, and that its record does not contain otherwise.
#[derive(Clone, Copy)]
enum DiscardedAmount {
    Tokens(i64),
    Nanodollars(i64),
}

/// The field `limits` of a record.
#[derive(Deserialize)]
struct RecordLimits<'j> {
    #[serde(borrow, default)]
    budgets: Vec<RecordBudget<'j>>,
}

#[derive(Deserialize)]
struct RecordBudget<'j> {
    #[serde(borrow)]
    id: Cow<'j, str>,
    #[serde(borrow)]
    group: Cow<'j, str>,
    period_start: i64,
    #[serde(borrow, rename = "type")]
    measure: Cow<'j, str>,
    #[serde(default)]
    is_failed_attempt: bool,
    /// Tokens or nano-dollars, by `measure`, of responses that the request did not use.
    #[serde(default)]
    amount: Option<i64>,
}

/// Fields of a record or an amendment that budgets need.
#[derive(Default)]
struct RecordUsage<'j> {
    limits: &'j [u8],
    tokens: i64,
    nanodollars: i64,
    /// Cost before a correction. Only amendments that correct a cost have it.
    corrected_from: Option<i64>,
}

/// Result of adding the frames of a buffer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AddedFrames<'d> {
    /// `Begin` frames of requests that did not end in the buffer.
    pub opened: Vec<Frame<'d>>,
    /// Requests that ended in the buffer but began before it.
    pub ended: Vec<Uuid>,
    /// Number of records and amendments, with or without budgets.
    pub count: usize,
    /// Offset behind the last frame that was read.
    pub end: usize,
    /// True if the frame at `end` is damaged; false if it is incomplete, or was not read
    /// because `limit` records were reached.
    pub is_damaged: bool,
    /// Number of bytes that the reader needs before it can go on, as in `FrameList::needed`.
    pub needed: usize,
}

impl Default for BudgetSums {
    fn default() -> Self {
        Self {
            budget_finder: Finder::new(BUDGETS_MARK),
            sums: Vec::new(),
            positions: HashMap::new(),
            known_lists: HashMap::new(),
        }
    }
}

impl BudgetSums {
    /// Returns all sums, and removes them.
    pub fn take(&mut self) -> Vec<(BudgetKey, BudgetUsage)> {
        self.positions.clear();
        self.known_lists.clear();
        std::mem::take(&mut self.sums)
    }

    /// Reads frames from the start of a buffer, and adds up to `limit` records and amendments. An earlier call has
    /// already added the frames that begin before the offset `done`, so they are only counted.
    pub fn add_frames<'d>(&mut self, data: &'d [u8], limit: usize, done: usize) -> AddedFrames<'d> {
        let mut reader = FrameReader::new(data, 0);
        let mut added = AddedFrames::default();
        // `Begin` frames of the requests whose `End` frame was not read yet.
        let mut opened = HashMap::new();
        while added.count < limit {
            let start = reader.offset();
            let Some(frame) = reader.next() else {
                (added.is_damaged, added.needed) = describe_rest(&data[start..]);
                break;
            };
            let is_end = frame.kind == FrameKind::End as u8;
            if frame.kind == FrameKind::Begin as u8 {
                opened.insert(frame.id, frame);
            } else if (is_end || frame.kind == EXTERNAL_LOG_KIND) && opened.remove(&frame.id).is_none() {
                added.ended.push(frame.id);
            }
            if is_end || frame.kind == FrameKind::Amend as u8 {
                added.count += 1;
                if start >= done {
                    self.add_record(frame.payload, frame.flags, !is_end);
                }
            }
        }
        added.opened = opened.into_values().collect();
        added.end = reader.offset();
        added
    }

    /// Adds a record, or an amendment with usage or a corrected cost. Ignores JSON that is no record.
    pub fn add_record(&mut self, json: &[u8], flags: u8, is_amendment: bool) {
        if self.budget_finder.find(json).is_none() {
            return;
        }
        let Some(record) = read_usage(json) else { return };
        let Some(uses) = self.find_uses(record.limits) else { return };
        let is_complete = flags & FLAG_AMENDMENT_FOLLOWS == 0;
        for budget in &uses {
            let sum = &mut self.sums[budget.position].1;
            if let Some(discarded) = budget.discarded {
                // An amendment repeats what the record has already added.
                match discarded {
                    _ if is_amendment => (),
                    DiscardedAmount::Tokens(amount) => add(&mut sum.tokens, amount),
                    DiscardedAmount::Nanodollars(amount) => add(&mut sum.nanodollars, amount),
                }
                continue;
            }
            add(&mut sum.requests, i64::from(!is_amendment));
            if let Some(before) = record.corrected_from {
                // The record has already added the tokens.
                let difference = record.nanodollars.saturating_sub(before);
                add(&mut sum.nanodollars, difference);
                add(&mut sum.corrected, difference);
            } else if is_complete && !budget.is_failed_attempt {
                add(&mut sum.tokens, record.tokens);
                add(&mut sum.nanodollars, record.nanodollars);
            }
        }
    }

    /// Returns the budgets in the JSON of `limits`. `None` if the JSON does not have the form of `RecordLimits`.
    fn find_uses(&mut self, limits: &[u8]) -> Option<Vec<SummedBudget>> {
        if let Some(known) = self.known_lists.get(limits) {
            return Some(known.clone());
        }
        let parsed: Option<RecordLimits<'_>> = serde_json::from_slice(limits).ok()?;
        let find = |budget: RecordBudget<'_>| {
            let is_failed_attempt = budget.is_failed_attempt;
            let discarded = budget.amount.map(|amount| match &*budget.measure {
                "tokens" => DiscardedAmount::Tokens(amount),
                _ => DiscardedAmount::Nanodollars(amount),
            });
            let key = BudgetKey {
                limit_id: budget.id.into_owned(),
                group: budget.group.into_owned(),
                period_start: budget.period_start,
                measure: budget.measure.into_owned(),
            };
            SummedBudget { position: self.find_sum(key), is_failed_attempt, discarded }
        };
        let uses: Vec<_> = parsed?.budgets.into_iter().map(find).collect();
        if self.known_lists.len() >= MAX_KNOWN_LISTS {
            self.known_lists.clear();
        }
        self.known_lists.insert(limits.into(), uses.clone());
        Some(uses)
    }

    fn find_sum(&mut self, key: BudgetKey) -> usize {
        if let Some(position) = self.positions.get(&key) {
            return *position;
        }
        self.sums.push((key.clone(), BudgetUsage::default()));
        self.positions.insert(key, self.sums.len() - 1);
        self.sums.len() - 1
    }
}

fn add(sum: &mut i64, amount: i64) {
    *sum = sum.saturating_add(amount);
}

/// Parses the fields of a record or an amendment. Returns `None` if the JSON is not an object, or if a number has
/// another type.
fn read_usage(json: &[u8]) -> Option<RecordUsage<'_>> {
    let mut usage = RecordUsage::default();
    let mut is_valid = true;
    let mut read_integer = |value: &[u8]| -> i64 {
        let number: Result<Option<i64>, _> = serde_json::from_slice(value);
        is_valid &= number.is_ok();
        number.ok().flatten().unwrap_or_default()
    };
    read_object(json, |key, value| match key {
        b"limits" => usage.limits = value,
        b"total_units" => usage.tokens = read_integer(value),
        b"cost_nanodollars" => usage.nanodollars = read_integer(value),
        b"previous_cost_nanodollars" => usage.corrected_from = Some(read_integer(value)),
        _ => {}
    })
    .ok()?;
    is_valid.then_some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::spool::frame::{FRAME_HEADER_BYTES, FrameBatch};

    const NO_FLAGS: u8 = 0;

    fn encode(frames: &[(FrameKind, u128, u8, String)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, id, flags, payload) in frames {
            let mut encoded = Vec::new();
            let mut batch = FrameBatch::new(Uuid::from_u128(*id), &mut encoded, true);
            batch.add_json(*kind, *flags, |out| out.extend_from_slice(payload.as_bytes()));
            all.extend(encoded);
        }
        all
    }

    fn record(tokens: i64, budgets: &str) -> String {
        format!(r#"{{"a":"b","total_units":{tokens},"cost_nanodollars":3,"limits":{{"budgets":[{budgets}]}}}}"#)
    }

    fn budget(id: &str, more: &str) -> String {
        format!(r#"{{"id":"{id}","group":"a\"\u00e9","period_start":5,"type":"tokens"{more}}}"#)
    }

    fn take_by_id(sums: &mut BudgetSums) -> Vec<(String, [i64; 4])> {
        let row = |(key, sum): (BudgetKey, BudgetUsage)| {
            assert_eq!((&*key.group, key.period_start, &*key.measure), ("a\"é", 5, "tokens"));
            (key.limit_id, [sum.requests, sum.tokens, sum.nanodollars, sum.corrected])
        };
        sums.take().into_iter().map(row).collect()
    }

    #[test]
    fn sums_records_amendments_and_corrections() {
        use FrameKind::{Amend, End};
        let two = [budget("x", ""), budget("y", r#","is_failed_attempt":true"#)].join(",");
        let correction = r#"{"cost_nanodollars":10,"previous_cost_nanodollars":3,"limits":{"budgets":["#;
        let data = encode(&[
            (End, 1, NO_FLAGS, record(10, &two)),
            (End, 2, FLAG_AMENDMENT_FOLLOWS, record(0, &budget("x", ""))),
            (Amend, 2, NO_FLAGS, record(7, &budget("x", ""))),
            (Amend, 1, NO_FLAGS, format!("{correction}{}]}}}}", budget("x", ""))),
            (End, 3, NO_FLAGS, r#"{"limits":{"budgets":[]},"total_units":5}"#.to_owned()),
            (End, 4, NO_FLAGS, record(1, &budget("z", "")).replace(":3,", ":\"3\",")),
            (End, 5, NO_FLAGS, record(1, r#"{"id":7}"#)),
            (End, 6, NO_FLAGS, record(1, &budget("x", ""))[1..].to_owned()),
        ]);
        let mut sums = BudgetSums::default();
        let added = sums.add_frames(&data, 100, 0);
        assert_eq!((added.count, added.end, added.is_damaged), (8, data.len(), false));
        let expected = [("x".to_owned(), [2, 17, 3 + 3 + 7, 7]), ("y".to_owned(), [1, 0, 0, 0])];
        assert_eq!(take_by_id(&mut sums), expected);
        sums.add_record(record(2, &two).as_bytes(), NO_FLAGS, false);
        assert_eq!(take_by_id(&mut sums), [("x".to_owned(), [1, 2, 3, 0]), ("y".to_owned(), [1, 0, 0, 0])]);
    }

    #[test]
    fn adds_amounts_of_responses_that_were_not_used_once() {
        let two = [budget("x", r#","is_failed_attempt":true,"amount":40"#), budget("x", "")].join(",");
        let correction =
            format!(r#"{{"cost_nanodollars":10,"previous_cost_nanodollars":3,"limits":{{"budgets":[{two}]}}}}"#);
        let mut sums = BudgetSums::default();
        sums.add_record(record(0, &two).as_bytes(), FLAG_AMENDMENT_FOLLOWS, false);
        sums.add_record(record(7, &two).as_bytes(), NO_FLAGS, true);
        sums.add_record(correction.as_bytes(), NO_FLAGS, true);
        assert_eq!(take_by_id(&mut sums), [("x".to_owned(), [1, 47, 3 + 7, 7])]);
    }

    #[test]
    fn any_split_of_a_segment_adds_each_record_once() {
        use FrameKind::{Amend, Begin, ClientRequest, End};
        let json = || record(1, &budget("x", ""));
        let kinds = [(Begin, 1), (Begin, 2), (ClientRequest, 2), (End, 1), (Amend, 9), (Begin, 3), (End, 2), (End, 8)];
        let data = encode(&kinds.map(|(kind, id)| (kind, id, NO_FLAGS, json())));
        for done in [0, 1, data.len() / 2, data.len()] {
            for (split, limit) in (0..data.len()).flat_map(|split| [(split, 1), (split, 100)]) {
                let (mut sums, mut open, mut at, mut count) = (BudgetSums::default(), Vec::new(), 0, 0);
                for stop in [split, data.len()] {
                    loop {
                        let added = sums.add_frames(&data[at..stop], limit, done.saturating_sub(at));
                        open.retain(|id| !added.ended.contains(id));
                        open.extend(added.opened.iter().map(|frame| frame.id));
                        (at, count) = (at + added.end, count + added.count);
                        if added.end == 0 {
                            assert!(!added.is_damaged && (stop == data.len() || added.needed >= FRAME_HEADER_BYTES));
                            break;
                        }
                    }
                }
                assert_eq!((at, count, &open[..]), (data.len(), 4, &[Uuid::from_u128(3)][..]), "{split}");
                let frame = data.len() / kinds.len();
                let added = [3, 4, 6, 7].iter().filter(|position| *position * frame >= done).count();
                let total: i64 = sums.take().iter().map(|(_, sum)| sum.tokens).sum();
                assert_eq!(usize::try_from(total), Ok(added), "{split} {done}");
            }
        }
    }
}
