//! Locks inside this process: the demo's store, what is left while Redis is away, and what is known of Redis's locks.
//!
//! As a store, it holds whatever it admitted. What it merely knows, it may forget: then Redis is asked.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::lock::{Budget, By, End, Fingerprint, Lock, MINUTE, Refused, Spent, Value, Verdict};

/// Locks by key. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Memory {
    locks: Arc<Mutex<Locks>>,
}

#[derive(Default)]
struct Locks {
    held: HashMap<String, Held>,
    /// What was admitted here, the oldest first, by budget.
    counted: HashMap<String, VecDeque<Counted>>,
    /// Redis's budgets of which nothing is left until some moment, whoever asks.
    spent: HashMap<String, SpentUntil>,
    swept: Option<Instant>,
}

struct Held {
    value: Value,
    until: Instant,
}

struct Counted {
    at: Instant,
    token: String,
    fingerprint: Option<Fingerprint>,
    finished: bool,
}

struct SpentUntil {
    until: Instant,
    /// Of attempts whose locks may still answer.
    fingerprints: Vec<Fingerprint>,
}

impl SpentUntil {
    /// While it is spent nobody is admitted, so the attempts whose answers may be asked for become fewer and never more.
    fn narrow(&mut self, later: &Self) {
        if self.until > Instant::now() {
            self.fingerprints.retain(|known| later.fingerprints.contains(known));
        } else {
            self.fingerprints.clone_from(&later.fingerprints);
        }
        self.until = later.until;
    }
}

/// Fewer locks than these are not worth sweeping.
const SMALLEST_SWEEP: usize = 1024;

/// Sweeping looks at all of them, so that a flood of members must not cause it more often.
const SWEEP_PAUSE: Duration = Duration::from_millis(500);

impl Memory {
    /// Takes a lock, as the store of it.
    pub(super) fn take(&self, lock: &Lock) -> Verdict {
        let now = Instant::now();
        let mut locks = self.locks();
        if let Some(refused) = locks.known(lock, now) {
            return Verdict::Refused(refused);
        }
        locks.sweep(now);
        if let Some(Err(refused)) = lock.budget.as_ref().map(|budget| locks.count(budget, lock, now)) {
            return Verdict::Refused(refused);
        }
        locks.held.insert(lock.key.clone(), Held { value: lock.running(), until: now + lock.window });
        Verdict::Admitted
    }

    /// What is known to stand in the way, if anything does.
    pub(super) fn known(&self, lock: &Lock) -> Option<Refused> {
        self.locks().known(lock, Instant::now())
    }

    /// Remembers what Redis said of a lock that stays as it is until a moment, if there are fewer than so many already.
    pub(super) fn learn(&self, key: &str, value: Value, until: Instant, most: usize) {
        let mut locks = self.locks();
        if locks.has_room_for(most) {
            locks.held.insert(key.to_owned(), Held { value, until });
        }
    }

    /// Remembers that a budget is spent until a moment.
    pub(super) fn learn_spent(&self, budget: &Budget, fingerprints: Vec<Fingerprint>, until: Instant, most: usize) {
        let mut locks = self.locks();
        if locks.has_room_for(most) {
            let spent = SpentUntil { until, fingerprints };
            locks.spent.entry(budget.key.clone()).and_modify(|known| known.narrow(&spent)).or_insert(spent);
        }
    }

    /// Ends a lock if it is still this one's.
    pub(super) fn settle(&self, lock: &Lock, end: &End) {
        let now = Instant::now();
        let mut locks = self.locks();
        locks.count_end(lock, end);
        let Some(held) = locks.held.get_mut(&lock.key).filter(|held| held.value.token == lock.token) else { return };
        match end {
            End::Released => drop(locks.held.remove(&lock.key)),
            End::Finished { at_most, outcome } => {
                held.value = lock.finished(outcome.clone());
                held.until = at_most.map_or(held.until, |at_most| held.until.min(now + at_most));
            }
        }
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        // No code panics between two states while it holds the lock.
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    fn known(&mut self, lock: &Lock, now: Instant) -> Option<Refused> {
        if let Some(held) = self.held.get(&lock.key).filter(|held| held.until > now) {
            return Some(Refused { left: held.until - now, by: By::Lock(held.value.clone()) });
        }
        let budget = lock.budget.as_ref()?;
        let spent = self.spent.get(&budget.key).filter(|spent| spent.until > now)?;
        // A lock that may hold this one's answer is worth a question.
        if lock.fingerprint.is_some_and(|mine| spent.fingerprints.contains(&mine)) {
            return None;
        }
        Some(Refused { left: spent.until - now, by: By::Budget(Spent::ForSure(spent.fingerprints.clone())) })
    }

    /// Counts one more against the budget, unless nothing is left of it.
    fn count(&mut self, budget: &Budget, lock: &Lock, now: Instant) -> Result<(), Refused> {
        let counted = self.counted.entry(budget.key.clone()).or_default();
        while counted.front().is_some_and(|oldest| now >= oldest.at + MINUTE) {
            counted.pop_front();
        }
        if counted.len() >= budget.most as usize {
            let left = counted.front().map_or(MINUTE, |oldest| oldest.at + MINUTE - now);
            let by = By::Budget(spent(counted));
            return Err(Refused { left, by });
        }
        let (token, fingerprint) = (lock.token.clone(), lock.fingerprint);
        counted.push_back(Counted { at: now, token, fingerprint, finished: false });
        Ok(())
    }

    fn count_end(&mut self, lock: &Lock, end: &End) {
        let Some(counted) = lock.budget.as_ref().and_then(|budget| self.counted.get_mut(&budget.key)) else { return };
        match end {
            End::Released => counted.retain(|one| one.token != lock.token),
            End::Finished { .. } => {
                counted.iter_mut().filter(|one| one.token == lock.token).for_each(|one| one.finished = true);
            }
        }
    }

    /// Whether fewer than so many are remembered, without those that have ended. However few that is, they must make room.
    fn has_room_for(&mut self, most: usize) -> bool {
        if self.held.len() + self.spent.len() >= most {
            self.forget_ended(Instant::now());
        }
        self.held.len() + self.spent.len() < most
    }

    /// Throws away what has ended, where it is worth it.
    fn sweep(&mut self, now: Instant) {
        if self.held.len() + self.counted.len() + self.spent.len() >= SMALLEST_SWEEP {
            self.forget_ended(now);
        }
    }

    fn forget_ended(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now < swept + SWEEP_PAUSE) {
            return;
        }
        self.swept = Some(now);
        self.held.retain(|_, held| held.until > now);
        self.spent.retain(|_, spent| spent.until > now);
        self.counted.retain(|_, counted| counted.back().is_some_and(|newest| newest.at + MINUTE > now));
    }
}

