//! What the servers of all tests have logged, to be looked up by request id.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// One event: its level, its message and its fields.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) level: tracing::Level,
    pub(crate) fields: BTreeMap<String, String>,
}

impl Event {
    /// A field's text; empty where there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// Keeps every event of the product from here on. Servers work in many threads, so it is the process that listens.
pub(crate) fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        // Events that are of no interest are not even made: the storms of other tests log a great deal.
        let filter = tracing_subscriber::filter::Targets::new().with_target("largesse", tracing::Level::INFO);
        tracing_subscriber::registry().with(Keeping.with_filter(filter)).init();
    });
}

/// The events that carry this request id.
pub(crate) fn of_request(id: &str) -> Vec<Event> {
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    events.iter().filter(|event| event.field("request_id") == id).cloned().collect()
}

/// The messages of events with this field.
pub(crate) fn messages_with(name: &str, value: &str) -> Vec<String> {
    let events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let fitting = events.iter().filter(|event| event.field(name) == value);
    fitting.map(|event| event.field("message").to_owned()).collect()
}

struct Keeping;

impl<S: tracing::Subscriber> Layer<S> for Keeping {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let kept = Event { level: *event.metadata().level(), fields: fields.0 };
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }
}

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
