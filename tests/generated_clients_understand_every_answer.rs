//! Promise: a client in Rust that is generated from `schema.graphql` understands every answer: what is done, what is refused,
//! and what is no answer.
//!
//! Guards the interface: graphql_client reads the documents of `operations/`, cynic's types are checked against the schema
//! while this file is compiled, and both run against a server.

use serde_json::Value;

use crate::on_both;
use crate::world::{Locks, World, token};

/// Sends what a client has made, and reads the answer with its types.
async fn run<T: serde::de::DeserializeOwned>(world: &World, member: &str, body: impl serde::Serialize) -> T {
    let body = serde_json::to_value(body).expect("the request is JSON");
    let answer = world.post(Some(&token(member)), body).await;
    serde_json::from_value(answer.body.clone()).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}

mod by_graphql_client {
    use graphql_client::{GraphQLQuery, Response};

    use super::*;

    type BigInt = String;
    type CurrencyCode = String;
    type DateTime = String;
    type IdempotencyKey = String;
    type LocalDate = String;

    macro_rules! operations {
        ($($name:ident),*) => { $(
            #[derive(GraphQLQuery)]
            #[graphql(
                schema_path = "schema.graphql",
                query_path = "operations/largesse.graphql",
                response_derives = "Debug, PartialEq",
                variables_derives = "Clone",
                fragments_other_variant
            )]
            pub(super) struct $name;
        )* };
    }

    operations!(Home, History, ClaimDailyBonus, ClaimSignupBonus, Transfer);

    async fn ask<Q: GraphQLQuery>(world: &World, member: &str, variables: Q::Variables) -> Response<Q::ResponseData> {
        run(world, member, Q::build_query(variables)).await
    }

    fn code_of<T>(response: &Response<T>) -> Option<&str> {
        let error = response.errors.as_ref()?.first()?;
        error.extensions.as_ref()?.get("code")?.as_str()
    }

    async fn claim(world: &World) -> claim_daily_bonus::ClaimDailyBonusClaimDailyBonus {
        let answer = ask::<ClaimDailyBonus>(world, "alice", claim_daily_bonus::Variables).await;
        answer.data.unwrap().claim_daily_bonus.expect("an answer")
    }

    on_both!(a_claim_and_a_refused_one, async |database| {
        let world = World::new(database, Locks::Off).await;
        let before = ask::<Home>(&world, "alice", home::Variables).await;
        assert!(before.data.unwrap().viewer.unwrap().daily_bonus.unwrap().claimable);

        let first = claim(&world).await;
        assert!(first.user_errors.is_empty());
        assert_eq!(first.wallet.unwrap().available.amount, "10");
        let paid = first.claim.expect("the claim");
        assert_eq!((paid.streak, paid.amount.amount.as_str()), (Some(1), "10"));

        let second = claim(&world).await;
        assert_eq!(second.claim, None);
        let [refusal] = second.user_errors.as_slice() else { panic!("one refusal: {:?}", second.user_errors) };
        assert_eq!(refusal.code, claim_daily_bonus::ErrorCode::ALREADY_CLAIMED);
        let claim_daily_bonus::RefusalOn::AlreadyClaimedError(details) = &refusal.on else { panic!("{refusal:?}") };
        assert_eq!(details.claim.id, paid.id, "the claim that won is attached");
        world.end().await;
    });

    fn wish(amount: &str, key: &str) -> transfer::Variables {
        let (to, amount, key) = ("bob".to_owned(), amount.to_owned(), key.to_owned());
        let input = transfer::TransferInput { to, amount, currency: "PTS".into(), idempotency_key: key, memo: None };
        transfer::Variables { input }
    }

    on_both!(a_transfer_its_replay_and_a_refused_one, async |database| {
        let world = World::new(database, Locks::Off).await;
        world.introduce("bob").await;
        let signup = ask::<ClaimSignupBonus>(&world, "alice", claim_signup_bonus::Variables).await;
        assert!(signup.data.unwrap().claim_signup_bonus.unwrap().claim.is_some());

        let mut answers = Vec::new();
        for _ in 0..2 {
            let answer = ask::<Transfer>(&world, "alice", wish("30", "lunch")).await;
            answers.push(answer.data.unwrap().transfer.expect("an answer"));
        }
        assert_eq!((answers[0].replayed, answers[1].replayed), (false, true));
        assert!(answers[0].entry.is_some());
        assert_eq!(answers[0].entry, answers[1].entry);

        let answer = ask::<Transfer>(&world, "alice", wish("71", "too-much")).await;
        let refused = answer.data.unwrap().transfer.expect("an answer");
        let [refusal] = refused.user_errors.as_slice() else { panic!("one refusal: {:?}", refused.user_errors) };
        let transfer::RefusalOn::InsufficientFundsError(details) = &refusal.on else { panic!("{refusal:?}") };
        assert_eq!(details.available.amount, "70");

        let history = ask::<History>(&world, "bob", history::Variables { first: 5, after: None }).await;
        let edges = history.data.unwrap().viewer.unwrap().wallet.unwrap().entries.unwrap().edges;
        assert_eq!(edges.iter().map(|edge| edge.node.amount.amount.as_str()).collect::<Vec<_>>(), ["30"]);
        world.end().await;
    });

    on_both!(no_answer_says_when_to_ask_again, async |database| {
        let world = World::new(database, Locks::InProcess).await;
        assert!(claim(&world).await.claim.is_some());
        let refused = ask::<ClaimDailyBonus>(&world, "alice", claim_daily_bonus::Variables).await;
        assert_eq!(code_of(&refused), Some("COOLDOWN_ACTIVE"));
        let extensions = refused.errors.unwrap().remove(0).extensions.unwrap();
        assert!(extensions["retryAfterMs"].as_u64().is_some_and(|wait| wait > 0), "{extensions:?}");
        assert_eq!(refused.data.expect("the rest of the answer").claim_daily_bonus, None);
        world.end().await;
    });
}

