//! What a document may ask for, decided before anything is executed, in time linear in the document.
//!
//! A fragment is counted once and remembered, however often it is spread. async-graphql's own checks expand fragments anew
//! at each spread, so that 24 fragments in under a kilobyte burn seconds there; after these limits nothing is left to expand.

use std::collections::HashMap;

use async_graphql::parser::types::{
    DocumentOperations, ExecutableDocument, Field, OperationType, Selection, SelectionSet,
};
use async_graphql::{Name, Value, Variables};

use super::paging::{DEFAULT_PAGE, LARGEST_PAGE};
use crate::config::LimitSettings;

/// Why a document is refused, in words for the developer who wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) String);

/// Refuses a text that is too long to be worth parsing.
pub(super) fn check_text(document: &str, limits: &LimitSettings) -> Result<(), Refused> {
    within("bytes", document.len() as u64, limits.document_bytes)?;
    within("tokens", tokens(document), limits.tokens)
}

/// Refuses a parsed document of which any operation asks for too much.
pub(super) fn check_document(
    document: &ExecutableDocument,
    variables: &Variables,
    limits: &LimitSettings,
) -> Result<(), Refused> {
    let mut counting = Counting { document, variables, introspection: limits.introspection, fragments: HashMap::new() };
    let operations: Vec<_> = match &document.operations {
        DocumentOperations::Single(operation) => vec![operation],
        DocumentOperations::Multiple(operations) => operations.values().collect(),
    };
    // Fragments that no operation spreads are validated as well, so they are counted as well.
    for fragment in document.fragments.keys() {
        counting.fragment(fragment)?;
    }
    for operation in operations {
        let asked = counting.selections(&operation.node.selection_set.node)?;
        let directives = asked.directives.saturating_add(operation.node.directives.len() as u64);
        within("levels of depth", asked.depth, limits.depth)?;
        within("fields", asked.fields, limits.fields)?;
        within("aliases", asked.aliases, limits.aliases)?;
        within("directives", directives, limits.directives)?;
        within("points of cost (fields, times their page sizes)", asked.cost, limits.cost)?;
        if operation.node.ty == OperationType::Mutation {
            within("mutations in one request", asked.root_fields, limits.root_mutations)?;
        }
        if operation.node.ty == OperationType::Subscription {
            // GraphQL specification, section 5.2.4.1; the library would mix both streams.
            within("field at the root of a subscription", asked.root_fields, 1)?;
        }
    }
    Ok(())
}

fn within(what: &str, asked: u64, limit: u64) -> Result<(), Refused> {
    if asked <= limit { Ok(()) } else { Err(Refused(format!("The document has more than {limit} {what}."))) }
}

/// What a selection set asks for, with its fragments expanded. Sums stop at 2^64 - 1, far above every limit.
#[derive(Clone, Copy, Default)]
struct Asked {
    depth: u64,
    fields: u64,
    aliases: u64,
    directives: u64,
    cost: u64,
    /// Fields of this very level, those of its fragments included.
    root_fields: u64,
}

impl Asked {
    /// Both stand side by side in one selection set.
    fn beside(self, other: Self) -> Self {
        Self {
            depth: self.depth.max(other.depth),
            fields: self.fields.saturating_add(other.fields),
            aliases: self.aliases.saturating_add(other.aliases),
            directives: self.directives.saturating_add(other.directives),
            cost: self.cost.saturating_add(other.cost),
            root_fields: self.root_fields.saturating_add(other.root_fields),
        }
    }
}

struct Counting<'a> {
    document: &'a ExecutableDocument,
    variables: &'a Variables,
    introspection: bool,
    /// None while a fragment is being counted: whoever meets it then stands in a circle.
    fragments: HashMap<&'a str, Option<Asked>>,
}

impl<'a> Counting<'a> {
    fn selections(&mut self, set: &'a SelectionSet) -> Result<Asked, Refused> {
        set.items.iter().try_fold(Asked::default(), |sum, selection| Ok(sum.beside(self.selection(&selection.node)?)))
    }

