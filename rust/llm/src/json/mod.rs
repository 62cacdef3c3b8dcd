//! JSON in bytes: scanning, editing and splitting without building a tree.

pub mod edit;
pub(crate) mod lines;
pub(crate) mod peek;
pub(crate) mod scan;
