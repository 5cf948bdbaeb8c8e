//! What is done with a request's document before the library sees it.
//!
//! The library's own checks expand fragments without end, check no argument in which a variable is missing, and let one
//! response key run a mutation twice. All three are decided here first.

use std::collections::HashSet;
use std::sync::Arc;

use async_graphql::parser::types::{
    BaseType, DocumentOperations, ExecutableDocument, OperationDefinition, OperationType, Selection, SelectionSet,
    VariableDefinition,
};
use async_graphql::registry::{MetaType, Registry};
use async_graphql::{Request, ServerError, ServerResult, Value, Variables};

use super::boundary::coded;
use super::code::Code;
use super::documents::{Documents, Known};
use super::limits::{self, Refused};
use super::persisted::{Candidate, Persisted};
use super::span;
use crate::config::LimitSettings;

/// A request that may be validated, and what is remembered of its document.
pub(super) struct Prepared {
    pub(super) request: Request,
    pub(super) known: Arc<Known>,
    /// To be kept under its hash once it is found valid.
    pub(super) candidate: Option<Candidate>,
}

/// Finds the document that is named, parses it, unless it was parsed before, refuses what may not run, asks for too much or
/// runs something twice, and gives each variable its value.
pub(super) fn prepare(
    mut request: Request,
    persisted: &Persisted,
    documents: &Documents,
    registry: &Registry,
    limits: &LimitSettings,
) -> ServerResult<Prepared> {
    let refused = |Refused(message)| coded(ServerError::new(message, None), Code::ValidationFailed);
    // What was parsed before was short enough to be.
    let mut known = documents.find(&request.query);
    if known.is_none() {
        limits::check_text(&request.query, limits).map_err(refused)?;
    }
    let candidate = persisted.resolve(&mut request)?;
    if known.is_none() {
        known = documents.find(&request.query);
    }
    if let Some(known) = &known {
        request.set_parsed_query(known.document.clone());
    }
    let (text, name) = (request.query.clone(), request.operation_name.clone());
    let mut variables = std::mem::take(&mut request.variables);
    let document = request.parsed_query().map_err(|error| coded(error, Code::ParseFailed))?;
    // What has no variables asks for the same each time.
    if !known.as_ref().is_some_and(|known| known.is_valid_for_ever()) {
        check_parsed(document, &variables, limits).map_err(refused)?;
    }
    let known = known.unwrap_or_else(|| documents.remember(&text, document));
    if let Some(operation) = chosen(document, name.as_deref()) {
        complete_variables(registry, operation, &mut variables)?;
    }
    request.variables = variables;
    Ok(Prepared { request, known, candidate })
}

/// What the operation that will run does, if the request says which.
pub(super) fn span_name(prepared: &Prepared) -> Option<String> {
    let document = &prepared.known.document;
    let operation = chosen(document, prepared.request.operation_name.as_deref())?;
    Some(span::name_of(document, operation))
}

/// Refuses what asks for too much, or would run a mutation twice.
pub(super) fn check_parsed(
    document: &ExecutableDocument,
    variables: &Variables,
    limits: &LimitSettings,
) -> Result<(), Refused> {
    limits::check_document(document, variables, limits)?;
    let twice = |key| {
        let advice = "is selected twice in a mutation; select it once, or give it an alias.";
        Refused(format!("\"{key}\" {advice}"))
    };
    twice_selected(document).map_or(Ok(()), |key| Err(twice(key)))
}

/// What kind of operation the request would run; None where that cannot be read. From here on the request holds the text
/// that was judged: a hash that is unknown now cannot stand for a mutation a moment later.
pub(super) fn operation_type(
    request: &mut Request,
    persisted: &Persisted,
    limits: &LimitSettings,
) -> ServerResult<Option<OperationType>> {
    if limits::check_text(&request.query, limits).is_err() {
        return Ok(None);
    }
    persisted.resolve(request)?;
    let name = request.operation_name.clone();
    let Ok(document) = request.parsed_query() else { return Ok(None) };
    Ok(chosen(document, name.as_deref()).map(|operation| operation.ty))
}

/// The field that a subscription would follow, as its document names it.
pub(super) fn subscribed_field(request: &mut Request) -> Option<String> {
    let name = request.operation_name.clone();
    let operation = chosen(request.parsed_query().ok()?, name.as_deref())?;
    match &operation.selection_set.node.items.first()?.node {
        Selection::Field(field) => Some(field.node.name.node.to_string()),
        Selection::FragmentSpread(_) | Selection::InlineFragment(_) => None,
    }
}

