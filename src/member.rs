//! Who holds wallets: a member, known by the name that a token carries.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A member: a public name and the identifier that is derived from it.
///
/// The identifier needs no look-up, so the row to lock and the key to claim are known before any row exists. It is the
/// start of a SHA-256 hash in the form of a version 8 UUID (RFC 9562, section 5.8): nobody can choose two names that meet.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Member {
    id: Uuid,
    name: Arc<str>,
}

/// Why a text is not a member's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAMember {
    /// The text is empty.
    #[error("must not be empty")]
    Empty,
    /// The text has more than [`Member::LONGEST_NAME`] characters.
    #[error("must have at most {} characters", Member::LONGEST_NAME)]
    TooLong,
    /// The text holds a control character. PostgreSQL stores no NUL, and the others deceive whoever reads a log.
    #[error("must not contain control characters")]
    ControlCharacter,
}

impl Member {
    /// The longest name, in characters. OpenID Connect Core, section 2, lets `sub` have 255.
    pub const LONGEST_NAME: usize = 255;

    /// Reads a name as it stands in a token or as a recipient. Names are compared exactly: no folding, no trimming.
    pub fn parse(name: &str) -> Result<Self, NotAMember> {
        if name.is_empty() {
            return Err(NotAMember::Empty);
        }
        if name.chars().count() > Self::LONGEST_NAME {
            return Err(NotAMember::TooLong);
        }
        if name.chars().any(char::is_control) {
            return Err(NotAMember::ControlCharacter);
        }
        Ok(Self { id: derived_id(&["member", name]), name: name.into() })
    }

    /// The identifier in tables and keys.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The public name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Member {
    /// The derived identifier alone, since a name can be an address and this text ends in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member({})", self.id)
    }
}

/// A UUID that is the same wherever the same words are hashed. Each word is preceded by its length, so that no two
/// lists of words make the same text.
pub(crate) fn derived_id(words: &[&str]) -> Uuid {
    let mut hash = Sha256::new();
    for word in words {
        hash.update((word.len() as u64).to_be_bytes());
        hash.update(word.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Uuid::new_v8(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_once_and_strictly() {
        assert_eq!(Member::parse("").unwrap_err(), NotAMember::Empty);
        assert_eq!(Member::parse(&"x".repeat(256)).unwrap_err(), NotAMember::TooLong);
        assert_eq!(Member::parse("a\0b").unwrap_err(), NotAMember::ControlCharacter);
        assert_eq!(Member::parse(&"ü".repeat(255)).unwrap().name(), "ü".repeat(255));
    }

    #[test]
    fn ids_are_stable_and_apart() {
        let alice = Member::parse("alice").unwrap();
        assert_eq!(alice, Member::parse("alice").unwrap());
        assert_ne!(alice.id(), Member::parse("Alice").unwrap().id());
        assert_ne!(derived_id(&["ab", "c"]), derived_id(&["a", "bc"]));
    }
}
