//! One question to Redis at a time per member and action.
//!
//! Whoever arrives while a question is under way waits for the next one, and whoever arrived before that one was asked
//! shares its answer: it was decided after they came, so it is as good as one of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::MutexGuard;

use super::lock::{By, Lock, Refused, Verdict};
use super::node::Away;
use super::redis::Redis;

/// The questions under way. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Asking {
    turns: Arc<Mutex<HashMap<String, Arc<Turn>>>>,
}

/// Whose turn it is, first come first served, and what the last one was told.
type Turn = tokio::sync::Mutex<Option<Told>>;

struct Told {
    asked: Instant,
    key: String,
    answer: Answer,
}

/// What everyone but the asker is told.
#[derive(Clone)]
enum Answer {
    Refused { refused: Refused, until: Instant },
    Away,
}

/// What came of a question, or of somebody else's.
pub(super) enum Heard {
    /// Ours alone.
    Own(Verdict, Instant),
    /// Another's question was answered with a refusal that holds for all.
    Shared(Refused),
    /// Redis did not answer us.
    Away(Away),
    /// Redis did not answer somebody who asked after we came.
    AwayForAll,
}

impl Asking {
    /// Asks for the lock, or shares the answer of whoever asks in the meantime. `scope` is the member and the action.
    pub(super) async fn ask(&self, scope: &str, redis: &Redis, lock: &Lock) -> Heard {
        let arrived = Instant::now();
        let leaving = Leaving { asking: self, scope, turn: self.turn(scope) };
        let mut told = leaving.turn.lock().await;
        if let Some(heard) = told.as_ref().and_then(|told| told.to(lock, arrived)) {
            return heard;
        }
        let asked = Instant::now();
        let heard = match redis.take(lock).await {
            Ok(verdict) => Heard::Own(verdict, asked),
            Err(away) => Heard::Away(away),
        };
        remember(&mut told, lock, asked, &heard);
        heard
    }

    fn turn(&self, scope: &str) -> Arc<Turn> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(scope.to_owned()).or_default().clone()
    }
}

fn remember(told: &mut MutexGuard<'_, Option<Told>>, lock: &Lock, asked: Instant, heard: &Heard) {
    let answer = match heard {
        // The next one in the line would be refused by this very lock.
        Heard::Own(Verdict::Admitted, _) => {
            let refused = Refused { left: lock.window, by: By::Lock(lock.running()) };
            Answer::Refused { until: asked + lock.window, refused }
        }
        Heard::Own(Verdict::Refused(refused), _) => {
            Answer::Refused { until: asked + refused.left, refused: refused.clone() }
        }
        _ => Answer::Away,
    };
    **told = Some(Told { asked, key: lock.key.clone(), answer });
}

impl Told {
    /// What this says to somebody who arrived at a moment and wants this lock, if it says anything.
    fn to(&self, lock: &Lock, arrived: Instant) -> Option<Heard> {
        if self.asked < arrived {
            return None;
        }
        match &self.answer {
            Answer::Away => Some(Heard::AwayForAll),
            Answer::Refused { refused, until } if self.key == lock.key => {
                let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
                Some(Heard::Shared(Refused { left, by: refused.by.clone() }))
            }
            Answer::Refused { .. } => None,
        }
    }
}

/// Takes the turns of a scope away with the last one who waits there, also where that one stops waiting.
struct Leaving<'a> {
    asking: &'a Asking,
    scope: &'a str,
    turn: Arc<Turn>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut turns = self.asking.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Given up while the table is locked: two who left at once would else each see the other's, and nobody would be last.
        drop(std::mem::take(&mut self.turn));
        if turns.get(self.scope).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(self.scope);
        }
    }
}
