//! Bonus claims, and where a member stands with the bonuses.

use std::collections::HashMap;

use async_graphql::dataloader::{DataLoader, Loader};
use async_graphql::{Context, Enum, ID, Object, SimpleObject};
use uuid::Uuid;

use super::ids::{Cursor, GlobalId, global};
use super::paging::{PageArguments, PageInfo, page_info};
use super::scalars::{DateTime, LocalDate};
use super::wallet::{Money, WalletEntry, money};
use crate::calendar::{DailyBonus, Standing};
use crate::entity::{Bonus, claim};
use crate::error::Failure;
use crate::ledger::statement::EntryRow;
use crate::member::Member;
use crate::operations::App;
use crate::operations::claim_daily_bonus::last_claim;

/// Which bonus. Values may be added.
#[derive(Enum, Clone, Copy, PartialEq, Eq)]
pub(super) enum BonusKind {
    /// Once a day.
    Daily,
    /// Once in a lifetime.
    Signup,
}

/// A bonus that was credited.
#[derive(Clone)]
pub(super) struct BonusClaim {
    pub(super) row: claim::Model,
    /// The entry, where it is at hand.
    pub(super) entry: Option<EntryRow>,
}

impl From<claim::Model> for BonusClaim {
    fn from(row: claim::Model) -> Self {
        Self { row, entry: None }
    }
}

/// A bonus that was credited.
#[Object]
impl BonusClaim {
    /// Which bonus it was.
    async fn bonus(&self) -> BonusKind {
        match self.row.bonus {
            Bonus::Daily => BonusKind::Daily,
            Bonus::Signup => BonusKind::Signup,
        }
    }

    /// The wallet entry that credited it.
    async fn entry(&self, context: &Context<'_>) -> Option<Result<WalletEntry, Failure>> {
        if let Some(entry) = &self.entry {
            return Some(Ok(WalletEntry(entry.clone())));
        }
        let loader = context.data_unchecked::<DataLoader<EntryLoader>>();
        loader.load_one(self.row.transaction_id).await.map(|entry| entry.map(WalletEntry)).transpose()
    }

    /// Amount credited.
    async fn amount(&self, context: &Context<'_>) -> Money {
        money(context, self.row.amount, &self.row.currency)
    }

    /// When it was credited.
    async fn claimed_at(&self) -> DateTime {
        DateTime(self.row.claimed_at)
    }

    /// The calendar day that it was for, in the bonus's zone (`DailyBonusStatus.timeZone`); null for a once-only bonus.
    async fn day(&self) -> Option<LocalDate> {
        self.row.period.parse().ok().map(LocalDate)
    }

    /// Opaque, globally unique ID. Do not parse it.
    pub(super) async fn id(&self) -> ID {
        global(GlobalId::Claim(self.row.id))
    }

    /// Days in a row that led to this claim, this one included; null for a once-only bonus.
    async fn streak(&self) -> Option<i32> {
        self.row.streak.map(days)
    }
}

/// Reads the entries of many claims in one statement: a page of claims asks for each claim's.
pub(super) struct EntryLoader(pub(super) App);

impl Loader<Uuid> for EntryLoader {
    type Value = EntryRow;
    type Error = Failure;

    async fn load(&self, transactions: &[Uuid]) -> Result<HashMap<Uuid, EntryRow>, Failure> {
        let entries = self.0.ledger.entries_of_transactions(transactions).await?;
        Ok(entries.into_iter().map(|entry| (entry.transaction_id, entry)).collect())
    }
}

/// A bonus claim with its cursor.
#[derive(SimpleObject)]
pub(super) struct BonusClaimEdge {
    /// Opaque cursor for `after` and `before`.
    cursor: String,
    /// The claim.
    node: BonusClaim,
}

/// A page of bonus claims.
#[derive(SimpleObject)]
pub(super) struct BonusClaimConnection {
    /// Claims of this page with their cursors.
    edges: Vec<BonusClaimEdge>,
    /// The page's claims without cursors.
    nodes: Vec<BonusClaim>,
    /// Paging state.
    page_info: PageInfo,
}

impl BonusClaimConnection {
    pub(super) async fn read(app: &App, member: &Member, arguments: PageArguments) -> Result<Self, Failure> {
        let slice = app.ledger.claims(member, arguments.parse()?).await?;
        let page_info = page_info(&slice, place);
        let nodes: Vec<BonusClaim> = slice.rows.into_iter().map(BonusClaim::from).collect();
        let edges = nodes.iter().map(|node| BonusClaimEdge { cursor: place(&node.row).encode(), node: node.clone() });
        Ok(Self { edges: edges.collect(), nodes, page_info })
    }
}

