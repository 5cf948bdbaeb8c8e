//! Units of value and whole numbers of them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A positive number of minor units (points, cents), at most 2^63 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i64);

impl Amount {
    /// The amount, if it is above zero.
    pub fn new(minor_units: i64) -> Option<Self> {
        (minor_units > 0).then_some(Self(minor_units))
    }

    /// Reads digits, and nothing else: no sign, no point, no exponent, no zero in front. So an amount has one spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().ok().and_then(Self::new))?
    }

    /// The number of minor units, always above zero.
    pub fn minor_units(self) -> i64 {
        self.0
    }
}

/// The code of a unit of value: 2 to 12 upper-case letters or digits, such as `PTS` or an ISO 4217 code.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CurrencyCode(Arc<str>);

impl CurrencyCode {
    /// Reads a code. The form alone is checked; whether the currency is offered is a setting.
    pub fn parse(text: &str) -> Option<Self> {
        let well_formed = (2..=12).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
        well_formed.then(|| Self(text.into()))
    }

    /// The code's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CurrencyCode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
            .ok_or_else(|| format!("\"{text}\" is not a currency code of 2 to 12 upper-case letters or digits"))
    }
}

impl From<CurrencyCode> for String {
    fn from(code: CurrencyCode) -> Self {
        code.0.as_ref().to_owned()
    }
}

impl fmt::Display for CurrencyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CurrencyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_above_zero() {
        assert_eq!(Amount::new(0), None);
        assert_eq!(Amount::new(-1), None);
        assert_eq!(Amount::new(i64::MAX).map(Amount::minor_units), Some(i64::MAX));
    }

    #[test]
    fn an_amount_has_one_spelling() {
        for bad in ["", "0", "-5", "+5", "05", " 5", "5 ", "1e2", "1.0", "1_000", "0x1", "٣", "9223372036854775808"] {
            assert_eq!(Amount::parse(bad), None, "{bad}");
        }
        assert_eq!(Amount::parse("9223372036854775807"), Amount::new(i64::MAX));
        assert_eq!(Amount::parse("10"), Amount::new(10));
    }

    #[test]
    fn a_currency_code_is_upper_case() {
        for bad in ["", "P", "pts", "PTS ", "ABCDEFGHIJKLM", "PÜS"] {
            assert_eq!(CurrencyCode::parse(bad), None, "{bad}");
        }
        assert!(CurrencyCode::parse("PTS").is_some());
    }
}
