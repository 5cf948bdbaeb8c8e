//! The codes of top-level errors, in one place, and the page that explains them.

use async_graphql::parser::types::{TypeKind, TypeSystemDefinition};

/// A stable code of a top-level error. The names that Apollo's servers use are kept where the meaning is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    BadRequest,
    BadUserInput,
    CooldownActive,
    DocumentNotFound,
    DocumentNotInList,
    Forbidden,
    ParseFailed,
    ValidationFailed,
    KeyInUse,
    Internal,
    OutcomeUnknown,
    Unauthenticated,
    Unavailable,
}

/// What the catalogue says of a code.
struct Entry {
    code: Code,
    name: &'static str,
    place: &'static str,
    retry: &'static str,
    meaning: &'static str,
}

const SAME_KEY: &str = "after `retryAfterMs`, with the same key";

/// In the order of their names.
const ENTRIES: [Entry; 13] = [
    Entry {
        code: Code::BadRequest,
        name: "BAD_REQUEST",
        place: "request; 400, 405, 406, 408, 413 or 415",
        retry: "no: mend the request",
        meaning: "The HTTP request is no GraphQL request: its media type, method, size or JSON.",
    },
    Entry {
        code: Code::BadUserInput,
        name: "BAD_USER_INPUT",
        place: "request, or a reading field",
        retry: "no: mend the value",
        meaning: "A value that its type refuses, such as an amount of `10x`, or a page of more than 100.",
    },
    Entry {
        code: Code::CooldownActive,
        name: "COOLDOWN_ACTIVE",
        place: "mutation field",
        retry: SAME_KEY,
        meaning: "Another attempt of the member at the same was admitted a moment ago, or as many as a minute allows. Nothing was attempted.",
    },
    Entry {
        code: Code::Forbidden,
        name: "FORBIDDEN",
        place: "field",
        retry: "no",
        meaning: "The caller may not do this, or the operation is switched off.",
    },
    Entry {
        code: Code::ParseFailed,
        name: "GRAPHQL_PARSE_FAILED",
        place: "request",
        retry: "no: mend the document",
        meaning: "The document is no GraphQL.",
    },
    Entry {
        code: Code::ValidationFailed,
        name: "GRAPHQL_VALIDATION_FAILED",
        place: "request",
        retry: "no: mend the document",
        meaning: "The document does not fit the schema, asks for more than the limits allow, or selects a mutation twice.",
    },
    Entry {
        code: Code::KeyInUse,
        name: "IDEMPOTENCY_CONCURRENT_REQUEST",
        place: "mutation field",
        retry: SAME_KEY,
        meaning: "A request with the same idempotency key is at work at this moment.",
    },
    Entry {
        code: Code::Internal,
        name: "INTERNAL_SERVER_ERROR",
        place: "field, or request",
        retry: "with the same key, and tell the operators the `requestId`",
        meaning: "A failure of ours. Nothing was done; its cause is in the log under the `requestId`.",
    },
    Entry {
        code: Code::OutcomeUnknown,
        name: "OUTCOME_UNKNOWN",
        place: "mutation field, or request",
        retry: SAME_KEY,
        meaning: "Nobody knows yet whether it was done. The same key will tell, and nothing is done twice.",
    },
    Entry {
        code: Code::DocumentNotFound,
        name: "PERSISTED_QUERY_NOT_FOUND",
        place: "request",
        retry: "with the document's text beside its hash",
        meaning: "This process does not know the document by this hash. Apollo's and urql's clients send the text by themselves.",
    },
    Entry {
        code: Code::DocumentNotInList,
        name: "PERSISTED_QUERY_NOT_IN_LIST",
        place: "request",
        retry: "no",
        meaning: "The server runs the documents of its list (`documents.trusted`) alone, and this is none of them.",
    },
    Entry {
        code: Code::Unauthenticated,
        name: "UNAUTHENTICATED",
        place: "field without a token; request with a token that is not good (401)",
        retry: "with a good token",
        meaning: "Nobody is signed in, or the token is malformed, expired or not ours.",
    },
    Entry {
        code: Code::Unavailable,
        name: "UNAVAILABLE",
        place: "field, or request",
        retry: SAME_KEY,
        meaning: "Something that is needed is away, too slow or overloaded. Of a mutation, nothing was done.",
    },
];

