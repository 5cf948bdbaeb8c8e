//! What the outside is told of: the types of events.

use serde::{Deserialize, Serialize};

/// The type of an event, as it stands in a webhook's `type` and in an endpoint's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// A bonus was credited because its member claimed it.
    #[serde(rename = "bonus.claimed")]
    BonusClaimed,
    /// Value went from member to member; each of the two wallets has its event.
    #[serde(rename = "transfer.completed")]
    TransferCompleted,
    /// Money came in from outside.
    #[serde(rename = "wallet.funded")]
    WalletFunded,
    /// A bonus was credited on the app's word.
    #[serde(rename = "bonus.granted")]
    BonusGranted,
    /// Value was taken back; each wallet that moved has its event.
    #[serde(rename = "transaction.reversed")]
    TransactionReversed,
    /// A credit paid what an earlier reversal could not recover.
    #[serde(rename = "debt.paid")]
    DebtPaid,
}

impl EventType {
    /// The type's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::BonusClaimed => "bonus.claimed",
            Self::TransferCompleted => "transfer.completed",
            Self::WalletFunded => "wallet.funded",
            Self::BonusGranted => "bonus.granted",
            Self::TransactionReversed => "transaction.reversed",
            Self::DebtPaid => "debt.paid",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_payloads_call_a_type_by_one_name() {
        for event in [
            EventType::BonusClaimed,
            EventType::TransferCompleted,
            EventType::WalletFunded,
            EventType::BonusGranted,
            EventType::TransactionReversed,
            EventType::DebtPaid,
        ] {
            assert_eq!(serde_json::to_value(event).unwrap(), event.name());
        }
    }
}
