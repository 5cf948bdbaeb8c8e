//! The metrics: each of them, with its kind, its unit, its labels and what it means. What is emitted elsewhere under a name that
//! is not here, or is here and emitted nowhere, fails a test; `docs/metrics.md` is written from this list.
//!
//! A label's values come from a closed set: the schema, the settings, or words of the code. None carries a member, a key or
//! any other text of a client, so the number of series is known before the first request.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use Kind::{Counter, Gauge, Histogram};

/// One metric.
pub struct Metric {
    /// Its name, in Prometheus's style.
    pub name: &'static str,
    /// What becomes of its values.
    pub kind: Kind,
    /// What its values count.
    pub unit: Unit,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub meaning: &'static str,
}

/// What becomes of a metric's values.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// They are added up from the start of the process.
    Counter,
    /// The last one holds.
    Gauge,
    /// They are sorted into buckets with these upper limits.
    Histogram(&'static [f64]),
}

/// A Redis in the same network answers in a fraction of a millisecond, and `cooldown.command_timeout_ms` ends the wait at 150 ms.
const STORE_BUCKETS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.5];

/// A free row is one round trip; a wait ends at `database.lock_timeout_ms`, 750 ms by default.
const LOCK_BUCKETS: &[f64] = &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5];

/// A transfer takes some milliseconds; the deadline is 3 s by default, and an answer is complete half a second later.
const OPERATION_BUCKETS: &[f64] = &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 3.5];

/// A free connection is there at once, a new one takes some milliseconds; a wait ends at the deadline.
const POOL_BUCKETS: &[f64] = &[0.000_1, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0];

const fn metric(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    labels: &'static [&'static str],
    meaning: &'static str,
) -> Metric {
    Metric { name, kind, unit, labels, meaning }
}

/// All of them, in the order of the layers.
pub const METRICS: &[Metric] = &[
    metric("largesse_build_info", Gauge, Unit::Count, &["version"], "1, and the version that runs."),
    metric(
        "largesse_http_requests_total",
        Counter,
        Unit::Count,
        &["front", "class"],
        "HTTP answers by front (graphql, funding, health, other) and class of status (1xx to 5xx; 1xx are WebSockets).",
    ),
    metric(
        "largesse_http_requests_in_flight",
        Gauge,
        Unit::Count,
        &["front"],
        "HTTP requests that are being answered. request.most_at_once limits those that read a body.",
    ),
    metric(
        "largesse_errors_total",
        Counter,
        Unit::Count,
        &["code"],
        "GraphQL errors sent, by the code of docs/errors.md, of requests as a whole and of fields.",
    ),
    metric(
        "largesse_operations_total",
        Counter,
        Unit::Count,
        &["operation", "outcome"],
        "Root fields of the schema by how they ended, as their caller was told; a subscription counts once, with its first answer.",
    ),
    metric(
        "largesse_operation_seconds",
        Histogram(OPERATION_BUCKETS),
        Unit::Seconds,
        &["operation"],
        "How long root fields took, all that was selected below them included. Without refusals of the cooldown, a flood of which \
         would hide how long work takes.",
    ),
    metric(
        "largesse_cooldown_total",
        Counter,
        Unit::Count,
        &["action", "decision"],
        "Attempts by what the cooldown decided: admitted, refused (COOLDOWN_ACTIVE), or answered with what the same attempt was \
         answered a moment ago.",
    ),
    metric(
        "largesse_cooldown_ended_total",
        Counter,
        Unit::Count,
        &["action", "end"],
        "Admissions by what became of their lock: kept to its end, shortened after a business refusal, or released, because \
         nothing was done and nothing stored.",
    ),
    metric(
        "largesse_cooldown_fallback_total",
        Counter,
        Unit::Count,
        &["action"],
        "Attempts for which the store gave no answer in time: decided inside the process, or refused where the action is set so.",
    ),
    metric(
        "largesse_cooldown_store_seconds",
        Histogram(STORE_BUCKETS),
        Unit::Seconds,
        &["store"],
        "How long a store of the cooldown outside the process took to decide an attempt, failures included.",
    ),
    metric(
        "largesse_cooldown_refusals_not_logged_total",
        Counter,
        Unit::Count,
        &["action"],
        "Refusals that log.refusals_per_second left out of the log.",
    ),
    metric(
        "largesse_idempotency_total",
        Counter,
        Unit::Count,
        &["outcome"],
        "Attempts with a key: won (the first), replayed (its answer again), mismatch (other arguments), concurrent (at work now).",
    ),
    metric(
        "largesse_work_running",
        Gauge,
        Unit::Count,
        &[],
        "Money work that has one of the places for it, of which there are as many as connections.",
    ),
    metric("largesse_work_waiting", Gauge, Unit::Count, &[], "Money work that waits for a place."),
    metric("largesse_work_running_limit", Gauge, Unit::Count, &[], "How many places for money work there are."),
    metric(
        "largesse_work_waiting_limit",
        Gauge,
        Unit::Count,
        &[],
        "How much money work may wait (request.most_waiting).",
    ),
    metric(
        "largesse_work_refused_total",
        Counter,
        Unit::Count,
        &["reason"],
        "Money work that got no place: full (too much waits already) or late (its deadline passed while it waited).",
    ),
    metric(
        "largesse_transactions_begun_total",
        Counter,
        Unit::Count,
        &[],
        "Money transactions begun, retries included.",
    ),
    metric(
        "largesse_transaction_retries_total",
        Counter,
        Unit::Count,
        &[],
        "Money transactions begun again after a serialization failure or a deadlock.",
    ),
    metric(
        "largesse_wallet_lock_seconds",
        Histogram(LOCK_BUCKETS),
        Unit::Seconds,
        &[],
        "How long the statement took that locks an operation's wallets: a round trip, and the wait for whoever holds them.",
    ),
    metric(
        "largesse_pool_connections",
        Gauge,
        Unit::Count,
        &["pool"],
        "Open connections to the database (pool: work, reads).",
    ),
    metric("largesse_pool_connections_in_use", Gauge, Unit::Count, &["pool"], "Those of them that are in use."),
    metric("largesse_pool_connections_limit", Gauge, Unit::Count, &["pool"], "The most that there may be."),
    metric(
        "largesse_pool_wait_seconds",
        Histogram(POOL_BUCKETS),
        Unit::Seconds,
        &["pool"],
        "How long a probe, sent every few seconds, waited for a connection: as long as a request would have in that moment.",
    ),
    metric("largesse_sockets", Gauge, Unit::Count, &[], "Open WebSockets."),
    metric(
        "largesse_sockets_too_slow_total",
        Counter,
        Unit::Count,
        &[],
        "WebSockets that were dropped because their client accepted nothing for too long.",
    ),
    metric("largesse_subscriptions", Gauge, Unit::Count, &[], "Subscriptions that run on WebSockets."),
    metric(
        "largesse_live_dropped_total",
        Counter,
        Unit::Count,
        &[],
        "Movements that could not be announced to other processes; these see them when they look at watched wallets again.",
    ),
    metric(
        "largesse_key_set_fetches_total",
        Counter,
        Unit::Count,
        &["outcome"],
        "Fetches of the identity provider's keys: done or failed.",
    ),
    metric(
        "largesse_funding_total",
        Counter,
        Unit::Count,
        &["provider", "outcome"],
        "Webhooks that a payment provider signed, by what became of the payment.",
    ),
    metric(
        "largesse_funding_unauthenticated_total",
        Counter,
        Unit::Count,
        &[],
        "Funding webhooks that no provider signed.",
    ),
    metric(
        "largesse_outbox_oldest_pending_seconds",
        Gauge,
        Unit::Seconds,
        &["endpoint"],
        "How long the oldest event that an endpoint has not got has been waiting; 0 if none is.",
    ),
    metric("largesse_outbox_pending", Gauge, Unit::Count, &["endpoint"], "Events that an endpoint has not got yet."),
    metric(
        "largesse_outbox_dead_letters",
        Gauge,
        Unit::Count,
        &["endpoint"],
        "Events that were given up and wait for `largesse outbox resend`.",
    ),
    metric(
        "largesse_webhook_attempts_total",
        Counter,
        Unit::Count,
        &["endpoint", "outcome"],
        "Attempts to send an event: delivered, failed (sent again later), dead (given up), late (its lease ran out before).",
    ),
    metric("largesse_events_forgotten_total", Counter, Unit::Count, &[], "Delivered events that were cleaned away."),
    metric(
        "largesse_keys_forgotten_total",
        Counter,
        Unit::Count,
        &[],
        "Expired idempotency keys that were cleaned away.",
    ),
    metric(
        "largesse_audit_broken_rows",
        Gauge,
        Unit::Count,
        &[],
        "Rows that broke a rule of the books at the last audit: anything but 0 is an emergency.",
    ),
    metric(
        "largesse_audit_finished_timestamp_seconds",
        Gauge,
        Unit::Seconds,
        &[],
        "When the last audit ended, in seconds since 1970; 0 if none ever did.",
    ),
    metric("largesse_audit_seconds", Gauge, Unit::Seconds, &[], "How long the last audit took."),
    metric(
        "largesse_audit_interval_seconds",
        Gauge,
        Unit::Seconds,
        &[],
        "How often the books are audited (workers.audit_every_hours); not there where that is off.",
    ),
];

