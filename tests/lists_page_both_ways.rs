//! Promise: a list is the same read forwards and backwards, in pages of any size, newest first, without a gap and without a
//! repeat, also while it grows.
//!
//! Guards `api/paging.rs`, the cursors of `api/ids.rs`, and the reads of `ledger/statement.rs`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::on_both;
use crate::world::statements::statements;
use crate::world::{Answer, CLAIM_DAILY, Database, Locks, TRANSFER, World, transfer};

/// Enough for a second page of the default size, and for a last page that is not full.
const MANY: usize = 27;

/// A list of the viewer's, and how one more row comes into it.
#[derive(Clone, Copy, PartialEq)]
enum List {
    Entries,
    Claims,
}

impl List {
    const BOTH: [Self; 2] = [Self::Entries, Self::Claims];

    fn document(self, arguments: &str) -> String {
        let page =
            "pageInfo { startCursor endCursor hasNextPage hasPreviousPage } edges { cursor node { id } } nodes { id }";
        match self {
            Self::Entries => format!("{{ viewer {{ memberId wallet {{ list: entries{arguments} {{ {page} }} }} }} }}"),
            Self::Claims => format!("{{ viewer {{ memberId list: bonusClaims{arguments} {{ {page} }} }} }}"),
        }
    }

    fn pointer(self) -> &'static str {
        match self {
            Self::Entries => "/viewer/wallet/list",
            Self::Claims => "/viewer/list",
        }
    }

    /// Adds the row of this number and says its id.
    async fn grow(self, world: &World, number: usize) -> Value {
        match self {
            Self::Entries => {
                let input = transfer("bob", 1, &format!("key-{number}"))["variables"].clone();
                world.ask("alice", TRANSFER, input).await.data("/transfer/entry/id").clone()
            }
            Self::Claims => {
                world.app.ledger.clock().move_to(TimeDelta::days(i64::try_from(number).unwrap()));
                world.ask("alice", CLAIM_DAILY, json!({})).await.data("/claimDailyBonus/claim/id").clone()
            }
        }
    }

    /// A world in which the list has [`MANY`] rows, and their ids, newest first. The first is the signup bonus.
    async fn filled(self, database: Database) -> (World, Vec<Value>) {
        let world = World::new(database, Locks::Off).await;
        world.introduce("bob").await;
        world.fund("alice").await;
        let first = self.read(&world, "(first: 1)").await;
        let mut ids = vec![first["nodes"][0]["id"].clone()];
        for number in 1..MANY {
            ids.insert(0, self.grow(&world, number).await);
        }
        assert!(ids.iter().all(Value::is_string), "{ids:?}");
        (world, ids)
    }

    async fn read(self, world: &World, arguments: &str) -> Value {
        let answer = self.ask(world, arguments).await;
        assert_eq!(answer.codes(), Vec::<&str>::new(), "{arguments}: {}", answer.body);
        let page = answer.data(self.pointer()).clone();
        is_consistent(&page);
        page
    }

    async fn ask(self, world: &World, arguments: &str) -> Answer {
        world.ask("alice", &self.document(arguments), json!({})).await
    }

    /// One page in a direction from a cursor.
    async fn step(self, world: &World, way: Way, size: usize, cursor: Option<&str>) -> Value {
        let (count, from) = way.arguments();
        let from = cursor.map(|cursor| format!(", {from}: \"{cursor}\"")).unwrap_or_default();
        self.read(world, &format!("({count}: {size}{from})")).await
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// From the newest to the oldest, with `first` and `after`.
    Forwards,
    /// From the oldest to the newest, with `last` and `before`.
    Backwards,
}

impl Way {
    fn arguments(self) -> (&'static str, &'static str) {
        match self {
            Self::Forwards => ("first", "after"),
            Self::Backwards => ("last", "before"),
        }
    }

    /// Whether there is more in this direction, and from which cursor.
    fn goes_on(self, page: &Value) -> Option<String> {
        let (more, cursor) = match self {
            Self::Forwards => ("hasNextPage", "endCursor"),
            Self::Backwards => ("hasPreviousPage", "startCursor"),
        };
        let info = &page["pageInfo"];
        info[more].as_bool().unwrap().then(|| info[cursor].as_str().unwrap().to_owned())
    }
}

/// Edges, nodes and page info of one page say the same.
fn is_consistent(page: &Value) {
    let edges = page["edges"].as_array().unwrap();
    let of_edges: Vec<_> = edges.iter().map(|edge| &edge["node"]["id"]).collect();
    assert_eq!(json!(of_edges), json!(ids(page)));
    let cursor = |edge: Option<&Value>| edge.map_or(Value::Null, |edge| edge["cursor"].clone());
    assert_eq!(page["pageInfo"]["startCursor"], cursor(edges.first()));
    assert_eq!(page["pageInfo"]["endCursor"], cursor(edges.last()));
}

