//! Signatures of webhooks by the Standard Webhooks scheme: HMAC-SHA256 over the message's id, its time and its bytes.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;

/// A secret that both sides of a webhook hold: `whsec_` and the base64 text of 24 to 64 bytes.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct WebhookSecret(Vec<u8>);

/// Says what a secret looks like. It never holds the text that was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a webhook's secret is \"whsec_\" and the base64 text of 24 to 64 bytes")]
pub struct NotASecret;

impl WebhookSecret {
    const PREFIX: &str = "whsec_";

    /// Reads a secret.
    pub fn parse(text: &str) -> Result<Self, NotASecret> {
        let bytes = text.strip_prefix(Self::PREFIX).and_then(|text| STANDARD.decode(text).ok());
        bytes.filter(|bytes| (24..=64).contains(&bytes.len())).map(Self).ok_or(NotASecret)
    }

    /// The signature of a message, as it stands in `webhook-signature`: its version, a comma and base64.
    pub fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        for part in [id, ".", &timestamp.to_string(), ".", body] {
            hmac.update(part.as_bytes());
        }
        format!("v1,{}", STANDARD.encode(hmac.finalize().into_bytes()))
    }
}

impl TryFrom<String> for WebhookSecret {
    type Error = NotASecret;

    fn try_from(text: String) -> Result<Self, NotASecret> {
        Self::parse(&text)
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret([REDACTED])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that the Standard Webhooks libraries share.
    #[test]
    fn the_schemes_own_example_is_signed_as_it_says() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_long_enough_and_never_shown() {
        let of = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
        for bad in ["", "whsec_", "whsec_!!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &of(23), &of(65)] {
            assert_eq!(WebhookSecret::parse(bad), Err(NotASecret), "{bad}");
        }
        let secret = WebhookSecret::parse(&of(64)).unwrap();
        assert_eq!(format!("{secret:?}"), "WebhookSecret([REDACTED])");
    }
}
