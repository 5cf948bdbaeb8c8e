//! Wallets and their entries.

use async_graphql::{Context, Enum, ID, Object, SimpleObject};
use uuid::Uuid;

use super::ids::{Cursor, GlobalId, global};
use super::paging::{PageArguments, PageInfo, page_info};
use super::scalars::{BigInt, CurrencyScalar, DateTime};
use crate::entity::{self, Kind};
use crate::error::Failure;
use crate::ledger::post::{Receipt, WalletRef};
use crate::ledger::statement::{Counterparty, EntryRow};
use crate::operations::App;

/// An exact amount in minor units.
#[derive(SimpleObject)]
pub(super) struct Money {
    /// Amount in minor units (points, cents).
    amount: BigInt,
    /// Unit of the amount.
    currency: CurrencyScalar,
    /// How many of the amount's last digits stand behind the decimal point: 0 for points, 2 for EUR.
    decimals: i32,
}

/// An amount with what the settings say of its currency; one that is no longer offered is shown in minor units.
pub(super) fn money(context: &Context<'_>, amount: i64, currency: &str) -> Money {
    let known = context.data_unchecked::<App>().settings.currency(currency);
    Money {
        amount: BigInt(amount),
        currency: CurrencyScalar(currency.to_owned()),
        decimals: known.map_or(0, |currency| i32::from(currency.decimals)),
    }
}

/// What a member holds in one currency.
pub(super) struct Wallet {
    pub(super) reference: WalletRef,
    /// None before the first movement.
    pub(super) row: Option<entity::wallet::Model>,
}

impl Wallet {
    /// Reads a wallet as it is now.
    pub(super) async fn read(app: &App, reference: WalletRef) -> Result<Self, Failure> {
        let rows = app.ledger.wallets(std::slice::from_ref(&reference)).await?;
        Ok(Self { reference, row: rows.into_iter().next() })
    }

    fn balance_now(&self, context: &Context<'_>) -> Money {
        money(context, self.row.as_ref().map_or(0, |row| row.balance), self.reference.currency().as_str())
    }
}

/// What a member holds in one currency.
#[Object]
impl Wallet {
    /// What can be spent now.
    async fn available(&self, context: &Context<'_>) -> Money {
        self.balance_now(context)
    }

    /// Sum of all entries.
    async fn balance(&self, context: &Context<'_>) -> Money {
        self.balance_now(context)
    }

    /// What reversals have still to recover: the next credits pay it first.
    async fn debt(&self, context: &Context<'_>) -> Money {
        money(context, self.row.as_ref().map_or(0, |row| row.debt), self.reference.currency().as_str())
    }

    /// Movements, newest first. Without `first` and `last`, the first 20; more than 100 is BAD_USER_INPUT.
    async fn entries(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "Only entries after this cursor.")] after: Option<String>,
        #[graphql(desc = "Only entries before this cursor.")] before: Option<String>,
        #[graphql(desc = "The first so many, 1 to 100.")] first: Option<i32>,
        #[graphql(desc = "The last so many, 1 to 100.")] last: Option<i32>,
    ) -> Option<Result<WalletEntryConnection, Failure>> {
        let arguments = PageArguments { first, after, last, before };
        Some(WalletEntryConnection::read(context.data_unchecked(), self.reference.id(), arguments).await)
    }

    /// Opaque, globally unique ID. Do not parse it. The same before and after the first movement.
    pub(super) async fn id(&self) -> ID {
        global(GlobalId::Wallet(self.reference.id()))
    }

    /// When the first movement was posted; null before it.
    async fn opened_at(&self) -> Option<DateTime> {
        self.row.as_ref().map(|row| DateTime(row.opened_at))
    }

    /// Grows with each change of the wallet; keep the state with the larger one when answers arrive out of order.
    async fn version(&self) -> BigInt {
        BigInt(self.row.as_ref().map_or(0, |row| row.version))
    }
}

/// What moved value. Values may be added.
#[derive(Enum, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionKind {
    /// A bonus that the app granted.
    BonusGrant,
    /// A daily bonus.
    DailyBonus,
    /// What a reversal could not recover, paid by a later credit.
    DebtPayment,
    /// Money from outside, reported by a payment provider.
    Funding,
    /// What was taken back.
    Reversal,
    /// A signup bonus.
    SignupBonus,
    /// From member to member.
    Transfer,
}

