//! Memory budget shared by many requests. A request reserves bytes if enough are free, and releases them when it ends.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

#[derive(Debug, Clone)]
pub struct MemoryBudget {
    /// Bytes that all permits have reserved.
    reserved: Arc<AtomicUsize>,
    max_bytes: usize,
    /// Maximum number of bytes that one permit can reserve.
    max_permit_bytes: usize,
}

impl MemoryBudget {
    pub fn new(max_bytes: usize, max_permit_bytes: usize) -> Self {
        Self { reserved: Arc::default(), max_bytes, max_permit_bytes }
    }

    pub fn new_permit(&self) -> MemoryPermit {
        MemoryPermit { budget: self.clone(), reserved_bytes: 0 }
    }

    pub fn used_bytes(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }
}

/// Bytes that one request has reserved. Dropping it releases them.
#[derive(Debug)]
pub struct MemoryPermit {
    budget: MemoryBudget,
    reserved_bytes: usize,
}

impl MemoryPermit {
    /// Reserves more bytes. Returns false if that exceeds the limit of the permit or of the budget.
    pub fn try_reserve(&mut self, bytes: usize) -> bool {
        let used = self.budget.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.budget.max_bytes || self.reserved_bytes + bytes > self.budget.max_permit_bytes {
            self.budget.reserved.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.reserved_bytes += bytes;
        true
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.budget.reserved.fetch_sub(self.reserved_bytes, Ordering::Relaxed);
    }
}

/// Bytes together with the permit that accounts for them.
#[derive(Debug)]
pub struct BudgetedBytes<B = Vec<u8>> {
    pub bytes: B,
    pub permit: MemoryPermit,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for BudgetedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn enforces_both_limits_and_releases_bytes_on_drop() {
        let budget = MemoryBudget::new(10, 6);
        let (mut first, mut other) = (budget.new_permit(), budget.new_permit());
        assert!(first.try_reserve(6) && !first.try_reserve(1) && other.try_reserve(4) && !other.try_reserve(1));
        drop(first);
        assert!(other.try_reserve(2) && budget.used_bytes() == 6);
        let bytes = Bytes::from_owner(BudgetedBytes { bytes: b"abc".to_vec(), permit: other });
        let slice = bytes.slice(1..);
        drop(bytes);
        assert_eq!((&slice[..], budget.used_bytes()), (&b"bc"[..], 6));
        drop(slice);
        assert_eq!(budget.used_bytes(), 0);
    }
}
