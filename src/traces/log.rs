//! The log. A line that is written while a sampled request is worked on carries its trace's id, so that one leads to the
//! other: the request's id is in the log alone.

use std::fmt;

use opentelemetry::Context;
use opentelemetry::trace::{TraceContextExt, TraceId};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

use crate::config::{ConfigError, LogFormat, LogSettings};

/// Lines on stderr, by the settings. Spans are not for it, neither ours nor those of libraries, whatever the filter lets pass: to
/// open and close them would cost each statement more than the line says.
pub(super) fn layer<S>(settings: &LogSettings) -> Result<Box<dyn Layer<S> + Send + Sync>, ConfigError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let filter = EnvFilter::try_new(&settings.filter).map_err(|error| ConfigError::because("log.filter", &error))?;
    let no_spans = filter_fn(|metadata| !metadata.is_span()).with_max_level_hint(LevelFilter::TRACE);
    let (lines, json) =
        (tracing_subscriber::fmt::layer().with_writer(std::io::stderr), settings.format == LogFormat::Json);
    Ok(if json {
        let lines = lines.json().flatten_event(true).map_event_format(|inner| WithTraceId { inner, json });
        lines.with_filter(filter.and(no_spans)).boxed()
    } else {
        lines.map_event_format(|inner| WithTraceId { inner, json }).with_filter(filter.and(no_spans)).boxed()
    })
}

/// A format with the trace's id beside what the event says.
struct WithTraceId<F> {
    inner: F,
    json: bool,
}

impl<S, N, F> FormatEvent<S, N> for WithTraceId<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let Some(id) = sampled_trace() else { return self.inner.format_event(context, to, event) };
        if !self.json {
            write!(to, "trace_id={id} ")?;
            return self.inner.format_event(context, to, event);
        }
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        let object = line.trim_end().strip_suffix('}').ok_or(fmt::Error)?;
        writeln!(to, "{object},\"trace_id\":\"{id}\"}}")
    }
}

/// The trace that is worked on here, if it is exported.
fn sampled_trace() -> Option<TraceId> {
    Context::map_current(|context| {
        let span = context.span();
        let sampled = span.span_context().is_sampled();
        sampled.then(|| span.span_context().trace_id())
    })
}
