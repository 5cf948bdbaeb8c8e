//! Promise: a webhook reaches no machine of our own network, and an endpoint can neither lead it elsewhere nor keep us busy:
//! private addresses are refused at the connection, redirects and proxies are not followed, time and size are limited.
//!
//! Guards `workers/post_webhook.rs` and `address.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use largesse::workers::deliver_outbox::DeliverOutbox;
use largesse::workers::post_webhook::Sender;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::on_both;
use crate::world::outbox::{deliver, outbox, tell};
use crate::world::receiver::{Receiver, Reply};
use crate::world::{Database, Locks, World};

const PRIVATE: &str = "the address is private, and webhooks.allow_private_addresses is false";

/// An event for an endpoint at this URL, where private addresses are not allowed.
async fn world(url: &str) -> World {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| {
        tell(settings, "crm", url);
    })
    .await;
    world.fund("alice").await;
    let strict = world
        .another(|settings| {
            settings.webhooks.allow_private_addresses = false;
        })
        .await;
    world.stop().await;
    strict
}

async fn last_error(world: &World, error: &str) {
    assert_eq!(outbox(world, &format!("last_error = '{error}' AND attempts = 1")).await, 1, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_literal_private_address_is_refused_however_it_is_written() {
    let receiver = Receiver::taking().await;
    let port = receiver.url().rsplit(':').next().unwrap();
    for host in ["127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let world = world(&format!("https://{host}:{port}")).await;
        assert_eq!(deliver(&world).await.failed, 1, "{host}");
        last_error(&world, PRIVATE).await;
        assert!(receiver.received().is_empty(), "{host}");
        world.end().await;
    }
}

/// The system's own names: /etc/hosts says that localhost is here.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_a_private_address_is_refused() {
    let world = world("https://localhost:1/").await;
    assert_eq!(deliver(&world).await.failed, 1);
    last_error(&world, PRIVATE).await;
    world.end().await;
}

/// Says a public address first and a private one ever after, as an attacker's name server would.
struct Rebinding {
    asked: AtomicUsize,
    answers: Vec<Vec<SocketAddr>>,
}

impl Resolve for Rebinding {
    fn resolve(&self, _: Name) -> Resolving {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers[asked.min(self.answers.len() - 1)].clone();
        Box::pin(async move { Ok(Box::new(answer.into_iter()) as Addrs) })
    }
}

/// Whatever a name server says and when, the address that was checked is the one that is connected to.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_server_that_changes_its_mind_gains_nothing() {
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listening.set_nonblocking(true).unwrap();
    let here = listening.local_addr().unwrap();
    let world = world(&format!("https://rebinding.example:{}/", here.port())).await;
    // Documentation addresses are not public either, so nothing of this test leaves the machine.
    let answers = vec![vec!["192.0.2.1:0".parse().unwrap(), "[2001:db8::1]:0".parse().unwrap()], vec![here]];
    let resolver = Arc::new(Rebinding { asked: AtomicUsize::new(0), answers });
    let sender = Sender::resolving_with(&world.app.settings.webhooks, resolver.clone()).unwrap();
    let worker = DeliverOutbox::sending_with(&world.app, &sender);
    for attempt in 1..=2 {
        world.app.ledger.clock().move_to(chrono::TimeDelta::hours(attempt));
        assert_eq!(worker.run_once().await.unwrap().failed, 1);
        assert_eq!(outbox(&world, &format!("last_error = '{PRIVATE}' AND attempts = {attempt}")).await, 1);
    }
    assert_eq!(resolver.asked.load(Ordering::SeqCst), 2, "each attempt looks up once");
    assert!(listening.accept().is_err(), "nobody came");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let inside = Arc::new(Receiver::taking().await);
    let target = inside.url().to_owned();
    let receiver = Receiver::answering(move |_| Reply::With(307, "location", target.clone())).await;
    let world = World::with(Database::Sqlite, Locks::Off, |settings| tell(settings, "crm", receiver.url())).await;
    world.fund("alice").await;
    assert_eq!(deliver(&world).await.failed, 1);
    last_error(&world, "HTTP 307: redirects are not followed").await;
    assert_eq!((receiver.received().len(), inside.received().len()), (1, 0));
    world.end().await;
}

// The body is nobody's business: the status counts, and no more than the limit is read.
on_both!(an_endless_answer_is_not_read, async |database| {
    let receiver = Receiver::answering(|_| Reply::Endless).await;
    let world = World::with(database, Locks::Off, |settings| {
        tell(settings, "crm", receiver.url());
        settings.webhooks.timeout_ms = 15_000;
        settings.webhooks.response_bytes = 100_000;
    })
    .await;
    world.fund("alice").await;
    let began = Instant::now();
    assert_eq!(deliver(&world).await.delivered, 1);
    assert!(began.elapsed() < Duration::from_secs(12), "it ended by the limit of bytes, not of time");
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_come_is_not_waited_for() {
    let receiver = Receiver::answering(|_| Reply::Hold).await;
    let world = World::with(Database::Sqlite, Locks::Off, |settings| {
        tell(settings, "crm", receiver.url());
        settings.webhooks.timeout_ms = 300;
    })
    .await;
    world.fund("alice").await;
    let delivering = tokio::time::timeout(Duration::from_secs(10), deliver(&world));
    assert_eq!(delivering.await.expect("it is given up").failed, 1);
    last_error(&world, "no answer in time").await;
    world.end().await;
}
