//! Credits what a payment provider took in, once per payment, and takes it back where the provider gave it back.
//!
//! Notices come late, twice, at once and in any order. **What has come furthest decides, not what came last**: see
//! [`effect_of`].

use super::App;
use crate::amount::Amount;
use crate::entity::{House, Kind, PaymentState, payment};
use crate::error::{Deadline, Failure};
use crate::ledger::payment::{Heard, Notice};
use crate::ledger::post::{Leg, Purpose, TooMuch, WalletRef};
use crate::ledger::reverse::Posted;
use crate::ledger::tx::{Stop, Tx, Work};

/// What became of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Funded {
    /// The member has the money.
    Credited,
    /// The member has it no longer.
    TakenBack,
    /// It was written down, and moved nothing.
    Noted,
    /// It was told before, and changed nothing.
    Repeated,
    /// It contradicts what was told before. That is written down apart, and moved nothing.
    Conflict,
}

/// Why a notice cannot be taken as it is. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFunded {
    /// Wallets have no such currency.
    UnknownCurrency,
    /// The balance, or what is owed, would pass 2^63 - 1.
    TooMuch,
}

/// What a notice does to the member's wallet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Credit,
    TakeBack,
}

/// The state table: where the payment stood, what is told now; where it stands then, and what that does.
///
/// A payment only goes on: pending, failed, succeeded, reversed. So the end is the same in whichever order notices arrive,
/// and money moves twice at most, there and back. A provider that takes "failed" back is believed; a payment that was
/// reversed before its success arrived is never credited.
fn effect_of(stood: PaymentState, notice: PaymentState) -> (PaymentState, Effect) {
    use PaymentState::{Failed, Pending, Reversed, Succeeded};
    match (stood, notice) {
        (Pending | Failed, Succeeded) => (Succeeded, Effect::Credit),
        (Succeeded, Reversed) => (Reversed, Effect::TakeBack),
        (Pending, Failed) => (Failed, Effect::Nothing),
        (Pending | Failed, Reversed) => (Reversed, Effect::Nothing),
        (Pending, Pending) | (Failed, Pending | Failed) | (Succeeded, Pending | Failed | Succeeded) | (Reversed, _) => {
            (stood, Effect::Nothing)
        }
    }
}

/// Does what a notice says.
pub async fn fund_wallet(app: App, notice: Notice, deadline: Deadline) -> Result<Result<Funded, NotFunded>, Failure> {
    if app.settings.currency(notice.currency().as_str()).is_none() {
        return Ok(Err(NotFunded::UnknownCurrency));
    }
    let wallet = WalletRef::new(notice.member(), notice.currency());
    let funding = Funding { notice, wallet };
    match app.ledger.settle(deadline, &funding).await? {
        Ok(funded) => Ok(Ok(funded)),
        Err(Undone::TooMuch) => Ok(Err(NotFunded::TooMuch)),
        Err(Undone::Conflict) => {
            app.ledger.record_conflict(deadline, &funding.notice).await?;
            Ok(Ok(Funded::Conflict))
        }
    }
}

struct Funding {
    notice: Notice,
    wallet: WalletRef,
}

/// Why the transaction was rolled back.
enum Undone {
    Conflict,
    TooMuch,
}

impl From<TooMuch> for Undone {
    fn from(_: TooMuch) -> Self {
        Self::TooMuch
    }
}

impl Work for Funding {
    type Done = Funded;
    type Refusal = Undone;

    /// Payment, event, credit and what is told of it are one transaction: a credit that failed leaves no trace, and the
    /// provider's next attempt finds everything as before.
    async fn run(&self, tx: &mut Tx) -> Result<Funded, Stop<Undone>> {
        let Self { notice, .. } = self;
        tx.insert_payment(notice).await?;
        let payment = tx.lock_payment(notice).await?;
        if !notice.agrees_with(&payment) {
            return Err(Stop::Refused(Undone::Conflict));
        }
        match tx.hear(notice).await? {
            Heard::First => {}
            Heard::Again => return Ok(Funded::Repeated),
            Heard::AnotherUnderThisId => return Err(Stop::Refused(Undone::Conflict)),
        }
        let (state, effect) = effect_of(payment.state, notice.state());
        let (funded, transaction_id) = match effect {
            Effect::Nothing => (Funded::Noted, payment.transaction_id),
            Effect::Credit => (self.credit(tx).await?, Some(tx.transaction_id())),
            Effect::TakeBack => (self.take_back(tx, &payment).await?, payment.transaction_id),
        };
        if state != payment.state {
            tx.move_payment(&payment, state, transaction_id).await?;
        }
        Ok(funded)
    }
}

impl Funding {
    async fn credit(&self, tx: &mut Tx) -> Result<Funded, Stop<Undone>> {
        let Self { notice, wallet } = self;
        tx.welcome(notice.member()).await?;
        let mut wallets = tx.lock_wallets(&[wallet]).await?;
        let credit = wallets.credit(wallet, notice.amount())?;
        let debit = Leg::given_by(House::Funding, notice.amount());
        let purpose = Purpose {
            kind: Kind::Funding,
            currency: notice.currency().clone(),
            memo: None,
            actor: Some(notice.actor()),
            at: None,
        };
        tx.post(wallets, vec![debit, credit], purpose).await?;
        Ok(Funded::Credited)
    }

    /// Takes back what is left of the credit, for an operator may have reversed some of it before. What was spent is owed.
    async fn take_back(&self, tx: &mut Tx, payment: &payment::Model) -> Result<Funded, Stop<Undone>> {
        let Self { notice, wallet } = self;
        let credited_by = payment.transaction_id.ok_or_else(|| Failure::internal("a payment that nothing credited"))?;
        let posted = Posted::of_payment(credited_by, wallet.clone(), notice.amount());
        let original = tx.lock_posted(posted).await?;
        let Some(left) = Amount::new(original.remaining()) else { return Ok(Funded::Noted) };
        tx.reverse(original, left, None, notice.actor()).await?;
        Ok(Funded::TakenBack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a member has of a payment after notices in this order, in times its amount, and where the payment stands.
    fn after(notices: &[PaymentState]) -> (i32, PaymentState) {
        notices.iter().fold((0, PaymentState::Pending), |(held, stood), notice| {
            let (stands, effect) = effect_of(stood, *notice);
            let moved = match effect {
                Effect::Nothing => 0,
                Effect::Credit => 1,
                Effect::TakeBack => -1,
            };
            assert!((0..=1).contains(&(held + moved)), "{notices:?}");
            (held + moved, stands)
        })
    }

    /// Every sequence of up to six notices, so every order of every selection, with repeats.
    #[test]
    fn what_was_told_decides_and_not_the_order() {
        use PaymentState::{Failed, Pending, Reversed, Succeeded};
        const ALL: [PaymentState; 4] = [Pending, Failed, Succeeded, Reversed];
        for length in 0..=6 {
            for number in 0..4_usize.pow(length) {
                let notices: Vec<_> = (0..length).map(|place| ALL[number / 4_usize.pow(place) % 4]).collect();
                let (has, was) = (notices.contains(&Succeeded), notices.contains(&Reversed));
                let furthest = notices.iter().copied().max().unwrap_or(Pending);
                assert_eq!(after(&notices), (i32::from(has && !was), furthest), "{notices:?}");
            }
        }
    }
}
