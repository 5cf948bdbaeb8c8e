//! `largesse demo`: the first minute, with nothing but the binary.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use largesse::api::token::Tokens;
use largesse::config::{ConfigError, Settings};
use largesse::cooldown::Cooldown;
use largesse::error::Deadline;
use largesse::ledger::Ledger;
use largesse::ledger::connect::migrate;
use largesse::member::Member;
use largesse::operations::App;
use largesse::operations::claim_signup_bonus::claim_signup_bonus;
use largesse::traces;
use largesse::workers::Workers;
use rand::Rng;
use secrecy::SecretString;

use crate::{CommandError, assemble, failed, run_until_told};

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Where to listen; on loopback only.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The SQLite file; its secret is kept beside it.
    #[arg(long, value_name = "FILE", default_value = "largesse-demo.db")]
    database: PathBuf,
    /// Begin afresh: forget the file and its secret.
    #[arg(long)]
    reset: bool,
}

/// Alice has her signup bonus to send from; Bob has still to claim his.
const MEMBERS: [&str; 2] = ["alice", "bob"];

/// Long enough for a first look and an evening's play.
const TOKEN_LIFETIME: Duration = Duration::from_hours(30 * 24);

pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, CommandError> {
    if !args.listen.ip().is_loopback() {
        let sentence = "the demo's tokens are on its page, so it listens on loopback only (127.0.0.1 or [::1])";
        return Err(ConfigError::missing(sentence).into());
    }
    if args.reset {
        forget(&args.database)?;
    }
    let (settings, secret) = (demo_settings(&args), kept_secret(&args.database)?);
    let traces = traces::start(&settings)?;
    let url = SecretString::from(format!("sqlite:{}", args.database.display()));
    migrate(&url).await?;
    let tokens = Tokens::new(&secret, &settings.token)?;
    let members = welcome(&settings, &url, &tokens).await?;
    let cooldown = Cooldown::open(&settings)?;
    let app = App::new(Ledger::connect(&settings, &url).await?, settings)?;
    let server = assemble(&app, cooldown, tokens, &members).await?;
    let workers = Workers::new(&app)?;
    let address = server.address().map_err(|error| failed("the address", error))?;
    println!("{}", introduction(address, &members));
    run_until_told(&app, Some(server), Some(workers), traces).await
}

fn demo_settings(args: &DemoArgs) -> Settings {
    let mut settings = Settings { listen: args.listen, ..Settings::default() };
    settings.daily_bonus.amounts = vec![10, 15, 20, 25, 30, 40, 50];
    settings.signup_bonus.amount = Some(100);
    "warn".clone_into(&mut settings.log.filter);
    settings
}

/// Makes the members known and gives Alice her bonus. Done at every start, it happens once.
async fn welcome(
    settings: &Settings,
    url: &SecretString,
    tokens: &Tokens,
) -> Result<Vec<(String, String)>, CommandError> {
    let app = App::new(Ledger::connect(settings, url).await?, settings.clone())?;
    let mut members = Vec::new();
    for name in MEMBERS {
        let member = Member::parse(name).map_err(|error| failed(name, error))?;
        app.ledger.know(&member).await.map_err(|failure| failed("the demo's members", format!("{failure:?}")))?;
        let token = tokens.mint(&member, &[], TOKEN_LIFETIME).map_err(|error| failed("the token", error))?;
        members.push((name.to_owned(), token));
        if name == MEMBERS[0] {
            let claimed = claim_signup_bonus(app.clone(), member, Deadline::within(settings.deadline())).await;
            claimed.map_err(|failure| failed("alice's signup bonus", format!("{failure:?}")))?.ok();
        }
    }
    app.ledger.close().await;
    Ok(members)
}

/// What the terminal shows once the page is there.
fn introduction(address: SocketAddr, members: &[(String, String)]) -> String {
    let tokens: Vec<_> = members.iter().map(|(member, token)| format!("  {member}'s token\n  {token}\n")).collect();
    let (tokens, token) = (tokens.join("\n"), members.first().map_or("", |(_, token)| token.as_str()));
    let claim =
        "mutation { claimDailyBonus { claim { streak amount { amount currency } } userErrors { code message } } }";
    format!(
        "Largesse demo

  GraphiQL   http://{address}/
  GraphQL    http://{address}/graphql

{tokens}
Paste this; it claims alice's daily bonus:

curl -s http://{address}/graphql -H 'content-type: application/json' -H 'authorization: Bearer {token}' \
-d '{{\"query\":\"{claim}\"}}'

Paste it again within five seconds: COOLDOWN_ACTIVE, refused before the database is touched.
Paste it again later today: ALREADY_CLAIMED, whatever happens to the cooldown. Stop with Ctrl-C."
    )
}

/// The secret beside the database file, made at the first start.
fn kept_secret(database: &Path) -> Result<SecretString, CommandError> {
    let path = secret_file(database);
    let trouble = |error| failed(&format!("the secret file {}", path.display()), error);
    match std::fs::read_to_string(&path) {
        Ok(secret) if !secret.trim().is_empty() => return Ok(SecretString::from(secret.trim())),
        Ok(_) => std::fs::remove_file(&path).map_err(trouble)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(trouble(error)),
    }
    let secret = format!("{:032x}{:032x}", rand::rng().random::<u128>(), rand::rng().random::<u128>());
    // Readable by its owner alone, from the first byte on.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(secret.as_bytes())).map_err(trouble)?;
    Ok(SecretString::from(secret))
}

fn secret_file(database: &Path) -> PathBuf {
    database.with_added_extension("secret")
}

fn forget(database: &Path) -> Result<(), CommandError> {
    let beside = ["-wal", "-shm"].map(|suffix| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    });
    for file in beside.into_iter().chain([database.to_owned(), secret_file(database)]) {
        match std::fs::remove_file(&file) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&format!("cannot remove {}", file.display()), error)),
        }
    }
    Ok(())
}
