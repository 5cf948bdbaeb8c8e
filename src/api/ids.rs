//! Global IDs as the schema shows them, and cursors: opaque to clients, bytes to us.

use async_graphql::ID;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use uuid::Uuid;

pub(super) use crate::global_id::GlobalId;
use crate::ledger::statement::ClaimCursor;

/// The same IDs as in events, for the schema.
pub(super) fn global(id: GlobalId) -> ID {
    ID(id.encode())
}

/// A place in a list.
pub(super) trait Cursor: Sized {
    fn encode(&self) -> String;
    fn decode(text: &str) -> Option<Self>;
}

/// A wallet's entry: its sequence number.
impl Cursor for i64 {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.to_be_bytes())
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(Self::from_be_bytes(bytes.try_into().ok()?))
    }
}

/// A claim: its instant in milliseconds, and its id where two share one.
impl Cursor for ClaimCursor {
    fn encode(&self) -> String {
        let mut bytes = self.0.timestamp_millis().to_be_bytes().to_vec();
        bytes.extend_from_slice(self.1.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (millis, id) = bytes.split_first_chunk::<8>()?;
        let millis = i64::from_be_bytes(*millis);
        // No claim is older than 1970, and a made-up instant could be older than what the database can hold.
        let instant = DateTime::<Utc>::from_timestamp_millis(millis).filter(|_| millis >= 0)?;
        Some((instant, Uuid::from_bytes(id.try_into().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_went() {
        let id = Uuid::now_v7();
        let now = DateTime::from_timestamp_millis(1_796_000_000_123).unwrap();
        assert_eq!(ClaimCursor::decode(&(now, id).encode()), Some((now, id)));
        assert_eq!(i64::decode(&42_i64.encode()), Some(42));
        assert_eq!(i64::decode("AAAA"), None);
    }
}