impl Code {
    /// The code of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        ENTRIES.iter().find(|entry| entry.name == name).map(|entry| entry.code)
    }

    /// The code as it stands in `extensions.code`.
    pub(super) fn name(self) -> &'static str {
        ENTRIES.iter().find(|entry| entry.code == self).map_or("INTERNAL_SERVER_ERROR", |entry| entry.name)
    }
}

/// The names of all codes.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().map(|entry| entry.name)
}

/// `docs/errors.md`: every code, where it appears, and whether to ask again. Made from the code and from the schema.
pub fn error_catalogue() -> String {
    let mut page = HEAD.to_owned();
    page += "| code | where | ask again? | what it means |\n|---|---|---|---|\n";
    for Entry { name, place, retry, meaning, .. } in ENTRIES {
        page += &["| `", name, "` | ", place, " | ", retry, " | ", meaning, " |\n"].concat();
    }
    page += USER_ERRORS;
    page += "| code | what it means |\n|---|---|\n";
    for (name, meaning) in user_error_codes() {
        page += &["| `", &name, "` | ", &meaning, " |\n"].concat();
    }
    page += ON_THE_WIRE;
    page
}

/// The values of the schema's enum `ErrorCode`, with their descriptions.
fn user_error_codes() -> Vec<(String, String)> {
    let document = async_graphql::parser::parse_schema(super::sdl()).expect("the schema that we print can be read");
    let types = document.definitions.into_iter().filter_map(|definition| match definition {
        TypeSystemDefinition::Type(definition) => Some(definition.node),
        _ => None,
    });
    let mut values = Vec::new();
    for definition in types.filter(|definition| definition.name.node == "ErrorCode") {
        let TypeKind::Enum(codes) = definition.kind else { continue };
        values.extend(codes.values.into_iter().map(|value| {
            let meaning = value.node.description.map(|description| description.node).unwrap_or_default();
            (value.node.value.node.to_string(), meaning)
        }));
    }
    values
}

const HEAD: &str = "# Errors

<!-- Written by `make errors` from src/api/code.rs and the schema; a test keeps it so. -->

There are two kinds, and they are never mixed up:

- **`userErrors` are answers.** The request was understood and decided; the refusal is stored under its idempotency key, and
  every repeat gets the same. Show it to the user.
- **A top-level error is no answer.** Ask again, with the same key, where the table says so. Whatever happened, the same key never
  pays twice.

## Top-level errors

";

const USER_ERRORS: &str = "
## `userErrors`

`field` names the offending field inside `input`. `INVALID_INPUT` and `IDEMPOTENCY_KEY_PARAMETER_MISMATCH` store nothing; a claim's
refusals need no storing, for the claim itself is what a repeat finds.

";

const ON_THE_WIRE: &str = r#"
## On the wire

A refused field is null, and the others are unharmed. Every error has a `code` and a `requestId`; `retryAfterMs` where waiting helps, and
then `Retry-After` in whole seconds as well. `path` is the alias, `action` the field's name.

```json
{"data":{"claimDailyBonus":null},"errors":[{"message":"Another attempt was admitted a moment ago; wait before the next one.","path":["claimDailyBonus"],"extensions":{"action":"claimDailyBonus","code":"COOLDOWN_ACTIVE","requestId":"01a227f0a4fd7003baed09616af66104","retryAfterMs":4951}}]}
```

A request that was not executed has no `data`. Under `application/graphql-response+json` its status is 400 (503 with `Retry-After` where
waiting helps); under `application/json` it is 200, for old clients repeat whatever is not.

```json
{"errors":[{"message":"Variable \"$input\" of type \"TransferInput!\" needs a value.","locations":[{"line":1,"column":10}],"extensions":{"code":"BAD_USER_INPUT","requestId":"01a227f0a4fd7003baed09616af66105"}}]}
```

A refusal is data:

```json
{"data":{"transfer":{"entry":null,"userErrors":[{"__typename":"InsufficientFundsError","code":"INSUFFICIENT_FUNDS","field":["amount"],"message":"The wallet does not cover the amount.","available":{"amount":"80"}}]}}}
```
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_what_the_code_says() {
        let page = include_str!("../../docs/errors.md");
        assert_eq!(page, error_catalogue(), "docs/errors.md is old: run `make errors`");
    }

    #[test]
    fn each_code_is_listed_once_in_order() {
        let names: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
        assert!(names.is_sorted());
        assert!(ENTRIES.iter().all(|entry| entry.code.name() == entry.name));
    }
}
