//! Decompression of gzip bodies while they arrive. The gateway must also read responses that a provider compresses
//! although the request did not allow it.

use std::{io, mem, sync::Arc};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use penstock_net::Error;

/// Maximum bytes to which one chunk may expand. A chunk that expands further is an attack.
const MAX_EXPANDED_BYTES: usize = 4 * 1024 * 1024;

/// Output of the decompression of one chunk.
#[derive(Default)]
struct BoundedOutput(Vec<u8>);

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_EXPANDED_BYTES {
            return Err(io::Error::other("a compressed chunk of the response expands too far"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a transform that decompresses a body. Fails if the body is not gzip or is cut off.
pub fn gunzip_chunks() -> impl FnMut(Option<Bytes>) -> Result<Bytes, Error> + Send + 'static {
    let mut decoder = MultiGzDecoder::new(BoundedOutput::default());
    let mut is_begun = false;
    move |chunk| {
        let written = match &chunk {
            Some(bytes) => {
                is_begun |= !bytes.is_empty();
                io::Write::write_all(&mut decoder, bytes).and_then(|()| io::Write::flush(&mut decoder))
            }
            None if is_begun => decoder.try_finish(),
            None => Ok(()),
        };
        written.map_err(|error| Error::Application(Arc::new(error)))?;
        Ok(mem::take(&mut decoder.get_mut().0).into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn gunzip(compressed: &[u8], step: usize) -> Result<Vec<u8>, Error> {
        let mut transform = gunzip_chunks();
        let mut out = Vec::new();
        for chunk in compressed.chunks(step) {
            out.extend(transform(Some(Bytes::copy_from_slice(chunk)))?);
        }
        out.extend(transform(None)?);
        Ok(out)
    }

    #[test]
    fn decompresses_at_any_cut() {
        let compressed = [gzip(b"data: one\n\n"), gzip(b"data: two\n\n")].concat();
        for step in 1..=compressed.len() {
            assert_eq!(gunzip(&compressed, step).unwrap(), b"data: one\n\ndata: two\n\n", "{step}");
        }
        assert_eq!(gunzip(b"", 1).unwrap(), b"");
    }

    #[test]
    fn fails_at_other_data_truncation_and_expansion() {
        assert!(gunzip(b"no gzip at all", 4).is_err());
        let compressed = gzip(b"data: one\n\n");
        assert!(gunzip(&compressed[..compressed.len() - 3], 7).is_err());
        assert!(gunzip(&gzip(&vec![0; 2 * MAX_EXPANDED_BYTES]), 65_536).is_err());
    }
}
