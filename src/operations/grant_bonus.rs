//! Gives a member a bonus on the app's word, once per idempotency key of that member.

use serde::{Deserialize, Serialize};

use super::{App, InvalidInput, Memo};
use crate::amount::{Amount, CurrencyCode};
use crate::config::Settings;
use crate::entity::{House, Kind};
use crate::error::{Deadline, Failure};
use crate::ledger::once::{Answer, Attempt, IdempotencyKey};
use crate::ledger::post::{Leg, Purpose, Receipt, TooMuch, WalletRef};
use crate::ledger::tx::{Stop, Tx, Work};
use crate::member::Member;

/// A grant that is well formed.
#[derive(Debug, Clone)]
pub struct Grant {
    to: Member,
    amount: Amount,
    currency: CurrencyCode,
    reason: Memo,
    key: IdempotencyKey,
}

/// Why a grant moved nothing. Stored as its key's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum GrantRefusal {
    /// The member's balance would pass 2^63 - 1.
    LimitExceeded,
}

impl From<TooMuch> for GrantRefusal {
    fn from(_: TooMuch) -> Self {
        Self::LimitExceeded
    }
}

impl Grant {
    /// Reads the arguments, the way the caller sent them.
    pub fn parse(
        settings: &Settings,
        to: &str,
        amount: i64,
        currency: CurrencyCode,
        reason: String,
        key: IdempotencyKey,
    ) -> Result<Self, InvalidInput> {
        let to = Member::parse(to).map_err(|error| InvalidInput::of("memberId", &format!("`memberId` {error}.")))?;
        let amount =
            Amount::new(amount).ok_or_else(|| InvalidInput::of("amount", "`amount` must be greater than zero."))?;
        if settings.currency(currency.as_str()).is_none() {
            return Err(InvalidInput::of("currency", "There is no such currency here."));
        }
        Ok(Self { to, amount, currency, reason: Memo::parse_reason(reason)?, key })
    }

    /// The wallet that it credits.
    pub fn wallet(&self) -> WalletRef {
        WalletRef::new(&self.to, &self.currency)
    }

    /// The key is the receiving member's, not the caller's: two processes of the app pay one grant once, whoever they say
    /// that they are.
    fn attempt(&self) -> Attempt {
        let amount = self.amount.minor_units().to_string();
        let arguments =
            [("amount", amount.as_str()), ("currency", self.currency.as_str()), ("reason", self.reason.as_str())];
        Attempt::new(&self.to, "grantBonus", &self.key, &arguments)
    }
}

/// Gives the bonus. `by` is who says so. A member who never came is written down first: the app knows its members before
/// they know their wallets.
pub async fn grant_bonus(
    app: App,
    by: Member,
    grant: Grant,
    deadline: Deadline,
) -> Result<Answer<GrantRefusal>, Failure> {
    app.ledger.know(&grant.to).await?;
    let attempt = grant.attempt();
    app.ledger.exactly_once(&attempt, deadline, &Granting { wallet: grant.wallet(), grant, by }).await
}

struct Granting {
    wallet: WalletRef,
    grant: Grant,
    by: Member,
}

impl Work for Granting {
    type Done = Receipt;
    type Refusal = GrantRefusal;

    async fn run(&self, tx: &mut Tx) -> Result<Receipt, Stop<GrantRefusal>> {
        let Self { wallet, grant, by } = self;
        let mut wallets = tx.lock_wallets(&[wallet]).await?;
        let credit = wallets.credit(wallet, grant.amount)?;
        let debit = Leg::given_by(House::Issuance, grant.amount);
        let purpose = Purpose {
            kind: Kind::BonusGrant,
            currency: grant.currency.clone(),
            memo: Some(grant.reason.as_str().to_owned()),
            actor: Some(by.name().to_owned()),
            at: None,
        };
        Ok(tx.post(wallets, vec![debit, credit], purpose).await?)
    }
}
