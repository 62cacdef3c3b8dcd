//! Collects complete request bodies in memory, within a shared memory budget.

use bytes::Bytes;

use super::Body;
use crate::{
    error::{Error, Result},
    memory_budget::{BudgetedBytes, MemoryBudget, MemoryPermit},
};

/// Bodies up to this size are not charged to the memory budget; most are smaller. A larger body is charged as its bytes
/// arrive, not by its declared length.
pub const MAX_UNCHARGED_BYTES: usize = 256 * 1024;
/// Bytes from which a body of declared length gets a buffer of that length. Moving more bytes would delay other requests.
const MAX_MOVED_BYTES: usize = 1024 * 1024;
/// Maximum size of a buffer that is reserved before the bytes arrive. Only its used part needs memory.
const MAX_RESERVED_BYTES: usize = 256 * 1024 * 1024;

impl Body {
    /// Charges the body to the memory budget: now if it is complete, otherwise when it is collected.
    pub fn with_memory_budget(mut self, budget: &MemoryBudget) -> Result<Self> {
        match &mut self {
            Self::Complete(bytes) if bytes.len() > MAX_UNCHARGED_BYTES => {
                let mut share = budget.new_permit();
                if !share.try_reserve(bytes.len()) {
                    return Err(Error::MemoryExhausted);
                }
                *bytes = Bytes::from_owner(BudgetedBytes { bytes: std::mem::take(bytes), permit: share });
            }
            Self::Complete(_) => (),
            Self::Streamed(feed, _) => feed.memory_permit = Some(budget.new_permit()),
        }
        Ok(self)
    }

    /// Reads the body to its end. Dropping the last reference to the returned bytes releases the memory permit.
    pub async fn collect(self) -> Result<Bytes> {
        let (bytes, share) = self.collect_with_permit().await?;
        Ok(match share {
            Some(share) => Bytes::from_owner(BudgetedBytes { bytes, permit: share }),
            None => bytes,
        })
    }

    /// Reads the body to its end. Returns its memory permit separately, so that the caller decides when to release it.
    pub async fn collect_with_permit(self) -> Result<(Bytes, Option<MemoryPermit>)> {
        let (mut feed, length) = match self {
            Self::Complete(bytes) => return Ok((bytes, None)),
            Self::Streamed(feed, length) => (feed, length),
        };
        let declared = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
        let first = if length.is_some() { declared.min(MAX_UNCHARGED_BYTES) } else { MAX_UNCHARGED_BYTES };
        let mut gathered = BodyCollector {
            bytes: Vec::with_capacity(first),
            declared_length: declared,
            charged_capacity: MAX_UNCHARGED_BYTES,
            memory_permit: feed.memory_permit.take(),
        };
        while let Some(chunk) = feed.next().await {
            gathered.append(&chunk?)?;
        }
        Ok(gathered.finish())
    }
}

struct BodyCollector {
    bytes: Vec<u8>,
    declared_length: usize,
    /// Bytes that need no further charge: they are already charged, or few enough to be free.
    charged_capacity: usize,
    memory_permit: Option<MemoryPermit>,
}

