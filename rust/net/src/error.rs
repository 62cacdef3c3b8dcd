//! Errors of the client: of connecting, of a response, and of a request body.

use std::{fmt, sync::Arc};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone)]
pub enum Error {
    /// A host, its port or its address may not be called.
    HostNotAllowed {
        message: String,
    },
    /// A step of connecting took too long.
    ConnectTimeout {
        host: String,
        step: &'static str,
    },
    ConnectFailed {
        host: String,
        cause: String,
    },
    /// No process accepts connections at a Unix socket.
    SocketUnavailable,
    /// A request head contains what HTTP/2 cannot carry.
    HeadInvalid {
        name: &'static str,
        message: String,
    },
    /// The response is not valid HTTP, or the connection closed before its end.
    ResponseBroken {
        cause: String,
    },
    /// The response took longer than its total limit.
    Timeout {
        milliseconds: u64,
    },
    /// The response was silent for too long.
    IdleTimeout {
        milliseconds: u64,
    },
    BodyTooLarge {
        limit: usize,
    },
    /// The request body arrived too slowly: the name and the value of the limit.
    BodyTimeout {
        setting: &'static str,
        value: u64,
    },
    /// The framing of the request body is invalid, or contradicts its declared length.
    InvalidFraming,
    /// The request body ended before its declared length.
    IncompleteBody,
    /// The memory budget has no room for the request body.
    MemoryExhausted,
    /// The runtime is shutting down.
    ShuttingDown,
    /// A callback of the application failed: a guard or transform of a body, or the request for a deferred body.
    Application(Arc<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostNotAllowed { message } => formatter.write_str(message),
            Self::ConnectTimeout { host, step } => {
                write!(formatter, "timed out connecting to {host}: its {step} took too long")
            }
            Self::ConnectFailed { host, cause } => write!(formatter, "no connection to {host}: {cause}"),
            Self::SocketUnavailable => formatter.write_str("the socket is unavailable"),
            Self::HeadInvalid { name, message } => write!(formatter, "invalid {name}: {message}"),
            Self::ResponseBroken { cause } => write!(formatter, "the provider's response broke off: {cause}"),
            Self::Timeout { milliseconds } => write!(formatter, "request exceeded the timeout of {milliseconds} ms"),
            Self::IdleTimeout { milliseconds } => {
                write!(formatter, "the provider's response broke off: no data for {milliseconds} ms")
            }
            Self::BodyTooLarge { limit } => write!(formatter, "request body is larger than {limit} bytes"),
            Self::BodyTimeout { setting, value } => {
                write!(formatter, "request body arrived too slowly: {setting} is {value}")
            }
            Self::InvalidFraming => formatter.write_str("request body framing is not valid HTTP/1.1"),
            Self::IncompleteBody => formatter.write_str("request body ended before it was complete"),
            Self::MemoryExhausted => formatter.write_str("not enough memory for the request body"),
            Self::ShuttingDown => formatter.write_str("the process is shutting down"),
            Self::Application(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for Error {}

/// A setting that the client cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError {
    pub setting: &'static str,
    pub message: String,
}

impl SettingError {
    pub(crate) fn new(setting: &'static str, message: impl Into<String>) -> Self {
        Self { setting, message: message.into() }
    }
}
