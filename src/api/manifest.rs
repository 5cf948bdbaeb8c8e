//! The list of trusted documents, as the app's build wrote it: read and checked whole at the start.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use async_graphql::extensions::{Extension, ExtensionContext, ExtensionFactory, NextExecute};
use async_graphql::{Pos, Request, Response, Variables};
use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::document::check_parsed;
use super::limits::{self, Refused};
use super::persisted::{hash_name, unmarked};
use crate::config::{ConfigError, LimitSettings};

/// The documents that run.
pub(super) struct Manifest {
    texts: Vec<Arc<str>>,
    /// By each id, and by the hash of the text.
    by_name: HashMap<String, usize>,
    by_text: HashMap<Arc<str>, usize>,
}

/// The two forms of a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    /// As Apollo's `generate-persisted-query-manifest` writes it.
    Apollo(ApolloManifest),
    /// `{ "<hash>": "<document>" }`, as graphql-codegen's client preset and Relay's compiler write it.
    Plain(Map<String, Value>),
}

#[derive(Deserialize)]
struct ApolloManifest {
    format: String,
    version: u32,
    operations: Vec<ApolloOperation>,
}

#[derive(Deserialize)]
struct ApolloOperation {
    id: String,
    body: String,
}

impl Manifest {
    /// Reads a file, and checks each of its documents as if it were sent: a list that would fail later fails now.
    pub(super) fn read(path: &Path, limits: &LimitSettings) -> Result<Self, ConfigError> {
        let wrong = |reason: &dyn std::fmt::Display| {
            ConfigError::because("documents.trusted", &format!("{}: {reason}", path.display()))
        };
        let text = std::fs::read(path).map_err(|error| wrong(&error))?;
        let listed = listed(&text).map_err(|reason| wrong(&reason))?;
        let checking = Checking::new(limits);
        let mut manifest = Self { texts: Vec::new(), by_name: HashMap::new(), by_text: HashMap::new() };
        for (id, document) in listed {
            checking.check(&document).map_err(|reason| wrong(&format!("the document \"{id}\": {reason}")))?;
            manifest.add(id, document).map_err(|id| wrong(&format!("the id \"{id}\" stands for two documents")))?;
        }
        Ok(manifest)
    }

    fn add(&mut self, id: String, document: String) -> Result<(), String> {
        let text = Arc::<str>::from(document);
        let place = *self.by_text.entry(text.clone()).or_insert_with(|| {
            self.texts.push(text.clone());
            self.texts.len() - 1
        });
        for name in [hash_name(&text), id] {
            if *self.by_name.entry(unmarked(&name).to_owned()).or_insert(place) != place {
                return Err(name);
            }
        }
        Ok(())
    }

    /// The document of this name or, without a name, of this text; also where both are given, for the caller to compare.
    pub(super) fn find(&self, name: Option<&str>, text: &str) -> Option<&str> {
        let place = match name {
            Some(name) => self.by_name.get(unmarked(name)),
            None => self.by_text.get(text),
        };
        Some(&self.texts[*place?])
    }
}

/// The ids and documents of a file, in its order.
fn listed(text: &[u8]) -> Result<Vec<(String, String)>, String> {
    let written = serde_json::from_slice(text).map_err(|_| FORMS.to_owned())?;
    let listed: Vec<_> = match written {
        Written::Apollo(manifest) if (manifest.format.as_str(), manifest.version) == (APOLLO_FORMAT, 1) => {
            manifest.operations.into_iter().map(|operation| (operation.id, operation.body)).collect()
        }
        Written::Apollo(manifest) => {
            return Err(format!("the format \"{}\" of version {} is not known", manifest.format, manifest.version));
        }
        Written::Plain(documents) => {
            let text = |(id, document)| match document {
                Value::String(document) => Ok((id, document)),
                _ => Err(FORMS.to_owned()),
            };
            documents.into_iter().map(text).collect::<Result<_, _>>()?
        }
    };
    if listed.is_empty() { Err("it lists no document, so nothing could run".to_owned()) } else { Ok(listed) }
}

const APOLLO_FORMAT: &str = "apollo-persisted-query-manifest";

const FORMS: &str = "it is neither Apollo's manifest nor an object of hashes and documents";

/// Checks documents without running them.
struct Checking<'a> {
    schema: super::Schema,
    limits: &'a LimitSettings,
}

impl<'a> Checking<'a> {
    fn new(limits: &'a LimitSettings) -> Self {
        Self { schema: super::builder().extension(RunNothing).finish(), limits }
    }

