//! Locks inside this process: the demo's store, and what is left while Redis is away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Lock, Verdict};

/// Locks by key. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Memory {
    locks: Arc<Mutex<Locks>>,
}

#[derive(Default)]
struct Locks {
    held: HashMap<String, Held>,
    /// The size at which ended locks are swept out next.
    sweep_at: usize,
}

struct Held {
    token: String,
    until: Instant,
}

/// Fewer locks than these are not worth sweeping.
const SMALLEST_SWEEP: usize = 1024;

impl Memory {
    pub(super) fn take(&self, lock: &Lock) -> Verdict {
        let now = Instant::now();
        let mut locks = self.locks();
        if let Some(held) = locks.held.get(&lock.key).filter(|held| held.until > now) {
            return Verdict::Refused(held.until - now);
        }
        locks.sweep(now);
        locks.held.insert(lock.key.clone(), Held { token: lock.token.clone(), until: now + lock.window });
        Verdict::Admitted
    }

    /// For how long the key is locked, if it is.
    pub(super) fn remaining(&self, key: &str) -> Option<Duration> {
        let now = Instant::now();
        self.locks().held.get(key).filter(|held| held.until > now).map(|held| held.until - now)
    }

    pub(super) fn release(&self, lock: &Lock) {
        let mut locks = self.locks();
        if locks.held.get(&lock.key).is_some_and(|held| held.token == lock.token) {
            locks.held.remove(&lock.key);
        }
    }

    pub(super) fn shorten(&self, lock: &Lock, to: Duration) {
        let until = Instant::now() + to;
        if let Some(held) = self.locks().held.get_mut(&lock.key).filter(|held| held.token == lock.token) {
            held.until = held.until.min(until);
        }
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        // No code panics between two states while it holds the lock.
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    /// Throws ended locks away each time their number has doubled: memory stays within twice of what a window admits.
    fn sweep(&mut self, now: Instant) {
        if self.held.len() >= self.sweep_at.max(SMALLEST_SWEEP) {
            self.held.retain(|_, held| held.until > now);
            self.sweep_at = self.held.len() * 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(key: &str, token: &str, window_ms: u64) -> Lock {
        Lock { key: key.to_owned(), token: token.to_owned(), window: Duration::from_millis(window_ms) }
    }

    #[test]
    fn the_first_is_admitted_and_only_its_token_ends_the_lock() {
        let memory = Memory::default();
        let (first, second) = (lock("k", "1", 60_000), lock("k", "2", 60_000));
        assert_eq!(memory.take(&first), Verdict::Admitted);
        assert!(matches!(memory.take(&second), Verdict::Refused(left) if left <= first.window && !left.is_zero()));
        memory.release(&second);
        assert!(memory.remaining("k").is_some(), "another's token ends nothing");
        memory.shorten(&first, Duration::from_secs(1));
        assert!(memory.remaining("k").is_some_and(|left| left <= Duration::from_secs(1)));
        memory.release(&first);
        assert_eq!(memory.take(&second), Verdict::Admitted);
    }

    #[test]
    fn ended_locks_do_not_pile_up() {
        let memory = Memory::default();
        for number in 0..10 * SMALLEST_SWEEP {
            assert_eq!(memory.take(&lock(&number.to_string(), "t", 0)), Verdict::Admitted);
        }
        assert!(memory.locks().held.len() <= SMALLEST_SWEEP);
    }
}
