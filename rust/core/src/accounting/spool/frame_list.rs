//! Frames of a part of a segment, for a reader that follows a spool while it is written.

use std::{collections::HashMap, sync::LazyLock};

use memchr::memmem::Finder;

use super::frame::{
    BODY_KINDS, EXTERNAL_LOG_KIND, FRAME_HEADER_BYTES, Frame, FrameKind, FrameReader, HeaderFault, read_payload_length,
};

/// Frames of a buffer, and why the reader stopped.
#[derive(Debug, PartialEq, Eq)]
pub struct FrameList<'d> {
    pub frames: Vec<ListedFrame<'d>>,
    /// Offset behind the last frame that was read.
    pub end: usize,
    /// True if the frame at `end` is damaged; false if it is incomplete or beyond the limit.
    pub is_damaged: bool,
    /// Length of the frame at `end`, or that of a header if its header is incomplete. It is 0 if the header is damaged,
    /// or if the limit was reached.
    pub needed: usize,
}

/// A frame of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedFrame<'d> {
    /// Offset of the frame in the buffer.
    pub start: usize,
    pub frame: Frame<'d>,
    /// True for an `End` frame whose `Begin` frame is in the buffer, with no body between them. The `Begin` frame is then
    /// left out of the list, because the `End` frame contains all its fields.
    pub is_whole: bool,
}

impl ListedFrame<'_> {
    /// Returns true for a record that only has to be stored. Its request began in the buffer, and it has no bodies, no
    /// flags and no feedback of guardrails.
    pub fn is_plain(&self) -> bool {
        static FEEDBACK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"feedback\":{\""));
        let frame = &self.frame;
        self.is_whole
            && frame.kind == FrameKind::End as u8
            && frame.flags == 0
            && FEEDBACK.find(frame.payload).is_none()
    }
}

/// Reads frames from the start of a buffer, until `limit` of them are in the list.
pub fn list_frames(data: &[u8], limit: usize) -> FrameList<'_> {
    let mut reader = FrameReader::new(data, 0);
    let mut slots: Vec<Option<ListedFrame<'_>>> = Vec::new();
    // Position in `slots` of the `Begin` frame of each request that has no body frame so far.
    let mut beginnings = HashMap::new();
    let mut count = 0;
    while count < limit {
        let start = reader.offset();
        let Some(frame) = reader.next() else {
            let (is_damaged, needed) = describe_rest(&data[start..]);
            return FrameList { frames: slots.into_iter().flatten().collect(), end: start, is_damaged, needed };
        };
        let mut is_whole = false;
        if frame.kind == FrameKind::Begin as u8 {
            beginnings.insert(frame.id, slots.len());
        } else if BODY_KINDS.contains(&frame.kind) {
            beginnings.remove(&frame.id);
        } else if let Some(slot) = (frame.kind == FrameKind::End as u8 || frame.kind == EXTERNAL_LOG_KIND)
            .then(|| beginnings.remove(&frame.id))
            .flatten()
        {
            slots[slot] = None;
            count -= 1;
            is_whole = true;
        }
        slots.push(Some(ListedFrame { start, frame, is_whole }));
        count += 1;
    }
    FrameList { frames: slots.into_iter().flatten().collect(), end: reader.offset(), is_damaged: false, needed: 0 }
}

