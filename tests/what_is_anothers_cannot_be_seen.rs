//! Promise: what is another member's cannot be seen: asked for by its id, it looks like a thing that does not exist.
//!
//! Guards `find` in `api/query.rs`, the one place that turns a global ID into a thing.

use serde_json::{Value, json};

use crate::on_both;
use crate::world::{Answer, CLAIM_DAILY, CLAIM_SIGNUP, Locks, TRANSFER, World, transfer};

const NODE: &str = "query($id: ID!) { node(id: $id) { __typename id } }";
const NODES: &str = "query($ids: [ID!]!) { nodes(ids: $ids) { __typename id } }";

const OWN: &str = "{ viewer { id dailyBonus { claim { id } } signupBonus { claim { id } } \
    wallet { id entries { nodes { id transactionId counterparty { id } } } } bonusClaims { nodes { id } } } }";

on_both!(anothers_things_look_like_things_that_do_not_exist, async |database| {
    let world = World::new(database, Locks::Off).await;
    for member in ["alice", "bob"] {
        world.ask(member, CLAIM_SIGNUP, json!({})).await;
        world.ask(member, CLAIM_DAILY, json!({})).await;
    }
    let alices = things(&world, "alice").await;
    let nothing = world.ask("bob", NODE, json!({ "id": "x" })).await;
    assert_eq!(nothing.body, json!({ "data": { "node": null } }), "without an error");
    for (kind, id) in &alices {
        let own = world.ask("alice", NODE, json!({ "id": id })).await;
        assert_eq!(own.data("/node"), &json!({ "__typename": kind, "id": id }), "{}", own.body);
        let others = world.ask("bob", NODE, json!({ "id": id })).await;
        assert_eq!(others.body, nothing.body, "{kind}");
    }
    for id in strange_ids(&alices) {
        assert_eq!(world.ask("bob", NODE, json!({ "id": id })).await.body, nothing.body, "{id}");
        assert_eq!(world.ask("alice", NODE, json!({ "id": id })).await.body, nothing.body, "{id}");
    }
    let ids: Vec<_> = alices.iter().map(|(_, id)| id).collect();
    let answer = world.ask("bob", NODES, json!({ "ids": ids })).await;
    assert_eq!(answer.body, json!({ "data": { "nodes": vec![Value::Null; ids.len()] } }), "by nodes as well");
    world.end().await;
});

/// Type and id of everything that a member has.
async fn things(world: &World, member: &str) -> Vec<(&'static str, String)> {
    let own = world.ask(member, OWN, json!({})).await;
    let mut things = vec![("Viewer", text(&own, "/viewer/id")), ("Wallet", text(&own, "/viewer/wallet/id"))];
    for (kind, list) in [("WalletEntry", "/viewer/wallet/entries/nodes"), ("BonusClaim", "/viewer/bonusClaims/nodes")] {
        let nodes = own.data(list).as_array().unwrap();
        assert_eq!(nodes.len(), 2, "{}", own.body);
        things.extend(nodes.iter().map(|node| (kind, node["id"].as_str().unwrap().to_owned())));
    }
    // One's own profile is known by the id that others see.
    let profile = profile_of(things[0].1.as_str());
    things.push(("MemberProfile", profile));
    things
}

/// Ids that name nothing: malformed, cut, lengthened, of another kind, or never given out.
fn strange_ids(things: &[(&str, String)]) -> Vec<String> {
    let mut ids: Vec<String> = ["", " ", "alice", "=", "%00", "\0", "dmlld2Vy"].map(str::to_owned).into();
    ids.push("x".repeat(10_000));
    for (_, id) in things {
        ids.extend([id[1..].to_owned(), id[..id.len() - 2].to_owned(), format!("{id}AA"), format!("{id} ")]);
        // Another byte in the middle is the id of something that never was.
        let other = if &id[10..11] == "A" { "B" } else { "A" };
        ids.push(format!("{}{other}{}", &id[..10], &id[11..]));
    }
    ids
}

