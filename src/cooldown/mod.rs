//! Layer 1: one attempt per member and action in a window, decided before the database is touched.
//!
//! [`Cooldown::attempt`] answers in one round trip at most: an [`Admission`], or for how long everyone else is refused. An
//! admission is a value. Whoever holds it decides what becomes of the lock: dropped before the work began, it gives the lock
//! back; once the work has begun it is an [`Attempt`](admission::Attempt), and dropped then (a panic, a client that hung up)
//! it keeps the lock, for nobody knows what was done.
//!
//! The lock says whether its attempt still runs. Of one that has ended this process knows enough to refuse by itself until
//! the lock's end, and to give the attempt's committed answer to whoever asks for the very same; of one that runs elsewhere
//! it asks, one question at a time.

mod admission;
mod asking;
mod ballot;
mod breaker;
mod cluster;
mod lock;
mod majority;
mod memory;
mod node;
mod redis;
mod scripts;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::config::{ConfigError, Settings, WithoutRedis};
use crate::error::Failure;
use crate::member::{Member, derived_id};
use asking::{Asking, Heard};
use lock::{Budget, By, Lock, Refused, Spent, Verdict};
use memory::Memory;
use redis::Redis;

pub use admission::{Admission, Attempt, Ended};
pub use lock::Fingerprint;

/// Layer 1.
#[derive(Clone)]
pub struct Cooldown {
    prefix: Arc<str>,
    after_refusal: Duration,
    /// Where locks are kept, if not in the process alone.
    redis: Option<Redis>,
    /// The locks of this process, and what it knows of others.
    known: Memory,
    asking: Asking,
    tokens: Arc<Tokens>,
    /// How much of other locks is remembered; with 0 each attempt asks Redis itself.
    remember: usize,
}

/// What the settings say of an action.
#[derive(Debug, Clone)]
pub struct Rule {
    /// For how long an attempt keeps others out.
    pub window: Duration,
    /// What to do while Redis is away.
    pub without_redis: WithoutRedis,
    /// How many attempts of a member are admitted in a minute, whatever they are about; None for any number.
    pub most_per_minute: Option<u32>,
}

/// An attempt that somebody would make.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// Whose.
    pub member: &'a Member,
    /// The mutation.
    pub action: &'a str,
    /// What about, where that has locks of its own.
    pub resource: Option<&'a str>,
    /// What exactly, where the attempt can be repeated for its answer.
    pub fingerprint: Option<Fingerprint>,
}

/// What [`Cooldown::attempt`] decides.
pub enum Decision {
    /// Nobody else is admitted before the window ends or the work ends the lock.
    Admitted(Admission),
    /// Another attempt, or too many of them, stand in the way for so long; above zero.
    Refused {
        /// For how long.
        left: Duration,
        /// Who said so: this process, which knows it, or the store that it asked.
        store: &'static str,
    },
    /// The very same was done in this window: its committed answer, as the work ended it.
    Answered(String),
}

impl Cooldown {
    /// Opens the store that the settings name. Redis may be away: it is connected in the background.
    pub fn open(settings: &Settings) -> Result<Self, ConfigError> {
        let redis = Redis::open(settings)?;
        Ok(Self {
            prefix: settings.cooldown.prefix.as_str().into(),
            after_refusal: Duration::from_millis(settings.cooldown.after_refusal_ms),
            redis,
            known: Memory::default(),
            asking: Asking::default(),
            tokens: Arc::new(Tokens::new()),
            remember: settings.cooldown.remember as usize,
        })
    }

    /// Takes the lock for a wish, or says for how long it cannot be had, or how the same wish was answered.
    pub async fn attempt(&self, wish: Wish<'_>, rule: &Rule) -> Result<Decision, Failure> {
        let lock = self.lock(&wish, rule);
        let Some(redis) = &self.redis else { return Ok(self.in_process(&wish, lock)) };
        // What was admitted here while Redis was away still counts when it is back.
        if let Some(refused) = self.known.known(&lock) {
            return Ok(refuse(refused, &wish, PROCESS));
        }
        let heard = if self.remember == 0 {
            let asked = Instant::now();
            redis.take(&lock).await.map_or_else(Heard::Away, |verdict| Heard::Own(verdict, asked))
        } else {
            self.asking.ask(&self.scope(&wish), redis, &lock).await
        };
        match heard {
            Heard::Own(Verdict::Admitted, asked) => {
                self.known.learn(&lock.key, lock.running(), asked + lock.window, self.remember);
                Ok(self.admit(Some(redis.clone()), &wish, lock))
            }
            Heard::Own(Verdict::Refused(refused), asked) => {
                self.learn(&lock, &refused, asked);
                Ok(refuse(refused, &wish, redis.name()))
            }
            Heard::Shared(refused) => Ok(refuse(refused, &wish, redis.name())),
            Heard::Away(cause) => self.without_redis(&wish, rule, lock, &cause.to_string()),
            Heard::AwayForAll => self.without_redis(&wish, rule, lock, "another attempt had no answer"),
        }
    }

