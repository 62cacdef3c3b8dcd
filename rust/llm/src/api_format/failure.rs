//! Errors to report in the client's API format.

/// Error to report in the client's API format.
#[derive(Debug, Clone, Copy)]
pub struct Failure<'a> {
    pub status: u16,
    /// Error type in the API format; `None` derives it from the status.
    pub error_type: Option<&'a str>,
    pub message: &'a str,
    pub code: Option<&'a str>,
    pub request_id: Option<&'a str>,
}
