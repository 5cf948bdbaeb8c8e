//! A lock: what it is called, whose it is, and what it says of its attempt.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Names what an attempt wants, idempotency key included, without saying it: the start of a SHA-256 hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The fingerprint of a hash, whose first half no two wishes share.
    pub fn of(hash: [u8; 32]) -> Self {
        let mut start = [0; 16];
        start.copy_from_slice(&hash[..16]);
        Self(start)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = u128::from_str_radix(text, 16).map_err(drop)?;
        if text.len() == 32 { Ok(Self(number.to_be_bytes())) } else { Err(()) }
    }
}

/// The lock that an attempt would take in one window. The token says whose it is, so that nobody ends another's.
#[derive(Debug, Clone)]
pub(super) struct Lock {
    pub(super) key: String,
    pub(super) token: String,
    pub(super) window: Duration,
    /// None where nobody could ask for this attempt's answer: it has no idempotency key.
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) budget: Option<Budget>,
}

/// How many attempts of a member and action are admitted in a minute, whatever they are about.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    pub(super) key: String,
    pub(super) most: u32,
}

/// The span of a budget.
pub(super) const MINUTE: Duration = Duration::from_mins(1);

/// The longest outcome that is kept beside a lock. Ids and a refusal's details fill a tenth of it.
const LONGEST_OUTCOME: usize = 2048;

impl Lock {
    /// The value while the attempt runs.
    pub(super) fn running(&self) -> Value {
        Value { token: self.token.clone(), fingerprint: self.fingerprint, state: State::Running }
    }

    /// The value once the attempt has ended; its outcome only where somebody can ask for it.
    pub(super) fn finished(&self, outcome: Option<String>) -> Value {
        let outcome = outcome.filter(|outcome| self.fingerprint.is_some() && outcome.len() <= LONGEST_OUTCOME);
        Value { token: self.token.clone(), fingerprint: self.fingerprint, state: State::Finished(outcome) }
    }

    /// What counts against the budget: the state, the token, and what the attempt was about.
    pub(super) fn counted(&self, finished: bool) -> String {
        let fingerprint = self.fingerprint.map_or_else(|| "-".to_owned(), |fingerprint| fingerprint.to_string());
        format!("{} {} {fingerprint}", if finished { 'f' } else { 'r' }, self.token)
    }
}

/// What a lock says: whose it is, what about, and whether its attempt has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) token: String,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) state: State,
}

/// How far the attempt behind a lock has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Under way, or nobody knows how it ended. The lock may be released before its time.
    Running,
    /// Ended: nothing changes the lock any more. With the committed answer, where there is one that may be given again.
    Finished(Option<String>),
}

impl Value {
    /// Reads what a lock says. Whatever else stands there, such as another version's value, is an attempt that runs.
    pub(super) fn read(text: &str) -> Self {
        let mut words = text.splitn(4, ' ');
        let token = words.next().unwrap_or_default().to_owned();
        let fingerprint = words.next().and_then(|word| word.parse().ok());
        let state = match words.next() {
            Some("finished") => State::Finished(words.next().map(str::to_owned)),
            _ => State::Running,
        };
        Self { token, fingerprint, state }
    }

    /// Whether the lock stays as it is to its end.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.state, State::Finished(_))
    }

    /// The committed answer, for whoever wants the same.
    pub(super) fn answer_to(&self, fingerprint: Option<Fingerprint>) -> Option<&str> {
        match &self.state {
            State::Finished(Some(outcome)) if fingerprint.is_some() && self.fingerprint == fingerprint => Some(outcome),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.token)?;
        match self.fingerprint {
            Some(fingerprint) => write!(f, "{fingerprint} ")?,
            None => f.write_str("- ")?,
        }
        match &self.state {
            State::Running => f.write_str("running"),
            State::Finished(None) => f.write_str("finished"),
            State::Finished(Some(outcome)) => write!(f, "finished {outcome}"),
        }
    }
}

/// What a store says to an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Admitted,
    Refused(Refused),
}

/// Why a store does not admit, and for how long; above zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) left: Duration,
    pub(super) by: By,
}

/// What stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum By {
    /// Another attempt's lock.
    Lock(Value),
    /// The budget.
    Budget(Spent),
}

/// A budget of which nothing is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spent {
    /// Some attempt that counts still runs, and may be released.
    ForNow,
    /// All attempts that count have ended: nobody is admitted before the oldest is a minute old. Names those of which the
    /// answer may be asked for.
    ForSure(Vec<Fingerprint>),
}

/// What becomes of a lock.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// It goes, and counts against no budget.
    Released,
    /// It stays to its end, or for so long if that is earlier, and says that its attempt has ended.
    Finished { at_most: Option<Duration>, outcome: Option<String> },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(fingerprint: Option<Fingerprint>) -> Lock {
        Lock { key: "k".into(), token: "t".into(), window: Duration::from_secs(5), fingerprint, budget: None }
    }

    #[test]
    fn a_value_is_read_as_it_was_written() {
        for fingerprint in [None, Some(Fingerprint::of([0; 32])), Some(Fingerprint::of([0xab; 32]))] {
            let lock = lock(fingerprint);
            for value in [lock.running(), lock.finished(None), lock.finished(Some("{\"a\": \"b c\"}".to_owned()))] {
                assert_eq!(Value::read(&value.to_string()), value);
            }
        }
    }

    #[test]
    fn what_cannot_be_read_runs() {
        for text in ["", "token", "token - ", "token x y z", "a finished"] {
            assert_eq!(Value::read(text).state, State::Running, "{text:?}");
        }
    }

    #[test]
    fn an_answer_is_for_the_same_wish_alone() {
        let (mine, other) = (Some(Fingerprint::of([1; 32])), Some(Fingerprint::of([2; 32])));
        let finished = lock(mine).finished(Some("done".to_owned()));
        assert_eq!(finished.answer_to(mine), Some("done"));
        assert_eq!((finished.answer_to(other), finished.answer_to(None)), (None, None));
        assert_eq!(lock(mine).running().answer_to(mine), None);
        assert_eq!(lock(mine).finished(None).answer_to(mine), None);
        assert_eq!(lock(None).finished(Some("done".to_owned())).answer_to(None), None);
        assert_eq!(lock(mine).finished(Some("x".repeat(LONGEST_OUTCOME + 1))).answer_to(mine), None);
    }
}