on_both!(ones_own_things_are_found_before_and_after_the_first_movement, async |database| {
    let world = World::new(database, Locks::Off).await;
    let read = "query($id: ID!) { node(id: $id) { ... on Wallet { id version openedAt balance { amount } } } }";
    let before = world.ask("alice", OWN, json!({})).await;
    let wallet = text(&before, "/viewer/wallet/id");
    let empty = json!({ "id": wallet, "version": "0", "openedAt": null, "balance": { "amount": "0" } });
    assert_eq!(world.ask("alice", read, json!({ "id": wallet })).await.data("/node"), &empty);
    world.fund("alice").await;
    let found = world.ask("alice", read, json!({ "id": wallet })).await;
    assert_eq!((found.data("/node/id"), found.data("/node/version")), (&json!(wallet), &json!("1")), "the same id");
    assert_eq!(found.data("/node/balance/amount"), "100");
    assert!(found.data("/node/openedAt").is_string());
    assert_eq!(text(&world.ask("alice", OWN, json!({})).await, "/viewer/wallet/id"), wallet);
    assert_eq!(world.ask("bob", NODE, json!({ "id": wallet })).await.body, json!({ "data": { "node": null } }));
    world.end().await;
});

// A member's name is told to those who paid or were paid.
on_both!(a_profile_is_seen_by_those_who_met_its_member, async |database| {
    let world = World::new(database, Locks::Off).await;
    let read = "query($id: ID!) { node(id: $id) { __typename id ... on MemberProfile { memberId } } }";
    for member in ["alice", "bob", "carol"] {
        world.fund(member).await;
    }
    let mut profiles = Vec::new();
    for member in ["alice", "bob", "carol"] {
        profiles.push(profile_of(&text(&world.ask(member, OWN, json!({})).await, "/viewer/id")));
    }
    let nothing = json!({ "data": { "node": null } });
    for asker in ["alice", "bob"] {
        let strangers = profiles.iter().zip(["alice", "bob", "carol"]).filter(|(_, member)| *member != asker);
        for (profile, _) in strangers {
            assert_eq!(world.ask(asker, read, json!({ "id": profile })).await.body, nothing, "before they met");
        }
    }
    let paid = world.ask("alice", TRANSFER, transfer("bob", 5, "one")["variables"].clone()).await;
    let seen = text(&paid, "/transfer/entry/counterparty/memberId");
    assert_eq!(seen, "bob");
    let entry = world.ask("alice", OWN, json!({})).await;
    assert_eq!(text(&entry, "/viewer/wallet/entries/nodes/0/counterparty/id"), profiles[1], "the id that entries show");
    for (asker, profile, member) in [("alice", &profiles[1], "bob"), ("bob", &profiles[0], "alice")] {
        let found = world.ask(asker, read, json!({ "id": profile })).await;
        let met = json!({ "__typename": "MemberProfile", "id": profile, "memberId": member });
        assert_eq!(found.data("/node"), &met, "{}", found.body);
    }
    // Carol met nobody, and nobody met carol; that both were paid by the house makes no acquaintance.
    assert_eq!(world.ask("alice", read, json!({ "id": profiles[2] })).await.body, nothing);
    assert_eq!(world.ask("carol", read, json!({ "id": profiles[0] })).await.body, nothing);
    // To know a member is not to see what is theirs.
    for (kind, id) in [("Viewer", text(&world.ask("bob", OWN, json!({})).await, "/viewer/id"))] {
        assert_eq!(world.ask("alice", NODE, json!({ "id": id })).await.body, nothing, "{kind}");
    }
    let bobs_entry = text(&world.ask("bob", OWN, json!({})).await, "/viewer/wallet/entries/nodes/0/id");
    assert_eq!(
        world.ask("alice", NODE, json!({ "id": bobs_entry })).await.body,
        nothing,
        "the other side of one's own"
    );
    world.end().await;
});

on_both!(a_transaction_is_no_node, async |database| {
    let world = World::new(database, Locks::Off).await;
    world.fund("alice").await;
    let id = text(&world.ask("alice", OWN, json!({})).await, "/viewer/wallet/entries/nodes/0/transactionId");
    assert_eq!(world.ask("alice", NODE, json!({ "id": id })).await.body, json!({ "data": { "node": null } }));
    world.end().await;
});

