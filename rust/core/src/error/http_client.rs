//! Conversion between errors of the HTTP client crate and those of the gateway.

use std::sync::Arc;

use penstock_net::{Error as NetError, SettingError};

use crate::error::{Error, Problem};

impl From<NetError> for Error {
    fn from(error: NetError) -> Self {
        match error {
            NetError::HostNotAllowed { message } => Self::CustomHostInvalid { message },
            NetError::ConnectTimeout { host, step } => Self::ConnectTimeout { host, step },
            NetError::ConnectFailed { host, cause } => Self::ConnectFailed { host, cause },
            NetError::SocketUnavailable => Self::ControlUnavailable,
            NetError::HeadInvalid { name, message } => Self::HeaderInvalid { name, message },
            NetError::ResponseBroken { cause } => Self::UpstreamResponseBroken { cause },
            NetError::Timeout { milliseconds } => Self::Timeout { milliseconds },
            NetError::IdleTimeout { milliseconds } => Self::IdleTimeout { milliseconds },
            NetError::BodyTooLarge { limit } => Self::BodyTooLarge { limit },
            NetError::BodyTimeout { setting, value } => Self::BodyTimeout { setting, value },
            NetError::InvalidFraming => Self::InvalidFraming,
            NetError::IncompleteBody => Self::IncompleteBody,
            NetError::MemoryExhausted => Self::MemoryExhausted,
            NetError::ShuttingDown => Self::Draining,
            // Callbacks of the gateway fail only with the `Error` of this crate.
            NetError::Application(error) => error.downcast_ref::<Self>().cloned().unwrap_or(Self::Panicked),
        }
    }
}

/// Converts errors of callbacks that the HTTP client runs. The conversion back to `Error` restores them.
impl From<Error> for NetError {
    fn from(error: Error) -> Self {
        Self::Application(Arc::new(error))
    }
}

impl From<SettingError> for Problem {
    fn from(error: SettingError) -> Self {
        Self::new(format!("$.{}", error.setting), error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_http_client_keep_their_codes() {
        let host = || "a.example".to_owned();
        for (error, status, code) in [
            (NetError::HostNotAllowed { message: host() }, 400, "invalid_custom_host"),
            (NetError::ConnectTimeout { host: host(), step: "proxy" }, 503, "upstream_connect_timeout"),
            (NetError::ConnectFailed { host: host(), cause: host() }, 502, "upstream_connect_failed"),
            (NetError::SocketUnavailable, 503, "management_unavailable"),
            (NetError::HeadInvalid { name: "path", message: host() }, 400, "invalid_header"),
            (NetError::ResponseBroken { cause: host() }, 502, "upstream_disconnected"),
            (NetError::Timeout { milliseconds: 1 }, 408, "timeout"),
            (NetError::IdleTimeout { milliseconds: 1 }, 408, "idle_timeout"),
            (NetError::BodyTooLarge { limit: 1 }, 413, "body_too_large"),
            (NetError::BodyTimeout { setting: "body_rate", value: 1 }, 408, "body_timeout"),
            (NetError::InvalidFraming, 400, "invalid_framing"),
            (NetError::IncompleteBody, 400, "incomplete_body"),
            (NetError::MemoryExhausted, 503, "memory_exhausted"),
            (NetError::ShuttingDown, 503, "draining"),
            (Error::ModelNotAllowed { model: host(), field: host() }.into(), 403, "model_not_allowed"),
        ] {
            let error = Error::from(error);
            assert_eq!((error.status(), error.code()), (status, code), "{error}");
        }
    }
}
