//! Credits today's bonus, once a day.

use uuid::Uuid;

use super::{App, ClaimRefused, Claimed};
use crate::calendar::{DailyBonus, LastClaim, Standing};
use crate::entity::{Bonus, House, Kind, claim};
use crate::error::{Deadline, Failure};
use crate::ledger::post::{Leg, Purpose, WalletRef};
use crate::ledger::tx::{Interrupted, Stop, Tx, Work};
use crate::member::Member;

/// Claims the daily bonus.
pub async fn claim_daily_bonus(
    app: App,
    member: Member,
    deadline: Deadline,
) -> Result<Result<Claimed, ClaimRefused>, Failure> {
    app.ledger.know(&member).await?;
    let Some(bonus) = app.daily_bonus.clone() else { return Ok(Err(ClaimRefused::Unavailable)) };
    let wallet = WalletRef::new(&member, &app.settings.default_currency().code);
    app.ledger.claim_once(deadline, &ClaimDailyBonus { member, bonus, wallet }).await
}

struct ClaimDailyBonus {
    member: Member,
    bonus: DailyBonus,
    wallet: WalletRef,
}

impl Work for ClaimDailyBonus {
    type Done = Claimed;
    type Refusal = ClaimRefused;

    /// The wallet's lock comes first, then the clock, then the last claim: so a claim at the edge of the day waits for
    /// yesterday's that is still being committed, and sees it.
    async fn run(&self, tx: &mut Tx) -> Result<Claimed, Stop<ClaimRefused>> {
        let Self { member, bonus, wallet } = self;
        let mut wallets = tx.lock_wallets(&[wallet]).await?;
        if !wallets.has(wallet) {
            return Err(Interrupted::Open(wallet.clone()).into());
        }
        let now = tx.now().await?;
        let last = tx.newest_claim(member, Bonus::Daily).await?;
        let standing = bonus.standing(last.as_ref().and_then(last_claim), now);
        if let Some(claim) = last.filter(|_| !standing.claimable) {
            return Err(already_claimed(claim, &standing));
        }
        let claim = claim::Model {
            id: Uuid::now_v7(),
            member_id: member.id(),
            bonus: Bonus::Daily,
            period: standing.day.to_string(),
            streak: Some(standing.next_streak),
            amount: standing.amount.minor_units(),
            currency: wallet.currency().to_string(),
            transaction_id: tx.transaction_id(),
            claimed_at: now,
        };
        if !tx.insert_claim(&claim).await? {
            // The constraint knows of a claim that the lock did not show. It decides, whatever was seen before.
            let winner = tx.winning_claim(member, Bonus::Daily).await?;
            let standing = bonus.standing(last_claim(&winner), now);
            return Err(already_claimed(winner, &standing));
        }
        let credit = wallets.credit(wallet, standing.amount)?;
        let debit = Leg::given_by(House::Issuance, standing.amount);
        let purpose = Purpose {
            kind: Kind::DailyBonus,
            currency: wallet.currency().clone(),
            memo: None,
            actor: None,
            at: Some(now),
        };
        let receipt = tx.post(wallets, vec![debit, credit], purpose).await?;
        Ok(Claimed { claim, receipt })
    }
}

/// A claim's day and streak, as the calendar wants them.
pub fn last_claim(claim: &claim::Model) -> Option<LastClaim> {
    Some((claim.period.parse().ok()?, claim.streak?))
}

fn already_claimed(claim: claim::Model, standing: &Standing) -> Stop<ClaimRefused> {
    Stop::Refused(ClaimRefused::AlreadyClaimed { claim, next_claim_at: standing.next_claim_at })
}