on_both!(nodes_keep_their_order_and_have_a_limit, async |database| {
    let world = World::new(database, Locks::Off).await;
    world.fund("alice").await;
    let own = world.ask("alice", OWN, json!({})).await;
    let (viewer, wallet) = (text(&own, "/viewer/id"), text(&own, "/viewer/wallet/id"));
    let entry = text(&own, "/viewer/wallet/entries/nodes/0/id");
    let ids = json!([entry, "x", viewer, wallet, "y", viewer]);
    let answer = world.ask("alice", NODES, json!({ "ids": ids })).await;
    let found: Vec<_> = answer.data("/nodes").as_array().unwrap().iter().map(|node| node["id"].clone()).collect();
    assert_eq!(json!(found), json!([entry, null, viewer, wallet, null, viewer]), "{}", answer.body);
    let none = world.ask("alice", NODES, json!({ "ids": [] })).await;
    assert_eq!(none.body, json!({ "data": { "nodes": [] } }));
    let hundred = world.ask("alice", NODES, json!({ "ids": vec![&wallet; 100] })).await;
    assert_eq!(hundred.data("/nodes").as_array().unwrap().len(), 100);
    let too_many = world.ask("alice", NODES, json!({ "ids": vec![&wallet; 101] })).await;
    assert_eq!(too_many.codes(), ["BAD_USER_INPUT"]);
    assert!(too_many.body["errors"][0]["message"].as_str().unwrap().contains("ids"), "{}", too_many.body);
    world.end().await;
});

// There is no way from one member to what another has: not through a payload, nor through an entry's other side.
on_both!(nothing_leads_from_one_member_to_anothers_things, async |database| {
    let world = World::new(database, Locks::Off).await;
    for member in ["alice", "bob"] {
        world.ask(member, CLAIM_SIGNUP, json!({})).await;
    }
    for field in ["wallet { id }", "dailyBonus { claimable }", "bonusClaims { nodes { id } }", "signupBonus { amount }"]
    {
        let through = format!("{{ viewer {{ wallet {{ entries {{ nodes {{ counterparty {{ {field} }} }} }} }} }} }}");
        let answer = world.ask("alice", &through, json!({})).await;
        assert_eq!(answer.code(), Some("GRAPHQL_VALIDATION_FAILED"), "{}", answer.body);
    }
    let document = "mutation($input: TransferInput!) { transfer(input: $input) { wallet { id } \
        query { viewer { memberId wallet { id balance { amount } } bonusClaims { nodes { id } } } } } }";
    let answer = world.ask("alice", document, transfer("bob", 5, "one")["variables"].clone()).await;
    let own = world.ask("alice", OWN, json!({})).await;
    assert_eq!(answer.data("/transfer/query/viewer/memberId"), "alice");
    assert_eq!(answer.data("/transfer/wallet/id"), own.data("/viewer/wallet/id"));
    assert_eq!(answer.data("/transfer/query/viewer/wallet/balance/amount"), "95");
    assert_eq!(answer.data("/transfer/query/viewer/bonusClaims/nodes"), own.data("/viewer/bonusClaims/nodes"));
    let refused = world.ask("bob", CLAIM_SIGNUP, json!({})).await;
    let attached = refused.data("/claimSignupBonus/userErrors/0/claim/id");
    assert_ne!(attached, own.data("/viewer/bonusClaims/nodes/0/id"), "the refusal's claim is the caller's");
    assert_eq!(*attached, world.ask("bob", OWN, json!({})).await.data("/viewer/bonusClaims/nodes/0/id").clone());
    world.end().await;
});

fn text(answer: &Answer, pointer: &str) -> String {
    answer.data(pointer).as_str().unwrap_or_else(|| panic!("no text at {pointer}: {}", answer.body)).to_owned()
}

/// The id of a member's profile, guessed from the viewer's as somebody would who had read this source: knowing how ids are
/// made must open nothing.
fn profile_of(viewer: &str) -> String {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let mut bytes = URL_SAFE_NO_PAD.decode(viewer).unwrap();
    bytes[0] = b'p';
    URL_SAFE_NO_PAD.encode(bytes)
}
