//! Global IDs: a letter and bytes to us, opaque to whoever gets them. The API and the events call a thing by the same one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

/// What a global ID names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalId {
    /// The signed-in member.
    Viewer(Uuid),
    /// A member as others see them.
    Profile(Uuid),
    /// A wallet.
    Wallet(Uuid),
    /// A wallet's id and the entry's sequence number there.
    Entry(Uuid, i64),
    /// A claim.
    Claim(Uuid),
    /// Not a node of its own; entries of one transaction share it.
    Transaction(Uuid),
}

impl GlobalId {
    /// The ID's text.
    pub fn encode(self) -> String {
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
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// None for whatever we did not write: to a client such an ID names nothing.
    pub fn decode(id: &str) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_as_they_went() {
        let id = Uuid::now_v7();
        for global in [GlobalId::Viewer(id), GlobalId::Entry(id, 7), GlobalId::Transaction(id), GlobalId::Claim(id)] {
            assert_eq!(GlobalId::decode(&global.encode()), Some(global));
        }
        for bad in ["", "x", "alice", "dg", &GlobalId::Entry(id, 7).encode()[1..]] {
            assert_eq!(GlobalId::decode(bad), None, "{bad}");
        }
    }
}
