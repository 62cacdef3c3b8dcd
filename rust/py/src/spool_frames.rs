//! Frames of the spool, for its readers in Python.

use penstock_core::accounting::spool::frame_list::{ListedFrame, list_frames};
use pyo3::{prelude::*, types::PyBytes};

/// Frame of a spool segment, as Python gets it: kind, flags, record id, payload, and its offset in the segment.
type SpoolFrame<'py> = (u8, u8, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);
/// Plain records, as Python gets them: their ids in one string of bytes, and their lines.
type PlainRecords<'py> = (Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>);

/// Decodes at most `limit` frames of a buffer that begins at the offset `base` of its segment. Returns the frames, the
/// offset behind the last one, whether the next one is damaged, and its length if known. Leaves out the frame that
/// begins a request if the frame that ends it follows without bodies in between.
#[pyfunction]
pub fn decode_spool_frames<'py>(
    py: Python<'py>,
    data: &[u8],
    base: usize,
    limit: usize,
) -> (Vec<SpoolFrame<'py>>, usize, bool, usize) {
    let list = py.detach(|| list_frames(data, limit));
    let frames = list.frames.iter().map(|listed| to_python(py, base, listed)).collect();
    (frames, base + list.end, list.is_damaged, list.needed)
}

/// Decodes frames as `decode_spool_frames` does, and returns plain records apart from the frames. Leaves out plain
/// records before the offset `done` of the segment.
#[pyfunction]
pub fn split_spool_frames<'py>(
    py: Python<'py>,
    data: &[u8],
    base: usize,
    limit: usize,
    done: usize,
) -> (PlainRecords<'py>, Vec<SpoolFrame<'py>>, usize, bool, usize) {
    let list = py.detach(|| list_frames(data, limit));
    let (mut ids, mut lines, mut frames) = (Vec::new(), Vec::with_capacity(list.frames.len()), Vec::new());
    for listed in &list.frames {
        if !listed.is_plain() {
            frames.push(to_python(py, base, listed));
        } else if base + listed.start >= done {
            ids.extend_from_slice(listed.frame.id.as_bytes());
            lines.push(PyBytes::new(py, listed.frame.payload));
        }
    }
    ((PyBytes::new(py, &ids), lines), frames, base + list.end, list.is_damaged, list.needed)
}

fn to_python<'py>(py: Python<'py>, base: usize, listed: &ListedFrame<'_>) -> SpoolFrame<'py> {
    let frame = &listed.frame;
    let (id, payload) = (PyBytes::new(py, frame.id.as_bytes()), PyBytes::new(py, frame.payload));
    (frame.kind, frame.flags, id, payload, base + listed.start)
}