mod by_cynic {
    use cynic::{GraphQlResponse, MutationBuilder};

    use super::*;

    #[allow(unreachable_pub, clippy::pedantic)]
    mod schema {
        cynic::use_schema!("schema.graphql");
    }

    #[cynic::schema_for_derives(file = "schema.graphql", module = "schema")]
    mod types {
        use super::schema;

        #[derive(cynic::Scalar, Debug, Clone)]
        pub(super) struct BigInt(pub(super) String);

        #[derive(cynic::Scalar, Debug, Clone)]
        pub(super) struct CurrencyCode(pub(super) String);

        #[derive(cynic::Scalar, Debug, Clone)]
        pub(super) struct IdempotencyKey(pub(super) String);

        #[derive(cynic::Enum, Debug, Clone, Copy, PartialEq)]
        pub(super) enum ErrorCode {
            AlreadyClaimed,
            BonusUnavailable,
            IdempotencyKeyParameterMismatch,
            InsufficientFunds,
            InvalidInput,
            LimitExceeded,
            NotFound,
            NotReversible,
            SelfTransfer,
            #[cynic(fallback)]
            Unknown,
        }

        #[derive(cynic::QueryFragment, Debug)]
        pub(super) struct Money {
            pub(super) amount: BigInt,
        }

        #[derive(cynic::QueryFragment, Debug)]
        pub(super) struct BonusClaim {
            pub(super) id: cynic::Id,
            pub(super) streak: Option<i32>,
            pub(super) amount: Money,
        }

        #[derive(cynic::QueryFragment, Debug)]
        pub(super) struct AlreadyClaimedError {
            pub(super) claim: BonusClaim,
        }

        #[derive(cynic::QueryFragment, Debug)]
        pub(super) struct InsufficientFundsError {
            pub(super) available: Money,
        }

        #[derive(cynic::QueryFragment, Debug)]
        #[cynic(graphql_type = "UserError")]
        pub(super) struct AnyError {
            pub(super) code: ErrorCode,
        }

        #[derive(cynic::InlineFragments, Debug)]
        #[cynic(graphql_type = "UserError")]
        pub(super) enum Refusal {
            AlreadyClaimed(AlreadyClaimedError),
            InsufficientFunds(InsufficientFundsError),
            #[cynic(fallback)]
            Other(AnyError),
        }

        #[derive(cynic::QueryFragment, Debug)]
        pub(super) struct ClaimDailyBonusPayload {
            pub(super) claim: Option<BonusClaim>,
            pub(super) user_errors: Vec<Refusal>,
        }

        #[derive(cynic::QueryFragment, Debug)]
        #[cynic(graphql_type = "Mutation")]
        pub(super) struct ClaimDailyBonus {
            pub(super) claim_daily_bonus: Option<ClaimDailyBonusPayload>,
        }

        #[derive(cynic::InputObject, Debug, Clone)]
        pub(super) struct TransferInput {
            pub(super) to: String,
            pub(super) amount: BigInt,
            pub(super) currency: CurrencyCode,
            pub(super) idempotency_key: IdempotencyKey,
            #[cynic(skip_serializing_if = "Option::is_none")]
            pub(super) memo: Option<String>,
        }