    fn check(&self, text: &str) -> Result<(), String> {
        let in_words = |Refused(message)| message;
        limits::check_text(text, self.limits).map_err(in_words)?;
        let document = async_graphql::parser::parse_query(text).map_err(|error| in_one_line(&error))?;
        check_parsed(&document, &Variables::default(), self.limits).map_err(in_words)?;
        let mut request = Request::new(text);
        request.operation_name = document.operations.iter().find_map(|(name, _)| name.map(ToString::to_string));
        request.set_parsed_query(document);
        // Nothing is waited for where nothing runs.
        let checked = self.schema.execute(request).now_or_never().ok_or("it could not be checked")?;
        checked.errors.first().map_or(Ok(()), |error| Err(error.message.clone()))
    }
}

/// Where the text is no GraphQL, and why: the library draws both over several lines.
fn in_one_line(error: &async_graphql::parser::Error) -> String {
    let text = error.to_string();
    let why = text.lines().last().unwrap_or_default().trim_start_matches([' ', '=']);
    match error.positions().next() {
        Some(Pos { line, column }) => format!("line {line}, column {column}: {why}"),
        None => why.to_owned(),
    }
}

/// Ends each request where its execution would begin.
struct RunNothing;

impl ExtensionFactory for RunNothing {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(Self)
    }
}

#[async_graphql::async_trait::async_trait]
impl Extension for RunNothing {
    async fn execute(&self, _: &ExtensionContext<'_>, _: Option<&str>, _: NextExecute<'_>) -> Response {
        Response::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use serde_json::json;

    fn read(text: &str) -> Result<Manifest, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest.json");
        std::fs::write(&path, text).unwrap();
        Manifest::read(&path, &Settings::default().limits).map_err(|error| error.to_string())
    }

    fn apollo(operations: &Value) -> String {
        json!({ "format": APOLLO_FORMAT, "version": 1, "operations": operations }).to_string()
    }

    const ONE: &str = "query One { viewer { id } }";
    const TWO: &str = "mutation Two($input: TransferInput!) { transfer(input: $input) { replayed } }";

    #[test]
    fn both_forms_are_read() {
        let operation = |id: &str, body: &str| json!({ "id": id, "name": "N", "type": "query", "body": body });
        let written = apollo(&json!([operation("one", ONE), operation(&format!("sha256:{}", hash_name(TWO)), TWO)]));
        for text in [written, json!({ "one": ONE, hash_name(TWO): TWO }).to_string()] {
            let manifest = read(&text).unwrap();
            for (name, document) in [("one", ONE), (&hash_name(ONE), ONE), (&format!("sha256:{}", hash_name(TWO)), TWO)]
            {
                assert_eq!(manifest.find(Some(name), ""), Some(document));
            }
            assert_eq!(manifest.find(None, TWO), Some(TWO));
            assert_eq!(manifest.find(None, "{ viewer { id } }"), None);
            assert_eq!(manifest.find(Some("three"), ONE), None);
        }
        assert!(read(&json!({ "one": ONE, "again": ONE }).to_string()).is_ok(), "two ids for one document");
    }

    #[test]
    fn a_bad_list_names_what_is_bad() {
        for (text, words) in [
            ("[]".to_owned(), vec!["neither Apollo's"]),
            ("{".to_owned(), vec!["neither Apollo's"]),
            ("{}".to_owned(), vec!["no document"]),
            (apollo(&json!([])), vec!["no document"]),
            (json!({ "a": 5 }).to_string(), vec!["neither Apollo's"]),
            (json!({ "format": "other", "version": 1, "operations": [] }).to_string(), vec!["other", "version 1"]),
            (json!({ "a": ONE, "b": "{ viewer" }).to_string(), vec!["\"b\"", "line 1, column 9: expected"]),
            (json!({ "a": ONE, "b": "{ nothing }" }).to_string(), vec!["\"b\"", "nothing"]),
            (json!({ "b": "query($n: Int) { viewer { id } }" }).to_string(), vec!["\"b\"", "$n"]),
            (
                json!({ "b": "mutation { a: claimDailyBonus { claim { id } } a: claimDailyBonus { claim { id } } }" })
                    .to_string(),
                vec!["\"b\"", "twice"],
            ),
            (json!({ "b": format!("{{ {} }}", "__typename ".repeat(600)) }).to_string(), vec!["\"b\"", "500 fields"]),
            (json!({ "b": "fragment F on Query { viewer { id } }" }).to_string(), vec!["\"b\""]),
            (json!({ "b": "query A { viewer { id } } query B { nothing }" }).to_string(), vec!["\"b\"", "nothing"]),
            (apollo(&json!([{ "id": "a", "body": ONE }, { "id": "a", "body": TWO }])), vec!["\"a\"", "two documents"]),
        ] {
            let error = read(&text).err().expect(&text);
            assert!(error.starts_with("documents.trusted: ") && error.contains("manifest.json"), "{error}");
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
