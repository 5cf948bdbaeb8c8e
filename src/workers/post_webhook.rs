//! One attempt to deliver one event: signed, sent to an address that is allowed, within limits of time and size.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};

use crate::address::is_public;
use crate::config::{ConfigError, EndpointSettings, WebhookSettings};
use crate::ledger::outbox::Parcel;
use crate::traces::Origin;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The endpoint took the event.
    Delivered,
    /// It did not, and may later.
    Failed {
        /// Why, in a few words of our own: nothing that the endpoint said.
        error: String,
        /// When the endpoint wants to be asked again, if it said so.
        retry_after: Option<Duration>,
    },
    /// The endpoint says that it is gone for good.
    Gone,
}

/// Sends events. One client keeps the connections to all endpoints.
#[derive(Clone)]
pub struct Sender {
    client: Client,
    allow_private_addresses: bool,
    response_bytes: usize,
}

impl Sender {
    /// A client by the settings. It resolves names with the system's resolver.
    pub fn new(settings: &WebhookSettings) -> Result<Self, ConfigError> {
        Self::resolving_with(settings, Arc::new(SystemResolver))
    }

    /// A client with another resolver, whose addresses are checked like those of the system's.
    pub fn resolving_with(settings: &WebhookSettings, resolver: Arc<dyn Resolve>) -> Result<Self, ConfigError> {
        let checked = Checked { resolver, allow_private_addresses: settings.allow_private_addresses };
        let client = Client::builder()
            .user_agent(concat!("largesse/", env!("CARGO_PKG_VERSION")))
            .timeout(Duration::from_millis(settings.timeout_ms))
            // The address that was checked is the one that gets the event: no redirects, no proxy of the environment.
            .redirect(Policy::none())
            .no_proxy()
            .https_only(!settings.allow_private_addresses)
            .dns_resolver(Arc::new(checked))
            .build()
            .map_err(|error| ConfigError::because("webhooks", &error))?;
        Ok(Self {
            client,
            allow_private_addresses: settings.allow_private_addresses,
            response_bytes: settings.response_bytes,
        })
    }

    /// Sends an event to an endpoint, once.
    pub async fn send(&self, endpoint: &EndpointSettings, parcel: &Parcel) -> Outcome {
        // A literal address is never resolved.
        let literal = endpoint.url.literal_address();
        if !self.allow_private_addresses && literal.is_some_and(|address| !is_public(address)) {
            return failed(PRIVATE, None);
        }
        let (id, timestamp) = (parcel.id.to_string(), Utc::now().timestamp());
        let signatures: Vec<_> =
            endpoint.secrets.iter().map(|secret| secret.sign(&id, timestamp, &parcel.payload)).collect();
        let mut request = self
            .client
            .post(endpoint.url.url().clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signatures.join(" "))
            .body(parcel.payload.clone());
        // The trace goes on at the receiver, also where this process tells nobody of its own part.
        let origin = Origin::here().or_else(|| parcel.origin());
        for (name, value) in origin.iter().flat_map(Origin::headers).filter(|(_, value)| !value.is_empty()) {
            request = request.header(name, value);
        }
        match request.send().await {
            Ok(response) => self.read(response).await,
            Err(error) => failed(reason(&error), None),
        }
    }

    /// The status is the answer. Of the body only so much is read as lets a small one's connection be used again.
    async fn read(&self, mut response: Response) -> Outcome {
        let (status, retry_after) = (response.status(), retry_after(response.headers(), Utc::now()));
        let mut read = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            read += chunk.len();
            if read > self.response_bytes {
                break;
            }
        }
        match status {
            status if status.is_success() => Outcome::Delivered,
            StatusCode::GONE => Outcome::Gone,
            status if status.is_redirection() => {
                failed(&format!("HTTP {}: redirects are not followed", status.as_u16()), None)
            }
            status => failed(&format!("HTTP {}", status.as_u16()), retry_after),
        }
    }
}

const PRIVATE: &str = "the address is private, and webhooks.allow_private_addresses is false";

fn failed(error: &str, retry_after: Option<Duration>) -> Outcome {
    Outcome::Failed { error: error.to_owned(), retry_after }
}

/// A few words of our own, for the library's hold the URL.
fn reason(error: &reqwest::Error) -> &'static str {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<Private>().is_some() {
            return PRIVATE;
        }
        cause = error.source();
    }
    match error {
        error if error.is_timeout() => "no answer in time",
        error if error.is_connect() => "no connection",
        _ => "the connection ended without an answer",
    }
}

/// RFC 9110, section 10.2.3: seconds, or a date.
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => (DateTime::parse_from_rfc2822(text).ok()?.to_utc() - now).to_std().ok(),
    }
}

/// No address of the name is public.
#[derive(Debug, thiserror::Error)]
#[error("{PRIVATE}")]
struct Private;

/// Gives on only the addresses that are allowed. The connection is made to one of these, so that no second look-up can
/// bring another.
struct Checked {
    resolver: Arc<dyn Resolve>,
    allow_private_addresses: bool,
}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolving, allow_private) = (self.resolver.resolve(name), self.allow_private_addresses);
        Box::pin(async move {
            let found: Vec<SocketAddr> = resolving.await?.collect();
            let allowed: Vec<_> = found.into_iter().filter(|found| allow_private || is_public(found.ip())).collect();
            if allowed.is_empty() { Err(Private.into()) } else { Ok(Box::new(allowed.into_iter()) as Addrs) }
        })
    }
}

/// What the system says, from its hosts file and name servers.
struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect::<Vec<_>>();
            if found.is_empty() {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = DateTime::parse_from_rfc3339("2026-11-29T12:00:00Z").unwrap().to_utc();
        for (text, seconds) in [
            ("120", Some(120)),
            ("Sun, 29 Nov 2026 12:01:00 GMT", Some(60)),
            ("Sun, 29 Nov 2026 11:00:00 GMT", None),
            ("soon", None),
            ("-1", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
