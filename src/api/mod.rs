//! All that knows GraphQL or HTTP, and nothing else.
//!
//! | file | what it is for |
//! |---|---|
//! | `http` | the server: routes, health, stopping |
//! | `over_http`, `media_type` | GraphQL over HTTP: methods, media types, status codes, headers |
//! | `over_websocket` | GraphQL over WebSocket: graphql-transport-ws, its limits, and what ends a socket |
//! | `webhook` | what payment providers tell: verified before it is read |
//! | `parameters` | what a request holds, whatever the front |
//! | `guard`, `rules`, `arguments` | layer 1 in front of each mutation that declares `@cooldown`, what it declares, and what a field asks for |
//! | `overload` | how much is at work and how much may wait |
//! | `work` | the outcome table: money work in a task of its own, and what becomes of its lock |
//! | `measure`, `refusals`, `metrics_page` | metrics of root fields and HTTP; refusals in the log, so many a second; `/metrics` |
//! | `boundary`, `code` | what an error looks like to a client, and what of it is logged; the catalogue of codes |
//! | `document`, `documents`, `limits` | what is done with a document before it is executed, the ones parsed before, and what one may ask for |
//! | `persisted`, `manifest` | which documents run, and which text a name stands for; the list of trusted ones |
//! | `token`, `caller` | who the caller is: tokens, and what they say of their bearer |
//! | `key_set`, `jwks` | the public keys of an identity provider: fetched and kept fresh, read strictly |
//! | `span` | what a request's span is called, and whose trace it goes on with |
//! | `query`, `mutation`, `trusted`, `subscription`, `wallet`, `bonus`, `refusal`, `paging`, `scalars`, `ids` | the schema |
//! | `graphiql` | the page for people |

mod arguments;
mod bonus;
mod boundary;
mod caller;
mod code;
mod document;
mod documents;
mod graphiql;
mod guard;
mod http;
mod ids;
mod jwks;
mod key_set;
mod limits;
mod manifest;
mod measure;
mod media_type;
pub mod metrics_page;
mod mutation;
mod over_http;
mod over_websocket;
mod overload;
mod paging;
mod parameters;
mod persisted;
mod query;
mod refusal;
mod refusals;
mod rules;
mod scalars;
mod span;
mod subscription;
pub mod token;
mod trusted;
mod wallet;
mod webhook;
mod work;

use std::sync::Arc;

use async_graphql::dataloader::DataLoader;
use async_graphql::runtime::{TokioSpawner, TokioTimer};
use async_graphql::{SDLExportOptions, SchemaBuilder};

use crate::config::{ConfigError, Settings};
use crate::cooldown::Cooldown;
use crate::operations::App;
pub use code::error_catalogue;
pub use http::{Server, Shutdown};
use mutation::Mutation;
use persisted::Persisted;
use query::Query;
use subscription::Subscription;

/// The schema with everything that it needs to run.
type Schema = async_graphql::Schema<Query, Mutation, Subscription>;

fn builder() -> SchemaBuilder<Query, Mutation, Subscription> {
    async_graphql::Schema::build(Query, Mutation, Subscription).disable_suggestions()
}

/// The schema as text: what `schema.graphql` holds. It shows default windows, whatever a server's settings are.
pub fn sdl() -> String {
    let mut sdl = builder().finish().sdl_with_options(SDLExportOptions::new().include_specified_by());
    sdl.truncate(sdl.trim_end().len());
    sdl.push('\n');
    sdl
}

/// Builds the schema that serves requests. Fails where a window does not cover the work.
fn schema(app: &App, cooldown: &Cooldown, persisted: Arc<Persisted>) -> Result<Schema, ConfigError> {
    let rules = rules(&app.settings)?;
    let entries = DataLoader::new(bonus::EntryLoader(app.clone()), TokioSpawner::current(), TokioTimer::default());
    let schema = builder()
        .extension(boundary::Boundary::new(persisted))
        .extension(measure::Measure)
        .extension(guard::Guard::new(cooldown.clone(), rules, &app.settings))
        .data(app.clone())
        .data(entries);
    Ok(schema.finish())
}

/// Says whether every window covers the work, and whether each setting of a cooldown has its mutation and argument.
pub fn check_cooldowns(settings: &Settings) -> Result<(), ConfigError> {
    rules(settings).map(drop)
}

/// Says whether the list of trusted documents, if there is one, can be served.
pub fn check_documents(settings: &Settings) -> Result<(), ConfigError> {
    Persisted::open(settings).map(drop)
}

fn rules(settings: &Settings) -> Result<rules::Rules, ConfigError> {
    rules::Rules::new(settings, rules::declared(&sdl()))
}
