//! Positions of values behind keys, for searches that do not parse the JSON around them.

/// Returns the offset and the first byte of the value that follows a key; `None` if there is no colon.
pub(crate) fn value_start(json: &[u8], key_end: usize) -> Option<(usize, u8)> {
    let mut colon = false;
    for (offset, &byte) in json.get(key_end..)?.iter().enumerate() {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b':' if !colon => colon = true,
            _ => return colon.then_some((key_end + offset, byte)),
        }
    }
    None
}
