//! What is answered instead of what was asked for.

use crate::{
    protocol::{Command, HeaderError, ResponseCode, json::JsonError},
    store::{AppendError, RefusalKind},
};

/// A response code other than success, with a remark for the one who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) remark: String,
}

/// The response to a request, or why there is none.
pub(crate) type Answer = Result<Command, Failure>;

impl Failure {
    pub(crate) fn new(code: i32, remark: impl Into<String>) -> Self {
        Self { code, remark: remark.into() }
    }

    /// The response that says so.
    pub(crate) fn into_command(self) -> Command {
        Command::response(self.code).with_remark(self.remark)
    }
}

impl From<HeaderError> for Failure {
    fn from(error: HeaderError) -> Self {
        Self::new(ResponseCode::SYSTEM_ERROR, error.to_string())
    }
}

impl From<JsonError> for Failure {
    fn from(error: JsonError) -> Self {
        Self::new(ResponseCode::SYSTEM_ERROR, format!("cannot read the body: {error}"))
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        let code = match &error {
            AppendError::Refused(refusal) => match refusal.kind {
                RefusalKind::Illegal => ResponseCode::MESSAGE_ILLEGAL,
                RefusalKind::NotPermitted => ResponseCode::NO_PERMISSION,
                RefusalKind::NotSupported => ResponseCode::SYSTEM_ERROR,
            },
            AppendError::Record(_) | AppendError::BodyTooLarge { .. } | AppendError::BatchTooLarge { .. } => {
                ResponseCode::MESSAGE_ILLEGAL
            }
            AppendError::Io(_) => ResponseCode::SYSTEM_ERROR,
            AppendError::DiskFull { .. } | AppendError::Closed | AppendError::Failed { .. } => {
                ResponseCode::SERVICE_NOT_AVAILABLE
            }
        };
        Self::new(code, error.to_string())
    }
}

/// An empty response of success.
pub(crate) fn success() -> Command {
    Command::response(ResponseCode::SUCCESS)
}