    fn selection(&mut self, selection: &'a Selection) -> Result<Asked, Refused> {
        let (mut asked, directives) = match selection {
            Selection::Field(field) => (self.field(&field.node)?, &field.node.directives),
            Selection::InlineFragment(inline) => {
                (self.selections(&inline.node.selection_set.node)?, &inline.node.directives)
            }
            Selection::FragmentSpread(spread) => {
                (self.fragment(&spread.node.fragment_name.node)?, &spread.node.directives)
            }
        };
        // The library lets unknown ones pass on `__typename`.
        if let Some(unknown) = directives.iter().find(|directive| !KNOWN.contains(&directive.node.name.node.as_str())) {
            return Err(Refused(format!("Unknown directive \"@{}\".", unknown.node.name.node)));
        }
        asked.directives = asked.directives.saturating_add(directives.len() as u64);
        Ok(asked)
    }

    fn field(&mut self, field: &'a Field) -> Result<Asked, Refused> {
        if !self.introspection && ["__schema", "__type"].contains(&field.name.node.as_str()) {
            return Err(Refused("Introspection is switched off.".to_owned()));
        }
        let below = self.selections(&field.selection_set.node)?;
        Ok(Asked {
            depth: below.depth.saturating_add(1),
            fields: below.fields.saturating_add(1),
            aliases: below.aliases.saturating_add(u64::from(field.alias.is_some())),
            directives: below.directives,
            cost: below.cost.saturating_mul(self.page_size(field)).saturating_add(1),
            root_fields: 1,
        })
    }

    fn fragment(&mut self, name: &'a Name) -> Result<Asked, Refused> {
        match self.fragments.get(name.as_str()) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => return Err(Refused(format!("The fragment \"{name}\" spreads itself."))),
            None => {}
        }
        // Validation says that an unknown fragment is unknown.
        let Some(fragment) = self.document.fragments.get(name) else { return Ok(Asked::default()) };
        self.fragments.insert(name, None);
        let asked = self.selections(&fragment.node.selection_set.node)?;
        self.fragments.insert(name, Some(asked));
        Ok(asked)
    }

    /// How many times the fields below are resolved: the page's size where one is asked for, the number of IDs, or once.
    fn page_size(&self, field: &Field) -> u64 {
        let sizes = field.arguments.iter().filter(|(name, _)| ["first", "last", "ids"].contains(&name.node.as_str()));
        let asked = sizes.filter_map(|(_, argument)| {
            let variable = |name: Name| self.variables.get(&name).cloned().ok_or(());
            match argument.node.clone().into_const_with(variable).ok()? {
                Value::Number(number) => number.as_u64(),
                Value::List(items) => Some(items.len() as u64),
                _ => None,
            }
        });
        let without = if PAGED.contains(&field.name.node.as_str()) { DEFAULT_PAGE } else { 1 };
        // More than the largest page is refused by the field itself, with its name.
        let largest = u64::from(LARGEST_PAGE.unsigned_abs());
        asked.max().unwrap_or(u64::from(without.unsigned_abs())).clamp(1, largest)
    }
}

/// The directives that a document may use: GraphQL specification, section 3.13.
const KNOWN: [&str; 2] = ["skip", "include"];

/// The schema's lists that come in pages.
const PAGED: [&str; 2] = ["entries", "bonusClaims"];

