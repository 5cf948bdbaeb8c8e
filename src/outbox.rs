//! `largesse outbox`: what was not delivered, and dead letters on their way again.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use largesse::error::Failure;
use largesse::ledger::Ledger;
use largesse::ledger::outbox::Standing;
use uuid::Uuid;

use crate::{CommandError, SettingsArgs, database_url, failed, read_settings};

#[derive(Args)]
pub(crate) struct OutboxArgs {
    #[command(subcommand)]
    command: OutboxCommand,
}

#[derive(Subcommand)]
enum OutboxCommand {
    /// Print events that were not delivered, oldest first, a line each: id, endpoint, type, since when, attempts, when it
    /// is sent next or "dead", and why the last attempt failed.
    List {
        /// Only those that were given up.
        #[arg(long)]
        dead: bool,
        /// How many at most.
        #[arg(long, default_value_t = 100)]
        limit: u64,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Send dead events again. Exit code 1 if one of the ids names none.
    Resend {
        /// The ids, as `list` prints them.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<Uuid>,
        #[command(flatten)]
        settings: SettingsArgs,
    },
}

pub(crate) async fn run(args: OutboxArgs) -> Result<ExitCode, CommandError> {
    match args.command {
        OutboxCommand::List { dead, limit, settings } => {
            let ledger = open(settings).await?;
            for event in ledger.undelivered_events(dead, limit).await.map_err(trouble)? {
                println!("{}", line(&event));
            }
            ledger.close().await;
            Ok(ExitCode::SUCCESS)
        }
        OutboxCommand::Resend { ids, settings } => {
            let ledger = open(settings).await?;
            let mut all = true;
            for id in ids {
                let found = ledger.resend_event(id).await.map_err(trouble)?;
                if !found {
                    eprintln!("largesse: {id} is no dead event");
                }
                all &= found;
            }
            ledger.close().await;
            Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

async fn open(args: SettingsArgs) -> Result<Ledger, CommandError> {
    let settings = read_settings(args)?;
    let url = database_url(&settings)?;
    Ok(Ledger::connect(&settings, &url).await?)
}

/// Who runs this command may read the cause.
fn trouble(failure: Failure) -> CommandError {
    match failure.cause() {
        Some(cause) => failed("the outbox", cause),
        None => failed("the outbox", failure),
    }
}

fn line(event: &Standing) -> String {
    let next = event.next_attempt_at.map_or_else(|| "dead".to_owned(), |next| next.to_rfc3339());
    let Standing { id, endpoint, event: kind, created_at, attempts, last_error, .. } = event;
    let error = last_error.as_deref().unwrap_or("");
    format!("{id}\t{endpoint}\t{kind}\t{}\t{attempts}\t{next}\t{error}", created_at.to_rfc3339())
}
