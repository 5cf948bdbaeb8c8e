//! Promise: who repeats an attempt in its window finds its committed answer, in whichever process and without a transaction;
//! and nobody finds another's, or one that was not committed.
//!
//! Guards layer 1, where the lock keeps the answer: `cooldown/lock.rs`, `cooldown/finish.lua`, `api/arguments.rs`, and
//! `api/work.rs`, which writes it and reads it.

use std::time::Duration;

use largesse::config::WithoutRedis;
use largesse::cooldown::{Attempt, Cooldown, Decision, Ended, Fingerprint, Rule, Wish};
use largesse::member::Member;
use serde_json::{Value, json};

use crate::on_each_store;
use crate::world::proxy::{Deed, Proxy};
use crate::world::statements::statements;
use crate::world::stores::{Processes, Store, WALLETS, alice, all_refused, execute, holding, refused_ms};
use crate::world::{Answer, CLAIM_DAILY, World, patient, token, transfer, wait_until};

const INLINE: &str = r#"mutation { transfer(input: { idempotencyKey: "one", currency: "PTS", amount: 30, to: "bob", memo: null })
    { replayed entry { id transactionId } } }"#;

const IN_PARTS: &str = r#"mutation($to: String! = "bob", $amount: BigInt!, $memo: String) { mine: transfer(input: { to: $to,
    amount: $amount, memo: $memo, currency: "PTS", idempotencyKey: "one" }) { wallet { id } replayed entry { id } } }"#;

/// The same wish, 30 for bob under the key "one", written in several ways; and the name of its field in the answer.
fn however_it_is_written() -> Vec<(Value, &'static str)> {
    let mut as_number = transfer("bob", 30, "one");
    as_number["variables"]["input"]["amount"] = json!(30);
    vec![
        (transfer("bob", 30, "one"), "/transfer"),
        (as_number, "/transfer"),
        (json!({ "query": INLINE }), "/transfer"),
        (json!({ "query": IN_PARTS, "variables": { "amount": "30" } }), "/mine"),
        (json!({ "query": IN_PARTS, "variables": { "amount": 30, "to": "bob", "memo": null } }), "/mine"),
    ]
}

async fn done(processes: &Processes) -> Answer {
    processes.one.introduce("bob").await;
    let first = alice(&processes.one, &transfer("bob", 30, "one")).await;
    assert_eq!(first.data("/transfer/replayed"), false, "{}", first.body);
    first
}

fn is_replayed(answer: &Answer, of: &Answer) {
    assert_eq!((answer.code(), answer.data("/transfer/replayed")), (None, &json!(true)), "{}", answer.body);
    assert_eq!(answer.data("/transfer/entry"), of.data("/transfer/entry"));
    assert_eq!(answer.data("/transfer/userErrors"), of.data("/transfer/userErrors"));
}

/// How many statements of this form asking costs, without those of looking.
async fn cost(world: &World, like: &str, asking: impl Future<Output = ()>) -> i64 {
    let before = statements(world, like).await;
    let looking = statements(world, like).await - before;
    asking.await;
    statements(world, like).await - before - 2 * looking
}

on_each_store!(the_same_wish_is_answered_however_it_is_written, async |store| {
    let processes = Processes::new(store).await;
    let first = done(&processes).await;
    let id = first.data("/transfer/entry/id");
    for world in processes.all() {
        let asking = || async {
            for (body, field) in however_it_is_written() {
                let answer = alice(world, &body).await;
                let told = answer.data(field);
                assert_eq!((&told["replayed"], &told["entry"]["id"]), (&json!(true), id), "{body}: {}", answer.body);
            }
        };
        assert_eq!(cost(world, "BEGIN%", asking()).await, 0, "a transaction was opened");
        assert_eq!(cost(world, "%idempotency_keys%", asking()).await, 0, "the key was looked up");
        is_replayed(&alice(world, &transfer("bob", 30, "one")).await, &first);
    }
    assert_eq!(processes.one.balance("bob").await, 30);
    processes.end().await;
});