fn ids(page: &Value) -> Vec<Value> {
    page["nodes"].as_array().unwrap().iter().map(|node| node["id"].clone()).collect()
}

/// `hasPreviousPage` and `hasNextPage`.
fn ends(page: &Value) -> (bool, bool) {
    let end = |name: &str| page["pageInfo"][name].as_bool().unwrap();
    (end("hasPreviousPage"), end("hasNextPage"))
}

/// Reads the whole list page by page; after each page `between` may change it. Newest first, whichever the way.
async fn walk(world: &World, list: List, way: Way, size: usize, mut between: impl AsyncFnMut()) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = list.step(world, way, size, cursor.as_deref()).await;
        assert!(ids(&page).len() <= size);
        match way {
            Way::Forwards => all.extend(ids(&page)),
            Way::Backwards => drop(all.splice(0..0, ids(&page))),
        }
        assert_ne!(ids(&page).len(), 0, "a page was announced and is empty");
        assert!(all.len() <= 2 * MANY, "rows are repeated without an end");
        cursor = way.goes_on(&page);
        if cursor.is_none() {
            return all;
        }
        between().await;
    }
}

on_both!(the_same_list_in_both_directions_and_pages_of_any_size, async |database| {
    for list in List::BOTH {
        let (world, all) = list.filled(database).await;
        for size in [1, 2, 7, 9, MANY - 1, MANY, MANY + 1, 100] {
            for way in [Way::Forwards, Way::Backwards] {
                assert_eq!(walk(&world, list, way, size, async || {}).await, all, "in pages of {size}");
            }
        }
        world.end().await;
    }
});

on_both!(a_list_that_grows_between_pages_has_no_gap_and_no_repeat, async |database| {
    for list in List::BOTH {
        let (world, mut all) = list.filled(database).await;
        let mut number = MANY;
        // What is newer than the first page is behind a reader who goes to the oldest.
        let seen = walk(&world, list, Way::Forwards, 5, async || {
            all.insert(0, list.grow(&world, number).await);
            number += 1;
        })
        .await;
        assert_eq!(seen, all[all.len() - MANY..]);
        // And it lies before one who comes from there; the last page is the one that finds nothing new.
        let until = number + 4;
        let seen = walk(&world, list, Way::Backwards, 5, async || {
            if number < until {
                all.insert(0, list.grow(&world, number).await);
                number += 1;
            }
        })
        .await;
        assert_eq!(seen, all);
        world.end().await;
    }
});

on_both!(page_info_tells_both_ends, async |database| {
    for list in List::BOTH {
        let (world, all) = list.filled(database).await;
        let newest = list.read(&world, "(first: 5)").await;
        assert_eq!((ids(&newest), ends(&newest)), (all[..5].to_vec(), (false, true)));
        let oldest = list.read(&world, "(last: 5)").await;
        assert_eq!((ids(&oldest), ends(&oldest)), (all[MANY - 5..].to_vec(), (true, false)));
        let middle = list.step(&world, Way::Forwards, 5, newest["pageInfo"]["endCursor"].as_str()).await;
        assert_eq!((ids(&middle), ends(&middle)), (all[5..10].to_vec(), (true, true)));
        let middle = list.step(&world, Way::Backwards, 5, oldest["pageInfo"]["startCursor"].as_str()).await;
        assert_eq!((ids(&middle), ends(&middle)), (all[MANY - 10..MANY - 5].to_vec(), (true, true)));
        for whole in [format!("(first: {MANY})"), format!("(last: {MANY})")] {
            let page = list.read(&world, &whole).await;
            assert_eq!((ids(&page), ends(&page)), (all.clone(), (false, false)), "{whole}");
        }
        // Past the ends there is nothing, and the list lies on the other side.
        let past = list.step(&world, Way::Forwards, 5, oldest["pageInfo"]["endCursor"].as_str()).await;
        assert_eq!((ids(&past), ends(&past)), (vec![], (true, false)));
        let past = list.step(&world, Way::Backwards, 5, newest["pageInfo"]["startCursor"].as_str()).await;
        assert_eq!((ids(&past), ends(&past)), (vec![], (false, true)));
        world.end().await;
    }
});

