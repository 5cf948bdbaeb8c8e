//! Which documents run, and which text a name stands for.
//!
//! Either any document runs, and one that was sent with its hash can be named by it afterwards (Apollo's automatic persisted
//! queries); or those of a manifest run and nothing else. It is decided in the schema's own extension, so that no front can
//! leave it out.

use std::any::TypeId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_graphql::{Request, ServerError, ServerResult, Value};
use sha2::{Digest, Sha256};

use super::boundary::coded;
use super::code::Code;
use super::manifest::Manifest;
use crate::config::{ConfigError, DocumentSettings, Settings};

/// The extension by which Apollo's clients name a document.
pub(super) const EXTENSION: &str = "persistedQuery";

/// How GraphQL over HTTP marks an id that is a hash.
const HASH_PREFIX: &str = "sha256:";

/// The name of a document, beside or instead of its text (GraphQL over HTTP, persisted documents). Part of a request's data.
pub(super) struct DocumentId(pub(super) String);

/// The hash of a text.
type Hash = [u8; 32];

/// Which documents run.
pub(super) enum Persisted {
    /// Any. Those sent with their hash are kept.
    Any(Kept),
    /// Those of the manifest.
    Trusted(Manifest),
}

/// A text that may be kept under its hash, once it is known to be good.
pub(super) struct Candidate {
    hash: Hash,
    text: Arc<str>,
}

impl Persisted {
    /// Reads the manifest, if there is one, and checks all of it.
    pub(super) fn open(settings: &Settings) -> Result<Self, ConfigError> {
        match &settings.documents.trusted {
            Some(path) => Ok(Self::Trusted(Manifest::read(path, &settings.limits)?)),
            None => Ok(Self::Any(Kept::new(&settings.documents))),
        }
    }

    /// Gives a request the text that it names, and refuses what may not run. Done twice, it is as done once. The text that
    /// was sent must have been found short enough to be hashed.
    pub(super) fn resolve(&self, request: &mut Request) -> ServerResult<Option<Candidate>> {
        let name = name_of(request)?;
        match self {
            Self::Any(kept) => kept.resolve(name.as_deref(), request),
            Self::Trusted(manifest) => {
                let text = manifest.find(name.as_deref(), &request.query).ok_or_else(not_in_list)?;
                if request.query.is_empty() {
                    text.clone_into(&mut request.query);
                } else if request.query != text {
                    return Err(mismatch());
                }
                Ok(None)
            }
        }
    }

    /// Keeps a text that passed every check: garbage cannot fill the memory.
    pub(super) fn keep(&self, candidate: &Candidate) {
        if let Self::Any(kept) = self {
            kept.keep(candidate.hash, &candidate.text);
        }
    }
}

/// The name that a request gives its document.
fn name_of(request: &Request) -> ServerResult<Option<String>> {
    let id = request.data.get(&TypeId::of::<DocumentId>()).and_then(|id| id.downcast_ref::<DocumentId>());
    match (id, request.extensions.get(EXTENSION)) {
        (None, None) => Ok(None),
        (Some(DocumentId(id)), None) => Ok(Some(id.clone())),
        (None, Some(extension)) => named_by_extension(extension).map(Some),
        (Some(_), Some(_)) => Err(bad("Name the document once: by documentId, or by extensions.persistedQuery.")),
    }
}

fn named_by_extension(extension: &Value) -> ServerResult<String> {
    let Value::Object(fields) = extension else { return Err(bad(SHAPE)) };
    match (fields.get("version"), fields.get("sha256Hash")) {
        (Some(Value::Number(version)), Some(Value::String(hash))) if version.as_u64() == Some(1) => Ok(hash.clone()),
        _ => Err(bad(SHAPE)),
    }
}

const SHAPE: &str = "extensions.persistedQuery must be an object with \"version\" 1 and \"sha256Hash\" of text.";

fn bad(message: &str) -> ServerError {
    coded(ServerError::new(message, None), Code::BadUserInput)
}

fn mismatch() -> ServerError {
    bad("The document that was sent is not the one that was named.")
}

/// Apollo's clients know it by this very message, and send the text.
fn not_found() -> ServerError {
    coded(ServerError::new("PersistedQueryNotFound", None), Code::DocumentNotFound)
}

fn not_in_list() -> ServerError {
    coded(ServerError::new("This server runs the documents of its list and no other.", None), Code::DocumentNotInList)
}

/// A hash as a name tells it: 64 hexadecimal digits, perhaps marked.
fn parse_hash(name: &str) -> Option<Hash> {
    let digits = name.strip_prefix(HASH_PREFIX).unwrap_or(name).as_bytes();
    let mut hash = Hash::default();
    if digits.len() != 2 * hash.len() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(hash)
}