        #[derive(cynic::QueryVariables, Debug)]
        pub(super) struct TransferVariables {
            pub(super) input: TransferInput,
        }

        #[derive(cynic::QueryFragment, Debug)]
        pub(super) struct WalletEntry {
            pub(super) id: cynic::Id,
        }

        #[derive(cynic::QueryFragment, Debug)]
        pub(super) struct TransferPayload {
            pub(super) replayed: bool,
            pub(super) entry: Option<WalletEntry>,
            pub(super) user_errors: Vec<Refusal>,
        }

        #[derive(cynic::QueryFragment, Debug)]
        #[cynic(graphql_type = "Mutation", variables = "TransferVariables")]
        pub(super) struct Transfer {
            #[arguments(input: $input)]
            pub(super) transfer: Option<TransferPayload>,
        }
    }

    use types::{BigInt, ClaimDailyBonus, ClaimDailyBonusPayload, CurrencyCode, ErrorCode, IdempotencyKey, Refusal};
    use types::{Transfer, TransferInput, TransferPayload, TransferVariables};

    async fn claim(world: &World) -> GraphQlResponse<ClaimDailyBonus, Value> {
        run(world, "alice", ClaimDailyBonus::build(())).await
    }

    fn claimed(response: GraphQlResponse<ClaimDailyBonus, Value>) -> ClaimDailyBonusPayload {
        response.data.unwrap().claim_daily_bonus.expect("an answer")
    }

    on_both!(a_claim_and_a_refused_one, async |database| {
        let world = World::new(database, Locks::Off).await;
        let first = claimed(claim(&world).await);
        assert!(first.user_errors.is_empty());
        let paid = first.claim.expect("the claim");
        assert_eq!((paid.streak, paid.amount.amount.0.as_str()), (Some(1), "10"));
        let second = claimed(claim(&world).await);
        let [Refusal::AlreadyClaimed(refusal)] = second.user_errors.as_slice() else { panic!("{second:?}") };
        assert_eq!(refusal.claim.id, paid.id, "the claim that won is attached");
        world.end().await;
    });

    async fn transfer(world: &World, to: &str, amount: &str, key: &str) -> TransferPayload {
        let (to, amount, memo) = (to.to_owned(), BigInt(amount.to_owned()), None);
        let (currency, idempotency_key) = (CurrencyCode("PTS".to_owned()), IdempotencyKey(key.to_owned()));
        let input = TransferInput { to, amount, currency, idempotency_key, memo };
        let answer: GraphQlResponse<Transfer> = run(world, "alice", Transfer::build(TransferVariables { input })).await;
        answer.data.unwrap().transfer.expect("an answer")
    }

    on_both!(a_transfer_its_replay_and_refused_ones, async |database| {
        let world = World::new(database, Locks::Off).await;
        world.fund("alice").await;
        world.introduce("bob").await;
        let first = transfer(&world, "bob", "30", "lunch").await;
        let again = transfer(&world, "bob", "30", "lunch").await;
        assert_eq!((first.replayed, again.replayed), (false, true));
        assert_eq!(first.entry.expect("an entry").id, again.entry.expect("an entry").id);

        let refused = transfer(&world, "bob", "71", "too-much").await;
        let [Refusal::InsufficientFunds(refusal)] = refused.user_errors.as_slice() else { panic!("{refused:?}") };
        assert_eq!(refusal.available.amount.0, "70");
        let refused = transfer(&world, "nobody", "1", "to-nobody").await;
        let [Refusal::Other(refusal)] = refused.user_errors.as_slice() else { panic!("{refused:?}") };
        assert_eq!(refusal.code, ErrorCode::NotFound);
        world.end().await;
    });

    on_both!(no_answer_says_when_to_ask_again, async |database| {
        let world = World::new(database, Locks::InProcess).await;
        assert!(claimed(claim(&world).await).claim.is_some());
        let refused = claim(&world).await;
        let extensions = refused.errors.unwrap().remove(0).extensions.expect("extensions");
        assert_eq!(extensions["code"], "COOLDOWN_ACTIVE");
        assert!(extensions["retryAfterMs"].as_u64().is_some_and(|wait| wait > 0), "{extensions}");
        assert!(refused.data.expect("the rest of the answer").claim_daily_bonus.is_none());
        world.end().await;
    });
}
