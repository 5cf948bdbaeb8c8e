//! Money work in a task of its own, and the outcome table.
//!
//! | outcome | stored as the key's answer | the lock |
//! |---|---|---|
//! | the request fails validation or coercion | no | never taken |
//! | done | yes | kept to its end |
//! | business refusal (`userErrors`) | yes | shortened, by token |
//! | replay; same key with other arguments | no | kept |
//! | `INVALID_INPUT`, FORBIDDEN, key in use at this moment, a failure that certainly rolled back | no | released, by token |
//! | unknown: deadline passed or client gone while the task runs, connection lost at COMMIT, panic | perhaps | kept |

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_graphql::{Context, QueryPathSegment};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::caller::{Caller, Role};
use super::measure::Ending;
use super::overload::Works;
use crate::cooldown::{Admission, Ended};
use crate::error::{Deadline, Failure};
use crate::ledger::once::Answer;
use crate::member::Member;
use crate::operations::ClaimRefused;
use crate::traces::span;

/// How long after the deadline a task that ended at it may still say how.
const TIME_TO_SAY_HOW: Duration = Duration::from_millis(250);

/// What one request carries through the schema.
pub(super) struct Request {
    /// Names the request in answers and in the log.
    pub(super) id: String,
    pub(super) caller: Caller,
    pub(super) deadline: Deadline,
    /// Money work is under way or done: whatever fails from here on, nobody may say that nothing was done.
    pub(super) work_began: Arc<AtomicBool>,
    /// Taken by the guard, by response key, until the work begins.
    admissions: Mutex<HashMap<String, Admission>>,
    /// Committed answers that the guard found beside the lock, by response key.
    answers: Mutex<HashMap<String, String>>,
    works: Works,
    /// How money work ended, by response key, where its resolver said so.
    endings: Mutex<HashMap<String, Ending>>,
}

impl Request {
    pub(super) fn new(id: String, caller: Caller, deadline: Deadline, works: Works) -> Self {
        let work_began = Arc::new(AtomicBool::new(false));
        let (admissions, answers, endings) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { id, caller, deadline, work_began, admissions, answers, works, endings }
    }

    /// The member who asks.
    pub(super) fn member(&self) -> Result<&Member, Failure> {
        self.caller.member().ok_or(Failure::Unauthenticated)
    }

    /// Whoever acts for the app: its back end, or an operator.
    pub(super) fn trusted(&self) -> Result<&Member, Failure> {
        let member = self.member()?;
        let trusted = self.caller.has(Role::Service) || self.caller.has(Role::Operator);
        if trusted { Ok(member) } else { Err(Failure::Forbidden) }
    }

    pub(super) fn admit(&self, response_key: &str, admission: Admission) {
        lock(&self.admissions).insert(response_key.to_owned(), admission);
    }

    /// Takes an admission out: the work's, or the guard's after a field that began no work.
    pub(super) fn take_admission(&self, response_key: &str) -> Option<Admission> {
        lock(&self.admissions).remove(response_key)
    }

    /// How a root field's work ended, if its resolver said so.
    pub(super) fn ending(&self, response_key: &str) -> Option<Ending> {
        lock(&self.endings).get(response_key).copied()
    }

    /// The field has its answer already, which the guard found beside the lock.
    pub(super) fn answer(&self, response_key: &str, outcome: String) {
        lock(&self.answers).insert(response_key.to_owned(), outcome);
    }

