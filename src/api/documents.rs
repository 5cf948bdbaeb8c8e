//! Documents that were read before. An app sends the same few, and to parse and validate one costs more than all the rest of
//! a refusal: a flood would be paid for in parsing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_graphql::parser::types::ExecutableDocument;

/// Remembers documents by their text. Only what passed every check that is made before validation belongs here.
#[derive(Default)]
pub(super) struct Documents(Mutex<Remembered>);

/// A document that was parsed.
pub(super) struct Known {
    pub(super) document: ExecutableDocument,
    valid: AtomicBool,
}

#[derive(Default)]
struct Remembered {
    parsed: HashMap<String, Arc<Known>>,
    bytes: usize,
}

impl Known {
    /// Whether it was found to fit the schema, and would be again: its values stand in it, so no request can change them.
    pub(super) fn is_valid_for_ever(&self) -> bool {
        self.valid.load(Ordering::Relaxed)
    }

    /// It fits the schema with the variables of this request; without variables, with those of every request.
    pub(super) fn fits(&self) {
        let mut operations = self.document.operations.iter();
        if operations.all(|(_, operation)| operation.node.variable_definitions.is_empty()) {
            self.valid.store(true, Ordering::Relaxed);
        }
    }
}

impl Documents {
    /// How much text is remembered before all of it is forgotten: more than an app's documents, and little enough that
    /// a caller who sends ever new ones cannot fill the memory: parsed, a text of nothing but short names takes a few
    /// hundred times its size.
    const MOST_BYTES: usize = 1 << 16;

    /// The document of this text, if it was parsed before.
    pub(super) fn find(&self, text: &str) -> Option<Arc<Known>> {
        self.lock().parsed.get(text).cloned()
    }

    pub(super) fn remember(&self, text: &str, document: &ExecutableDocument) -> Arc<Known> {
        let known = Arc::new(Known { document: document.clone(), valid: AtomicBool::new(false) });
        if text.len() > Self::MOST_BYTES {
            return known;
        }
        let mut remembered = self.lock();
        if remembered.bytes + text.len() > Self::MOST_BYTES {
            *remembered = Remembered::default();
        }
        if remembered.parsed.insert(text.to_owned(), known.clone()).is_none() {
            remembered.bytes += text.len();
        }
        known
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        // A panic while the lock was held leaves a memory that at worst forgets too early.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_graphql::parser::parse_query;

    #[test]
    fn a_document_is_found_by_its_text_alone() {
        let documents = Documents::default();
        documents.remember("{ a }", &parse_query("{ a }").unwrap());
        assert!(documents.find("{ a }").is_some());
        assert!(documents.find("{ b }").is_none());
    }

    #[test]
    fn only_a_document_without_variables_is_valid_for_ever() {
        let documents = Documents::default();
        for (text, for_ever) in [
            ("{ a }", true),
            ("query($n: Int) { a(n: $n) }", false),
            ("query A { a } query B($n: Int) { a(n: $n) }", false),
        ] {
            let known = documents.remember(text, &parse_query(text).unwrap());
            assert!(!known.is_valid_for_ever(), "before anybody validated it");
            known.fits();
            assert_eq!(known.is_valid_for_ever(), for_ever, "{text}");
        }
    }

    #[test]
    fn new_documents_without_end_fill_no_memory() {
        let documents = Documents::default();
        for number in 0..3000 {
            let text = format!("{{ a{number}(text: \"{}\") }}", "x".repeat(100));
            documents.remember(&text, &parse_query(&text).unwrap());
            assert!(documents.find(&text).is_some());
            let remembered = documents.lock();
            assert_eq!(remembered.bytes, remembered.parsed.keys().map(String::len).sum::<usize>());
            assert!(remembered.bytes <= Documents::MOST_BYTES);
        }
        let long = format!("{{ a(text: \"{}\") }}", "x".repeat(Documents::MOST_BYTES));
        documents.remember(&long, &parse_query(&long).unwrap());
        assert!(documents.find(&long).is_none());
    }
}
