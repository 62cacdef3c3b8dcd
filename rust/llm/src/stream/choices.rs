//! Tracks which choices of a chat stream have a finish reason. A stream with several choices is complete only when all
//! of them have one.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::sse;
use crate::json::{
    keys::value_start,
    scan::{for_each_element_from, for_each_field},
};

static FINISH_REASON_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"finish_reason\""));
static INDEX_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"index\""));

/// One bit per choice, by its index; at most 128 choices.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChoiceTracker {
    seen_choices: u128,
    finished_choices: u128,
}

impl ChoiceTracker {
    /// Returns true if at least one choice has finished and none is unfinished.
    pub(crate) fn have_all_finished(self) -> bool {
        self.finished_choices != 0 && self.seen_choices & !self.finished_choices == 0
    }

    /// Reads complete events. Nearly all streams have one choice, and their events are searched but not parsed.
    pub(crate) fn read_events(&mut self, events: &[u8]) {
        let mut is_one = self.seen_choices <= 1;
        for at in INDEX_KEY.find_iter(events) {
            match value_start(events, at + 7) {
                Some((_, b'0')) => self.seen_choices |= 1,
                // The index may belong to a tool call.
                Some((_, b'1'..=b'9')) => is_one = false,
                _ => (),
            }
        }
        if is_one {
            self.finished_choices |= u128::from(has_finish_reason(events));
            return;
        }
        for data in sse::split_events(events).filter_map(sse::event_data) {
            // If the JSON is invalid, the fields before the error count.
            let _ = for_each_field(&data, |key, at| {
                if key == b"choices" && data[at.start] == b'[' {
                    for_each_element_from(&data, at.start, |choice| {
                        self.read_choice(&data[choice]);
                        Ok(())
                    })?;
                }
                Ok(())
            });
        }
    }

    fn read_choice(&mut self, choice: &[u8]) {
        let (mut index, mut is_over) = (0, false);
        let read = for_each_field(choice, |key, at| {
            let value = &choice[at];
            match key {
                b"index" => index = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0),
                b"finish_reason" => is_over = value.starts_with(b"\""),
                _ => (),
            }
            Ok(())
        });
        if let (Ok(()), Some(bit)) = (read, 1_u128.checked_shl(index)) {
            self.seen_choices |= bit;
            self.finished_choices |= if is_over { bit } else { 0 };
        }
    }
}

/// Returns true if an event has a finish reason. Some providers send more events after it.
fn has_finish_reason(events: &[u8]) -> bool {
    FINISH_REASON_KEY.find_iter(events).any(|at| matches!(value_start(events, at + 15), Some((_, b'"'))))
}
