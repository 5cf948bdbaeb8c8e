//! `make storm`: the proof. 200 claims of one fresh member at once, against a demo of its own, and a look at the books.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use largesse::api::token::Tokens;
use largesse::config::Settings;
use largesse::member::Member;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::sync::Barrier;

const RIVALS: usize = 200;

const CLAIM: &str = "mutation { claimDailyBonus { claim { streak } userErrors { code } } }";

type Trouble = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, Trouble> {
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("storm.db");
    let demo = Demo::start(&database)?;
    let token = token_for("storm", &database)?;
    let (answers, took) = storm(&demo.address, &token).await?;
    let paid = answers.iter().filter(|answer| answer["data"]["claimDailyBonus"]["claim"]["streak"] == 1).count();
    let refused = answers.iter().filter(|answer| is_refusal(answer)).count();
    let balance = books_balance(&database)?;
    let books = if balance { "the books balance" } else { "THE BOOKS DO NOT BALANCE" };
    println!("{paid} paid, {refused} refused in {} ms, {books}", took.as_millis());
    let kept = paid == 1 && refused == RIVALS - 1 && balance;
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_refusal(answer: &Value) -> bool {
    answer["errors"][0]["extensions"]["code"] == "COOLDOWN_ACTIVE"
        || answer["data"]["claimDailyBonus"]["userErrors"][0]["code"] == "ALREADY_CLAIMED"
}

/// Fires all claims from behind one barrier, each on a connection that is open already.
async fn storm(address: &str, token: &str) -> Result<(Vec<Value>, Duration), Trouble> {
    let barrier = Arc::new(Barrier::new(RIVALS + 1));
    let attempts: Vec<_> =
        (0..RIVALS).map(|_| tokio::spawn(attempt(address.to_owned(), token.to_owned(), barrier.clone()))).collect();
    barrier.wait().await;
    let started = Instant::now();
    let mut answers = Vec::with_capacity(RIVALS);
    for attempt in attempts {
        answers.push(attempt.await??);
    }
    Ok((answers, started.elapsed()))
}

async fn attempt(address: String, token: String, barrier: Arc<Barrier>) -> Result<Value, Trouble> {
    let client = reqwest::Client::new();
    client.get(format!("{address}/livez")).send().await?.bytes().await?;
    let claim = client.post(format!("{address}/graphql")).bearer_auth(token).json(&json!({ "query": CLAIM }));
    barrier.wait().await;
    Ok(claim.send().await?.json().await?)
}

/// The member is fresh: made for this storm, with the demo's secret.
fn token_for(member: &str, database: &Path) -> Result<String, Trouble> {
    let secret = std::fs::read_to_string(database.with_added_extension("secret"))?;
    let tokens = Tokens::new(&SecretString::from(secret), &Settings::default().token)?;
    Ok(tokens.mint(&Member::parse(member)?, &[], Duration::from_mins(10))?)
}

fn books_balance(database: &Path) -> Result<bool, Trouble> {
    let mut audit = Command::new(binary()?);
    audit.arg("audit").arg("--database-url").arg(format!("sqlite:{}", database.display()));
    Ok(audit.stdout(Stdio::null()).status()?.success())
}

/// The program, built beside this example.
fn binary() -> Result<PathBuf, Trouble> {
    let examples = std::env::current_exe()?;
    let built = examples.ancestors().nth(2).ok_or("the example stands in no folder")?.join("largesse");
    if built.is_file() {
        Ok(built)
    } else {
        Err(format!("{} is not built: run `cargo build` first", built.display()).into())
    }
}

/// A demo on a free port, ended with this program.
struct Demo {
    child: Child,
    address: String,
}

impl Demo {
    fn start(database: &Path) -> Result<Self, Trouble> {
        let mut demo = Command::new(binary()?);
        demo.args(["demo", "--listen", "127.0.0.1:0", "--database"]).arg(database).stdout(Stdio::piped());
        let mut child = demo.spawn()?;
        let output = child.stdout.take().ok_or("the demo has no output")?;
        for line in BufReader::new(output).lines() {
            if let Some((_, address)) = line?.split_once("http://") {
                return Ok(Self { child, address: format!("http://{}", address.trim_end_matches('/')) });
            }
        }
        child.kill()?;
        Err("the demo said no address".into())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It is ours, and nothing can be done where it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
