//! Traces: one span for each layer that a request passes, told to an OpenTelemetry collector where the settings name one.
//!
//! | file | what it is for |
//! |---|---|
//! | this one | spans, and the W3C trace context that comes in and goes out |
//! | `export` | the collector, and who has to wait for it: nobody |
//! | `log` | the log, whose lines carry the trace that they belong to |
//!
//! A span says which layer did what, how often and for how long. It never holds a name, key, token or text that a client or
//! an operator chose: what is exported may be kept by others, and for longer. Events of the log do not become part of spans,
//! for they say more.
//!
//! Where nothing is exported no span is made: their target is switched off, which costs a look at one number.

mod export;
mod log;

use std::collections::HashMap;

use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{ConfigError, Settings};
pub use export::Traces;

/// The target of all spans, and of nothing else.
pub const SPANS: &str = "largesse::spans";

/// A span of ours; disabled, and its fields not even looked at, where traces are off.
macro_rules! span {
    ($($span:tt)*) => { tracing::info_span!(target: $crate::traces::SPANS, $($span)*) };
}
pub(crate) use span;

/// The header, or the field, that says which span is the parent: <https://www.w3.org/TR/trace-context/>.
pub const TRACEPARENT: &str = "traceparent";

/// What tracing systems add to it for each other. It is carried on and not read.
pub const TRACESTATE: &str = "tracestate";

/// The longest `tracestate` that is carried on: what the specification wants carried at the least.
const LONGEST_TRACESTATE: usize = 512;

/// Begins the log, and the traces if there is a collector. Once for the process, inside the runtime.
pub fn start(settings: &Settings) -> Result<Traces, ConfigError> {
    let traces = Traces::open(&settings.traces)?;
    tracing_subscriber::registry()
        .with(log::layer(&settings.log)?)
        .with(traces.layer())
        .try_init()
        .map_err(|error| ConfigError::because("the log", &error))?;
    Ok(traces)
}

/// Where a trace goes on from: another's span, read from what it sent, or one of ours.
#[derive(Debug, Clone)]
pub struct Origin(Context);

impl Origin {
    /// Reads both headers; None if they are malformed, and the trace begins here.
    pub fn read(traceparent: &str, tracestate: &str) -> Option<Self> {
        if !is_well_formed(traceparent) {
            return None;
        }
        let mut carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
        // It may have come in JSON, and goes out in a header.
        let printable = tracestate.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if printable && (1..=LONGEST_TRACESTATE).contains(&tracestate.len()) {
            carrier.insert(TRACESTATE.to_owned(), tracestate.to_owned());
        }
        Self::valid(TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier))
    }

    /// The span that is open here, if there is one.
    pub fn here() -> Option<Self> {
        Self::valid(Context::current())
    }

    /// Reads what [`Self::written`] wrote.
    pub fn of_written(text: &str) -> Option<Self> {
        let (traceparent, tracestate) = text.split_once(' ').unwrap_or((text, ""));
        Self::read(traceparent, tracestate)
    }

    /// Both headers in one text: neither holds a space where it matters.
    pub fn written(&self) -> String {
        let [(_, traceparent), (_, tracestate)] = self.headers();
        format!("{traceparent} {tracestate}").trim_end().to_owned()
    }

    /// What is sent to whoever goes on from here. An empty `tracestate` need not be.
    pub fn headers(&self) -> [(&'static str, String); 2] {
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&self.0, &mut carrier);
        [TRACEPARENT, TRACESTATE].map(|name| (name, carrier.remove(name).unwrap_or_default()))
    }

    /// Makes it the parent of a span that was not entered yet.
    pub fn continue_in(&self, span: &Span) {
        // It fails where nothing is exported, and then there is nothing to continue.
        let _ = span.set_parent(self.0.clone());
    }

    fn valid(context: Context) -> Option<Self> {
        context.span().span_context().is_valid().then_some(Self(context))
    }
}

/// Lower-case hexadecimal with dashes, and of version 00 nothing after the flags. The library reads the parts and is lenient here.
fn is_well_formed(traceparent: &str) -> bool {
    let of_parent = |byte: u8| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    traceparent.bytes().all(of_parent) && (!traceparent.starts_with("00") || traceparent.len() == 55)
}

/// Gives a span another name, once it is known. The name must be one of ours.
pub fn rename(span: &Span, name: String) {
    if !span.is_disabled() {
        span.context().span().update_name(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_comes_in_goes_out() {
        let origin = Origin::read(PARENT, "vendor=a,other=b").unwrap();
        assert_eq!(origin.written(), format!("{PARENT} vendor=a,other=b"));
        assert_eq!(Origin::of_written(&origin.written()).unwrap().headers(), origin.headers());
        assert_eq!(Origin::read(PARENT, "").unwrap().written(), PARENT);
    }

    #[test]
    fn what_is_malformed_is_ignored() {
        for malformed in [
            "",
            "00",
            "garbage",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            assert!(Origin::read(malformed, "").is_none(), "{malformed}");
        }
    }

    #[test]
    fn a_long_or_malformed_tracestate_is_left_out() {
        let long = format!("vendor={}", "a".repeat(LONGEST_TRACESTATE));
        for tracestate in [long.as_str(), "no pair", "a=1\nb=c", "a=\u{e9}"] {
            assert_eq!(Origin::read(PARENT, tracestate).unwrap().written(), PARENT, "{tracestate}");
        }
    }
}
