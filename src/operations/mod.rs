//! The verbs: one file each, read from top to bottom. Arguments are owned, so that the api layer can spawn the whole.

pub mod claim_daily_bonus;
pub mod claim_signup_bonus;
pub mod fund_wallet;
pub mod grant_bonus;
pub mod reverse_transaction;
pub mod transfer;

use std::ops::Deref;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::amount::Amount;
use crate::calendar::DailyBonus;
use crate::config::{ConfigError, Settings};
use crate::entity::claim;
use crate::ledger::Ledger;
use crate::ledger::post::{Receipt, TooMuch};

/// What every operation works with. Clones share it.
#[derive(Clone)]
pub struct App(Arc<Shared>);

/// The inside of an [`App`].
pub struct Shared {
    /// The books.
    pub ledger: Ledger,
    /// The settings.
    pub settings: Settings,
    /// The daily bonus, where it is configured.
    pub daily_bonus: Option<DailyBonus>,
    /// The signup bonus, where it is configured.
    pub signup_bonus: Option<Amount>,
}

impl App {
    /// Puts the books and the rules together.
    pub fn new(ledger: Ledger, settings: Settings) -> Result<Self, ConfigError> {
        let daily = &settings.daily_bonus;
        let daily_bonus = DailyBonus::new(&daily.amounts, settings.time_zone()?, daily.day_begins_at_hour);
        let signup_bonus = settings.signup_bonus.amount.and_then(Amount::new);
        Ok(Self(Arc::new(Shared { ledger, settings, daily_bonus, signup_bonus })))
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// An input value that is not acceptable. Nothing is stored for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidInput {
    /// The field inside `input`.
    pub field: &'static str,
    /// English text for developers.
    pub message: String,
}

impl InvalidInput {
    fn of(field: &'static str, message: &str) -> Self {
        Self { field, message: message.to_owned() }
    }
}

/// The longest note or reason, in characters: what fits a push message's line.
pub const LONGEST_MEMO: usize = 140;

/// What a member reads beside an entry: a sender's note, or the reason that the house gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memo(String);

impl Memo {
    /// Reads a note; it may be empty.
    pub fn parse(field: &'static str, text: String) -> Result<Self, InvalidInput> {
        if text.chars().count() > LONGEST_MEMO {
            return Err(InvalidInput::of(field, &format!("`{field}` must have at most {LONGEST_MEMO} characters.")));
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidInput::of(field, &format!("`{field}` must not contain control characters.")));
        }
        Ok(Self(text))
    }

    /// Reads a reason: the house's books must not be without one.
    pub fn parse_reason(text: String) -> Result<Self, InvalidInput> {
        if text.trim().is_empty() {
            return Err(InvalidInput::of("reason", "`reason` must not be empty."));
        }
        Self::parse("reason", text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A bonus that was credited by this attempt.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The claim.
    pub claim: claim::Model,
    /// What moved.
    pub receipt: Receipt,
}

/// Why a bonus was not credited. Nothing is stored: the claim row itself is what a repeat finds.
#[derive(Debug, Clone)]
pub enum ClaimRefused {
    /// The member has it.
    AlreadyClaimed {
        /// The claim that won.
        claim: claim::Model,
        /// When the next one becomes possible, if ever.
        next_claim_at: Option<DateTime<Utc>>,
    },
    /// No such bonus is configured.
    Unavailable,
    /// The wallet would pass the largest balance.
    TooMuch,
}

impl From<TooMuch> for ClaimRefused {
    fn from(_: TooMuch) -> Self {
        Self::TooMuch
    }
}
