//! Promise: whichever process dies, and whenever, what was acknowledged exists once, the books balance, and every event arrives:
//! each at least once, and once at a receiver that drops repeats by their id.
//!
//! Guards all layers together, with real processes: two servers and two workers on one PostgreSQL and one Redis, killed without
//! warning and started again while a storm of keys, one of claims and one of a provider's notices go on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::world::binary::{Running, largesse};
use crate::world::provider::{ACME, Message, WHSEC};
use crate::world::receiver::{Receiver, Reply};
use crate::world::redis_server::free_port;
use crate::world::{
    CLAIM_DAILY, CLAIM_SIGNUP, Database, SECRET, books_balance, count_in, fresh_database, provide_cryptography,
    servers_url, token, transfer, unique,
};

/// How long the storms go on while processes die.
const STORM: Duration = Duration::from_secs(12);

/// How long everything may take to come to rest afterwards.
const REST: Duration = Duration::from_secs(90);

const MEMBERS: usize = 24;
const PAYMENTS: usize = 60;

/// How many transfers of each member are acknowledged at least.
const LEAST_EACH: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_exists_once_and_every_event_arrives() {
    storms_among_dying_processes(true).await;
}

/// Layers 2 and 3 keep the promise without layer 1.
#[tokio::test(flavor = "multi_thread")]
async fn it_does_so_without_the_cooldown() {
    storms_among_dying_processes(false).await;
}

async fn storms_among_dying_processes(cooldown: bool) {
    provide_cryptography();
    let folder = tempfile::tempdir().unwrap();
    let (url, _) = fresh_database(Database::Postgres).await;
    let receiver = moody_receiver().await;
    let ports = [free_port(), free_port()];
    let settings = settings(&url, receiver.url(), cooldown);
    let dying = Arc::new(AtomicBool::new(true));
    let fleet = tokio::task::spawn_blocking({
        let (dying, folder) = (dying.clone(), folder.path().to_owned());
        move || keep_killing(&folder, &settings, ports, &dying)
    });
    let storms = Storms::new(ports);
    let members = (0..MEMBERS).map(|number| tokio::spawn(storms.clone().member(number)));
    let payments = (0..PAYMENTS).map(|number| tokio::spawn(storms.clone().payment(number)));
    let (members, payments): (Vec<_>, Vec<_>) = (members.collect(), payments.collect());
    let mut acknowledged = BTreeMap::new();
    for member in members {
        acknowledged.extend(member.await.unwrap());
    }
    for payment in payments {
        payment.await.unwrap();
    }
    dying.store(false, Ordering::SeqCst);
    let (fleet, killed) = fleet.await.unwrap();
    assert!(killed >= 6, "{killed} processes were killed");
    everything_arrived(&url, &receiver).await;
    each_exists_once(&url, &acknowledged).await;
    drop(fleet);
    books_balance(&url).await;
}

/// One that takes most events, and now and then fails, hangs until the sender gives up, drops the connection after it has
/// taken the event, or answers late.
async fn moody_receiver() -> Receiver {
    Receiver::answering(|_| match rand::rng().random_range(0..20) {
        0 => Reply::Status(500),
        1 => Reply::Hold,
        2 => Reply::Drop,
        3 => Reply::Late(Duration::from_millis(200)),
        _ => Reply::Status(200),
    })
    .await
}

