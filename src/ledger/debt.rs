//! Debts: what a reversal could not recover because it was spent. The debtor's next credits pay them, oldest first, in the
//! same transaction as the credit; so a wallet that owes holds nothing.
//!
//! In the books the house holds a receivable for what members owe. Where the creditor is a member, the sender of a reversed
//! transfer, the house owes on to that member (payable) and pays when it is paid, not before: two members who send and reverse
//! cannot make value between them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sea_orm::{
    ColumnTrait, EntityTrait, FromQueryResult, JoinType, QueryFilter, QueryOrder, QuerySelect,
    sea_query::{Expr, ExprTrait},
};
use uuid::Uuid;

use super::post::{Leg, LockedWallets, NotCovered, NotCredited, Posting, Purpose, WalletRef};
use super::tx::{Interrupted, Tx};
use crate::amount::Amount;
use crate::entity::{House, Kind, debt, member, wallet};
use crate::error::Failure;
use crate::member::Member;

/// A debt that is not paid yet, as it is under the debtor's lock.
struct Open {
    reversal_id: Uuid,
    creditor: Option<WalletRef>,
    remaining: i64,
}

#[derive(FromQueryResult)]
struct Row {
    reversal_id: Uuid,
    remaining: i64,
    creditor_name: Option<String>,
}

impl Tx {
    /// Lets each locked wallet that owes pay with what it has. A creditor's credit pays that one's own debts in turn: it
    /// ends, for every turn makes the sum of all debts smaller.
    pub(super) async fn pay_debts(
        &mut self,
        wallets: &mut LockedWallets,
        postings: &mut Vec<Posting>,
        at: DateTime<Utc>,
    ) -> Result<(), Interrupted> {
        let mut open: HashMap<Uuid, Vec<Open>> = HashMap::new();
        while let Some((debtor, able)) = wallets.able_to_pay() {
            let debts = match open.entry(debtor.id()) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(self.locked_debts(&debtor, wallets).await?)
                }
            };
            let oldest = debts.iter_mut().find(|debt| debt.remaining > 0);
            let oldest = oldest.ok_or_else(|| Failure::internal("a wallet owes what no debt says"))?;
            let paid = Amount::new(Ord::min(able, oldest.remaining))
                .ok_or_else(|| Failure::internal("a payment of nothing"))?;
            let legs = pay(wallets, &debtor, oldest, paid)?;
            oldest.remaining -= paid.minor_units();
            self.write_off(oldest.reversal_id, paid).await?;
            let currency = debtor.currency().clone();
            let purpose = Purpose { kind: Kind::DebtPayment, currency, memo: None, actor: None, at: Some(at) };
            postings.push(Posting::new(Uuid::now_v7(), legs, purpose, at));
        }
        Ok(())
    }

    /// The debtor's open debts, oldest first. Their creditors' wallets must be locked too: if one is not, the transaction
    /// begins anew and locks all of them in the one order.
    async fn locked_debts(&mut self, debtor: &WalletRef, wallets: &LockedWallets) -> Result<Vec<Open>, Interrupted> {
        let select = debt::Entity::find()
            .select_only()
            .columns([debt::Column::ReversalId, debt::Column::Remaining])
            .expr_as(Expr::col((member::Entity, member::Column::Name)), "creditor_name")
            .filter(debt::Column::WalletId.eq(debtor.id()))
            .filter(debt::Column::Remaining.gt(0))
            .order_by_asc(debt::Column::ReversalId);
        let mut open = Vec::new();
        for row in with_creditor(select).into_model::<Row>().all(self.connection()?).await? {
            let creditor = row.creditor_name.as_deref().map(Member::parse).transpose();
            let creditor = creditor.map_err(|error| Failure::internal(format!("a creditor's name {error}")))?;
            let creditor = creditor.map(|member| WalletRef::new(&member, debtor.currency()));
            open.push(Open { reversal_id: row.reversal_id, creditor, remaining: row.remaining });
        }
        let creditors = open.iter().filter_map(|debt| debt.creditor.as_ref());
        let unlocked: Vec<_> = creditors.filter(|creditor| !wallets.has(creditor)).cloned().collect();
        if unlocked.is_empty() { Ok(open) } else { Err(Interrupted::Lock(unlocked)) }
    }

    async fn write_off(&mut self, reversal_id: Uuid, paid: Amount) -> Result<(), Interrupted> {
        let written = debt::Entity::update_many()
            .col_expr(debt::Column::Remaining, Expr::col(debt::Column::Remaining).sub(paid.minor_units()))
            .filter(debt::Column::ReversalId.eq(reversal_id))
            .exec(self.connection()?)
            .await?;
        if written.rows_affected == 1 { Ok(()) } else { Err(Failure::internal("a debt's own row is gone").into()) }
    }
}

fn with_creditor(mut select: sea_orm::Select<debt::Entity>) -> sea_orm::Select<debt::Entity> {
    QuerySelect::query(&mut select)
        .join(
            JoinType::LeftJoin,
            wallet::Entity,
            Expr::col((wallet::Entity, wallet::Column::Id)).equals((debt::Entity, debt::Column::CreditorId)),
        )
        .join(
            JoinType::LeftJoin,
            member::Entity,
            Expr::col((member::Entity, member::Column::Id)).equals((wallet::Entity, wallet::Column::MemberId)),
        );
    select
}

/// The legs of a payment: to the house, or through the house to the member whom it owes.
fn pay(wallets: &mut LockedWallets, debtor: &WalletRef, debt: &Open, paid: Amount) -> Result<Vec<Leg>, Interrupted> {
    let uncovered = |NotCovered { .. }| Failure::internal("a wallet that was able to pay is not");
    let mut legs = vec![wallets.debit(debtor, paid).map_err(uncovered)?, Leg::taken_by(House::Receivable, paid)];
    wallets.owe_less(debtor, paid);
    if let Some(creditor) = &debt.creditor {
        let refused = |reason: NotCredited| Failure::internal(format!("a creditor takes no credit: {reason:?}"));
        legs.push(Leg::given_by(House::Payable, paid));
        legs.push(wallets.credit(creditor, paid).map_err(refused)?);
    }
    Ok(legs)
}