/// Counts the document's tokens from above: names and numbers as one each, every other character but spaces and commas as
/// one. Strings and comments count by their words, so a long memo is not free either.
fn tokens(document: &str) -> u64 {
    let mut in_word = false;
    let mut tokens = 0;
    for byte in document.bytes() {
        let word = byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
        let ignored = byte.is_ascii_whitespace() || byte == b',';
        tokens += u64::from(!(ignored || word && in_word));
        in_word = word;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn check(document: &str) -> Result<(), Refused> {
        let limits = Settings::default().limits;
        check_text(document, &limits)?;
        let parsed = async_graphql::parser::parse_query(document).unwrap();
        check_document(&parsed, &Variables::default(), &limits)
    }

    /// `levels` fragments, each of which spreads the next one so many times.
    fn bomb(levels: usize, spreads: usize) -> String {
        let fragments = (0..levels).map(|level| {
            let next = format!("...F{}", level + 1).repeat(spreads);
            format!("fragment F{level} on Query{{{next}}}")
        });
        format!("{{...F0}}{}fragment F{levels} on Query{{viewer{{id}}}}", fragments.collect::<String>())
    }

    #[test]
    fn nested_fragments_are_refused_in_no_time() {
        for document in [bomb(24, 2), bomb(8, 14), bomb(60, 20)] {
            let started = std::time::Instant::now();
            assert!(check(&document).is_err());
            assert!(started.elapsed() < std::time::Duration::from_millis(50), "{:?}", started.elapsed());
        }
    }

    #[test]
    fn each_limit_is_kept() {
        let aliases =
            |times: usize, field: &str| (0..times).map(|n| format!("a{n}: {field} ")).collect::<Vec<_>>().concat();
        let entry =
            "amount { amount currency decimals } balanceAfter { amount currency decimals } memo id createdAt kind";
        for (document, word) in [
            (format!("{{ {} }}", "a ".repeat(5000)), "tokens"),
            (format!("{{ viewer {{ {} }} }}", "id ".repeat(1200)), "fields"),
            (format!("{{ {} }}", aliases(31, "__typename")), "aliases"),
            (format!("mutation {{ {} }}", aliases(6, "claimDailyBonus { query { viewer { id } } }")), "mutations"),
            (format!("{{ __typename {} }}", "@skip(if: false) ".repeat(40)), "directives"),
            (format!("{} id {}", "{ a ".repeat(25), "} ".repeat(25)), "depth"),
            (
                format!("{{ viewer {{ {} }} }}", aliases(6, &format!("entries(first: 100) {{ nodes {{ {entry} }} }}"))),
                "cost",
            ),
            ("{ ...A } fragment A on Query { ...B } fragment B on Query { ...A }".to_owned(), "spreads itself"),
            ("{ __typename @aa@aa@aa }".to_owned(), "@aa"),
            ("{ id } fragment A on Query { ...A }".to_owned(), "spreads itself"),
        ] {
            let refused = check(&document).expect_err(word);
            assert!(refused.0.contains(word), "{word}: {}", refused.0);
        }
    }

    #[test]
    fn introspection_can_be_switched_off() {
        let mut limits = Settings::default().limits;
        limits.introspection = false;
        for (document, good) in [
            ("{ __schema { queryType { name } } }", false),
            ("{ ...F } fragment F on Query { x: __type(name: \"Query\") { name } }", false),
            ("{ __typename }", true),
        ] {
            let parsed = async_graphql::parser::parse_query(document).unwrap();
            assert_eq!(check_document(&parsed, &Variables::default(), &limits).is_ok(), good, "{document}");
        }
    }

    #[test]
    fn a_page_size_in_a_variable_counts() {
        let page = "entries(first: $n) { nodes { id memo kind createdAt transactionId } }";
        let pages = (0..10).map(|n| format!("a{n}: {page} ")).collect::<Vec<_>>().concat();
        let document = &format!("query($n: Int) {{ viewer {{ wallet {{ {pages} }} }} }}");
        let parsed = async_graphql::parser::parse_query(document).unwrap();
        let with = |n: i32| {
            let variables = Variables::from_json(serde_json::json!({ "n": n }));
            check_document(&parsed, &variables, &Settings::default().limits)
        };
        assert_eq!(with(20), Ok(()));
        assert!(with(100).is_err());
    }

    #[test]
    fn our_own_documents_and_full_introspection_pass() {
        assert_eq!(check(include_str!("../../operations/largesse.graphql")), Ok(()));
        // As code generators ask: each type with all of its parts, and types of types to the ninth level.
        let type_of = (0..9).fold("kind name".to_owned(), |inner, _| format!("kind name ofType {{ {inner} }}"));
        let input = "name description type { ...T } defaultValue isDeprecated deprecationReason";
        let introspection = format!(
            "query IntrospectionQuery {{ __schema {{ description queryType {{ name kind }} mutationType {{ name kind }} \
             subscriptionType {{ name kind }} types {{ kind name description specifiedByURL isOneOf \
             fields(includeDeprecated: true) {{ name description args(includeDeprecated: true) {{ {input} }} \
             type {{ ...T }} isDeprecated deprecationReason }} inputFields(includeDeprecated: true) {{ {input} }} \
             interfaces {{ ...T }} enumValues(includeDeprecated: true) {{ name description isDeprecated \
             deprecationReason }} possibleTypes {{ ...T }} }} directives {{ name description isRepeatable locations \
             args(includeDeprecated: true) {{ {input} }} }} }} }} fragment T on __Type {{ {type_of} }}"
        );
        assert_eq!(check(&introspection), Ok(()));
    }
}
