//! What a process tells of itself: the log, metrics and traces.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::CollectorUrl;

/// What the log looks like.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// One JSON object a line, or lines for people.
    pub format: LogFormat,
    /// What to log, in `tracing`'s filter language.
    pub filter: String,
    /// How many refusals of the cooldown are logged in a second, per action; the others are counted.
    pub refusals_per_second: u32,
}

/// What the log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For collectors.
    Json,
}

/// What Prometheus scrapes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSettings {
    /// Where `/metrics` listens; nowhere if left out.
    pub listen: Option<SocketAddr>,
}

/// Who is told of traces.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSettings {
    /// The collector's base URL; no traces without it.
    pub endpoint: Option<CollectorUrl>,
    /// Which share of the traces that begin here is exported. What a caller decided stands.
    pub sample_ratio: f64,
    /// What the service is called there.
    pub service_name: String,
}
