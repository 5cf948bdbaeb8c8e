//! The collector: spans are sent in batches by a thread of their own, over OTLP with HTTP and protobuf.
//!
//! The queue is bounded, and what finds no place there is lost: a collector that is away or slow costs a request nothing.
//! HTTP and not gRPC, because the HTTP client is here already, with its TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use reqwest::Client;
use reqwest::redirect::Policy;
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

use super::SPANS;
use crate::config::{ConfigError, TraceSettings};

/// How long the collector may take for a batch.
const BATCH_LIMIT: Duration = Duration::from_secs(5);

/// How long the end of the process waits for the last batch.
const LAST_BATCH: Duration = Duration::from_secs(2);

/// The traces of a process.
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Connects to nothing yet: the collector may be away, now or later.
    pub(super) fn open(settings: &TraceSettings) -> Result<Self, ConfigError> {
        let Some(endpoint) = &settings.endpoint else { return Ok(Self(None)) };
        let cannot = |error: &dyn std::fmt::Display| ConfigError::because("traces", error);
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new().map_err(|error| cannot(&error))?)
            .with_endpoint(endpoint.traces_url())
            .build()
            .map_err(|error| cannot(&error))?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource =
            Resource::builder().with_service_name(settings.service_name.clone()).with_attribute(version).build();
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample_ratio)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        Ok(Self(Some(provider)))
    }

    /// Makes OpenTelemetry's spans of ours, and of nothing else; no layer where nothing is exported.
    pub(super) fn layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer = self.0.as_ref()?.tracer("largesse");
        // Where it stands in the code and on which thread it ran says nothing to whoever reads a trace.
        let layer = tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        Some(layer.with_filter(filter_fn(|metadata| metadata.is_span() && metadata.target() == SPANS)))
    }

    /// Sends what waits, and waits for it a moment: a collector that takes nothing must not hold up the end.
    pub async fn end(self) {
        let Some(provider) = self.0 else { return };
        // Off the runtime's threads, for the last batch is sent by them.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_BATCH)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the last traces were not taken in time");
        }
    }
}

/// The way to the collector.
#[derive(Debug)]
struct Collector {
    client: Client,
    /// The thread that sends batches is none of the runtime's.
    runtime: Handle,
    /// Whether the last batch was not taken, of which the log was told then.
    failing: Arc<AtomicBool>,
}

impl Collector {
    fn new() -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .user_agent(concat!("largesse/", env!("CARGO_PKG_VERSION")))
            .timeout(BATCH_LIMIT)
            .redirect(Policy::none())
            .build()?;
        Ok(Self { client, runtime: Handle::current(), failing: Arc::default() })
    }

    /// Says once that traces are lost, and once that they are not any more.
    fn note(&self, problem: Option<String>) {
        let failed_before = self.failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(cause) if !failed_before => tracing::warn!(cause, "traces are lost: the collector does not take them"),
            None if failed_before => tracing::info!("the collector takes traces again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move { client.execute(request).await }).await?;
        match sent {
            Ok(response) => {
                let status = response.status();
                self.note((!status.is_success()).then(|| format!("HTTP {}", status.as_u16())));
                // What else it says is not read: nothing is done about it.
                Ok(Response::builder().status(status).body(Bytes::new())?)
            }
            Err(error) => {
                self.note(Some(reason(&error).to_owned()));
                Err(Box::new(error.without_url()))
            }
        }
    }
}

/// A few words of our own, for the library's hold the URL.
fn reason(error: &reqwest::Error) -> &'static str {
    match error {
        error if error.is_timeout() => "no answer in time",
        error if error.is_connect() => "no connection",
        _ => "the connection ended without an answer",
    }
}