impl BodyCollector {
    fn append(&mut self, chunk: &[u8]) -> Result<()> {
        let needed = self.bytes.len() + chunk.len();
        if needed > self.charged_capacity {
            let next = self.next_capacity(self.charged_capacity, needed);
            if self.memory_permit.as_mut().is_some_and(|share| !share.try_reserve(next - self.charged_capacity)) {
                return Err(Error::MemoryExhausted);
            }
            self.charged_capacity = next;
        }
        if needed > self.bytes.capacity() {
            let mut next = self.next_capacity(self.bytes.capacity(), needed);
            if next > MAX_MOVED_BYTES && self.declared_length >= needed {
                next = self.declared_length.min(MAX_RESERVED_BYTES).max(needed);
            }
            self.bytes.reserve_exact(next - self.bytes.len());
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// Doubles a capacity so that the bytes are seldom moved, but not beyond the declared length.
    fn next_capacity(&self, capacity: usize, needed: usize) -> usize {
        let doubled = capacity * 2;
        if self.declared_length >= needed { doubled.min(self.declared_length) } else { doubled }.max(needed)
    }

    fn finish(self) -> (Bytes, Option<MemoryPermit>) {
        (self.bytes.into(), self.memory_permit.filter(|_| self.charged_capacity > MAX_UNCHARGED_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{BodyEnd, feed_channel};

    const CHUNK_BYTES: usize = 100 * 1024;

    /// Collects a body of `chunk_count` chunks with this declared length against the memory budget.
    async fn collect_chunks(budget: &MemoryBudget, chunk_count: usize, declared: Option<u64>) -> Result<Bytes> {
        let (feeder, feed) = feed_channel(|| ());
        for _ in 0..chunk_count {
            feeder.push(vec![7; CHUNK_BYTES].into());
        }
        feeder.finish(BodyEnd::Complete);
        Body::Streamed(feed, declared).with_memory_budget(budget)?.collect().await
    }

    #[tokio::test]
    async fn small_bodies_are_not_charged_and_large_ones_release_memory_with_their_last_byte() {
        let budget = MemoryBudget::new(3 * MAX_UNCHARGED_BYTES, usize::MAX);
        assert_eq!((collect_chunks(&budget, 2, None).await.unwrap().len(), budget.used_bytes()), (2 * CHUNK_BYTES, 0));
        let length = 4 * CHUNK_BYTES;
        let chunk = collect_chunks(&budget, 4, Some(length as u64)).await.unwrap();
        assert_eq!((chunk.len(), budget.used_bytes()), (length, length - MAX_UNCHARGED_BYTES));
        let large = Body::Complete(vec![7; 2 * MAX_UNCHARGED_BYTES].into()).with_memory_budget(&budget).unwrap();
        assert_eq!(budget.used_bytes(), length + MAX_UNCHARGED_BYTES);
        assert!(matches!(collect_chunks(&budget, 20, None).await, Err(Error::MemoryExhausted)));
        assert!(matches!(
            Body::Complete(vec![7; 2 * MAX_UNCHARGED_BYTES].into()).with_memory_budget(&budget),
            Err(Error::MemoryExhausted)
        ));
        let part = chunk.slice(1..2);
        drop((chunk, large));
        assert_eq!((&part[..], budget.used_bytes()), (&[7][..], length - MAX_UNCHARGED_BYTES));
        drop(part);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn large_bodies_of_declared_length_are_not_moved() {
        let declared = 20 * 1024 * 1024;
        let charged_capacity = MAX_UNCHARGED_BYTES;
        let mut body =
            BodyCollector { bytes: Vec::new(), declared_length: declared, charged_capacity, memory_permit: None };
        let (mut moves_of_large, chunk) = (0, vec![7; CHUNK_BYTES]);
        while body.bytes.len() < declared {
            let (length, before) = (body.bytes.len(), body.bytes.as_ptr());
            body.append(&chunk[..CHUNK_BYTES.min(declared - length)]).unwrap();
            moves_of_large += usize::from(length > MAX_MOVED_BYTES && body.bytes.as_ptr() != before);
        }
        assert_eq!((moves_of_large, body.bytes.capacity()), (0, declared));
    }

    #[tokio::test]
    async fn declared_length_alone_is_not_charged() {
        let budget = MemoryBudget::new(MAX_UNCHARGED_BYTES, usize::MAX);
        let bytes = collect_chunks(&budget, 1, Some(u64::MAX)).await.unwrap();
        assert_eq!((bytes.len(), budget.used_bytes()), (CHUNK_BYTES, 0));
        let (feeder, feed) = feed_channel(|| ());
        let body = Body::Streamed(feed, None).with_memory_budget(&budget).unwrap();
        let (borrowed, recovery) = body.make_recoverable();
        drop(borrowed);
        for _ in 0..8 {
            feeder.push(vec![7; CHUNK_BYTES].into());
        }
        let back = recovery.unwrap().recover().unwrap();
        assert!(matches!(back.collect().await, Err(Error::MemoryExhausted)));
        assert_eq!(budget.used_bytes(), 0);
    }
}
