//! All that knows GraphQL or HTTP, and nothing else.
//!
//! | file | what it is for |
//! |---|---|
//! | [`http`](self) | the front: routes, body, deadline, headers |
//! | `guard` | layer 1 in front of each mutation that declares `@cooldown` |
//! | `work` | the outcome table: money work in a task of its own, and what becomes of its lock |
//! | `boundary` | what an error looks like to a client, and what of it is logged |
//! | `documents` | documents that were parsed before |
//! | `token` | who the caller is |
//! | `query`, `mutation`, `wallet`, `bonus`, `refusal`, `paging`, `scalars`, `ids` | the schema |
//! | `graphiql` | the page for people |

mod bonus;
mod boundary;
mod documents;
mod graphiql;
mod guard;
mod http;
mod ids;
mod mutation;
mod paging;
mod query;
mod refusal;
mod scalars;
pub mod token;
mod wallet;
mod work;

use std::collections::HashMap;
use std::time::Duration;

use async_graphql::dataloader::DataLoader;
use async_graphql::runtime::{TokioSpawner, TokioTimer};
use async_graphql::{EmptySubscription, SDLExportOptions, SchemaBuilder};

use crate::config::ConfigError;
use crate::cooldown::Cooldown;
use crate::operations::App;
pub use http::{Server, Shutdown};
use mutation::Mutation;
use query::Query;

/// The schema with everything that it needs to run.
type Schema = async_graphql::Schema<Query, Mutation, EmptySubscription>;

fn builder() -> SchemaBuilder<Query, Mutation, EmptySubscription> {
    async_graphql::Schema::build(Query, Mutation, EmptySubscription).disable_suggestions()
}

/// The schema as text: what `schema.graphql` holds. It shows default windows, whatever a server's settings are.
pub fn sdl() -> String {
    let mut sdl = builder().finish().sdl_with_options(SDLExportOptions::new().include_specified_by());
    sdl.truncate(sdl.trim_end().len());
    sdl.push('\n');
    sdl
}

/// Builds the schema that serves requests. Fails where a window does not cover the work.
fn schema(app: &App, cooldown: &Cooldown) -> Result<Schema, ConfigError> {
    let windows = guard::Windows::new(&app.settings, declared_windows())?;
    let entries = DataLoader::new(bonus::EntryLoader(app.clone()), TokioSpawner::current(), TokioTimer::default());
    let schema = builder()
        .extension(boundary::Boundary::default())
        .extension(guard::Guard::new(cooldown.clone(), windows, app.settings.cooldown.enabled))
        .data(app.clone())
        .data(entries);
    Ok(schema.finish())
}

/// The windows that mutations declare in the schema, by field name.
fn declared_windows() -> HashMap<String, Duration> {
    guard::declared_windows(&sdl())
}
