//! A map that is bounded in bytes: what nobody asked for lately goes first.

use std::{collections::HashMap, hash::Hash, mem};

/// Two generations: what is new and what was asked for since the last change of generations, and what was there before.
#[derive(Debug)]
pub struct Generations<K, V> {
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    bytes: usize,
    /// Of each generation.
    most: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Generations<K, V> {
    /// For about so many bytes in all.
    pub fn new(most: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), bytes: 0, most: most / 2 }
    }

    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some((value, _)) = self.young.get(key) {
            return Some(value.clone());
        }
        let (value, bytes) = self.old.remove(key)?;
        self.put(key.clone(), value.clone(), bytes);
        Some(value)
    }

    /// What is larger than a generation is not kept.
    pub fn put(&mut self, key: K, value: V, bytes: usize) {
        if bytes > self.most {
            return;
        }
        self.remove(&key);
        if self.bytes + bytes > self.most {
            self.old = mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.young.insert(key, (value, bytes));
    }

    pub fn remove(&mut self, key: &K) {
        if let Some((_, bytes)) = self.young.remove(key) {
            self.bytes -= bytes;
        }
        self.old.remove(key);
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_all_else_goes_in_time() {
        let mut map = Generations::new(100);
        map.put(0, "kept", 10);
        for key in 1..1000 {
            map.put(key, "new", 10);
            assert_eq!(map.get(&0), Some("kept"));
            assert!(map.len() <= 10, "{}", map.len());
        }
        assert_eq!((map.get(&1), map.get(&999)), (None, Some("new")));
    }

    #[test]
    fn what_is_too_large_is_not_kept_and_what_is_replaced_is_counted_once() {
        let mut map = Generations::new(100);
        map.put(1, "large", 51);
        assert!(map.is_empty());
        for _ in 0..100 {
            map.put(1, "same", 40);
        }
        assert_eq!((map.len(), map.bytes), (1, 40));
        map.remove(&1);
        assert_eq!((map.len(), map.bytes), (0, 0));
    }
}