fn place(claim: &claim::Model) -> crate::ledger::statement::ClaimCursor {
    (claim.claimed_at, claim.id)
}

/// What one day of the streak pays.
#[derive(SimpleObject)]
pub(super) struct DailyBonusStep {
    /// What a claim on that day of the streak credits.
    amount: Money,
    /// Day of the streak, from 1.
    streak: i32,
}

/// Where the member stands with the daily bonus; the cooldown is not counted in.
pub(super) struct DailyBonusStatus {
    bonus: DailyBonus,
    standing: Standing,
    newest: Option<claim::Model>,
}

impl DailyBonusStatus {
    /// Reads where the member stands; None where no daily bonus is configured.
    pub(super) async fn read(app: &App, member: &Member) -> Result<Option<Self>, Failure> {
        let Some(bonus) = app.daily_bonus.clone() else { return Ok(None) };
        let newest = app.ledger.newest_claim(member, Bonus::Daily).await?;
        let standing = bonus.standing(newest.as_ref().and_then(last_claim), app.ledger.now().await?);
        Ok(Some(Self { bonus, standing, newest }))
    }
}

/// Where the member stands with the daily bonus; the cooldown is not counted in.
#[Object]
impl DailyBonusStatus {
    /// What the next claim would credit.
    async fn amount(&self, context: &Context<'_>) -> Money {
        in_default_currency(context, self.standing.amount.minor_units())
    }

    /// Today's claim; null while there is none.
    async fn claim(&self) -> Option<BonusClaim> {
        self.newest.clone().filter(|_| !self.standing.claimable).map(BonusClaim::from)
    }

    /// Whether a claim now would be granted.
    async fn claimable(&self) -> bool {
        self.standing.claimable
    }

    /// Today, in `timeZone` and with the day's configured beginning.
    async fn day(&self) -> LocalDate {
        LocalDate(self.standing.day)
    }

    /// When the next claim becomes possible; null if it is now.
    async fn next_claim_at(&self) -> Option<DateTime> {
        self.standing.next_claim_at.map(DateTime)
    }

    /// The streak that the next claim would reach.
    async fn next_streak(&self) -> i32 {
        days(self.standing.next_streak)
    }

    /// What the days of a streak pay, in order; later days pay as the last one.
    async fn schedule(&self, context: &Context<'_>) -> Vec<DailyBonusStep> {
        let steps = (1..).zip(self.bonus.schedule());
        let step = |(streak, amount): (i32, &crate::amount::Amount)| DailyBonusStep {
            amount: in_default_currency(context, amount.minor_units()),
            streak,
        };
        steps.map(step).collect()
    }

    /// Days in a row up to the last claim; 0 when it is broken or was never begun.
    async fn streak(&self) -> i32 {
        days(self.standing.streak)
    }

    /// The instant from which the streak is lost unless a claim came before; null at streak 0.
    async fn streak_ends_at(&self) -> Option<DateTime> {
        self.standing.streak_ends_at.map(DateTime)
    }

    /// IANA zone that decides which day it is.
    async fn time_zone(&self) -> &str {
        self.bonus.zone().name()
    }
}

/// Where the member stands with the signup bonus.
pub(super) struct SignupBonusStatus {
    amount: i64,
    claim: Option<claim::Model>,
}

impl SignupBonusStatus {
    /// Reads where the member stands; None where no signup bonus is configured and none was claimed.
    pub(super) async fn read(app: &App, member: &Member) -> Result<Option<Self>, Failure> {
        let Some(amount) = app.signup_bonus else { return Ok(None) };
        let claim = app.ledger.newest_claim(member, Bonus::Signup).await?;
        let amount = claim.as_ref().map_or(amount.minor_units(), |claim| claim.amount);
        Ok(Some(Self { amount, claim }))
    }
}

/// Where the member stands with the signup bonus.
#[Object]
impl SignupBonusStatus {
    /// What a claim would credit, or has credited.
    async fn amount(&self, context: &Context<'_>) -> Money {
        match &self.claim {
            Some(claim) => money(context, claim.amount, &claim.currency),
            None => in_default_currency(context, self.amount),
        }
    }

    /// The claim; null while there is none.
    async fn claim(&self) -> Option<BonusClaim> {
        self.claim.clone().map(BonusClaim::from)
    }

    /// Whether a claim now would be granted.
    async fn claimable(&self) -> bool {
        self.claim.is_none()
    }
}

fn in_default_currency(context: &Context<'_>, amount: i64) -> Money {
    let app = context.data_unchecked::<App>();
    money(context, amount, app.settings.default_currency().code.as_str())
}

/// A streak of days as GraphQL's Int. Two billion days are not reached.
fn days(streak: i64) -> i32 {
    i32::try_from(streak).unwrap_or(i32::MAX)
}
