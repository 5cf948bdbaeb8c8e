//! Refusals of the cooldown in the log: so many a second for each action, and then one event that says how many more there
//! were. A flood cannot fill a disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What one count of written events is for.
const SECOND: Duration = Duration::from_secs(1);

/// Says of each refusal whether it is written. Clones share it.
#[derive(Clone)]
pub(super) struct Refusals {
    per_second: u32,
    actions: Arc<Mutex<HashMap<String, Second>>>,
}

/// What happened to one action since a refusal began the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Second {
    began: Instant,
    written: u32,
    left_out: u64,
}

/// What becomes of one refusal in the log.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Whether it is written.
    write: bool,
    /// How many were left out in a second that is over, and of which nobody has been told.
    left_out_before: u64,
    /// Set if it is the first that is left out in its second: when that one is over, and somebody must be told.
    tell_at: Option<Instant>,
}

impl Second {
    fn begin(now: Instant) -> Self {
        Self { began: now, written: 0, left_out: 0 }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= SECOND
    }
}

impl Refusals {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second, actions: Arc::default() }
    }

    /// Writes the refusal with `write`, or counts it. Whoever is the first to be left out in a second sees to it that the number
    /// is told when the second is over, also if no other refusal ever comes.
    pub(super) fn note(&self, action: &str, write: impl FnOnce()) {
        let seen = self.see(action, Instant::now());
        tell(action, seen.left_out_before);
        if seen.write {
            write();
            return;
        }
        metrics::counter!("largesse_cooldown_refusals_not_logged_total", "action" => action.to_owned()).increment(1);
        if let Some(at) = seen.tell_at {
            let (refusals, action) = (self.clone(), action.to_owned());
            tokio::spawn(async move {
                tokio::time::sleep_until(at.into()).await;
                tell(&action, refusals.left_out(&action, Instant::now()));
            });
        }
    }

    fn see(&self, action: &str, now: Instant) -> Seen {
        let mut actions = self.actions();
        let second = actions.entry(action.to_owned()).or_insert_with(|| Second::begin(now));
        let mut left_out_before = 0;
        if second.is_over(now) {
            left_out_before = second.left_out;
            *second = Second::begin(now);
        }
        if second.written < self.per_second {
            second.written += 1;
            return Seen { write: true, left_out_before, tell_at: None };
        }
        second.left_out += 1;
        Seen { write: false, left_out_before, tell_at: (second.left_out == 1).then(|| second.began + SECOND) }
    }

    /// Takes the number that were left out in a second that is over.
    fn left_out(&self, action: &str, now: Instant) -> u64 {
        match self.actions().get_mut(action) {
            Some(second) if second.is_over(now) => std::mem::take(&mut second.left_out),
            _ => 0,
        }
    }

    fn actions(&self) -> MutexGuard<'_, HashMap<String, Second>> {
        // No code panics between two states while it holds the lock.
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(action: &str, left_out: u64) {
    if left_out > 0 {
        tracing::info!(action, left_out, "more refusals of the cooldown within a second, not logged one by one");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn so_many_a_second_are_written_and_the_others_are_counted() {
        let (refusals, start) = (Refusals::new(2), Instant::now());
        let written = |at| refusals.see("transfer", start + milliseconds(at));
        let plain = |write| Seen { write, left_out_before: 0, tell_at: None };
        assert_eq!(written(0), plain(true));
        assert_eq!(written(10), plain(true));
        assert_eq!(written(20), Seen { tell_at: Some(start + SECOND), ..plain(false) });
        assert_eq!(written(999), plain(false));
        assert_eq!(refusals.left_out("transfer", start + milliseconds(999)), 0, "the second is not over");
        // The next second begins with the next refusal, which tells of the one before.
        assert_eq!(written(1000), Seen { left_out_before: 2, ..plain(true) });
        assert_eq!(written(1001), plain(true));
        assert_eq!(written(1002), Seen { tell_at: Some(start + milliseconds(2000)), ..plain(false) });
    }

    #[test]
    fn what_was_left_out_is_told_once_also_after_the_flood() {
        let (refusals, start) = (Refusals::new(1), Instant::now());
        for _ in 0..1_000 {
            refusals.see("transfer", start);
        }
        assert_eq!(refusals.left_out("transfer", start + SECOND), 999);
        assert_eq!(refusals.left_out("transfer", start + SECOND), 0);
        assert_eq!(refusals.see("transfer", start + 2 * SECOND).left_out_before, 0);
    }

    #[test]
    fn each_action_has_its_own_count() {
        let (refusals, now) = (Refusals::new(1), Instant::now());
        assert!(refusals.see("transfer", now).write && !refusals.see("transfer", now).write);
        assert!(refusals.see("claimDailyBonus", now).write);
    }

    #[test]
    fn with_none_a_second_all_are_counted() {
        let (refusals, now) = (Refusals::new(0), Instant::now());
        assert!((0..5).all(|_| !refusals.see("transfer", now).write));
        assert_eq!(refusals.left_out("transfer", now + SECOND), 5);
    }
}
