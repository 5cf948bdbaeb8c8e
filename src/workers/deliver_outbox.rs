//! Sends events to their endpoints, each endpoint by itself: one that hangs delays no other.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use futures_util::future::join_all;
use rand::Rng;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::post_webhook::{Outcome, Sender};
use crate::config::{ConfigError, EndpointSettings, WebhookSettings};
use crate::error::Failure;
use crate::ledger::outbox::{Parcel, Then};
use crate::operations::App;
use crate::traces::span;

/// How often an endpoint's events are looked for while there are none.
const POLL: Duration = Duration::from_millis(500);

/// How long a free place waits for others before events are taken for all of them. A lease is a commit of its own, and they
/// are taken one after the other: taken for each place by itself, they would bound how much is sent.
const GATHERING: Duration = Duration::from_millis(10);

/// How often it is told how far behind the endpoints are.
const MEASURING_INTERVAL: Duration = Duration::from_secs(15);

/// How long nothing is tried after the database failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Sends events to all endpoints of the settings.
pub struct DeliverOutbox {
    endpoints: Vec<Arc<Endpoint>>,
}

/// One endpoint, with all that is needed to send to it.
struct Endpoint {
    app: App,
    sender: Sender,
    settings: EndpointSettings,
}

/// What became of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Delivered,
    Failed,
    Dead,
    /// The lease ran out before, and another worker has the event.
    Late,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Events that an endpoint took.
    pub delivered: usize,
    /// Events that will be sent again.
    pub failed: usize,
    /// Events that were given up.
    pub dead: usize,
}

impl DeliverOutbox {
    /// A worker on the books of an app.
    pub fn new(app: &App) -> Result<Self, ConfigError> {
        Ok(Self::sending_with(app, &Sender::new(&app.settings.webhooks)?))
    }

    /// A worker with another sender.
    pub fn sending_with(app: &App, sender: &Sender) -> Self {
        let endpoint = |settings: &EndpointSettings| {
            Arc::new(Endpoint { app: app.clone(), sender: sender.clone(), settings: settings.clone() })
        };
        Self { endpoints: app.settings.webhooks.endpoints.iter().map(endpoint).collect() }
    }

    /// Sends to each endpoint what is due there and has a place at once, and says how that ended.
    pub async fn run_once(&self) -> Result<Delivered, Failure> {
        let rounds = join_all(self.endpoints.iter().map(Endpoint::round)).await;
        let mut sum = Delivered::default();
        for round in rounds {
            for ended in round? {
                sum.count(ended);
            }
        }
        Ok(sum)
    }

    /// Sends until it is told to stop; what is being sent then is finished.
    pub async fn run(self, stop: CancellationToken) {
        let mut running = JoinSet::new();
        running.spawn(measure(self.endpoints.clone(), stop.clone()));
        for endpoint in self.endpoints {
            running.spawn(endpoint.run(stop.clone()));
        }
        running.join_all().await;
    }
}

impl Delivered {
    fn count(&mut self, ended: Ended) {
        match ended {
            Ended::Delivered => self.delivered += 1,
            Ended::Failed => self.failed += 1,
            Ended::Dead => self.dead += 1,
            Ended::Late => {}
        }
    }
}

impl Endpoint {
    async fn round(self: &Arc<Self>) -> Result<Vec<Ended>, Failure> {
        let parcels = self.take(self.limits().concurrency).await?;
        join_all(parcels.iter().map(|parcel| self.deliver(parcel))).await.into_iter().collect()
    }

