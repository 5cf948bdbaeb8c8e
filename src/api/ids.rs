//! Global IDs and cursors: opaque to clients, a letter and bytes to us.

use async_graphql::ID;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::ledger::statement::ClaimCursor;

/// What a global ID names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GlobalId {
    /// The signed-in member.
    Viewer(Uuid),
    /// A member as others see them.
    Profile(Uuid),
    Wallet(Uuid),
    /// A wallet's id and the entry's sequence number there.
    Entry(Uuid, i64),
    Claim(Uuid),
    /// Not a node of its own; entries of one transaction share it.
    Transaction(Uuid),
}

impl GlobalId {
    pub(super) fn encode(self) -> ID {
        let (letter, uuid, rest) = match self {
            Self::Viewer(id) => (b'v', id, None),
            Self::Profile(id) => (b'p', id, None),
            Self::Wallet(id) => (b'w', id, None),
            Self::Entry(wallet, seq) => (b'e', wallet, Some(seq)),
            Self::Claim(id) => (b'c', id, None),
            Self::Transaction(id) => (b't', id, None),
        };
        let mut bytes = vec![letter];
        bytes.extend_from_slice(uuid.as_bytes());
        bytes.extend(rest.iter().flat_map(|seq| seq.to_be_bytes()));
        ID(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// None for whatever we did not write: to a client such an ID names nothing.
    pub(super) fn decode(id: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(id).ok()?;
        let (letter, rest) = bytes.split_first()?;
        let (uuid, rest) = rest.split_first_chunk::<16>()?;
        let uuid = Uuid::from_bytes(*uuid);
        match (letter, rest) {
            (b'v', []) => Some(Self::Viewer(uuid)),
            (b'p', []) => Some(Self::Profile(uuid)),
            (b'w', []) => Some(Self::Wallet(uuid)),
            (b'c', []) => Some(Self::Claim(uuid)),
            (b't', []) => Some(Self::Transaction(uuid)),
            (b'e', seq) => Some(Self::Entry(uuid, i64::from_be_bytes(seq.try_into().ok()?))),
            _ => None,
        }
    }
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
    fn ids_and_cursors_come_back_as_they_went() {
        let id = Uuid::now_v7();
        for global in [GlobalId::Viewer(id), GlobalId::Entry(id, 7), GlobalId::Transaction(id), GlobalId::Claim(id)] {
            assert_eq!(GlobalId::decode(&global.encode()), Some(global));
        }
        for bad in ["", "x", "alice", "dg", &GlobalId::Entry(id, 7).encode()[1..]] {
            assert_eq!(GlobalId::decode(bad), None, "{bad}");
        }
        let now = DateTime::from_timestamp_millis(1_796_000_000_123).unwrap();
        assert_eq!(ClaimCursor::decode(&(now, id).encode()), Some((now, id)));
        assert_eq!(i64::decode(&42_i64.encode()), Some(42));
        assert_eq!(i64::decode("AAAA"), None);
    }
}
