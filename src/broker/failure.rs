//! What is answered instead of what was asked for.

use serde::de::DeserializeOwned;

use crate::{
    protocol::{
        Command, HeaderError, ResponseCode,
        json::{self, JsonError},
    },
    store::{AppendError, RefusalKind},
};

/// A response code other than success, with a remark for the one who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) remark: String,
}

/// Longest JSON body of a request. What is read from one is kept as long as its client is there.
pub(crate) const JSON_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest name that a client may give itself.
pub(crate) const CLIENT_ID_BYTES_MAX: usize = 1024;

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

/// The JSON body of a request.
///
/// # Errors
/// Code 1: it is too long, or not what it should be.
pub(crate) fn read_json<T: DeserializeOwned>(request: &Command) -> Result<T, Failure> {
    let bytes = request.body.len();
    if bytes > JSON_BODY_BYTES_MAX {
        let remark = format!("the body has {bytes} bytes, more than {JSON_BODY_BYTES_MAX}");
        return Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark));
    }
    Ok(json::from_slice(&request.body.to_bytes())?)
}

/// Refuses a client that names itself too long.
///
/// # Errors
/// Code 1.
pub(crate) fn check_client_id(client_id: &str) -> Result<(), Failure> {
    if client_id.len() <= CLIENT_ID_BYTES_MAX {
        return Ok(());
    }
    let remark = format!("the client id has {} bytes, more than {CLIENT_ID_BYTES_MAX}", client_id.len());
    Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark))
}

/// An empty response of success.
pub(crate) fn success() -> Command {
    Command::response(ResponseCode::SUCCESS)
}
