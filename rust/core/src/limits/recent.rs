//! Amounts of past requests, from which the amount of the next one is estimated.

const COUNT: usize = 16;

#[derive(Debug, Default)]
pub struct RecentAmounts {
    amounts: [u64; COUNT],
    count: usize,
}

impl RecentAmounts {
    pub fn push(&mut self, amount: u64) {
        if amount > 0 {
            self.amounts[self.count % COUNT] = amount;
            self.count += 1;
        }
    }

    /// Returns the largest amount; `None` if there is none.
    pub fn largest(&self) -> Option<u64> {
        self.amounts[..self.count.min(COUNT)].iter().max().copied()
    }
}