/// Makes the process keep its metrics from here on, each described and those without labels at zero. What is counted before is
/// lost, so this comes first.
pub fn keep() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for Metric { name, kind, .. } in METRICS {
        if let Histogram(buckets) = kind {
            builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets)?;
        }
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    for metric in METRICS {
        metric.begin();
    }
    metrics::gauge!("largesse_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

impl Metric {
    /// Describes it. A counter without labels begins at zero: a rate needs the value before the first event.
    fn begin(&self) {
        match self.kind {
            Counter => describe_counter!(self.name, self.unit, self.meaning),
            Gauge => describe_gauge!(self.name, self.unit, self.meaning),
            Histogram(_) => describe_histogram!(self.name, self.unit, self.meaning),
        }
        if matches!(self.kind, Counter) && self.labels.is_empty() {
            metrics::counter!(self.name).increment(0);
        }
    }
}

/// `docs/metrics.md`: all metrics in a table.
pub fn catalogue() -> String {
    let mut page = HEAD.to_owned();
    for Metric { name, kind, unit, labels, meaning } in METRICS {
        let kind = match kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram(_) => "histogram",
        };
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let row = ["`", name, "` | ", kind, " | ", unit.as_str(), " | ", &labels.join(", "), " | ", meaning].concat();
        page += &["| ", &row, " |\n"].concat();
    }
    page
}

const HEAD: &str = "# Metrics

<!-- Written by `make metrics` from src/signals.rs; a test keeps it so. -->

`metrics.listen` opens `/metrics` on a listener of its own; [operations.md](operations.md) says how to scrape it and what to look at when.
Every label's values come from the schema, the settings or the code. None carries a member, a key or any other text of a client.

| metric | kind | unit | labels | what it is |
|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_code_says() {
        let page = include_str!("../docs/metrics.md");
        assert_eq!(page, catalogue(), "docs/metrics.md is old: run `make metrics`");
    }
}
