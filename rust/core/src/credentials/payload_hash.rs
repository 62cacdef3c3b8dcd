//! What a signature says of the body that goes with a head.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;

use crate::error::{Error, Result};

/// Digests of bodies up to this size take far less than a millisecond.
const MAX_INLINE_DIGEST_BYTES: usize = 128 * 1024;

/// Length and SHA-256 of a body.
#[derive(Debug)]
pub struct PayloadDigest {
    pub length: usize,
    pub digest: [u8; 32],
}

impl PayloadDigest {
    pub fn compute(body: &[u8]) -> Self {
        let mut taken = [0; 32];
        taken.copy_from_slice(digest(&SHA256, body).as_ref());
        Self { length: body.len(), digest: taken }
    }

    /// The same; a large body is read elsewhere: here others wait.
    pub async fn compute_async(body: &Bytes) -> Result<Self> {
        if body.len() <= MAX_INLINE_DIGEST_BYTES {
            return Ok(Self::compute(body));
        }
        let body = body.clone();
        // Reading neither panics nor is cancelled, unless the process ends.
        tokio::task::spawn_blocking(move || Self::compute(&body)).await.map_err(|_| Error::Draining)
    }

    /// The digest as signatures of Amazon's say it.
    pub fn to_hex(&self) -> String {
        format!("{:x}", Bytes::copy_from_slice(&self.digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-4's own examples: the empty message, and a million times "a".
    #[tokio::test]
    async fn digests_small_and_large_bodies_as_published() {
        let empty = PayloadDigest::compute_async(&Bytes::new()).await.unwrap();
        assert_eq!(empty.to_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let million = PayloadDigest::compute_async(&Bytes::from(vec![b'a'; 1_000_000])).await.unwrap();
        assert_eq!(million.to_hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        assert_eq!((empty.length, million.length), (0, 1_000_000));
    }
}
