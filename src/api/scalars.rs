//! Scalars: read strictly, before any work, and written so that no client rounds them.

use async_graphql::{InputValueError, InputValueResult, Scalar, ScalarType, TypeDirective, Value};
use chrono::{NaiveDate, SecondsFormat, Utc};

use crate::amount::CurrencyCode;
use crate::ledger::once::IdempotencyKey;

/// The largest integer that a JSON number carries through every client unchanged: 2^53 - 1 (ECMA-262,
/// `Number.MAX_SAFE_INTEGER`).
const LARGEST_SAFE_NUMBER: u64 = (1 << 53) - 1;

/// Exact signed 64-bit integer. Always written as a decimal string ("9007199254740993"), never as a JSON number, so that no
/// client rounds it. Read from a string, or from an integer within ±(2^53 - 1): a larger one was rounded already.
pub(super) struct BigInt(pub(super) i64);

/// Exact signed 64-bit integer. Always written as a decimal string ("9007199254740993"), never as a JSON number, so that no
/// client rounds it. Read from a string, or from an integer within ±(2^53 - 1): a larger one was rounded already.
#[Scalar(name = "BigInt", specified_by_url = "/docs/scalars#bigint")]
impl ScalarType for BigInt {
    fn parse(value: Value) -> InputValueResult<Self> {
        match &value {
            // What is not written back the same way ("+5", "007", " 5", "1e3") was not meant as this integer.
            Value::String(text) => match text.parse::<i64>() {
                Ok(number) if number.to_string() == *text => Ok(Self(number)),
                _ => Err(InputValueError::custom("not an integer of 64 bits in plain decimal digits")),
            },
            Value::Number(number) => match number.as_i64() {
                Some(number) if number.unsigned_abs() <= LARGEST_SAFE_NUMBER => Ok(Self(number)),
                _ => Err(InputValueError::custom("a number beyond ±(2^53 - 1) must be sent as a string")),
            },
            _ => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        Self::parse(value.clone()).is_ok()
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// Upper-case code of a unit of value, 2 to 12 letters or digits: `PTS` for reward points, or an ISO 4217 code.
#[derive(Clone)]
pub(super) struct CurrencyScalar(pub(super) String);

/// Upper-case code of a unit of value, 2 to 12 letters or digits: `PTS` for reward points, or an ISO 4217 code.
#[Scalar(name = "CurrencyCode", specified_by_url = "/docs/scalars#currency-code")]
impl ScalarType for CurrencyScalar {
    fn parse(value: Value) -> InputValueResult<Self> {
        match &value {
            Value::String(text) => CurrencyCode::parse(text)
                .map(|code| Self(code.to_string()))
                .ok_or_else(|| InputValueError::custom("not 2 to 12 upper-case letters or digits")),
            _ => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        matches!(value, Value::String(text) if CurrencyCode::parse(text).is_some())
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.clone())
    }
}

impl CurrencyScalar {
    /// The parsed code. A scalar that was read is well formed.
    pub(super) fn code(&self) -> Option<CurrencyCode> {
        CurrencyCode::parse(&self.0)
    }
}

/// RFC 3339 instant in UTC with millisecond precision: `2026-11-29T13:45:00.000Z`.
pub(super) struct DateTime(pub(super) chrono::DateTime<Utc>);

/// RFC 3339 instant in UTC with millisecond precision: `2026-11-29T13:45:00.000Z`.
#[Scalar(name = "DateTime", specified_by_url = "https://scalars.graphql.org/andimarek/date-time.html")]
impl ScalarType for DateTime {
    fn parse(value: Value) -> InputValueResult<Self> {
        match &value {
            Value::String(text) => Ok(Self(chrono::DateTime::parse_from_rfc3339(text)?.with_timezone(&Utc))),
            _ => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        Self::parse(value.clone()).is_ok()
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

/// Calendar date without a zone: `2026-11-29`.
pub(super) struct LocalDate(pub(super) NaiveDate);

/// Calendar date without a zone: `2026-11-29`.
#[Scalar(name = "LocalDate", specified_by_url = "https://scalars.graphql.org/andimarek/local-date.html")]
impl ScalarType for LocalDate {
    fn parse(value: Value) -> InputValueResult<Self> {
        match &value {
            Value::String(text) => Ok(Self(text.parse()?)),
            _ => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        Self::parse(value.clone()).is_ok()
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// The caller's name for one logical attempt: 1 to 255 visible ASCII characters. Send the same key on every retry of the
/// attempt, and a new key for a new wish. A UUID does well.
pub(super) struct KeyScalar(pub(super) IdempotencyKey);

/// The caller's name for one logical attempt: 1 to 255 visible ASCII characters. Send the same key on every retry of the
/// attempt, and a new key for a new wish. A UUID does well.
#[Scalar(name = "IdempotencyKey", specified_by_url = "/docs/scalars#idempotency-key")]
impl ScalarType for KeyScalar {
    fn parse(value: Value) -> InputValueResult<Self> {
        match &value {
            Value::String(text) => IdempotencyKey::parse(text)
                .map(Self)
                .ok_or_else(|| InputValueError::custom("not 1 to 255 visible ASCII characters")),
            _ => Err(InputValueError::expected_type(value)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        matches!(value, Value::String(text) if IdempotencyKey::parse(text).is_some())
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.as_str().to_owned())
    }
}

/// Marks a mutation that admits one attempt per member and window, and refuses every other attempt with the top-level error
/// `COOLDOWN_ACTIVE` before the database is touched. `windowMs` is the default length of the window, counted from the
/// attempt that was admitted. A server's setting may differ: trust `retryAfterMs`.
#[TypeDirective(location = "FieldDefinition")]
pub(super) fn cooldown(
    #[graphql(
        desc = "Default length of the window, counted from the attempt that was admitted. A server's setting may differ: trust `retryAfterMs`."
    )]
    window_ms: i32,
    #[graphql(
        desc = "The argument whose value has a lock of its own beside the member, by default; without it, the lock is the member's alone."
    )]
    per: Option<String>,
    #[graphql(
        desc = "How many attempts of a member are admitted in a minute, whatever they are about, by default; without it, any number."
    )]
    most_per_minute: Option<i32>,
) {
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_graphql::value;

    #[test]
    fn a_big_integer_is_exact_or_refused() {
        for good in [value!("9007199254740993"), value!("-1"), value!("0"), value!(9_007_199_254_740_991_i64)] {
            assert!(BigInt::is_valid(&good), "{good}");
        }
        for bad in ["", " 5", "5 ", "+5", "007", "-0", "1e3", "10x", "9223372036854775808", "1.0", "٣"] {
            assert!(!BigInt::is_valid(&value!(bad)), "{bad}");
        }
        for bad in [value!(9_007_199_254_740_992_i64), value!(1.0), value!(1e3), value!(true), value!(null)] {
            assert!(!BigInt::is_valid(&bad), "{bad}");
        }
    }
}
