//! One operation on a socket.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_graphql::parser::types::OperationType;
use async_graphql::{Response as Answer, ServerError};
use axum::extract::ws::Message;
use futures_util::{FutureExt, StreamExt};
use serde::Serialize;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::boundary::{self, coded, failure_error};
use crate::api::caller::Caller;
use crate::api::code::Code;
use crate::api::document;
use crate::api::http::Front;
use crate::api::measure::{self, Subscribed};
use crate::api::over_http::{Written, execute, was_executed};
use crate::api::work::Request;
use crate::error::{Deadline, Failure};

/// The operations that run on a socket, by the client's id.
pub(super) struct Running {
    most: usize,
    operations: Mutex<HashMap<String, Place>>,
}

/// An operation's place among them. A client may use its id again as soon as it has ended: so a place is its own.
#[derive(Clone)]
pub(super) struct Place {
    own: Uuid,
    cancelled: CancellationToken,
}

/// An operation of this id is running already.
pub(super) struct Duplicate;

impl Running {
    pub(super) fn new(most: usize) -> Self {
        Self { most, operations: Mutex::default() }
    }

    /// Finds a place; None where too many operations are running.
    pub(super) fn begin(&self, id: &str) -> Result<Option<Place>, Duplicate> {
        let mut operations = self.lock();
        if operations.contains_key(id) {
            return Err(Duplicate);
        }
        if operations.len() >= self.most {
            return Ok(None);
        }
        let place = Place { own: Uuid::new_v4(), cancelled: CancellationToken::new() };
        operations.insert(id.to_owned(), place.clone());
        Ok(Some(place))
    }

    pub(super) fn cancel(&self, id: &str) {
        if let Some(place) = self.lock().remove(id) {
            place.cancelled.cancel();
        }
    }

    /// Gives the place back; false where the client has done so before, and wants to hear no more.
    fn end(&self, id: &str, place: &Place) -> bool {
        let mut operations = self.lock();
        let own = operations.get(id).is_some_and(|running| running.own == place.own);
        if own {
            operations.remove(id);
        }
        own
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Place>> {
        // No code panics between two states while it holds the lock.
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation, before and while it runs.
pub(super) struct Operation {
    front: Arc<Front>,
    out: Sender<Message>,
    running: Arc<Running>,
    id: String,
    request_id: String,
}

/// A message to the client.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Sent<'a> {
    Next { id: &'a str, payload: Written<'a> },
    Error { id: &'a str, payload: &'a [ServerError] },
    Complete { id: &'a str },
}

impl Operation {
    pub(super) fn new(front: Arc<Front>, out: Sender<Message>, running: Arc<Running>, id: String) -> Self {
        Self { front, out, running, id, request_id: Uuid::now_v7().simple().to_string() }
    }

    /// There is no place for it.
    pub(super) async fn refuse(&self) {
        let message = "Too many operations run on this connection; complete one before the next.";
        let errors = self.not_executed(coded(ServerError::new(message, None), Code::BadRequest));
        self.send(&Sent::Error { id: &self.id, payload: &errors }).await;
    }

    fn not_executed(&self, error: ServerError) -> Vec<ServerError> {
        let mut answer = Answer::from_errors(vec![error]);
        boundary::present(&mut answer, &self.request_id);
        answer.errors
    }

    /// Runs to its end, or until the client wants no more of it.
    pub(super) async fn run(self, place: Place, caller: Caller, graphql: async_graphql::Request) {
        let executing = AssertUnwindSafe(self.execute(caller, graphql)).catch_unwind();
        let ended = tokio::select! {
            () = place.cancelled.cancelled() => return,
            ended = executing => ended,
        };
        let errors = ended.unwrap_or_else(|_| {
            let failure = Failure::internal("an operation panicked");
            Err(vec![failure_error(&failure, Vec::new(), &self.request_id)])
        });
        if self.running.end(&self.id, &place) {
            match &errors {
                Ok(()) => self.send(&Sent::Complete { id: &self.id }).await,
                Err(errors) => self.send(&Sent::Error { id: &self.id, payload: errors }).await,
            }
        }
    }

    /// Sends what there is to see. Errors of a request that was not executed are given back.
    async fn execute(&self, caller: Caller, mut graphql: async_graphql::Request) -> Result<(), Vec<ServerError>> {
        let (front, settings) = (&self.front, self.front.settings());
        let deadline = Deadline::within(settings.deadline());
        let request = Request::new(self.request_id.clone(), caller, deadline, front.works.clone());
        let kind = document::operation_type(&mut graphql, &front.persisted, &settings.limits);
        if kind.map_err(|error| self.not_executed(error))? != Some(OperationType::Subscription) {
            let _place = front.requests.try_acquire().map_err(|_| {
                let failure = Failure::unavailable("too many requests at once");
                vec![failure_error(&failure, Vec::new(), &self.request_id)]
            })?;
            return self.next(execute(front, graphql, request).await).await;
        }
        let mut subscribed = Subscribed::begin(document::subscribed_field(&mut graphql).as_deref());
        let mut answers = front.schema.execute_stream(graphql.data(request));
        while let Some(mut answer) = answers.next().await {
            subscribed.answered(&answer);
            boundary::present(&mut answer, &self.request_id);
            self.next(answer).await?;
        }
        Ok(())
    }

    async fn next(&self, answer: Answer) -> Result<(), Vec<ServerError>> {
        if !was_executed(&answer) {
            return Err(answer.errors);
        }
        let payload = Written { data: Some(&answer.data), errors: &answer.errors };
        self.send(&Sent::Next { id: &self.id, payload }).await;
        Ok(())
    }

    async fn send(&self, message: &Sent<'_>) {
        if let Sent::Next { payload: Written { errors, .. }, .. } | Sent::Error { payload: errors, .. } = message {
            measure::errors(errors);
        }
        match serde_json::to_string(message) {
            // If there is nobody to take it, the socket ends, and this operation with it.
            Ok(text) => drop(self.out.send(Message::Text(text.into())).await),
            Err(error) => tracing::error!(%error, request_id = self.request_id, "an answer could not be written"),
        }
    }
}