/// The environment of all four processes.
fn settings(url: &str, receiver: &str, cooldown: bool) -> Vec<(&'static str, String)> {
    vec![
        ("DATABASE_URL", url.to_owned()),
        ("REDIS_URL", servers_url("LARGESSE_TEST_REDIS_URL")),
        ("LARGESSE_COOLDOWN_PREFIX", format!("killed{}-{}", std::process::id(), unique())),
        ("LARGESSE_COOLDOWN_ENABLED", cooldown.to_string()),
        // The shortest window that these limits allow, so that a lock of a dead process ends soon.
        ("LARGESSE_REQUEST_DEADLINE_MS", "1500".to_owned()),
        ("LARGESSE_COOLDOWN_ACTIONS", actions()),
        ("LARGESSE_TOKEN_SECRET", SECRET.to_owned()),
        ("LARGESSE_DAILY_BONUS_AMOUNTS", "[50]".to_owned()),
        ("LARGESSE_SIGNUP_BONUS_AMOUNT", "100".to_owned()),
        ("LARGESSE_LOG_FORMAT", "json".to_owned()),
        ("LARGESSE_WORKERS_IN_SERVER", "false".to_owned()),
        (
            "LARGESSE_WEBHOOKS_ENDPOINTS",
            format!("[{{name = \"crm\", url = \"{receiver}\", secrets = [\"{WHSEC}\"], events = []}}]"),
        ),
        ("LARGESSE_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES", "true".to_owned()),
        ("LARGESSE_WEBHOOKS_TIMEOUT_MS", "500".to_owned()),
        ("LARGESSE_WEBHOOKS_LEASE_MS", "1500".to_owned()),
        ("LARGESSE_WEBHOOKS_BACKOFF_MS", "50".to_owned()),
        ("LARGESSE_WEBHOOKS_LONGEST_BACKOFF_MS", "500".to_owned()),
        ("LARGESSE_WEBHOOKS_ATTEMPTS", "1000".to_owned()),
        ("LARGESSE_FUNDING_PROVIDERS", format!("[{{name = \"{ACME}\", secrets = [\"{WHSEC}\"]}}]")),
    ]
}

fn actions() -> String {
    let action = |name: &str| format!("{name} = {{window_ms = 3000}}");
    format!("{{{}}}", ["claimDailyBonus", "claimSignupBonus", "transfer"].map(action).join(", "))
}

/// Runs two servers and two workers, and kills one of them every now and then, as long as it should. At the end all of them
/// run.
fn keep_killing(
    folder: &Path,
    settings: &[(&'static str, String)],
    ports: [u16; 2],
    dying: &AtomicBool,
) -> (Vec<Running>, usize) {
    let start = |number: usize| {
        let listen = ports.get(number).map(|port| format!("127.0.0.1:{port}"));
        let mut command: Command = match &listen {
            Some(listen) => largesse(folder, &["serve", "--listen", listen]),
            None => largesse(folder, &["work"]),
        };
        Running::start(command.envs(settings.iter().map(|(name, value)| (*name, value))))
    };
    let mut fleet: Vec<_> = (0..4).map(start).collect();
    // The moments are random; which ones they were does not matter to the promise.
    let mut random = StdRng::from_rng(&mut rand::rng());
    let (started, mut killed) = (std::time::Instant::now(), 0);
    while started.elapsed() < STORM && dying.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(random.random_range(300..1200)));
        let victim = random.random_range(0..fleet.len());
        fleet[victim].signal("KILL");
        killed += 1;
        std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
        fleet[victim] = start(victim);
    }
    (fleet, killed)
}

/// What asks, of both servers at once, until it is answered.
#[derive(Clone)]
struct Storms {
    client: reqwest::Client,
    urls: [String; 2],
    until: std::time::Instant,
}