    fn take_answer(&self, response_key: &str) -> Option<String> {
        lock(&self.answers).remove(response_key)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the work of a root field in a task of its own, which ends the field's admission once it knows how the work ended.
/// A client that hangs up, or a deadline that passes, stops the waiting and not the work. Where the guard has found the
/// committed answer of the same wish, that is the answer, and no work begins.
pub(super) async fn perform<T: Outcome>(
    context: &Context<'_>,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let request = context.data_unchecked::<Request>();
    let key = response_key(context);
    if let Some(outcome) = key.and_then(|key| request.take_answer(key)) {
        let answer = T::read(&outcome).ok_or_else(|| Failure::internal("a stored outcome cannot be read"))?;
        note_ending(context, answer.ending());
        return Ok(answer);
    }
    let place = request.works.enter(request.deadline).await?;
    let attempt = key.and_then(|key| request.take_admission(key)).map(Admission::begin);
    request.work_began.store(true, Ordering::Relaxed);
    let done = async move {
        let result = work.await;
        drop(place);
        if let Some(attempt) = attempt {
            attempt.end(how_it_ended(&result)).await;
        }
        result
    };
    let task = request.works.tasks.spawn(done.instrument(span!("work")));
    let result = end_of(task, request.deadline).await;
    if let Ok(answer) = &result {
        note_ending(context, answer.ending());
    }
    result
}

/// Says how a root field's wish ended, for the metrics. A failure says so by itself.
pub(super) fn note_ending(context: &Context<'_>, ending: Ending) {
    if let Some(key) = response_key(context) {
        lock(&context.data_unchecked::<Request>().endings).insert(key.to_owned(), ending);
    }
}

/// Waits for work that is done in a task of its own, which nobody who stops waiting can stop.
pub(super) async fn end_of<T>(task: JoinHandle<Result<T, Failure>>, deadline: Deadline) -> Result<T, Failure> {
    match tokio::time::timeout_at((deadline.instant() + TIME_TO_SAY_HOW).into(), task).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(Failure::unknown(format!("the work ended without an answer: {panic}"))),
        Err(_) => Err(Failure::unknown("the deadline passed while the work was under way")),
    }
}

/// An answer, as far as the lock and the metrics are concerned.
pub(super) trait Outcome: Sized + Send + 'static {
    /// How the attempt ended, and with which answer for whoever repeats it in the window.
    fn ended(&self) -> Ended;

    /// How the wish ended, as its caller is told.
    fn ending(&self) -> Ending;

    /// Reads such an answer. None where it is none, or there can be none.
    fn read(_: &str) -> Option<Self> {
        None
    }
}

/// None where there was nothing to do it to.
impl<T: Outcome> Outcome for Option<T> {
    fn ended(&self) -> Ended {
        self.as_ref().map_or(Ended::Released, Outcome::ended)
    }

    fn ending(&self) -> Ending {
        self.as_ref().map_or(Ending::Refused, Outcome::ending)
    }
}

impl<R: Serialize + DeserializeOwned + Send + 'static> Outcome for Answer<R> {
    fn ended(&self) -> Ended {
        match self {
            Self::Refused { replayed: false, .. } => Ended::Shortened(self.written()),
            Self::Done { .. } | Self::Refused { replayed: true, .. } | Self::Mismatch => Ended::Kept(self.written()),
        }
    }

    fn read(outcome: &str) -> Option<Self> {
        Self::read(outcome)
    }

    fn ending(&self) -> Ending {
        match self {
            Self::Done { replayed: true, .. } | Self::Refused { replayed: true, .. } => Ending::Replayed,
            Self::Done { .. } => Ending::Done,
            Self::Refused { .. } => Ending::Refused,
            Self::Mismatch => Ending::Mismatch,
        }
    }
}

impl<T: Send + 'static> Outcome for Result<T, ClaimRefused> {
    fn ended(&self) -> Ended {
        if self.is_ok() { Ended::Kept(None) } else { Ended::Shortened(None) }
    }

    fn ending(&self) -> Ending {
        if self.is_ok() { Ending::Done } else { Ending::Refused }
    }
}

fn how_it_ended<T: Outcome>(result: &Result<T, Failure>) -> Ended {
    match result {
        Ok(answer) => answer.ended(),
        Err(Failure::OutcomeUnknown(_)) => Ended::Unknown,
        Err(
            Failure::Unauthenticated
            | Failure::Forbidden
            | Failure::BadInput(_)
            | Failure::KeyInUse
            | Failure::Unavailable(_)
            | Failure::Internal(_),
        ) => Ended::Released,
    }
}

/// The name under which a root field's result stands in the answer: its alias, or its name.
fn response_key<'a>(context: &'a Context<'_>) -> Option<&'a str> {
    match context.path_node.as_ref()?.segment {
        QueryPathSegment::Name(name) => Some(name),
        QueryPathSegment::Index(_) => None,
    }
}
