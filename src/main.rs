//! The command line.
//!
//! Exit codes: 0 done, 1 the work failed (for `audit`: the books do not balance), 2 a mistake in the call or the settings.

mod demo;
mod outbox;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use largesse::api::token::Tokens;
use largesse::api::{Server, Shutdown, check_cooldowns, check_documents, metrics_page, sdl};
use largesse::config::{ConfigError, LogFormat, Settings};
use largesse::cooldown::Cooldown;
use largesse::ledger::connect::{ConnectError, check_url, migrate};
use largesse::ledger::{Ledger, audit};
use largesse::member::Member;
use largesse::operations::App;
use largesse::traces::{self, Traces};
use largesse::workers::Workers;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A request is some hundred small allocations, made on one thread and given back on another: measured, this allocator
/// does that in less time than the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A GraphQL API that pays bonuses and moves points between wallets: every credit once, and the books balance.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// The first minute: nothing but this binary. A SQLite file, demo members and bonuses, GraphiQL on loopback.
    Demo(demo::DemoArgs),
    /// Serve requests in production. Needs a token secret or a key set, and a database URL.
    Serve(ServeArgs),
    /// Print the schema as SDL, as `schema.graphql` holds it.
    Schema,
    /// Bring the database up to date. Safe from several processes at once.
    Migrate(SettingsArgs),
    /// Print a bearer token for a member, made with the configured secret.
    Token(TokenArgs),
    /// Check the books on one snapshot. Exit code 0 if they balance, 1 and each broken row if not.
    Audit(SettingsArgs),
    /// Run the workers alone: events are sent, and what may be forgotten is forgotten. `serve` runs them too.
    Work(WorkArgs),
    /// List events that were not delivered, and send dead ones again.
    Outbox(outbox::OutboxArgs),
}

/// Where settings come from: defaults, then the file, then the environment, then these flags.
#[derive(Args)]
struct SettingsArgs {
    /// The settings file; `largesse.toml` in the working directory if there is one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// postgres://… or sqlite:FILE. Also: DATABASE_URL.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

#[derive(Args)]
struct ServeArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Where to listen [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// redis://… or rediss://…. Also: REDIS_URL. Without it, cooldowns live in this process.
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Lines for people or JSON for collectors.
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// Bring the database up to date first.
    #[arg(long)]
    migrate: bool,
}

#[derive(Args)]
struct WorkArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Lines for people or JSON for collectors.
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
}

#[derive(Args)]
struct TokenArgs {
    /// The member's name.
    member: String,
    /// A role that the token carries, such as `operator`. May be given several times.
    #[arg(long)]
    role: Vec<String>,
    /// How long the token is good: 30s, 15m, 8h or 7d.
    #[arg(long, default_value = "1h", value_parser = duration)]
    expires_in: Duration,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// A mistake in the call or the settings: exit code 2.
    #[error("{0}")]
    Settings(#[from] ConfigError),
    /// The work failed: exit code 1.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Failed(String),
}

impl CommandError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Settings(_)
            | Self::Connect(ConnectError::UnknownScheme | ConnectError::InMemory | ConnectError::BadUrl(_)) => {
                ExitCode::from(2)
            }
            Self::Connect(_) | Self::Failed(_) => ExitCode::from(1),
        }
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> CommandError {
    CommandError::Failed(format!("{what}: {error}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(command) = Cli::parse().command else {
        // Nobody who types the name alone wants an error.
        return if Cli::command().print_long_help().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    // rediss:// and TLS to PostgreSQL need one provider of cryptography for the process.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("largesse: another provider of cryptography was installed before");
        return ExitCode::FAILURE;
    }
    match run(command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("largesse: {error}");
            error.exit_code()
        }
    }
}