on_each_store!(what_the_selection_asks_is_all_that_is_read, async |store| {
    let processes = Processes::new(store).await;
    done(&processes).await;
    for world in processes.all() {
        // Connections are open, and the daily look at what may be forgotten is over.
        alice(world, &transfer("bob", 30, "one")).await;
        for (selection, reads, of) in [
            ("replayed userErrors { code }", 0, "%"),
            (
                "replayed entry { id amount { amount } balanceAfter { amount } counterparty { memberId } }",
                1,
                "%entries%",
            ),
            ("replayed wallet { balance { amount } version }", 1, "%wallets%"),
        ] {
            let query = format!("mutation($input: TransferInput!) {{ transfer(input: $input) {{ {selection} }} }}");
            let body = json!({ "query": query, "variables": transfer("bob", 30, "one")["variables"] });
            let asking = || async {
                let answer = alice(world, &body).await;
                assert_eq!((answer.code(), answer.data("/transfer/replayed")), (None, &json!(true)), "{}", answer.body);
            };
            // Once before, so that the statement is prepared.
            asking().await;
            assert_eq!(cost(world, "%", asking()).await, reads, "{selection}");
            assert_eq!(cost(world, of, asking()).await, reads, "{selection}: another table");
        }
    }
    processes.end().await;
});

on_each_store!(a_refusal_is_given_again_with_its_details, async |store| {
    let processes = Processes::new(store).await;
    processes.one.introduce("bob").await;
    let refused = alice(&processes.one, &transfer("bob", 101, "one")).await;
    assert_eq!(refused.user_error("transfer"), Some("INSUFFICIENT_FUNDS"));
    // What is available now is another amount, and the answer is the one that was given.
    execute(&processes.one, "UPDATE idempotency_keys SET refusal = '{}'").await;
    for world in processes.all() {
        let again = alice(world, &transfer("bob", 101, "one")).await;
        is_replayed(&again, &refused);
        assert_eq!(again.data("/transfer/userErrors/0/available/amount"), "100");
    }
    processes.end().await;
});

on_each_store!(however_many_come_at_once_all_are_answered, async |store| {
    let processes = Processes::new(store).await;
    let first = done(&processes).await;
    for world in processes.all() {
        let answers = world.storm(100, |_| ("alice".to_owned(), transfer("bob", 30, "one"))).await;
        for answer in &answers {
            is_replayed(answer, &first);
        }
    }
    assert_eq!((processes.one.balance("alice").await, processes.one.balance("bob").await), (70, 30));
    processes.end().await;
});

on_each_store!(while_the_first_still_runs_its_repeat_is_refused_like_any_other, async |store| {
    let processes = Processes::with(store, patient).await;
    processes.one.introduce("bob").await;
    let rival = holding(&processes.one, WALLETS).await;
    let running = processes.one.begin_post(&token("alice"), &transfer("bob", 30, "one"));
    wait_until("the attempt is at work", async || processes.one.waiting_for_locks().await == 1).await;
    for world in processes.all() {
        refused_ms(&alice(world, &transfer("bob", 30, "one")).await);
    }
    rival.rollback().await.unwrap();
    let first = running.await.unwrap();
    assert_eq!(first.data("/transfer/replayed"), false, "{}", first.body);
    for world in processes.all() {
        is_replayed(&alice(world, &transfer("bob", 30, "one")).await, &first);
    }
    processes.end().await;
});

