//! Layer 1: one attempt per member and action in a window, decided before the database is touched.
//!
//! [`Cooldown::attempt`] answers in one round trip: an [`Admission`], or for how long everyone else is refused. An admission
//! is a value. Whoever holds it decides what becomes of the lock: dropped before the work began, it gives the lock back;
//! once the work has begun it is an [`Attempt`], and dropped then (a panic, a client that hung up) it keeps the lock, for
//! nobody knows what was done.

mod memory;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::config::{ConfigError, Settings, WithoutRedis};
use crate::error::Failure;
use crate::member::Member;
use memory::Memory;
use redis::Redis;

/// What a store says to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Admitted,
    /// Another attempt holds the lock for so long; above zero.
    Refused(Duration),
}

/// The lock of one member and action in one window. The token says whose it is, so that nobody ends another's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lock {
    key: String,
    token: String,
    window: Duration,
}

/// Where locks are kept.
#[derive(Clone)]
enum Store {
    Process(Memory),
    Redis(Redis),
}

/// The stores, and what to do when the first one is away.
#[derive(Clone)]
pub struct Cooldown {
    prefix: Arc<str>,
    after_refusal: Duration,
    redis: Option<Redis>,
    process: Memory,
}

/// What [`Cooldown::attempt`] decides.
pub enum Decision {
    /// Nobody else is admitted before the window ends or the work ends the lock.
    Admitted(Admission),
    /// Another attempt holds the lock for so long; above zero.
    Refused(Duration),
}

impl Cooldown {
    /// Opens the store that the settings name. Redis may be away: it is connected in the background.
    pub fn open(settings: &Settings) -> Result<Self, ConfigError> {
        let redis = settings.redis_url.as_ref().map(|url| Redis::open(url, settings)).transpose()?;
        Ok(Self {
            prefix: settings.cooldown.prefix.as_str().into(),
            after_refusal: Duration::from_millis(settings.cooldown.after_refusal_ms),
            redis,
            process: Memory::default(),
        })
    }

    /// Takes the lock of a member and action, or says for how long another holds it.
    pub async fn attempt(
        &self,
        member: &Member,
        action: &str,
        window: Duration,
        without_redis: WithoutRedis,
    ) -> Result<Decision, Failure> {
        let lock = Lock { key: self.key(member, action), token: Uuid::new_v4().simple().to_string(), window };
        let Some(redis) = &self.redis else {
            return Ok(self.decide(Store::Process(self.process.clone()), self.process.take(&lock), lock));
        };
        // What was admitted here while Redis was away still counts when it is back.
        if let Some(left) = self.process.remaining(&lock.key) {
            return Ok(Decision::Refused(left));
        }
        match redis.take(&lock).await {
            Ok(verdict) => Ok(self.decide(Store::Redis(redis.clone()), verdict, lock)),
            Err(cause) => {
                metrics::counter!("largesse_cooldown_fallback_total", "action" => action.to_owned()).increment(1);
                tracing::warn!(%cause, action, without_redis = ?without_redis, "Redis gave no answer in time");
                match without_redis {
                    WithoutRedis::Refuse => Err(Failure::unavailable(format!("no cooldown without Redis: {cause}"))),
                    WithoutRedis::UseProcess => {
                        Ok(self.decide(Store::Process(self.process.clone()), self.process.take(&lock), lock))
                    }
                }
            }
        }
    }

    /// Whether Redis answers; true where none is set.
    pub async fn answers(&self) -> bool {
        match &self.redis {
            Some(redis) => redis.answers().await,
            None => true,
        }
    }

    fn decide(&self, store: Store, verdict: Verdict, lock: Lock) -> Decision {
        match verdict {
            Verdict::Refused(left) => Decision::Refused(left),
            Verdict::Admitted => {
                let after_refusal = self.after_refusal;
                Decision::Admitted(Admission { attempt: Some(Attempt { store, lock, after_refusal }) })
            }
        }
    }

    /// The braces are Redis Cluster's hash tag: all locks of a member live on one node. The id is hexadecimal and the action
    /// a GraphQL name, so no two pairs make the same key.
    fn key(&self, member: &Member, action: &str) -> String {
        format!("{}:{{{}}}:{action}", self.prefix, member.id().simple())
    }
}

/// The right to make an attempt. Dropped, it gives the lock back: nothing was begun.
#[must_use = "dropped, an admission gives its lock back"]
pub struct Admission {
    attempt: Option<Attempt>,
}

impl Admission {
    /// The work begins: from here on the lock is kept unless somebody who knows how the work ended says otherwise.
    pub fn begin(mut self) -> Attempt {
        self.attempt.take().expect("an admission begins once, for begin consumes it")
    }

    /// Nothing was begun: gives the lock back before anybody is told.
    pub async fn give_back(mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.release().await;
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            // Whoever drops it may be a future that nobody polls any more.
            tokio::spawn(attempt.release());
        }
    }
}

/// How an attempt ended, as far as its lock is concerned: the last column of the outcome table in `api/work.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Value moved, or nobody knows: the lock stays to its end.
    Kept,
    /// A business refusal: the member may correct the wish in a moment.
    Shortened,
    /// Nothing was done and nothing stored: the next attempt may come at once.
    Released,
}

/// An attempt under way. Dropped without an end, it keeps the lock.
pub struct Attempt {
    store: Store,
    lock: Lock,
    after_refusal: Duration,
}

impl Attempt {
    /// Ends the lock as the work ended. Only the token's owner can: if the lock is another's by now, nothing happens.
    pub async fn end(self, ended: Ended) {
        match ended {
            Ended::Kept => {}
            Ended::Shortened => match &self.store {
                Store::Process(memory) => memory.shorten(&self.lock, self.after_refusal),
                Store::Redis(redis) => redis.shorten(&self.lock, self.after_refusal).await,
            },
            Ended::Released => self.release().await,
        }
    }

    async fn release(self) {
        match &self.store {
            Store::Process(memory) => memory.release(&self.lock),
            Store::Redis(redis) => redis.release(&self.lock).await,
        }
    }
}
