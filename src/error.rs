//! Failures: what is no answer. A caller who meets one asks again with the same key.
//!
//! The other way an operation can end without value moving is a refusal; that is an answer and lives with the operation.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The cause of a failure. It goes to the log, never to a client.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why there is no answer.
///
/// Its `Display` text is what a client may read: nothing of SQL, hosts or tables. The cause is in `Debug`.
#[derive(Clone)]
pub enum Failure {
    /// The request carries no token, and what it asks for needs one.
    Unauthenticated,
    /// The caller may not do this, or the operation is switched off.
    Forbidden,
    /// An argument has a value that its type allows and the field does not, such as `first: 1000`.
    BadInput(String),
    /// Another request with the same idempotency key is at work at this moment.
    KeyInUse,
    /// Something that is needed is away or too slow; certainly nothing was done.
    Unavailable(Cause),
    /// It is not known whether the work was committed. The same key will tell.
    OutcomeUnknown(Cause),
    /// A failure of ours; certainly nothing was done.
    Internal(Cause),
}

impl Failure {
    /// A failure of ours, described in words.
    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal(cause(what))
    }

    /// Something needed is away, described in words.
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable(cause(what))
    }

    /// The outcome is unknown, described in words.
    pub fn unknown(what: impl Into<String>) -> Self {
        Self::OutcomeUnknown(cause(what))
    }

    /// What the log may know of it and the client may not.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Unavailable(cause) | Self::OutcomeUnknown(cause) | Self::Internal(cause) => Some(cause),
            Self::Unauthenticated | Self::Forbidden | Self::BadInput(_) | Self::KeyInUse => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unauthenticated => "Sign in first: send a bearer token.",
            Self::Forbidden => "Not allowed.",
            Self::BadInput(message) => message,
            Self::KeyInUse => "A request with this idempotency key is at work; ask again shortly.",
            Self::Unavailable(_) => "Not available at this moment; ask again.",
            Self::OutcomeUnknown(_) => {
                "It is not known whether this was done. Ask again with the same key: the answer will tell."
            }
            Self::Internal(_) => "Something went wrong on our side.",
        })
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause() {
            Some(cause) => write!(f, "{self} ({cause:?})"),
            None => write!(f, "{self}"),
        }
    }
}

impl std::error::Error for Failure {}

fn cause(what: impl Into<String>) -> Cause {
    Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(what.into()))
}

/// The moment after which no statement, retry or COMMIT of a request may start.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline so far from now.
    pub fn within(time: std::time::Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// Whether it lies behind.
    pub fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }

    /// The instant itself.
    pub fn instant(self) -> Instant {
        self.0
    }
}
