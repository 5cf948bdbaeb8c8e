//! Where traces are sent.

use serde::{Deserialize, Serialize};

/// A collector's base URL, as OpenTelemetry's own variable names it: http or https, a host, and perhaps a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CollectorUrl(reqwest::Url);

impl CollectorUrl {
    /// Where spans go: OTLP over HTTP appends this to the base.
    pub fn traces_url(&self) -> String {
        format!("{}/v1/traces", self.0.as_str().trim_end_matches('/'))
    }
}

impl TryFrom<String> for CollectorUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let url = reqwest::Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let url = url.ok_or("a collector's URL begins with http:// or https://")?;
        let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        plain.then_some(Self(url)).ok_or("a collector's URL holds no user, password or query")
    }
}

impl From<CollectorUrl> for String {
    fn from(url: CollectorUrl) -> Self {
        url.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_below_the_base() {
        for (base, url) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("https://example.com/otlp/", "https://example.com/otlp/v1/traces"),
        ] {
            assert_eq!(CollectorUrl::try_from(base.to_owned()).unwrap().traces_url(), url);
        }
        for wrong in
            ["collector:4317", "grpc://collector", "https://user:word@example.com", "https://example.com?key=1"]
        {
            assert!(CollectorUrl::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
