//! Stack of the containers that a scanner is in.

/// Stack of open containers: one bit each, set for an object.
pub(super) struct ContainerStack {
    bits: u128,
    pub(super) depth: u32,
}

impl ContainerStack {
    /// Starts within a container of the given depth, whose kind does not matter.
    pub(super) fn at_depth(depth: u32) -> Self {
        Self { bits: 0, depth }
    }

    #[inline]
    pub(super) fn push(&mut self, object: bool) {
        self.bits = (self.bits << 1) | u128::from(object);
        self.depth += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.bits >>= 1;
        self.depth -= 1;
    }

    #[inline]
    pub(super) fn in_object(&self) -> bool {
        self.bits & 1 == 1
    }
}
