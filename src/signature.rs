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
        let hmac = self.over(id, &timestamp.to_string(), body.as_bytes());
        format!("{VERSION}{}", STANDARD.encode(hmac.finalize().into_bytes()))
    }

    fn over(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            hmac.update(part);
        }
        hmac
    }
}

/// What a signature with a symmetric key begins with.
const VERSION: &str = "v1,";

/// How far a message's time may lie from now, on either side, in seconds: what the scheme's own libraries allow. It bounds
/// how long somebody may send again what was overheard.
pub const TOLERANCE_SECONDS: i64 = 5 * 60;

/// A message as it arrived: nothing in it is to be believed before [`Self::verify`] says so.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`.
    pub timestamp: &'a str,
    /// `webhook-signature`: signatures with spaces between them, each with its version.
    pub signatures: &'a str,
    /// The bytes that were signed.
    pub body: &'a [u8],
}

/// Why a message is not to be believed. For the log: the sender learns only that it is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotVerified {
    /// The timestamp is no number of seconds.
    #[error("the timestamp is no number of seconds")]
    NoTime,
    /// The timestamp lies too far in the past.
    #[error("the timestamp lies too far in the past")]
    TooOld,
    /// The timestamp lies too far in the future.
    #[error("the timestamp lies too far in the future")]
    TooNew,
    /// No signature was made with one of the secrets.
    #[error("no signature fits")]
    NoneFits,
}

impl Signed<'_> {
    /// Whether one of the secrets made one of the signatures, not long ago. Signatures are compared in constant time.
    pub fn verify(&self, secrets: &[WebhookSecret], now: i64) -> Result<(), NotVerified> {
        let timestamp: i64 = self.timestamp.parse().map_err(|_| NotVerified::NoTime)?;
        let age = now.saturating_sub(timestamp);
        if age > TOLERANCE_SECONDS {
            return Err(NotVerified::TooOld);
        }
        if age < -TOLERANCE_SECONDS {
            return Err(NotVerified::TooNew);
        }
        // Signatures of other versions are for others to read.
        let of_this_version = self.signatures.split(' ').filter_map(|text| text.strip_prefix(VERSION));
        let signatures: Vec<_> = of_this_version.filter_map(|text| STANDARD.decode(text).ok()).collect();
        let fits = secrets.iter().any(|secret| {
            let hmac = secret.over(self.id, self.timestamp, self.body);
            signatures.iter().any(|signature| hmac.clone().verify_slice(signature).is_ok())
        });
        if fits { Ok(()) } else { Err(NotVerified::NoneFits) }
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
    fn the_schemes_own_example_is_verified() {
        const NOW: i64 = 1_614_265_330;
        let good = Signed {
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
            timestamp: "1614265330",
            signatures: "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            body: br#"{"test": 2432232314}"#,
        };
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let other = WebhookSecret::parse("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
        let secrets = [other.clone(), secret.clone()];
        let several = ["v2,AAAA v1a,AAAA v1,!!! v1,AAAA", good.signatures].join(" ");
        for message in [good, Signed { signatures: &several, ..good }] {
            assert_eq!(message.verify(&secrets, NOW), Ok(()));
        }
        for (message, secrets, now, why) in [
            (good, &secrets[..1], NOW, NotVerified::NoneFits),
            (good, &[], NOW, NotVerified::NoneFits),
            (Signed { body: br#"{"test": 2432232315}"#, ..good }, &secrets, NOW, NotVerified::NoneFits),
            (Signed { id: "msg", ..good }, &secrets, NOW, NotVerified::NoneFits),
            (Signed { timestamp: "1614265331", ..good }, &secrets, NOW, NotVerified::NoneFits),
            (Signed { signatures: "", ..good }, &secrets, NOW, NotVerified::NoneFits),
            (Signed { signatures: &good.signatures[3..], ..good }, &secrets, NOW, NotVerified::NoneFits),
            (Signed { signatures: &good.signatures[..20], ..good }, &secrets, NOW, NotVerified::NoneFits),
            (Signed { signatures: &good.signatures.replace("v1", "v2"), ..good }, &secrets, NOW, NotVerified::NoneFits),
            (Signed { timestamp: "yesterday", ..good }, &secrets, NOW, NotVerified::NoTime),
            (Signed { timestamp: "", ..good }, &secrets, NOW, NotVerified::NoTime),
            (good, &secrets, NOW + TOLERANCE_SECONDS + 1, NotVerified::TooOld),
            (good, &secrets, NOW - TOLERANCE_SECONDS - 1, NotVerified::TooNew),
        ] {
            assert_eq!(message.verify(secrets, now), Err(why), "{message:?}");
        }
        assert_eq!(good.verify(&secrets, NOW + TOLERANCE_SECONDS), Ok(()));
        assert_eq!(good.verify(&secrets, NOW - TOLERANCE_SECONDS), Ok(()));
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