/// Describes the incomplete or damaged frame at the start of `rest`: returns true if it is damaged, and the number of
/// bytes that are needed to read it (`FrameList::needed`).
pub fn describe_rest(rest: &[u8]) -> (bool, usize) {
    match read_payload_length(rest) {
        Err(HeaderFault::Incomplete) => (false, FRAME_HEADER_BYTES),
        Err(HeaderFault::Damaged) => (true, 0),
        Ok(length) => (rest.len() >= FRAME_HEADER_BYTES + length, FRAME_HEADER_BYTES + length),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::accounting::spool::frame::FrameBatch;

    const BEGIN: u8 = FrameKind::Begin as u8;
    const END: u8 = FrameKind::End as u8;

    fn encode(frames: &[(FrameKind, u128)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, id) in frames {
            let mut encoded = Vec::new();
            FrameBatch::new(Uuid::from_u128(*id), &mut encoded, true).add_json(*kind, 0, |out| out.extend(b"{}"));
            all.extend(encoded);
        }
        all
    }

    fn kinds(list: &FrameList<'_>) -> Vec<(u8, u128)> {
        list.frames.iter().map(|listed| (listed.frame.kind, listed.frame.id.as_u128())).collect()
    }

    #[test]
    fn beginning_of_a_finished_request_without_bodies_is_left_out() {
        use FrameKind::{Amend, Begin, ClientRequest, End};
        let data = encode(&[(Begin, 1), (Begin, 2), (ClientRequest, 2), (End, 1), (End, 2), (Begin, 3), (Amend, 3)]);
        let list = list_frames(&data, 100);
        let expected =
            [(BEGIN, 2), (ClientRequest as u8, 2), (END, 1), (END, 2), (BEGIN, 3), (Amend as u8, 3)].to_vec();
        assert_eq!(kinds(&list), expected);
        assert_eq!((list.end, list.is_damaged, list.needed), (data.len(), false, FRAME_HEADER_BYTES));
        let positions = list.frames.iter().map(|listed| (listed.start / 30, listed.is_whole)).collect::<Vec<_>>();
        assert_eq!(positions, [(1, false), (2, false), (3, true), (4, false), (5, false), (6, false)]);
    }

    #[test]
    fn plain_records_have_no_flags_bodies_or_feedback() {
        use FrameKind::{Begin, ClientRequest, End};
        let record = |id: u128, kinds: &[FrameKind], flags: u8, json: &str| {
            let mut all = Vec::new();
            for kind in kinds {
                let mut encoded = Vec::new();
                let mut batch = FrameBatch::new(Uuid::from_u128(id), &mut encoded, true);
                batch.add_json(*kind, flags, |out| out.extend(json.as_bytes()));
                all.extend(encoded);
            }
            all
        };
        let data = [
            record(1, &[Begin, End], 0, "{}"),
            record(2, &[End], 0, "{}"),
            record(3, &[Begin, ClientRequest, End], 0, "{}"),
            record(4, &[Begin, End], 8, "{}"),
            record(5, &[Begin, End], 0, r#"{"feedback":{"value":1}}"#),
        ];
        let data = data.concat();
        let list = list_frames(&data, 100);
        let plain = list.frames.iter().filter(|listed| listed.is_plain());
        assert_eq!(plain.map(|listed| listed.frame.id.as_u128()).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn limit_counts_the_frames_of_the_list() {
        use FrameKind::{Begin, End};
        let data = encode(&[(Begin, 1), (End, 1), (Begin, 2), (End, 2), (End, 3)]);
        for (limit, expected) in [
            (0, vec![]),
            (1, vec![(BEGIN, 1)]),
            (2, vec![(END, 1), (BEGIN, 2)]),
            (3, vec![(END, 1), (END, 2), (END, 3)]),
        ] {
            let list = list_frames(&data, limit);
            assert_eq!(kinds(&list), expected, "{limit}");
            assert!(!list.is_damaged);
        }
    }

    #[test]
    fn torn_frame_is_incomplete_and_says_what_it_needs() {
        let data = encode(&[(FrameKind::End, 1), (FrameKind::End, 2)]);
        let half = data.len() / 2;
        for length in half..data.len() {
            let list = list_frames(&data[..length], 100);
            let needed = if length < half + FRAME_HEADER_BYTES { FRAME_HEADER_BYTES } else { half };
            assert_eq!((list.frames.len(), list.end, list.is_damaged, list.needed), (1, half, false, needed));
        }
    }

    #[test]
    fn changed_byte_is_damage() {
        let data = encode(&[(FrameKind::End, 1)]);
        for at in 0..data.len() {
            let mut changed = data.clone();
            changed[at] ^= 0x80;
            let list = list_frames(&changed, 100);
            assert_eq!((list.frames.len(), list.end), (0, 0), "{at}");
            // If the length is damaged, the frame may seem incomplete instead.
            assert!(list.is_damaged || at < 4, "{at}");
        }
    }
}