async fn run(command: Command) -> Result<ExitCode, CommandError> {
    match command {
        Command::Demo(args) => demo::run(args).await,
        Command::Serve(args) => serve(args).await,
        Command::Schema => {
            print!("{}", sdl());
            Ok(ExitCode::SUCCESS)
        }
        Command::Migrate(args) => {
            migrate(&database_url(&read_settings(args)?)?).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Token(args) => token(args),
        Command::Audit(args) => {
            let report = audit::audit(&database_url(&read_settings(args)?)?).await?;
            println!("{report}");
            Ok(if report.books_balance() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Work(args) => work(args).await,
        Command::Outbox(args) => outbox::run(args).await,
    }
}

async fn serve(args: ServeArgs) -> Result<ExitCode, CommandError> {
    let (mut settings, unknown) = settings_and_unknown_variables(args.settings)?;
    settings.listen = args.listen.unwrap_or(settings.listen);
    settings.redis_url = args.redis_url.map(SecretString::from).or(settings.redis_url);
    settings.log.format = args.log_format.unwrap_or(settings.log.format);
    // Whatever can be wrong with the settings is found before the first line of the log and before anything is touched.
    let url = database_url(&settings)?;
    check_url(&url)?;
    check_cooldowns(&settings)?;
    check_documents(&settings)?;
    let tokens = Tokens::open(&settings.token)?;
    let cooldown = Cooldown::open(&settings)?;
    let traces = traces::start(&settings)?;
    metrics_page::serve(settings.metrics.listen).await?;
    warn_of_unknown(unknown);
    if !settings.names_a_redis() {
        tracing::warn!("no redis_url: cooldowns live in this process, and each process admits an attempt of its own");
    }
    if args.migrate {
        migrate(&url).await?;
    }
    let with_workers = settings.workers.in_server;
    let app = App::new(Ledger::connect(&settings, &url).await?, settings)?;
    let server = assemble(&app, cooldown, tokens, &[]).await?;
    let workers = with_workers.then(|| Workers::new(&app)).transpose()?;
    tracing::info!(address = %server.address().map_err(|error| failed("the address", error))?, "listening");
    run_until_told(&app, Some(server), workers, traces).await
}

/// The workers alone. They need the database and nothing else.
async fn work(args: WorkArgs) -> Result<ExitCode, CommandError> {
    let (mut settings, unknown) = settings_and_unknown_variables(args.settings)?;
    settings.log.format = args.log_format.unwrap_or(settings.log.format);
    let url = database_url(&settings)?;
    check_url(&url)?;
    let traces = traces::start(&settings)?;
    metrics_page::serve(settings.metrics.listen).await?;
    warn_of_unknown(unknown);
    let app = App::new(Ledger::connect(&settings, &url).await?, settings)?;
    let workers = Workers::new(&app)?;
    run_until_told(&app, None, Some(workers), traces).await
}

fn warn_of_unknown(variables: Vec<String>) {
    for variable in variables {
        tracing::warn!(variable, "a variable of the environment names no setting and is ignored");
    }
}

/// Listens, and puts the parts of a server together.
async fn assemble(
    app: &App,
    cooldown: Cooldown,
    tokens: Tokens,
    demo_members: &[(String, String)],
) -> Result<Server, CommandError> {
    let listen = app.settings.listen;
    let listener =
        TcpListener::bind(listen).await.map_err(|error| failed(&format!("cannot listen on {listen}"), error))?;
    Ok(Server::new(listener, app.clone(), cooldown, tokens, demo_members)?)
}

/// Runs a server, workers or both until SIGINT or SIGTERM, and closes the books when both have ended.
async fn run_until_told(
    app: &App,
    server: Option<Server>,
    workers: Option<Workers>,
    traces: Traces,
) -> Result<ExitCode, CommandError> {
    if app.settings.metrics.listen.is_some() {
        let app = app.clone();
        tokio::spawn(async move { app.ledger.measure_pools().await });
    }
    let shutdown = Shutdown::new();
    let listen_for = |kind| signal(kind).map_err(|error| failed("signals", error));
    let (mut interrupt, mut terminate) = (listen_for(SignalKind::interrupt())?, listen_for(SignalKind::terminate())?);
    let told = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        told.cancel();
    });
    let (ended, ()) = tokio::join!(
        async {
            match server {
                Some(server) => server.run(shutdown.clone()).await,
                None => Ok(()),
            }
        },
        async {
            if let Some(workers) = workers {
                tracing::info!(endpoints = app.settings.webhooks.endpoints.len(), "working");
                workers.run(shutdown.clone()).await;
            }
        }
    );
    app.ledger.close().await;
    traces.end().await;
    ended.map_err(|error| failed("the server", error))?;
    Ok(ExitCode::SUCCESS)
}

fn token(args: TokenArgs) -> Result<ExitCode, CommandError> {
    let settings = read_settings(args.settings)?;
    let member = Member::parse(&args.member);
    let member = member.map_err(|error| ConfigError::because("the member's name", &error))?;
    let tokens = Tokens::open(&settings.token)?;
    let token = tokens.mint(&member, &args.role, args.expires_in).map_err(|error| failed("the token", error))?;
    println!("{token}");
    Ok(ExitCode::SUCCESS)
}

fn read_settings(args: SettingsArgs) -> Result<Settings, ConfigError> {
    let (settings, unknown) = settings_and_unknown_variables(args)?;
    for variable in unknown {
        eprintln!("largesse: warning: {variable} names no setting and is ignored");
    }
    Ok(settings)
}

fn settings_and_unknown_variables(args: SettingsArgs) -> Result<(Settings, Vec<String>), ConfigError> {
    let usual = PathBuf::from("largesse.toml");
    let file = args.config.or_else(|| usual.is_file().then_some(usual));
    let (mut settings, unknown) = Settings::read(&Settings::default(), file.as_deref(), std::env::vars())?;
    settings.database_url = args.database_url.map(SecretString::from).or(settings.database_url);
    Ok((settings, unknown))
}

fn database_url(settings: &Settings) -> Result<SecretString, ConfigError> {
    let sentence = "a database is required: set DATABASE_URL to postgres://… (or to sqlite:FILE for one process)";
    settings.database_url.clone().ok_or_else(|| ConfigError::missing(sentence))
}

/// Reads "90s", "15m", "8h" or "7d".
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a time like 30s, 15m, 8h or 7d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}