on_both!(after_and_before_bound_a_range, async |database| {
    for list in List::BOTH {
        let (world, all) = list.filled(database).await;
        let page = list.read(&world, "(first: 100)").await;
        let cursor = |at: usize| page["edges"][at]["cursor"].as_str().unwrap();
        let within = format!("after: \"{}\", before: \"{}\"", cursor(3), cursor(12));
        assert_eq!(ids(&list.read(&world, &format!("({within})")).await), all[4..12]);
        assert_eq!(ids(&list.read(&world, &format!("({within}, first: 3)")).await), all[4..7]);
        assert_eq!(ids(&list.read(&world, &format!("({within}, last: 3)")).await), all[9..12]);
        let nothing = format!("(after: \"{}\", before: \"{}\")", cursor(12), cursor(3));
        assert_eq!(ids(&list.read(&world, &nothing).await), Vec::<Value>::new());
        world.end().await;
    }
});

on_both!(twenty_by_default_and_a_hundred_at_most, async |database| {
    for list in List::BOTH {
        let (world, all) = list.filled(database).await;
        for default in ["", "(first: null)", "(first: null, last: null)"] {
            let page = list.read(&world, default).await;
            assert_eq!((ids(&page), ends(&page)), (all[..20].to_vec(), (false, true)), "{default}");
        }
        assert_eq!(ids(&list.read(&world, "(first: 100)").await), all);
        assert_eq!(ids(&list.read(&world, "(last: 100)").await), all);
        for (arguments, name) in [
            ("(first: 101)", "first"),
            ("(first: 0)", "first"),
            ("(first: -1)", "first"),
            ("(last: 101)", "last"),
            ("(last: 0)", "last"),
            ("(last: -1)", "last"),
            ("(first: 2147483647)", "first"),
            ("(last: -2147483648)", "last"),
            ("(first: 5, last: 5)", "last"),
        ] {
            is_refused(&list.ask(&world, arguments).await, list, name);
        }
        world.end().await;
    }
});

on_both!(a_cursor_that_is_not_of_this_list_is_refused, async |database| {
    for list in List::BOTH {
        let (world, _) = list.filled(database).await;
        let other = if list == List::Entries { List::Claims } else { List::Entries };
        let page = other.read(&world, "(first: 1)").await;
        let node = page["nodes"][0]["id"].as_str().unwrap().to_owned();
        let mut bad: Vec<String> = ["", " ", "5", "xyz", "AAAA", "%", "\\u0000"].map(str::to_owned).into();
        bad.extend([page["pageInfo"]["endCursor"].as_str().unwrap().to_owned(), node, "A".repeat(1000)]);
        bad.push(at_the_edge_of_time(i64::MAX));
        bad.push(at_the_edge_of_time(i64::MIN));
        for cursor in &bad {
            for name in ["after", "before"] {
                is_refused(&list.ask(&world, &format!("({name}: \"{cursor}\")")).await, list, name);
            }
        }
        world.end().await;
    }
});

// A claim's cursor with an instant that the calendar has and the database has not: whoever makes cursors up gets no failure
// of ours.
on_both!(a_made_up_instant_is_no_failure, async |database| {
    let (world, _) = List::Claims.filled(database).await;
    for year in [-200_000, -5_000, -1, 9_999, 10_000, 200_000, 262_000] {
        for name in ["after", "before"] {
            let cursor = at_the_edge_of_time(year * 31_556_952_000);
            let answer = List::Claims.ask(&world, &format!("({name}: \"{cursor}\")")).await;
            assert!(matches!(answer.code(), None | Some("BAD_USER_INPUT")), "{year}: {}", answer.body);
        }
    }
    world.end().await;
});

/// A cursor in the form of a claim's.
fn at_the_edge_of_time(millis: i64) -> String {
    let mut bytes = millis.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[7; 16]);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The list is null beside its error, and the rest of the answer is unharmed.
fn is_refused(answer: &Answer, list: List, name: &str) {
    assert_eq!((answer.status, answer.codes()), (200, vec!["BAD_USER_INPUT"]), "{}", answer.body);
    assert_eq!(answer.data("/viewer/memberId"), "alice");
    assert!(answer.body["data"].pointer(list.pointer()).is_some_and(Value::is_null), "{}", answer.body);
    let error = &answer.body["errors"][0];
    assert!(error["message"].as_str().unwrap().contains(&format!("`{name}`")), "{}", answer.body);
    assert_eq!(error["path"].as_array().unwrap().last(), Some(&json!("list")), "the alias");
}