impl Storms {
    fn new(ports: [u16; 2]) -> Self {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(4)).build().unwrap();
        let urls = ports.map(|port| format!("http://127.0.0.1:{port}"));
        Self { client, urls, until: std::time::Instant::now() + STORM }
    }

    /// Claims both bonuses, and then sends points around until the storm is over: the keys and their transactions.
    async fn member(self, number: usize) -> BTreeMap<String, String> {
        let name = format!("member{number}");
        for (document, field) in [(CLAIM_SIGNUP, "claimSignupBonus"), (CLAIM_DAILY, "claimDailyBonus")] {
            let answer = self.answer(&name, &json!({ "query": document }), field).await;
            let claimed = answer["claim"]["id"].is_string() || answer["userErrors"][0]["code"] == "ALREADY_CLAIMED";
            assert!(claimed, "{answer}");
        }
        let mut acknowledged = BTreeMap::new();
        for wish in 0.. {
            // On a slow machine the storm goes on until it has something to say.
            if std::time::Instant::now() >= self.until && acknowledged.len() >= LEAST_EACH {
                break;
            }
            let key = format!("{name}-{wish}");
            let to = format!("member{}", (number + 1) % MEMBERS);
            let answer = self.answer(&name, &transfer(&to, 1, &key), "transfer").await;
            match answer["entry"]["transactionId"].as_str() {
                Some(id) => drop(acknowledged.insert(key, id.to_owned())),
                // The neighbour has not been here yet; the next wish may find him.
                None => assert_eq!(answer["userErrors"][0]["code"], "NOT_FOUND", "{answer}"),
            }
        }
        acknowledged
    }

    /// Asks both servers at once, with the same key, and again, until one of them has an answer.
    async fn answer(&self, member: &str, body: &Value, field: &str) -> Value {
        let token = token(member);
        loop {
            let ask = |url: &String| {
                let request = self.client.post(format!("{url}/graphql")).bearer_auth(&token).json(body);
                async move { request.send().await.ok()?.json::<Value>().await.ok() }
            };
            let (first, second) = tokio::join!(ask(&self.urls[0]), ask(&self.urls[1]));
            let answers = [first, second].into_iter().flatten();
            if let Some(answered) = answers.map(|mut answer| answer["data"][field].take()).find(Value::is_object) {
                return answered;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Tells of a payment until both servers have taken it: a provider's retry and its first attempt at once.
    async fn payment(self, number: usize) {
        let notice = json!({ "reference": format!("payment{number}"), "type": "succeeded",
            "member": format!("member{}", number % MEMBERS), "amount": "7", "currency": "PTS" });
        let body = notice.to_string();
        for (index, url) in self.urls.iter().cycle().take(4).enumerate() {
            loop {
                let id = format!("event{number}-{}", index / 2);
                let message = Message::new(&id, body.clone());
                let request = self.client.post(format!("{url}/webhooks/funding/{ACME}")).body(message.body);
                let request = request.header("webhook-id", message.id).header("webhook-timestamp", message.timestamp);
                match request.header("webhook-signature", message.signatures).send().await {
                    Ok(response) if response.status().is_success() => break,
                    Ok(response) => assert!(response.status().is_server_error(), "{response:?}"),
                    Err(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Waits until nothing is on its way any more, and compares what came with what happened.
async fn everything_arrived(url: &str, receiver: &Receiver) {
    let started = std::time::Instant::now();
    while count_in(url, "SELECT COUNT(*) FROM outbox WHERE delivered_at IS NULL").await > 0 {
        assert!(started.elapsed() < REST, "events are still on their way");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let entries = count_in(url, "SELECT COUNT(*) FROM entries WHERE wallet_id IS NOT NULL").await;
    let mut seen = BTreeSet::new();
    let mut wallets: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for event in receiver.received() {
        if seen.insert(event.id().to_owned()) {
            let (member, version) = event.place();
            wallets.entry(member).or_default().push(version);
        }
    }
    assert_eq!(i64::try_from(seen.len()).unwrap(), entries, "as many events as entries, each with an id of its own");
    assert!(receiver.received().len() > seen.len(), "a receiver of such moods was asked again");
    for (member, versions) in wallets {
        let all: Vec<_> = (1..=i64::try_from(versions.len()).unwrap()).collect();
        assert_eq!(versions, all, "{member}'s events came in order, none missing and none twice");
    }
}

async fn each_exists_once(url: &str, acknowledged: &BTreeMap<String, String>) {
    assert!(acknowledged.len() >= MEMBERS * LEAST_EACH, "{} transfers were acknowledged", acknowledged.len());
    let ids: BTreeSet<_> = acknowledged.values().collect();
    assert_eq!(ids.len(), acknowledged.len(), "each key has its own transaction");
    let count =
        async |kind: &str| count_in(url, &format!("SELECT COUNT(*) FROM transactions WHERE kind = '{kind}'")).await;
    assert_eq!(count("transfer").await, i64::try_from(acknowledged.len()).unwrap());
    assert_eq!(count("signup_bonus").await, i64::try_from(MEMBERS).unwrap());
    assert_eq!(count("daily_bonus").await, i64::try_from(MEMBERS).unwrap());
    assert_eq!(count("funding").await, i64::try_from(PAYMENTS).unwrap());
}