    /// Keeps all places busy as long as there are events: one that hangs holds its own place and no other. Leases are taken
    /// for what is sent at once, so there are none to give back at the end.
    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut sending = JoinSet::new();
        while !stop.is_cancelled() {
            let pause = match self.fill(&mut sending).await {
                Ok(()) => POLL,
                Err(failure) => {
                    self.complain(&failure);
                    PAUSE_AFTER_FAILURE
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = sending.join_next() => {
                    self.note(ended);
                    self.gather(&mut sending, &stop).await;
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
        while let Some(ended) = sending.join_next().await {
            self.note(ended);
        }
    }

    /// One place is free. Waits a moment for others, but not once all are: the endpoint would stand idle.
    async fn gather(&self, sending: &mut JoinSet<Result<Ended, Failure>>, stop: &CancellationToken) {
        let over = tokio::time::sleep(GATHERING);
        tokio::pin!(over);
        loop {
            tokio::select! {
                ended = sending.join_next() => match ended {
                    Some(ended) => self.note(ended),
                    None => return,
                },
                () = &mut over => return,
                () = stop.cancelled() => return,
            }
        }
    }

    async fn fill(self: &Arc<Self>, sending: &mut JoinSet<Result<Ended, Failure>>) -> Result<(), Failure> {
        let busy = u32::try_from(sending.len()).unwrap_or(u32::MAX);
        let free = self.limits().concurrency.saturating_sub(busy);
        if free > 0 {
            for parcel in self.take(free).await? {
                let endpoint = self.clone();
                sending.spawn(async move { endpoint.deliver(&parcel).await });
            }
        }
        Ok(())
    }

    async fn take(&self, most: u32) -> Result<Vec<Parcel>, Failure> {
        self.app.ledger.take_events(self.name(), most, milliseconds(self.limits().lease_ms)).await
    }

    async fn deliver(&self, parcel: &Parcel) -> Result<Ended, Failure> {
        let span = self.span(parcel);
        let ended = self.attempt(parcel).instrument(span.clone()).await;
        let outcome = match &ended {
            Ok(Ended::Delivered) => "delivered",
            Ok(Ended::Failed) => "failed",
            Ok(Ended::Dead) => "dead",
            Ok(Ended::Late) => "late",
            Err(_) => "unknown",
        };
        span.record("outcome", outcome);
        ended
    }

    /// A child of the transaction that the event tells of, and no trace of its own with a link: whoever looks at the request
    /// sees what became of its events, and the receiver's part as well.
    fn span(&self, parcel: &Parcel) -> Span {
        let (endpoint, event, attempt) = (self.name(), parcel.event.as_str(), parcel.attempts);
        let span = span!("webhook", otel.kind = "client", endpoint, event, attempt, outcome = Empty);
        if !span.is_disabled()
            && let Some(origin) = parcel.origin()
        {
            origin.continue_in(&span);
        }
        span
    }

    async fn attempt(&self, parcel: &Parcel) -> Result<Ended, Failure> {
        let (error, then) = match self.sender.send(&self.settings, parcel).await {
            Outcome::Delivered => return self.delivered(parcel).await,
            Outcome::Gone => ("HTTP 410: the endpoint is gone".to_owned(), Then::Dead),
            Outcome::Failed { error, .. } if parcel.attempts >= i64::from(self.limits().attempts) => {
                (error, Then::Dead)
            }
            Outcome::Failed { error, retry_after } => {
                (error, Then::Again(pause(self.limits(), parcel.attempts, retry_after)))
            }
        };
        if !self.app.ledger.event_failed(parcel, &error, then).await? {
            return Ok(self.too_late(parcel));
        }
        let (endpoint, event, attempt) = (self.name(), parcel.id, parcel.attempts);
        if then == Then::Dead {
            self.count("dead");
            tracing::error!(endpoint, %event, attempt, error, "an event is given up; `largesse outbox resend` sends it again");
            return Ok(Ended::Dead);
        }
        self.count("failed");
        tracing::warn!(endpoint, %event, attempt, error, "an event was not delivered and will be sent again");
        Ok(Ended::Failed)
    }

    async fn delivered(&self, parcel: &Parcel) -> Result<Ended, Failure> {
        if !self.app.ledger.event_delivered(parcel).await? {
            return Ok(self.too_late(parcel));
        }
        self.count("delivered");
        Ok(Ended::Delivered)
    }

    fn too_late(&self, parcel: &Parcel) -> Ended {
        self.count("late");
        tracing::warn!(endpoint = self.name(), event = %parcel.id, "an attempt outlived its lease; another decides");
        Ended::Late
    }

    fn note(&self, ended: Result<Result<Ended, Failure>, JoinError>) {
        match ended {
            Ok(Ok(_)) => {}
            // The lease ends by itself, and the event goes again.
            Ok(Err(failure)) => self.complain(&failure),
            Err(error) => tracing::error!(endpoint = self.name(), %error, "sending an event ended by itself"),
        }
    }

    fn complain(&self, failure: &Failure) {
        tracing::warn!(endpoint = self.name(), ?failure, "the outbox could not be read or written");
    }

    fn count(&self, outcome: &'static str) {
        let endpoint = self.name().to_owned();
        metrics::counter!("largesse_webhook_attempts_total", "endpoint" => endpoint, "outcome" => outcome).increment(1);
    }

    #[allow(clippy::cast_precision_loss, reason = "there are no 2^52 events")]
    async fn measure(&self) {
        // What is not known now is known a quarter of a minute later.
        let Ok(backlog) = self.app.ledger.backlog(self.name()).await else { return };
        let endpoint = || self.name().to_owned();
        let oldest = backlog.oldest_pending.as_seconds_f64();
        metrics::gauge!("largesse_outbox_oldest_pending_seconds", "endpoint" => endpoint()).set(oldest);
        metrics::gauge!("largesse_outbox_pending", "endpoint" => endpoint()).set(backlog.pending as f64);
        metrics::gauge!("largesse_outbox_dead_letters", "endpoint" => endpoint()).set(backlog.dead as f64);
    }

    fn name(&self) -> &str {
        self.settings.name.as_str()
    }

    fn limits(&self) -> &WebhookSettings {
        &self.app.settings.webhooks
    }
}

/// Tells now and then how far behind the endpoints are.
async fn measure(endpoints: Vec<Arc<Endpoint>>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        for endpoint in &endpoints {
            endpoint.measure().await;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(MEASURING_INTERVAL) => {}
        }
    }
}

/// Twice as long after each attempt, up to the longest, of which the second half is chance: endpoints that fail together
/// are not asked together. An endpoint may ask for more time, up to the longest pause as well.
fn pause(settings: &WebhookSettings, attempts: i64, asked: Option<Duration>) -> TimeDelta {
    let doublings = u32::try_from(attempts - 1).unwrap_or(0).min(31);
    let longest = settings.backoff_ms.saturating_mul(1 << doublings).min(settings.longest_backoff_ms);
    let own = rand::rng().random_range(longest / 2..=longest);
    let asked = asked.map_or(0, |asked| u64::try_from(asked.as_millis()).unwrap_or(u64::MAX));
    milliseconds(own.max(asked.min(settings.longest_backoff_ms)))
}

/// The settings' check keeps times far below the limit of 292 million years.
fn milliseconds(milliseconds: u64) -> TimeDelta {
    i64::try_from(milliseconds).ok().and_then(TimeDelta::try_milliseconds).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn pauses_double_up_to_the_longest_and_half_of_them_is_chance() {
        let settings = Settings::default().webhooks;
        for (attempts, longest) in [(1, 5_000), (2, 10_000), (5, 80_000), (14, 21_600_000), (900, 21_600_000)] {
            let pauses: Vec<_> = (0..200).map(|_| pause(&settings, attempts, None).num_milliseconds()).collect();
            assert!(pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)), "{attempts}: {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{attempts}: there is no chance in it");
        }
    }

    #[test]
    fn an_endpoint_may_ask_for_more_time_up_to_the_longest_pause() {
        let settings = Settings::default().webhooks;
        let asked = |seconds| pause(&settings, 1, Some(Duration::from_secs(seconds))).num_milliseconds();
        assert_eq!(asked(120), 120_000);
        assert_eq!(asked(u64::MAX), 21_600_000);
        assert!((2_500..=5_000).contains(&asked(0)), "and never for less");
    }
}
