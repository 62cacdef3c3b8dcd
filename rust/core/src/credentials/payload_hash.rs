//! Digest and length of a request body, as request signatures need them.

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;

use crate::error::{Error, Result};

/// Bodies up to this size are digested inline, which takes far less than a millisecond.
const MAX_INLINE_DIGEST_BYTES: usize = 128 * 1024;

/// Length and SHA-256 digest of a body.
#[derive(Debug)]
pub struct PayloadDigest {
    pub length: usize,
    pub digest: [u8; 32],
}

impl PayloadDigest {
    pub fn compute(body: &[u8]) -> Self {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest(&SHA256, body).as_ref());
        Self { length: body.len(), digest: sha256 }
    }

    /// Computes the digest; a large body is digested on a blocking thread, because it would stall other requests here.
    pub async fn compute_async(body: &Bytes) -> Result<Self> {
        if body.len() <= MAX_INLINE_DIGEST_BYTES {
            return Ok(Self::compute(body));
        }
        let body = body.clone();
        // Joining fails only during shutdown: digesting neither panics nor is cancelled.
        tokio::task::spawn_blocking(move || Self::compute(&body)).await.map_err(|_| Error::Draining)
    }

    /// Returns the digest in hexadecimal, as AWS signatures expect it.
    pub fn to_hex(&self) -> String {
        format!("{:x}", Bytes::copy_from_slice(&self.digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of FIPS 180-4: the empty message, and a million times "a".
    #[tokio::test]
    async fn digests_small_and_large_bodies_as_published() {
        let empty = PayloadDigest::compute_async(&Bytes::new()).await.unwrap();
        assert_eq!(empty.to_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let million = PayloadDigest::compute_async(&Bytes::from(vec![b'a'; 1_000_000])).await.unwrap();
        assert_eq!(million.to_hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        assert_eq!((empty.length, million.length), (0, 1_000_000));
    }
}
