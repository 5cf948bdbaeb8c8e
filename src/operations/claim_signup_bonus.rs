//! Credits the signup bonus, once in a lifetime.

use uuid::Uuid;

use super::{App, ClaimRefused, Claimed};
use crate::amount::Amount;
use crate::entity::{Bonus, House, Kind, claim};
use crate::error::{Deadline, Failure};
use crate::ledger::post::{Leg, Purpose, WalletRef};
use crate::ledger::tx::{Interrupted, Stop, Tx, Work};
use crate::member::Member;

/// The period of a bonus that is given once: one claim row in a lifetime.
const ONCE: &str = "once";

/// Claims the signup bonus.
pub async fn claim_signup_bonus(
    app: App,
    member: Member,
    deadline: Deadline,
) -> Result<Result<Claimed, ClaimRefused>, Failure> {
    app.ledger.know(&member).await?;
    let Some(amount) = app.signup_bonus else { return Ok(Err(ClaimRefused::Unavailable)) };
    let wallet = WalletRef::new(&member, &app.settings.default_currency().code);
    app.ledger.claim_once(deadline, &ClaimSignupBonus { member, amount, wallet }).await
}

struct ClaimSignupBonus {
    member: Member,
    amount: Amount,
    wallet: WalletRef,
}

impl Work for ClaimSignupBonus {
    type Done = Claimed;
    type Refusal = ClaimRefused;

    async fn run(&self, tx: &mut Tx) -> Result<Claimed, Stop<ClaimRefused>> {
        let Self { member, amount, wallet } = self;
        let mut wallets = tx.lock_wallets(&[wallet]).await?;
        if !wallets.has(wallet) {
            return Err(Interrupted::Open(wallet.clone()).into());
        }
        let now = tx.now().await?;
        let claim = claim::Model {
            id: Uuid::now_v7(),
            member_id: member.id(),
            bonus: Bonus::Signup,
            period: ONCE.to_owned(),
            streak: None,
            amount: amount.minor_units(),
            currency: wallet.currency().to_string(),
            transaction_id: tx.transaction_id(),
            claimed_at: now,
        };
        if !tx.insert_claim(&claim).await? {
            let claim = tx.winning_claim(member, Bonus::Signup).await?;
            return Err(Stop::Refused(ClaimRefused::AlreadyClaimed { claim, next_claim_at: None }));
        }
        let credit = wallets.credit(wallet, *amount)?;
        let debit = Leg::given_by(House::Issuance, *amount);
        let purpose = Purpose {
            kind: Kind::SignupBonus,
            currency: wallet.currency().clone(),
            memo: None,
            actor: None,
            at: Some(now),
        };
        let receipt = tx.post(wallets, vec![debit, credit], purpose).await?;
        Ok(Claimed { claim, receipt })
    }
}