on_each_store!(whoever_wants_anything_else_is_refused, async |store| {
    let processes = Processes::new(store).await;
    done(&processes).await;
    let with_memo = |memo: &str| {
        let mut body = transfer("bob", 30, "one");
        body["variables"]["input"]["memo"] = json!(memo);
        body
    };
    let in_parts = json!({ "query": IN_PARTS, "variables": { "amount": "31" } });
    let others = [transfer("bob", 31, "one"), transfer("bob", 30, "two"), with_memo(""), with_memo("lunch"), in_parts];
    for world in processes.all() {
        for body in &others {
            refused_ms(&alice(world, body).await);
        }
        let answers = world.storm(50, |number| ("alice".to_owned(), others[number % others.len()].clone())).await;
        all_refused(&answers);
    }
    // Who has no key cannot ask for an answer.
    let claimed = alice(&processes.one, &json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(claimed.data("/claimDailyBonus/claim/streak"), 1, "{}", claimed.body);
    for world in processes.all() {
        refused_ms(&alice(world, &json!({ "query": CLAIM_DAILY })).await);
    }
    assert_eq!(processes.one.balance("bob").await, 30);
    processes.end().await;
});

// One document, and a default of its variable that makes it another wish to another friend.
on_each_store!(a_variables_default_is_part_of_the_wish, async |store| {
    let processes = Processes::new(store).await;
    let first = done(&processes).await;
    processes.one.introduce("carol").await;
    for world in processes.all() {
        let to_bob = alice(world, &json!({ "query": IN_PARTS, "variables": { "amount": "30" } })).await;
        assert_eq!(to_bob.data("/mine/entry/id"), first.data("/transfer/entry/id"), "{}", to_bob.body);
    }
    let query = IN_PARTS.replace(r#"= "bob""#, r#"= "carol""#);
    let to_carol = alice(&processes.one, &json!({ "query": query, "variables": { "amount": "30" } })).await;
    // Layer 2 says so: another friend has another lock.
    assert_eq!((to_carol.code(), to_carol.data("/mine/replayed")), (None, &json!(false)), "{}", to_carol.body);
    assert_eq!(to_carol.data("/mine/entry"), &Value::Null);
    processes.end().await;
});

on_each_store!(another_member_with_the_same_key_and_arguments_makes_a_transfer_of_their_own, async |store| {
    let processes = Processes::new(store).await;
    let first = done(&processes).await;
    processes.one.fund("carol").await;
    let own = processes.one.post(Some(&token("carol")), transfer("bob", 30, "one")).await;
    assert_eq!(own.data("/transfer/replayed"), false, "{}", own.body);
    for world in processes.all() {
        let again = world.post(Some(&token("carol")), transfer("bob", 30, "one")).await;
        is_replayed(&again, &own);
        assert_ne!(again.data("/transfer/entry/id"), first.data("/transfer/entry/id"));
    }
    assert_eq!(processes.one.balance("bob").await, 60);
    processes.end().await;
});

on_each_store!(after_the_window_layer_2_answers, async |store| {
    let processes = Processes::with(store, |settings| {
        settings.cooldown.actions.get_mut("transfer").unwrap().window_ms = Some(5000);
    })
    .await;
    let first = done(&processes).await;
    for world in processes.all() {
        is_replayed(&alice(world, &transfer("bob", 30, "one")).await, &first);
        // An attempt with a key of its own says when the window has passed; its amount is none, so it leaves no lock.
        wait_until("the window has passed", async || {
            alice(world, &transfer("bob", 0, "looking")).await.user_error("transfer") == Some("INVALID_INPUT")
        })
        .await;
        let repeated = cost(world, "INSERT INTO \"idempotency_keys\"%", async {
            is_replayed(&alice(world, &transfer("bob", 30, "one")).await, &first);
        });
        assert_eq!(repeated.await, 1, "it was admitted, and the key decided");
    }
    processes.end().await;
});

/// A process behind a proxy that can lose its database.
async fn behind_a_proxy(processes: &Processes) -> (World, Proxy) {
    let proxy = Proxy::in_front_of(&processes.one.url).await;
    (processes.one.through(proxy.url()).await, proxy)
}

on_each_store!(an_outcome_that_nobody_knows_is_no_answer, async |store| {
    for deed in [Deed::CutBefore, Deed::CutAfter] {
        let processes = Processes::new(store).await;
        processes.one.introduce("bob").await;
        let (behind, proxy) = behind_a_proxy(&processes).await;
        proxy.at_next("COMMIT", deed);
        let lost = alice(&behind, &transfer("bob", 30, "one")).await;
        assert_eq!(lost.codes(), ["OUTCOME_UNKNOWN"], "{deed:?}: {}", lost.body);
        refused_ms(&alice(&behind, &transfer("bob", 30, "one")).await);
        if store == Store::Redis {
            refused_ms(&alice(processes.two(), &transfer("bob", 30, "one")).await);
        }
        behind.stop().await;
        processes.end().await;
    }
});

// A wallet whose number of entries is the largest there is cannot count one more: arithmetic panics, in the middle of the
// work, in the profile that tests are built with.
on_each_store!(a_panic_is_no_answer, async |store| {
    let processes = Processes::new(store).await;
    processes.one.introduce("bob").await;
    execute(&processes.one, &format!("UPDATE wallets SET version = {}", i64::MAX)).await;
    assert_eq!(alice(&processes.one, &transfer("bob", 30, "one")).await.codes(), ["OUTCOME_UNKNOWN"]);
    for world in processes.all() {
        refused_ms(&alice(world, &transfer("bob", 30, "one")).await);
    }
    execute(&processes.one, "UPDATE wallets SET version = 1").await;
    processes.end().await;
});

on_each_store!(a_failure_that_rolled_back_is_no_answer_and_leaves_no_lock, async |store| {
    let processes = Processes::new(store).await;
    processes.one.introduce("bob").await;
    execute(&processes.one, "ALTER TABLE entries RENAME TO mislaid").await;
    for world in processes.all() {
        assert_eq!(alice(world, &transfer("bob", 30, "one")).await.codes(), ["INTERNAL_SERVER_ERROR"]);
    }
    execute(&processes.one, "ALTER TABLE mislaid RENAME TO entries").await;
    let done = alice(&processes.one, &transfer("bob", 30, "one")).await;
    assert_eq!((done.code(), done.data("/transfer/replayed")), (None, &json!(false)), "{}", done.body);
    processes.end().await;
});

on_each_store!(a_mismatch_is_no_answer, async |store| {
    let processes = Processes::new(store).await;
    processes.one.introduce("bob").await;
    let without = processes.one.another(|settings| settings.cooldown.enabled = false).await;
    alice(&without, &transfer("bob", 30, "one")).await;
    let mismatch = alice(&processes.one, &transfer("bob", 31, "one")).await;
    assert_eq!(mismatch.user_error("transfer"), Some("IDEMPOTENCY_KEY_PARAMETER_MISMATCH"), "{}", mismatch.body);
    for world in processes.all() {
        refused_ms(&alice(world, &transfer("bob", 31, "one")).await);
        refused_ms(&alice(world, &transfer("bob", 30, "one")).await);
    }
    without.stop().await;
    processes.end().await;
});

/// What a cooldown says to a wish of alice's.
async fn decided(cooldown: &Cooldown, fingerprint: u8, window_ms: u64) -> Decision {
    let member = Member::parse("alice").unwrap();
    let fingerprint = Some(Fingerprint::of([fingerprint; 32]));
    let wish = Wish { member: &member, action: "transfer", resource: Some("bob"), fingerprint };
    let window = Duration::from_millis(window_ms);
    let rule = Rule { window, without_redis: WithoutRedis::Refuse, most_per_minute: Some(20) };
    cooldown.attempt(wish, &rule).await.expect("the store answers")
}

async fn admitted(cooldown: &Cooldown, fingerprint: u8, window_ms: u64) -> Attempt {
    match decided(cooldown, fingerprint, window_ms).await {
        Decision::Admitted(admission) => admission.begin(),
        Decision::Refused { left, .. } => panic!("refused for {left:?}"),
        Decision::Answered(outcome) => panic!("answered {outcome}"),
    }
}

/// The answer that is found; none where the wish is refused.
async fn found(cooldown: &Cooldown, fingerprint: u8) -> Option<String> {
    match decided(cooldown, fingerprint, 60_000).await {
        Decision::Admitted(_) => panic!("admitted"),
        Decision::Refused { .. } => None,
        Decision::Answered(outcome) => Some(outcome),
    }
}

on_each_store!(a_late_end_writes_its_answer_onto_nobodys_lock, async |store| {
    let processes = Processes::new(store).await;
    let cooldown = Cooldown::open(&processes.one.settings).unwrap();
    wait_until("the store is there", async || cooldown.answers()).await;
    let (mine, others) = (1, 2);
    let late = admitted(&cooldown, mine, 20).await;
    let mut other = None;
    wait_until("its lock has ended", async || {
        if let Decision::Admitted(admission) = decided(&cooldown, others, 60_000).await {
            other = Some(admission.begin());
        }
        other.is_some()
    })
    .await;
    late.end(Ended::Kept(Some("mine".to_owned()))).await;
    assert_eq!((found(&cooldown, mine).await, found(&cooldown, others).await), (None, None));
    other.unwrap().end(Ended::Kept(Some("another's".to_owned()))).await;
    assert_eq!((found(&cooldown, mine).await, found(&cooldown, others).await), (None, Some("another's".to_owned())));
    processes.end().await;
});

/// The moment at which a key ends, by Redis's clock.
fn ends_at(processes: &Processes, key: &str) -> i64 {
    redis::from_redis_value(processes.redis().command(&["PEXPIRETIME", key])).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_ends_when_it_would_have_and_so_does_what_counts() {
    let processes = Processes::with(Store::Redis, patient).await;
    processes.one.introduce("bob").await;
    let rival = holding(&processes.one, WALLETS).await;
    let running = processes.one.begin_post(&token("alice"), &transfer("bob", 30, "one"));
    wait_until("the attempt is at work", async || processes.one.waiting_for_locks().await == 1).await;
    let (lock, budget) = (processes.locks("alice")[0].clone(), processes.budget("alice"));
    let before = (ends_at(&processes, &lock), ends_at(&processes, &budget));
    assert!(before.0 > 0 && before.1 > 0, "{before:?}");
    rival.rollback().await.unwrap();
    assert_eq!(running.await.unwrap().data("/transfer/replayed"), false);
    assert_eq!((ends_at(&processes, &lock), ends_at(&processes, &budget)), before);
    processes.end().await;
}

/// What another version may have written is an attempt that runs: all are refused, and as soon as it is gone all may come.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_an_attempt_that_runs() {
    let processes = Processes::new(Store::Redis).await;
    // A process that is gone by then shows which key it is.
    let third = processes.one.another(|_| {}).await;
    third.introduce("bob").await;
    alice(&third, &transfer("bob", 1, "first")).await;
    third.stop().await;
    let lock = processes.locks("alice").pop().expect("a lock");
    for garbage in ["6f1c2f3e5b8d4a0c9e7d1b2a3c4d5e6f", "", "v2|finished|{}", "\u{1f600} - finish"] {
        processes.redis().command(&["SET", &lock, garbage, "PX", "60000"]);
        for world in processes.all() {
            refused_ms(&alice(world, &transfer("bob", 30, "one")).await);
        }
        assert_eq!(redis::from_redis_value::<String>(processes.redis().command(&["GET", &lock])).unwrap(), garbage);
        processes.redis().command(&["DEL", &lock]);
        for world in processes.all() {
            let next = alice(world, &transfer("bob", 0, "one")).await;
            assert_eq!(next.user_error("transfer"), Some("INVALID_INPUT"), "{garbage:?}: {}", next.body);
        }
    }
    processes.end().await;
}
