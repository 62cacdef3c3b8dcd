//! Map bounded in bytes. Evicts entries that were not used recently.

use std::{collections::HashMap, hash::Hash, mem};

/// Cache with two generations: entries added or read since the last rotation, and those from before. A rotation drops
/// the older generation.
#[derive(Debug)]
pub struct BoundedCache<K, V> {
    recent: HashMap<K, (V, usize)>,
    previous: HashMap<K, (V, usize)>,
    recent_bytes: usize,
    /// Maximum bytes of each of the two maps. An entry that `recent` has no space for makes it `previous`.
    max_generation_bytes: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> BoundedCache<K, V> {
    /// Creates a cache of about this many bytes in total.
    pub fn new(capacity: usize) -> Self {
        Self { recent: HashMap::new(), previous: HashMap::new(), recent_bytes: 0, max_generation_bytes: capacity / 2 }
    }

    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some((value, _)) = self.recent.get(key) {
            return Some(value.clone());
        }
        let (value, bytes) = self.previous.remove(key)?;
        self.put(key.clone(), value.clone(), bytes);
        Some(value)
    }

    /// Stores an entry, unless it is larger than a generation.
    pub fn put(&mut self, key: K, value: V, bytes: usize) {
        if bytes > self.max_generation_bytes {
            return;
        }
        self.remove(&key);
        if self.recent_bytes + bytes > self.max_generation_bytes {
            self.previous = mem::take(&mut self.recent);
            self.recent_bytes = 0;
        }
        self.recent_bytes += bytes;
        self.recent.insert(key, (value, bytes));
    }

    pub fn remove(&mut self, key: &K) {
        if let Some((_, bytes)) = self.recent.remove(key) {
            self.recent_bytes -= bytes;
        }
        self.previous.remove(key);
    }

    pub fn len(&self) -> usize {
        self.recent.len() + self.previous.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retains_used_entries_and_evicts_others() {
        let mut map = BoundedCache::new(100);
        map.put(0, "kept", 10);
        for key in 1..1000 {
            map.put(key, "new", 10);
            assert_eq!(map.get(&0), Some("kept"));
            assert!(map.len() <= 10, "{}", map.len());
        }
        assert_eq!((map.get(&1), map.get(&999)), (None, Some("new")));
    }

    #[test]
    fn rejects_oversized_entries_and_counts_replaced_ones_once() {
        let mut map = BoundedCache::new(100);
        map.put(1, "large", 51);
        assert!(map.is_empty());
        for _ in 0..100 {
            map.put(1, "same", 40);
        }
        assert_eq!((map.len(), map.recent_bytes), (1, 40));
        map.remove(&1);
        assert_eq!((map.len(), map.recent_bytes), (0, 0));
    }
}