fn hash_of(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

/// The name of a text by its hash.
pub(super) fn hash_name(text: &str) -> String {
    hash_of(text).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// A name without its mark.
pub(super) fn unmarked(name: &str) -> &str {
    name.strip_prefix(HASH_PREFIX).unwrap_or(name)
}

/// Texts by their hashes, as many as the settings allow. The one that was not used for the longest time goes first.
pub(super) struct Kept {
    most: usize,
    most_bytes: usize,
    texts: Mutex<Texts>,
}

#[derive(Default)]
struct Texts {
    by_hash: HashMap<Hash, Text>,
    bytes: usize,
    /// Counts uses, to tell which was the last.
    uses: u64,
}

struct Text {
    text: Arc<str>,
    last_use: u64,
}

impl Kept {
    fn new(settings: &DocumentSettings) -> Self {
        Self { most: settings.persisted_most, most_bytes: settings.persisted_bytes, texts: Mutex::default() }
    }

    fn resolve(&self, name: Option<&str>, request: &mut Request) -> ServerResult<Option<Candidate>> {
        let Some(name) = name else { return Ok(None) };
        let hash = parse_hash(name);
        if request.query.is_empty() {
            let text = hash.and_then(|hash| self.find(&hash)).ok_or_else(not_found)?;
            request.query = text.to_string();
            return Ok(None);
        }
        match hash {
            Some(hash) if hash == hash_of(&request.query) => {
                Ok(Some(Candidate { hash, text: request.query.as_str().into() }))
            }
            _ => Err(mismatch()),
        }
    }

    fn find(&self, hash: &Hash) -> Option<Arc<str>> {
        let mut texts = self.lock();
        texts.uses += 1;
        let now = texts.uses;
        let found = texts.by_hash.get_mut(hash)?;
        found.last_use = now;
        Some(found.text.clone())
    }

    fn keep(&self, hash: Hash, text: &Arc<str>) {
        if text.len() > self.most_bytes {
            return;
        }
        let mut texts = self.lock();
        texts.uses += 1;
        let last_use = texts.uses;
        match texts.by_hash.entry(hash) {
            Entry::Occupied(mut known) => known.get_mut().last_use = last_use,
            Entry::Vacant(place) => {
                place.insert(Text { text: text.clone(), last_use });
                texts.bytes += text.len();
            }
        }
        while texts.by_hash.len() > self.most || texts.bytes > self.most_bytes {
            texts.forget_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Texts> {
        // A panic while the lock was held leaves a memory that at worst forgets too early.
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Texts {
    fn forget_one(&mut self) {
        let oldest = self.by_hash.iter().min_by_key(|(_, text)| text.last_use).map(|(hash, _)| *hash);
        if let Some(text) = oldest.and_then(|hash| self.by_hash.remove(&hash)) {
            self.bytes -= text.text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(most: usize, most_bytes: usize) -> Kept {
        Kept::new(&DocumentSettings { trusted: None, persisted_most: most, persisted_bytes: most_bytes })
    }

    fn keep(kept: &Kept, text: &str) {
        kept.keep(hash_of(text), &text.into());
    }

    #[test]
    fn hashes_are_read_with_their_mark_and_without() {
        let name = hash_name("{ __typename }");
        // As `printf '{ __typename }' | sha256sum` says.
        assert_eq!(name, "7f56e67dd21ab3f30d1ff8b7bed08893f0a0db86449836189b361dd1e56ddb4b");
        for name in [name.clone(), format!("sha256:{name}"), name.to_uppercase()] {
            assert_eq!(parse_hash(&name), Some(hash_of("{ __typename }")), "{name}");
        }
        for name in ["", "sha256:", "abc", &name[1..], &format!("{name}0"), &name.replace('7', "g"), &"é".repeat(32)] {
            assert_eq!(parse_hash(name), None, "{name}");
        }
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten_first() {
        let kept = kept(3, 1000);
        for text in ["a", "b", "c"] {
            keep(&kept, text);
        }
        kept.find(&hash_of("a")).unwrap();
        keep(&kept, "d");
        let found = ["a", "b", "c", "d"].map(|text| kept.find(&hash_of(text)).is_some());
        assert_eq!(found, [true, false, true, true]);
    }

    #[test]
    fn texts_without_end_fill_no_memory() {
        let kept = kept(100, 5000);
        for number in 0..2000 {
            keep(&kept, &format!("{{ a{number} }}{}", " ".repeat(number % 200)));
            keep(&kept, "{ again }");
            let texts = kept.lock();
            assert_eq!(texts.bytes, texts.by_hash.values().map(|text| text.text.len()).sum::<usize>());
            assert!(texts.bytes <= 5000 && texts.by_hash.len() <= 100);
        }
        let long = "x".repeat(5001);
        keep(&kept, &long);
        assert!(kept.find(&hash_of(&long)).is_none() && kept.find(&hash_of("{ again }")).is_some());
    }
}