/// Gives every variable of the operation a value, and refuses the request where one has none.
fn complete_variables(
    registry: &Registry,
    operation: &OperationDefinition,
    variables: &mut Variables,
) -> ServerResult<()> {
    for definition in &operation.variable_definitions {
        complete(registry, variables, &definition.node)
            .map_err(|message| coded(ServerError::new(message, Some(definition.pos)), Code::BadUserInput))?;
    }
    Ok(())
}

/// The operation that will run, if the request says which.
fn chosen<'a>(document: &'a ExecutableDocument, name: Option<&str>) -> Option<&'a OperationDefinition> {
    let mut operations =
        document.operations.iter().filter(|(of, _)| name.is_none() || of.map(async_graphql::Name::as_str) == name);
    match (operations.next(), operations.next()) {
        (Some((_, operation)), None) => Some(&operation.node),
        _ => None,
    }
}

/// A variable that is left out has its default, or else null, which here is the same as an argument left out.
fn complete(registry: &Registry, variables: &mut Variables, definition: &VariableDefinition) -> Result<(), String> {
    let (name, ty) = (&definition.name.node, &definition.var_type.node);
    let default = || definition.default_value.as_ref().map_or(Value::Null, |value| value.node.clone());
    let value = variables.entry(name.clone()).or_insert_with(default);
    if *value == Value::Null {
        return if ty.nullable { Ok(()) } else { Err(format!("Variable \"${name}\" of type \"{ty}\" needs a value.")) };
    }
    let object = match &ty.base {
        BaseType::Named(of) => matches!(registry.types.get(of.as_str()), Some(MetaType::InputObject { .. })),
        BaseType::List(_) => false,
    };
    if object && !matches!(value, Value::Object(_)) {
        return Err(format!("Variable \"${name}\" of type \"{ty}\" needs an object."));
    }
    Ok(())
}

/// A response key that some mutation of the document selects twice at its root. By the specification the field runs once
/// with both selections; async-graphql would run it twice. `@skip` is not counted in: such a document is refused as well.
fn twice_selected(document: &ExecutableDocument) -> Option<String> {
    let operations: Vec<_> = match &document.operations {
        DocumentOperations::Single(operation) => vec![operation],
        DocumentOperations::Multiple(operations) => operations.values().collect(),
    };
    let mutations = operations.into_iter().filter(|operation| operation.node.ty == OperationType::Mutation);
    mutations.into_iter().find_map(|operation| {
        let mut seen = Seen { document, keys: HashSet::new(), fragments: HashSet::new() };
        seen.selects_twice(&operation.node.selection_set.node)
    })
}

struct Seen<'a> {
    document: &'a ExecutableDocument,
    keys: HashSet<&'a str>,
    fragments: HashSet<&'a str>,
}

impl<'a> Seen<'a> {
    /// Linear in the document: a fragment that is spread a second time is not read again, since it repeats its fields.
    fn selects_twice(&mut self, selections: &'a SelectionSet) -> Option<String> {
        selections.items.iter().find_map(|selection| match &selection.node {
            Selection::Field(field) => {
                let key = field.node.response_key().node.as_str();
                (!self.keys.insert(key)).then(|| key.to_owned())
            }
            Selection::InlineFragment(fragment) => self.selects_twice(&fragment.node.selection_set.node),
            Selection::FragmentSpread(spread) => {
                let name = spread.node.fragment_name.node.as_str();
                if !self.fragments.insert(name) {
                    return Some(format!("...{name}"));
                }
                let fragment = self.document.fragments.get(name)?;
                self.selects_twice(&fragment.node.selection_set.node)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(document: &str) -> Option<String> {
        twice_selected(&async_graphql::parser::parse_query(document).unwrap())
    }

    #[test]
    fn a_response_key_stands_once_in_a_mutation() {
        assert_eq!(refused("mutation { a b c: a }"), None);
        assert_eq!(refused("{ a a }"), None, "a query may repeat itself");
        assert_eq!(refused("mutation { a { x } a { y } }").as_deref(), Some("a"));
        assert_eq!(refused("mutation { a: x a: y }").as_deref(), Some("a"));
        assert_eq!(refused("mutation { a ... on Mutation { a } }").as_deref(), Some("a"));
        assert_eq!(
            refused("mutation { a ...F } fragment F on Mutation { ...G } fragment G on Mutation { a }").as_deref(),
            Some("a")
        );
        assert_eq!(refused("mutation { ...F ...F } fragment F on Mutation { a }").as_deref(), Some("...F"));
        assert_eq!(refused("mutation { a @skip(if: true) a }").as_deref(), Some("a"));
        assert_eq!(refused("query Q { a a } mutation M { b b }").as_deref(), Some("b"));
    }
}
