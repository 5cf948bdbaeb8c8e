//! What endpoints and payment providers are called, and where endpoints are.

use std::net::IpAddr;

use serde::Deserialize;

/// What an endpoint or a payment provider is called: 1 to 64 lower-case letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PartnerName(String);

impl PartnerName {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PartnerName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        let well_formed = (1..=64).contains(&text.len()) && text.bytes().all(known);
        well_formed.then_some(Self(text)).ok_or("a name is 1 to 64 lower-case letters, digits, - and _")
    }
}

/// An endpoint's address: http or https, with a host. It is not printed, for some carry a token in their path.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct EndpointUrl(reqwest::Url);

impl EndpointUrl {
    /// The URL.
    pub fn url(&self) -> &reqwest::Url {
        &self.0
    }

    /// The address, where the URL names one instead of a host to look up. However it is written, it was read as one.
    pub fn literal_address(&self) -> Option<IpAddr> {
        self.0.host_str().and_then(|host| host.trim_matches(['[', ']']).parse().ok())
    }
}

impl TryFrom<String> for EndpointUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let url = reqwest::Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let url = url.ok_or("an endpoint's URL begins with https://")?;
        let plain = url.username().is_empty() && url.password().is_none();
        plain.then_some(Self(url)).ok_or("an endpoint's URL holds no user and no password")
    }
}

impl std::fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EndpointUrl([REDACTED])")
    }
}