fn spent(counted: &VecDeque<Counted>) -> Spent {
    if counted.iter().all(|one| one.finished) {
        Spent::ForSure(counted.iter().filter_map(|one| one.fingerprint).collect())
    } else {
        Spent::ForNow
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::State;
    use super::*;

    fn lock(key: &str, token: &str, window_ms: u64) -> Lock {
        let window = Duration::from_millis(window_ms);
        Lock { key: key.to_owned(), token: token.to_owned(), window, fingerprint: None, budget: None }
    }

    fn left(memory: &Memory, lock: &Lock) -> Option<Duration> {
        memory.known(lock).map(|refused| refused.left)
    }

    const SHORTENED: End = End::Finished { at_most: Some(Duration::from_secs(1)), outcome: None };

    #[test]
    fn the_first_is_admitted_and_only_its_token_ends_the_lock() {
        let memory = Memory::default();
        let (first, second) = (lock("k", "1", 60_000), lock("k", "2", 60_000));
        assert_eq!(memory.take(&first), Verdict::Admitted);
        assert!(matches!(memory.take(&second), Verdict::Refused(refused) if refused.left <= first.window));
        memory.settle(&second, &End::Released);
        assert!(left(&memory, &second).is_some(), "another's token ends nothing");
        memory.settle(&first, &SHORTENED);
        assert!(left(&memory, &second).is_some_and(|left| left <= Duration::from_secs(1)));
        memory.settle(&first, &End::Released);
        assert_eq!(memory.take(&second), Verdict::Admitted);
    }

    #[test]
    fn ended_locks_do_not_pile_up() {
        let memory = Memory::default();
        for number in 0..10 * SMALLEST_SWEEP {
            memory.locks().swept = None;
            assert_eq!(memory.take(&lock(&number.to_string(), "t", 0)), Verdict::Admitted);
        }
        assert!(memory.locks().held.len() <= SMALLEST_SWEEP);
    }

    #[test]
    fn what_is_known_has_a_bound_and_what_was_admitted_has_none() {
        let memory = Memory::default();
        let until = Instant::now() + MINUTE;
        for number in 0..10 {
            memory.learn(&number.to_string(), lock("", "t", 0).finished(None), until, 5);
        }
        assert_eq!(memory.locks().held.len(), 5);
        for number in 0..10 {
            assert_eq!(memory.take(&lock(&format!("own {number}"), "t", 60_000)), Verdict::Admitted);
        }
        assert_eq!(memory.locks().held.len(), 15);
    }

    #[test]
    fn a_budget_bounds_all_that_a_member_does_and_a_release_gives_back() {
        let memory = Memory::default();
        let numbered = |number: u8| {
            let budget = Some(Budget { key: "b".to_owned(), most: 3 });
            let fingerprint = Some(Fingerprint::of([number; 32]));
            Lock { fingerprint, budget, ..lock(&format!("k{number}"), &format!("t{number}"), 60_000) }
        };
        for number in 0..3 {
            assert_eq!(memory.take(&numbered(number)), Verdict::Admitted);
        }
        let by = |verdict| match verdict {
            Verdict::Refused(Refused { by: By::Budget(spent), left }) if left <= MINUTE && !left.is_zero() => spent,
            other => panic!("{other:?}"),
        };
        assert_eq!(by(memory.take(&numbered(3))), Spent::ForNow);
        memory.settle(&numbered(1), &End::Released);
        assert_eq!(memory.take(&numbered(4)), Verdict::Admitted, "a release gives back");
        for number in [0, 2, 4] {
            memory.settle(&numbered(number), &SHORTENED);
        }
        let fingerprints = [0, 2, 4].map(|number| Fingerprint::of([number; 32])).to_vec();
        assert_eq!(by(memory.take(&numbered(5))), Spent::ForSure(fingerprints));
        assert!(matches!(
            memory.known(&numbered(0)),
            Some(Refused { by: By::Lock(Value { state: State::Finished(None), .. }), .. })
        ));
    }
}
