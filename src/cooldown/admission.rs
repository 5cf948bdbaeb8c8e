//! An admission: a value that the work ends.

use std::time::Duration;

use super::lock::{End, Lock};
use super::memory::Memory;
use super::redis::Redis;

/// The right to make an attempt. Dropped, it gives the lock back: nothing was begun.
#[must_use = "dropped, an admission gives its lock back"]
pub struct Admission {
    attempt: Option<Attempt>,
}

impl Admission {
    pub(super) fn of(attempt: Attempt) -> Self {
        Self { attempt: Some(attempt) }
    }

    /// Where its lock is.
    pub fn store(&self) -> &'static str {
        self.attempt.as_ref().and_then(|attempt| attempt.redis.as_ref()).map_or(super::PROCESS, Redis::name)
    }

    /// The work begins: from here on the lock is kept unless somebody who knows how the work ended says otherwise.
    pub fn begin(mut self) -> Attempt {
        self.attempt.take().expect("an admission begins once, for begin consumes it")
    }

    /// Nothing was begun: gives the lock back before anybody is told.
    pub async fn give_back(mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.end(Ended::Released).await;
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            // Whoever drops it may be a future that nobody polls any more.
            tokio::spawn(attempt.end(Ended::Released));
        }
    }
}

/// How an attempt ended, as far as its lock is concerned: the last column of the outcome table in `api/work.rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Nobody knows: the lock stays to its end, as if the attempt still ran.
    Unknown,
    /// Value moved, or nothing was decided anew: the lock stays to its end. With the committed answer, if there is one.
    Kept(Option<String>),
    /// A business refusal: the member may correct the wish in a moment. With the committed answer, if there is one.
    Shortened(Option<String>),
    /// Nothing was done and nothing stored: the next attempt may come at once.
    Released,
}

/// An attempt under way. Dropped without an end, it keeps the lock.
pub struct Attempt {
    pub(super) action: String,
    /// What this process knows of the lock.
    pub(super) known: Memory,
    /// Where the lock is, if not in the process alone.
    pub(super) redis: Option<Redis>,
    pub(super) lock: Lock,
    pub(super) after_refusal: Duration,
}

impl Attempt {
    /// Ends the lock as the work ended. Only the token's owner can: if the lock is another's by now, nothing happens.
    pub async fn end(self, ended: Ended) {
        let (name, end) = match ended {
            Ended::Unknown => return,
            Ended::Kept(outcome) => ("kept", End::Finished { at_most: None, outcome }),
            Ended::Shortened(outcome) => ("shortened", End::Finished { at_most: Some(self.after_refusal), outcome }),
            Ended::Released => ("released", End::Released),
        };
        metrics::counter!("largesse_cooldown_ended_total", "action" => self.action, "end" => name).increment(1);
        // The process first: what it refuses of itself must end before the lock does, never after it.
        self.known.settle(&self.lock, &end);
        if let Some(redis) = &self.redis {
            redis.settle(&self.lock, &end).await;
        }
    }
}
