//! The error of a statement on a database of clients' objects. Knows no table.

use headrace_objects::ObjectError;

use crate::sqlite::{FormatError, is_full};

/// A failed statement. The transaction is then rolled back.
pub(crate) struct StatementError(ObjectError);

impl From<sqlx::Error> for StatementError {
    fn from(error: sqlx::Error) -> Self {
        let why = error.to_string();
        Self(if is_full(&error) { ObjectError::DiskFull { why } } else { ObjectError::Unavailable { why } })
    }
}

impl From<FormatError> for StatementError {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Sqlite(error) => error.into(),
            FormatError::DiskFull { why } => Self(ObjectError::DiskFull { why }),
            other => Self(ObjectError::Unavailable { why: other.to_string() }),
        }
    }
}

impl From<ObjectError> for StatementError {
    fn from(error: ObjectError) -> Self {
        Self(error)
    }
}

impl From<StatementError> for ObjectError {
    fn from(looked: StatementError) -> Self {
        looked.0
    }
}