on_both!(a_wallet_before_its_first_movement_is_empty, async |database| {
    let world = World::new(database, Locks::Off).await;
    for list in List::BOTH {
        for arguments in ["", "(first: 5)", "(last: 5)"] {
            let page = list.read(&world, arguments).await;
            assert_eq!((ids(&page), ends(&page)), (vec![], (false, false)), "{arguments}");
        }
    }
    let wallet = "{ viewer { wallet { version openedAt balance { amount } available { amount } } } }";
    let answer = world.ask("alice", wallet, json!({})).await;
    let zero = json!({ "amount": "0" });
    let empty = json!({ "version": "0", "openedAt": null, "balance": zero, "available": zero });
    assert_eq!(answer.data("/viewer/wallet"), &empty);
    assert_eq!(world.count("SELECT COUNT(*) FROM wallets").await, 0, "a read opens nothing");
    world.end().await;
});

on_both!(wallets_are_one_for_each_currency_the_default_first, async |database| {
    let world = World::with(database, Locks::Off, |settings| {
        for (code, decimals) in [("EUR", 2), ("AAA", 0)] {
            let mut currency = settings.currencies[0].clone();
            currency.code = largesse::amount::CurrencyCode::parse(code).unwrap();
            currency.decimals = decimals;
            settings.currencies.push(currency);
        }
    })
    .await;
    let document = "{ viewer { wallets { id balance { amount currency decimals } } wallet { id } \
        euros: wallet(currency: \"EUR\") { id } } }";
    let before = world.ask("alice", document, json!({})).await;
    world.fund("alice").await;
    let after = world.ask("alice", document, json!({})).await;
    let balances: Vec<_> =
        after.data("/viewer/wallets").as_array().unwrap().iter().map(|one| &one["balance"]).collect();
    let expected = json!([
        { "amount": "100", "currency": "PTS", "decimals": 0 },
        { "amount": "0", "currency": "EUR", "decimals": 2 },
        { "amount": "0", "currency": "AAA", "decimals": 0 },
    ]);
    assert_eq!(json!(balances), expected);
    assert_eq!(after.data("/viewer/wallet/id"), after.data("/viewer/wallets/0/id"));
    assert_eq!(after.data("/viewer/euros/id"), after.data("/viewer/wallets/1/id"));
    for number in 0..3 {
        let id = format!("/viewer/wallets/{number}/id");
        assert_eq!(before.data(&id), after.data(&id), "the ids are the same before and after the first movement");
    }
    world.end().await;
});

on_both!(each_balance_follows_from_the_one_before, async |database| {
    let (world, _) = List::Entries.filled(database).await;
    let document = "{ viewer { wallet { balance { amount } version entries(first: 100) { nodes { kind amount { amount } \
        balanceAfter { amount } createdAt } } } } }";
    for member in ["alice", "bob"] {
        let answer = world.ask(member, document, json!({})).await;
        let entries = answer.data("/viewer/wallet/entries/nodes").as_array().unwrap();
        let number = |value: &Value| value["amount"].as_str().unwrap().parse::<i64>().unwrap();
        let mut balance = 0;
        for entry in entries.iter().rev() {
            balance += number(&entry["amount"]);
            assert_eq!(number(&entry["balanceAfter"]), balance, "{entry}");
        }
        assert_eq!(number(answer.data("/viewer/wallet/balance")), balance);
        assert_eq!(*answer.data("/viewer/wallet/version"), json!(entries.len().to_string()));
    }
    world.end().await;
});

on_both!(each_claim_leads_to_its_entry_and_a_page_of_them_costs_one_statement, async |database| {
    let (world, all) = List::Claims.filled(database).await;
    let document = "{ viewer { wallet { entries(first: 100) { nodes { id transactionId kind } } } \
        bonusClaims(first: 100) { nodes { id amount { amount } entry { id transactionId kind amount { amount } } } } } }";
    let seen = "SELECT \"entries\".\"wallet_id\"%WHERE \"entries\".\"transaction_id\" IN%";
    let before = if database == Database::Postgres { statements(&world, seen).await } else { 0 };
    let answer = world.ask("alice", document, json!({})).await;
    let claims = answer.data("/viewer/bonusClaims/nodes").as_array().unwrap();
    assert_eq!(claims.len(), all.len());
    let entries = answer.data("/viewer/wallet/entries/nodes").as_array().unwrap();
    for (claim, entry) in claims.iter().zip(entries) {
        assert_eq!(claim["entry"]["id"], entry["id"], "bonuses are this wallet's only movements");
        assert_eq!(claim["entry"]["transactionId"], entry["transactionId"]);
        assert_eq!(claim["entry"]["kind"], entry["kind"]);
        assert_eq!(claim["entry"]["amount"], claim["amount"]);
    }
    if database == Database::Postgres {
        assert_eq!(statements(&world, seen).await - before, 1, "one statement for the page");
    }
    world.end().await;
});
