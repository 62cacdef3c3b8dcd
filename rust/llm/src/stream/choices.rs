//! Which choices of a chat have said why they ended: one whose others are still talking is not over.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::sse;
use crate::{
    json::scan::{for_each_element_from, for_each_field},
    usage::value_start,
};

static FINISH_REASON_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"finish_reason\""));
static INDEX_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"index\""));

/// A bit for each choice, by its index; there are 128 at most.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChoiceTracker {
    seen_choices: u128,
    finished_choices: u128,
}

impl ChoiceTracker {
    /// Whether there were choices, and each of them has ended.
    pub(crate) fn have_all_finished(self) -> bool {
        self.finished_choices != 0 && self.seen_choices & !self.finished_choices == 0
    }

    /// Takes whole events. Nearly all streams have one choice: theirs are not parsed.
    pub(crate) fn read_events(&mut self, events: &[u8]) {
        let mut is_one = self.seen_choices <= 1;
        for at in INDEX_KEY.find_iter(events) {
            match value_start(events, at + 7) {
                Some((_, b'0')) => self.seen_choices |= 1,
                // It may be that of a tool's call.
                Some((_, b'1'..=b'9')) => is_one = false,
                _ => (),
            }
        }
        if is_one {
            self.finished_choices |= u128::from(has_finish_reason(events));
            return;
        }
        for data in sse::split_events(events).filter_map(sse::event_data) {
            // Of a broken one counts what stands before the fault.
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

/// Whether an event says why the choice ended. Some say something after that.
fn has_finish_reason(events: &[u8]) -> bool {
    FINISH_REASON_KEY.find_iter(events).any(|at| matches!(value_start(events, at + 15), Some((_, b'"'))))
}