    /// Whether Redis answers, as far as its keepers know; true where none is set.
    pub fn answers(&self) -> bool {
        match &self.redis {
            Some(redis) => redis.answers(),
            None => true,
        }
    }

    fn in_process(&self, wish: &Wish<'_>, lock: Lock) -> Decision {
        match self.known.take(&lock) {
            Verdict::Admitted => self.admit(None, wish, lock),
            Verdict::Refused(refused) => refuse(refused, wish, PROCESS),
        }
    }

    fn without_redis(&self, wish: &Wish<'_>, rule: &Rule, lock: Lock, cause: &str) -> Result<Decision, Failure> {
        metrics::counter!("largesse_cooldown_fallback_total", "action" => wish.action.to_owned()).increment(1);
        // The keeper warns, once; one line for each attempt of an outage would be a flood of its own.
        tracing::debug!(cause, action = wish.action, without_redis = ?rule.without_redis, "Redis gave no answer in time");
        match rule.without_redis {
            WithoutRedis::Refuse => Err(Failure::unavailable(format!("no cooldown without Redis: {cause}"))),
            WithoutRedis::UseProcess => Ok(self.in_process(wish, lock)),
        }
    }

    fn admit(&self, redis: Option<Redis>, wish: &Wish<'_>, lock: Lock) -> Decision {
        let (action, after_refusal) = (wish.action.to_owned(), self.after_refusal);
        Decision::Admitted(Admission::of(Attempt { action, known: self.known.clone(), redis, lock, after_refusal }))
    }

    /// Remembers what stays true until a moment that surely comes before the lock's end: the time that was left when Redis
    /// answered, counted from before it was asked.
    fn learn(&self, lock: &Lock, refused: &Refused, asked: Instant) {
        let until = asked + refused.left;
        match (&refused.by, &lock.budget) {
            (By::Lock(value), _) if value.is_final() => {
                self.known.learn(&lock.key, value.clone(), until, self.remember);
            }
            (By::Budget(Spent::ForSure(fingerprints)), Some(budget)) => {
                // This one was asked for, and no lock answered it.
                let others = fingerprints.iter().copied().filter(|other| Some(*other) != lock.fingerprint).collect();
                self.known.learn_spent(budget, others, until, self.remember);
            }
            _ => {}
        }
    }

    fn lock(&self, wish: &Wish<'_>, rule: &Rule) -> Lock {
        let scope = self.scope(wish);
        // Whatever characters it holds, it is 32 hexadecimal digits in the key.
        let resource = wish.resource.map(|resource| derived_id(&["resource", resource]).simple());
        Lock {
            key: resource.map_or_else(|| scope.clone(), |resource| format!("{scope}:{resource}")),
            token: self.tokens.next(),
            window: rule.window,
            fingerprint: wish.fingerprint,
            budget: rule.most_per_minute.map(|most| Budget { key: format!("{scope}:minute"), most }),
        }
    }

    /// The braces are Redis Cluster's hash tag: all locks of a member live on one node. The id is hexadecimal and the action
    /// a GraphQL name, so no two pairs make the same key.
    fn scope(&self, wish: &Wish<'_>) -> String {
        format!("{}:{{{}}}:{}", self.prefix, wish.member.id().simple(), wish.action)
    }
}

/// Names attempts. Nobody outside can end a lock, so it is enough that no two names are the same.
struct Tokens {
    process: Uuid,
    count: AtomicU64,
}

impl Tokens {
    fn new() -> Self {
        Self { process: Uuid::new_v4(), count: AtomicU64::new(0) }
    }

    /// A refusal needs a name as well, and must not wait for the system's randomness. The point keeps one name from being
    /// the beginning of another, since scripts compare beginnings.
    fn next(&self) -> String {
        format!("{}-{:x}.", self.process.simple(), self.count.fetch_add(1, Ordering::Relaxed))
    }
}

/// What this process is called where stores are named.
const PROCESS: &str = "process";

fn refuse(refused: Refused, wish: &Wish<'_>, store: &'static str) -> Decision {
    let Refused { left, by } = refused;
    match by {
        By::Lock(value) => match value.answer_to(wish.fingerprint) {
            Some(outcome) => Decision::Answered(outcome.to_owned()),
            None => Decision::Refused { left, store },
        },
        By::Budget(_) => Decision::Refused { left, store },
    }
}
