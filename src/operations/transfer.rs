//! Moves value from one member to another, once per idempotency key.

use serde::{Deserialize, Serialize};

use super::{App, InvalidInput, Memo};
use crate::amount::{Amount, CurrencyCode};
use crate::config::{Settings, TransferSettings};
use crate::entity::Kind;
use crate::error::{Deadline, Failure};
use crate::ledger::once::{Answer, Attempt, IdempotencyKey};
use crate::ledger::post::{NotCovered, Purpose, Receipt, TooMuch, WalletRef};
use crate::ledger::tx::{Stop, Tx, Work};
use crate::member::Member;

/// A transfer that is well formed: what can be known without the database has been checked.
#[derive(Debug, Clone)]
pub struct Transfer {
    to: Member,
    amount: Amount,
    currency: CurrencyCode,
    memo: Option<Memo>,
    key: IdempotencyKey,
}

/// Why a transfer moved nothing. Stored as its key's answer, so what is named here may be read again years later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TransferRefusal {
    /// Sender and recipient are the same member.
    SelfTransfer,
    /// The sender's wallet does not cover the amount.
    InsufficientFunds {
        /// What there was, in minor units.
        available: i64,
        /// Unit.
        currency: CurrencyCode,
    },
    /// No member of this name has signed in yet.
    NotFound,
    /// The amount is over or under a limit.
    LimitExceeded {
        /// Which one.
        limit: Limit,
    },
}

/// A limit of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The smallest amount, in minor units.
    Smallest(i64),
    /// The largest amount, in minor units.
    Largest(i64),
    /// The recipient's balance would pass 2^63 - 1.
    RecipientBalance,
}

impl From<TooMuch> for TransferRefusal {
    fn from(_: TooMuch) -> Self {
        Self::LimitExceeded { limit: Limit::RecipientBalance }
    }
}

impl Transfer {
    /// Reads the arguments, the way the client sent them.
    pub fn parse(
        settings: &Settings,
        to: &str,
        amount: i64,
        currency: CurrencyCode,
        memo: Option<String>,
        key: IdempotencyKey,
    ) -> Result<Self, InvalidInput> {
        let to = Member::parse(to).map_err(|error| InvalidInput::of("to", &format!("`to` {error}.")))?;
        let amount =
            Amount::new(amount).ok_or_else(|| InvalidInput::of("amount", "`amount` must be greater than zero."))?;
        match settings.currency(currency.as_str()) {
            None => return Err(InvalidInput::of("currency", "There is no such currency here.")),
            Some(known) if !known.transferable => {
                return Err(InvalidInput::of("currency", "This currency cannot be sent to other members."));
            }
            Some(_) => {}
        }
        if memo.is_some() && !settings.transfer.memo {
            return Err(InvalidInput::of("memo", "Notes are switched off."));
        }
        let memo = memo.map(|memo| Memo::parse("memo", memo)).transpose()?;
        Ok(Self { to, amount, currency, memo, key })
    }

    fn attempt(&self, sender: &Member) -> Attempt {
        let amount = self.amount.minor_units().to_string();
        let mut arguments =
            vec![("to", self.to.name()), ("amount", amount.as_str()), ("currency", self.currency.as_str())];
        arguments.extend(self.memo.as_ref().map(|memo| ("memo", memo.as_str())));
        Attempt::new(sender, "transfer", &self.key, &arguments)
    }

    fn check_limits(&self, limits: &TransferSettings) -> Result<(), TransferRefusal> {
        let amount = self.amount.minor_units();
        let exceeded = |limit| Err(TransferRefusal::LimitExceeded { limit });
        match limits.largest {
            _ if amount < limits.smallest => exceeded(Limit::Smallest(limits.smallest)),
            Some(largest) if amount > largest => exceeded(Limit::Largest(largest)),
            _ => Ok(()),
        }
    }
}

/// Moves the value.
pub async fn transfer(
    app: App,
    sender: Member,
    request: Transfer,
    deadline: Deadline,
) -> Result<Answer<TransferRefusal>, Failure> {
    if !app.settings.transfer.enabled {
        return Err(Failure::Forbidden);
    }
    app.ledger.know(&sender).await?;
    let attempt = request.attempt(&sender);
    let from = WalletRef::new(&sender, &request.currency);
    let to = WalletRef::new(&request.to, &request.currency);
    let work = Sending { from, to, request, limits: app.settings.transfer.clone() };
    app.ledger.exactly_once(&attempt, deadline, &work).await
}

struct Sending {
    from: WalletRef,
    to: WalletRef,
    request: Transfer,
    limits: TransferSettings,
}

impl Work for Sending {
    type Done = Receipt;
    type Refusal = TransferRefusal;

    /// The order of the refusals is part of the promise: an empty wallet cannot be used to find out who is a member.
    async fn run(&self, tx: &mut Tx) -> Result<Receipt, Stop<TransferRefusal>> {
        let Self { from, to, request, limits } = self;
        if from == to {
            return Err(Stop::Refused(TransferRefusal::SelfTransfer));
        }
        let mut wallets = tx.lock_wallets(&[from, to]).await?;
        let debit = wallets.debit(from, request.amount).map_err(|NotCovered { available }| {
            Stop::Refused(TransferRefusal::InsufficientFunds { available, currency: request.currency.clone() })
        })?;
        if !wallets.has(to) && !tx.is_known(to.member()).await? {
            return Err(Stop::Refused(TransferRefusal::NotFound));
        }
        request.check_limits(limits).map_err(Stop::Refused)?;
        let credit = wallets.credit(to, request.amount)?;
        let purpose = Purpose {
            kind: Kind::Transfer,
            currency: request.currency.clone(),
            memo: request.memo.as_ref().map(|memo| memo.as_str().to_owned()),
            actor: None,
            at: None,
        };
        Ok(tx.post(wallets, vec![debit, credit], purpose).await?)
    }
}
