//! Just enough gzip: members made of stored blocks, so that each piece of a stream is a block of its own.

const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
const LARGEST_BLOCK: usize = 65_535;

/// The header of a member.
pub fn opening() -> &'static [u8] {
    &HEADER
}

/// `data` as stored blocks, which may stand at any place of the member.
pub fn blocks(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 5);
    for part in data.chunks(LARGEST_BLOCK) {
        out.push(0);
        out.extend_from_slice(&(part.len() as u16).to_le_bytes());
        out.extend_from_slice(&(!(part.len() as u16)).to_le_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// The end of a member that holds `whole`.
pub fn closing(whole: &[u8]) -> Vec<u8> {
    let mut out = vec![1, 0, 0, 0xff, 0xff];
    out.extend_from_slice(&crc32(whole).to_le_bytes());
    out.extend_from_slice(&(whole.len() as u32).to_le_bytes());
    out
}

pub fn member(data: &[u8]) -> Vec<u8> {
    [opening(), &blocks(data), &closing(data)].concat()
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn large_data_takes_several_blocks() {
        assert_eq!(member(&vec![7; 70_000]).len(), 10 + 5 + 65_535 + 5 + 4_465 + 5 + 8);
    }
}
