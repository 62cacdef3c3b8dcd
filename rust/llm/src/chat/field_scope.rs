//! Scope of a response field.

/// Part of the response that an extra field belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldScope {
    Response,
    Choice,
    Message,
    /// The text block before the field.
    Block,
}