/// Another member, as far as the viewer may see.
pub(super) struct MemberProfile(pub(super) Counterparty);

/// Another member, as far as the viewer may see.
#[Object]
impl MemberProfile {
    /// Opaque, globally unique ID. Do not parse it.
    pub(super) async fn id(&self) -> ID {
        global(GlobalId::Profile(self.0.id))
    }

    /// The name to send value to.
    async fn member_id(&self) -> &str {
        &self.0.name
    }
}

/// One double-entry transaction, seen from a wallet that took part in it.
#[derive(Clone)]
pub(super) struct WalletEntry(pub(super) EntryRow);

impl WalletEntry {
    /// The entry of a receipt on a wallet: as it was posted, or read now that it is asked for.
    pub(super) async fn of(context: &Context<'_>, receipt: &Receipt, wallet: Uuid) -> Result<Option<Self>, Failure> {
        if !receipt.entries.is_empty() {
            return Ok(receipt.entry_of(wallet).cloned().map(Self));
        }
        let entries = context.data_unchecked::<App>().ledger.entries_of_transactions(&[receipt.id]).await?;
        Ok(entries.into_iter().find(|entry| entry.wallet_id == wallet).map(Self))
    }
}

/// One double-entry transaction, seen from a wallet that took part in it.
#[Object]
impl WalletEntry {
    /// Signed amount: positive is a credit.
    async fn amount(&self, context: &Context<'_>) -> Money {
        money(context, self.0.amount, &self.0.currency)
    }

    /// The wallet's balance right after this entry.
    async fn balance_after(&self, context: &Context<'_>) -> Money {
        money(context, self.0.balance_after, &self.0.currency)
    }

    /// The member on the other side; null where the house is.
    async fn counterparty(&self) -> Option<MemberProfile> {
        self.0.counterparty.clone().map(MemberProfile)
    }

    /// When it was posted.
    async fn created_at(&self) -> DateTime {
        DateTime(self.0.created_at)
    }

    /// Opaque, globally unique ID. Do not parse it.
    pub(super) async fn id(&self) -> ID {
        global(GlobalId::Entry(self.0.wallet_id, self.0.seq))
    }

    /// What moved the value.
    async fn kind(&self) -> TransactionKind {
        match self.0.kind {
            Kind::DailyBonus => TransactionKind::DailyBonus,
            Kind::SignupBonus => TransactionKind::SignupBonus,
            Kind::BonusGrant => TransactionKind::BonusGrant,
            Kind::Funding => TransactionKind::Funding,
            Kind::Transfer => TransactionKind::Transfer,
            Kind::Reversal => TransactionKind::Reversal,
            Kind::DebtPayment => TransactionKind::DebtPayment,
        }
    }

    /// The sender's note, or the reason that was given.
    async fn memo(&self) -> Option<&str> {
        self.0.memo.as_deref()
    }

    /// ID of the transaction, the same in every wallet that it touched.
    async fn transaction_id(&self) -> ID {
        global(GlobalId::Transaction(self.0.transaction_id))
    }
}

/// A wallet entry with its cursor.
#[derive(SimpleObject)]
pub(super) struct WalletEntryEdge {
    /// Opaque cursor for `after` and `before`.
    cursor: String,
    /// The entry.
    node: WalletEntry,
}

/// A page of wallet entries.
#[derive(SimpleObject)]
pub(super) struct WalletEntryConnection {
    /// Entries of this page with their cursors.
    edges: Vec<WalletEntryEdge>,
    /// The page's entries without cursors.
    nodes: Vec<WalletEntry>,
    /// Paging state.
    page_info: PageInfo,
}

impl WalletEntryConnection {
    async fn read(app: &App, wallet: uuid::Uuid, arguments: PageArguments) -> Result<Self, Failure> {
        let slice = app.ledger.entries(wallet, arguments.parse()?).await?;
        let page_info = page_info(&slice, |row| row.seq);
        let nodes: Vec<_> = slice.rows.into_iter().map(WalletEntry).collect();
        let edges = nodes.iter().map(|node| WalletEntryEdge { cursor: node.0.seq.encode(), node: node.clone() });
        Ok(Self { edges: edges.collect(), nodes, page_info })
    }
}
