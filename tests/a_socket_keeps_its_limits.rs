//! Promise: a WebSocket is no way around anything. It has limits in number, size and time, ends with its token, leaves nothing
//! behind when it is cut, and a mutation on it meets every layer.
//!
//! Guards `api/over_websocket/`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::on_both;
use crate::world::binary::{Running, largesse};
use crate::world::socket::Socket;
use crate::world::{Database, Locks, World, patient, transfer, wait_until};

const WATCH: &str = "subscription { walletChanged { wallet { version } } }";
const IMPATIENT_MS: u64 = 100;

fn code(payload: &Value) -> &Value {
    &payload["errors"][0]["extensions"]["code"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_ends_with_its_token() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| settings.token.leeway_seconds = 0).await;
    let member = largesse::member::Member::parse("alice").unwrap();
    let secret = crate::world::SECRET.into();
    let tokens = largesse::api::token::Tokens::new(&secret, &world.settings.token).unwrap();
    let started = std::time::Instant::now();
    let mut socket = Socket::with_token(&world, &tokens.mint(&member, &[], Duration::from_secs(2)).unwrap()).await;
    socket.subscribe("w", WATCH, json!({})).await;
    socket.event("w").await;
    assert_eq!(socket.closed().await, Some(4403));
    assert!((1..10).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_good_is_closed_by_the_protocols_codes() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| settings.sockets.init_timeout_ms = 500).await;
    for protocol in [None, Some("graphql-ws"), Some("nonsense")] {
        assert!(Socket::try_open(&world, protocol).await.is_err_and(|error| error.contains("400")), "{protocol:?}");
    }
    let mut silent = Socket::open(&world).await;
    assert_eq!(silent.closed().await, Some(4408));
    let init =
        |authorization: Value| json!({ "type": "connection_init", "payload": { "authorization": authorization } });
    let subscribe = |id: &str| json!({ "type": "subscribe", "id": id, "payload": { "query": "{ __typename }" } });
    for (message, close) in [
        (json!({ "type": "connection_init" }), 4403),
        (init(json!("Bearer nonsense")), 4403),
        (init(json!("Basic YTpi")), 4403),
        (init(json!("Bearer \n")), 4403),
        (init(json!(7)), 4403),
        (subscribe("a"), 4401),
        (json!({ "type": "subscribe", "id": "a" }), 4400),
        (json!([]), 4400),
        (json!({ "type": "next", "id": "a", "payload": {} }), 4400),
    ] {
        let mut socket = Socket::open(&world).await;
        socket.send(message.clone()).await;
        assert_eq!(socket.closed().await, Some(close), "{message}");
    }
    for (message, close) in [
        (Message::text("{"), 4400),
        (Message::binary(vec![0xff]), 4400),
        (Message::text(init(json!("Bearer x")).to_string()), 4429),
        (Message::text(subscribe("").to_string()), 4400),
        (Message::text(subscribe(&"x".repeat(129)).to_string()), 4400),
        (Message::text("x".repeat(world.settings.sockets.message_bytes + 1)), 1009),
    ] {
        let mut socket = Socket::of(&world, "alice").await;
        socket.send_raw(message.clone()).await;
        assert_eq!(socket.closed().await, Some(close), "{message:.80?}");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_has_so_many_sockets_and_a_socket_so_many_operations() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| {
        (settings.sockets.most_per_member, settings.sockets.operations) = (2, 3);
    })
    .await;
    let (mut first, second) = (Socket::of(&world, "alice").await, Socket::of(&world, "alice").await);
    let mut third = Socket::open(&world).await;
    let init = json!({ "type": "connection_init", "payload": {
        "Authorization": format!("Bearer {}", crate::world::token("alice")) } });
    third.send(init.clone()).await;
    assert_eq!(third.closed().await, Some(1013));
    drop(Socket::of(&world, "bob").await);
    second.cut();
    wait_until("the place is free again", async || {
        let mut next = Socket::open(&world).await;
        next.send(init.clone()).await;
        next.received().await.is_ok()
    })
    .await;

    for id in ["a", "b", "c"] {
        first.subscribe(id, WATCH, json!({})).await;
        first.event(id).await;
    }
    first.subscribe("d", WATCH, json!({})).await;
    let refused = first.next().await;
    assert_eq!((&refused["type"], &refused["id"]), (&json!("error"), &json!("d")), "{refused}");
    assert_eq!(refused["payload"][0]["extensions"]["code"], "BAD_REQUEST");
    first.send(json!({ "type": "complete", "id": "b" })).await;
    first.subscribe("d", WATCH, json!({})).await;
    first.event("d").await;
    first.subscribe("a", WATCH, json!({})).await;
    assert_eq!(first.closed().await, Some(4409), "an id that is in use");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_has_so_many_sockets() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| settings.sockets.most_at_once = 1).await;
    let only = Socket::of(&world, "alice").await;
    let refused = Socket::try_open(&world, Some("graphql-transport-ws")).await.err().expect("there is no place");
    assert!(refused.contains("503"), "{refused}");
    only.cut();
    wait_until("there is a place", async || Socket::try_open(&world, Some("graphql-transport-ws")).await.is_ok()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_dropped_and_nobody_else_waits_for_it() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| {
        settings.sockets.send_timeout_ms = 500;
        settings.sockets.most_per_member = 1;
    })
    .await;
    world.fund("alice").await;
    let mut slow = Socket::of(&world, "alice").await;
    // Answers of 20 kB each, which nobody reads: first they fill the buffers of the network, then the queue.
    let introspection = "{ __schema { types { name description fields { name description } } } }";
    let mut sent = 0;
    while tokio::time::timeout(Duration::from_secs(2), slow.subscribe(&sent.to_string(), introspection, json!({})))
        .await
        .is_ok()
    {
        sent += 1;
        if sent >= 4000 {
            break;
        }
        if sent % 50 == 0 {
            let mut bob = Socket::of(&world, "bob").await;
            bob.subscribe("q", "{ __typename }", json!({})).await;
            bob.event("q").await;
        }
    }
    wait_until("the slow reader has lost its place", async || {
        let mut next = Socket::open(&world).await;
        let bearer = format!("Bearer {}", crate::world::token("alice"));
        next.send(json!({ "type": "connection_init", "payload": { "Authorization": bearer } })).await;
        next.received().await.is_ok()
    })
    .await;
    drop(slow);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_gone_without_a_word_is_noticed() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| settings.sockets.ping_ms = IMPATIENT_MS).await;
    let mut lively = Socket::of(&world, "bob").await;
    lively.subscribe("w", WATCH, json!({})).await;
    lively.event("w").await;
    let mut gone = Socket::of(&world, "alice").await;
    gone.subscribe("w", WATCH, json!({})).await;
    gone.event("w").await;
    // From here on nobody reads from it, so nobody answers its pings. The other one is read from all the time.
    wait_until("its watch is over", async || {
        assert!(lively.is_silent_for(Duration::from_millis(IMPATIENT_MS)).await);
        world.app.ledger.live().watched().len() == 1
    })
    .await;
    assert!(lively.is_silent_for(Duration::from_millis(5 * IMPATIENT_MS)).await, "who answers pings stays");
    drop(gone);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_sockets_cut_without_a_word_leave_nothing() {
    let world = World::with(Database::Sqlite, Locks::Off, |_| {}).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut sockets = Vec::new();
    for number in 0..500 {
        let mut socket = Socket::of(&world, &format!("member{}", number / 10)).await;
        socket.subscribe("w", WATCH, json!({})).await;
        socket.event("w").await;
        sockets.push(socket);
    }
    assert_eq!(world.app.ledger.live().watched().len(), 50);
    assert!(tasks() >= before + 1000, "a task for each socket and each subscription");
    sockets.into_iter().for_each(Socket::cut);
    wait_until("no watch and no task is left", async || {
        world.app.ledger.live().watched().is_empty() && tasks() <= before + 5
    })
    .await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_were_cut_leave_no_memory_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = largesse(folder.path(), &["serve", "--migrate", "--listen", "127.0.0.1:0"]);
    serve
        .env("LARGESSE_TOKEN_SECRET", crate::world::SECRET)
        .env("DATABASE_URL", "sqlite:books.db")
        .env("LARGESSE_LOG_FORMAT", "json");
    let server = Running::start(serve.env("LARGESSE_SOCKETS_MOST_PER_MEMBER", "1000"));
    let address = format!("http://{}", server.word_after("\"address\":\""));
    let token = crate::world::token("alice");
    let mut resident = Vec::new();
    for _ in 0..5 {
        let mut sockets = Vec::new();
        for _ in 0..500 {
            let mut socket = Socket::at(&address, &token).await;
            socket.subscribe("w", WATCH, json!({})).await;
            socket.event("w").await;
            sockets.push(socket);
        }
        sockets.into_iter().for_each(Socket::cut);
        wait_until("no connection is left", async || open_files(server.pid()) < 100).await;
        resident.push(resident_kilobytes(server.pid()));
    }
    let grown = resident[4].saturating_sub(resident[1]);
    assert!(grown < 3000, "{grown} kB more after 1,500 further sockets: {resident:?}");
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn resident_kilobytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

on_both!(a_mutation_on_a_socket_meets_the_cooldown, async |database: Database| {
    let world = World::with(database, Locks::InProcess, |_| {}).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let (mut one, mut two) = (Socket::of(&world, "alice").await, Socket::of(&world, "alice").await);
    let body = transfer("bob", 30, "k");
    one.subscribe("t", body["query"].as_str().unwrap(), body["variables"].clone()).await;
    let paid = one.event("t").await;
    assert_eq!(paid["data"]["transfer"]["entry"]["amount"]["amount"], "-30", "{paid}");
    assert_eq!(one.next().await, json!({ "type": "complete", "id": "t" }));
    let second = transfer("bob", 30, "another-key");
    two.subscribe("t", second["query"].as_str().unwrap(), second["variables"].clone()).await;
    let refused = two.event("t").await;
    assert_eq!((code(&refused), &refused["data"]["transfer"]), (&json!("COOLDOWN_ACTIVE"), &Value::Null), "{refused}");
    let over_http = world.post(Some(&crate::world::token("alice")), second).await;
    assert_eq!(over_http.code(), Some("COOLDOWN_ACTIVE"), "the same lock, whatever the way in");
    let repeated = world.post(Some(&crate::world::token("alice")), body).await;
    assert_eq!(repeated.data("/transfer/entry/id"), &paid["data"]["transfer"]["entry"]["id"], "{}", repeated.body);
    assert_eq!(world.balance("bob").await, 30);
    world.end().await;
});

on_both!(the_same_key_on_many_sockets_pays_once, async |database: Database| {
    let world = World::with(database, Locks::Off, patient).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let body = transfer("bob", 30, "k");
    let mut sockets = Vec::new();
    for _ in 0..8 {
        let mut socket = Socket::of(&world, "alice").await;
        socket.subscribe("t", body["query"].as_str().unwrap(), body["variables"].clone()).await;
        sockets.push(socket);
    }
    let mut replayed = Vec::new();
    for socket in &mut sockets {
        replayed.push(socket.event("t").await["data"]["transfer"]["replayed"].as_bool().expect("an answer"));
    }
    assert_eq!(replayed.iter().filter(|replayed| !**replayed).count(), 1, "{replayed:?}");
    assert_eq!(world.balance("bob").await, 30);
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn a_document_on_a_socket_meets_the_limits() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    let bomb =
        (0..24).map(|n| format!("fragment F{n} on Query {{ ...F{0} ...F{0} }} ", n + 1)).collect::<Vec<_>>().concat();
    let bomb = format!("{{ ...F0 }} {bomb} fragment F24 on Query {{ __typename }}");
    let six = (0..6).map(|n| format!("a{n}: claimDailyBonus {{ claim {{ id }} }} ")).collect::<Vec<_>>().concat();
    let mut socket = Socket::of(&world, "alice").await;
    for document in [
        bomb.as_str(),
        &format!("mutation {{ {six} }}"),
        "mutation { claimDailyBonus { claim { id } } claimDailyBonus { wallet { id } } }",
        "subscription { a: walletChanged { wallet { id } } b: walletChanged { wallet { id } } }",
        "subscription { ...F } fragment F on Subscription { a: walletChanged { wallet { id } } b: walletChanged { wallet { id } } }",
        "subscription { nothing }",
        "{",
    ] {
        let started = std::time::Instant::now();
        socket.subscribe("d", document, json!({})).await;
        let refused = socket.next().await;
        assert_eq!(refused["type"], "error", "{document:.60}: {refused}");
        let code = refused["payload"][0]["extensions"]["code"].as_str().unwrap_or_default();
        assert!(["GRAPHQL_VALIDATION_FAILED", "GRAPHQL_PARSE_FAILED"].contains(&code), "{document:.60}: {refused}");
        assert!(started.elapsed() < Duration::from_secs(1), "{document:.60}: {:?}", started.elapsed());
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_when_its_socket_is_cut() {
    let world = World::with(Database::Postgres, Locks::Off, patient).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let sql = world.sql().await;
    sea_orm::ConnectionTrait::execute_unprepared(&sql, "BEGIN; SELECT 1 FROM wallets FOR UPDATE").await.unwrap();
    let mut socket = Socket::of(&world, "alice").await;
    let body = transfer("bob", 30, "k");
    socket.subscribe("t", body["query"].as_str().unwrap(), body["variables"].clone()).await;
    wait_until("the work waits for the wallet", async || world.waiting_for_locks().await == 1).await;
    socket.cut();
    sea_orm::ConnectionTrait::execute_unprepared(&sql, "COMMIT").await.unwrap();
    sql.close().await.unwrap();
    wait_until("the transfer is there", async || world.balance("bob").await == 30).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_says_so() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    let mut socket = Socket::of(&world, "alice").await;
    socket.subscribe("w", WATCH, json!({})).await;
    socket.event("w").await;
    let (closed, ()) = tokio::join!(socket.closed(), world.end());
    assert_eq!(closed, Some(1001));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_over_http_is_refused() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    let answer = world.ask("alice", WATCH, json!({})).await;
    assert_eq!((answer.code(), &answer.body["data"]), (Some("BAD_USER_INPUT"), &Value::Null), "{answer:?}");
    world.end().await;
}
