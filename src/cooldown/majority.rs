//! Locks at N independent Redis servers, of which a majority decides: Redlock, with a fixed order before it.
//!
//! 1. **One after the other at the gate.** All attempts ask the servers in the same order, and the first that answers is asked
//!    alone. Whoever it admits asks the rest, all at once. So of many attempts one asks the rest, and they are not split into
//!    parts of which none is a majority.
//! 2. **A majority admits, nobody else.** Asking has an end that is short against the window. What is left of the window,
//!    after the time that was spent and what clocks may drift, must be enough for the work. Otherwise everything that was
//!    taken is given back by token; so is every lock whose answer did not come.
//! 3. **A refusal counts if it is a majority's.** The gate may hold a lock that no attempt stands behind: its process died
//!    between the gate and the rest. So a refused attempt looks at the rest, without taking anything. If a majority holds one
//!    attempt's lock, that attempt was admitted. If the gate's lock is young, its attempt may be asking the rest at this
//!    moment. Otherwise the gate's word is worth nothing, and the next server is the gate.
//! 4. **Two gates** are possible for a moment: one process has lost the first server, another has not. If then nobody has a
//!    majority, the attempt with the smallest token keeps what it has and asks again, and the others give way.
//!
//! Refusing is always safe, and admitting needs a majority of fresh locks: whatever a minority of servers says, two
//! attempts are not admitted.
//!
//! What a refusal says: `left` is the time after which fewer than a majority hold the lock, measured from before they were
//! asked, so that nobody waits longer than the servers would have them wait. That its attempt has ended, and how, is
//! believed if a majority says so; until then the attempt counts as one that runs, which is asked about again.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::lock::{By, End, Lock, Refused, Spent, State, Value, Verdict};
use super::node::{Away, Manners, Node};
use super::scripts::Way;
use crate::config::{Settings, drift};
use crate::redis::{Place, Server};

/// Between two questions of an attempt that waits until the others have given way.
const GIVING_WAY: Duration = Duration::from_millis(1);

/// The servers, in their fixed order. Clones share their connections.
#[derive(Clone)]
pub(super) struct Majority {
    nodes: Arc<[Node]>,
    /// The longest that deciding may take.
    limit: Duration,
    /// What must be left of the window.
    work: Duration,
}

/// What stands in the way at one server, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    by: By,
    until: Instant,
}

/// What the servers say together.
#[derive(Debug, PartialEq, Eq)]
enum Count {
    /// A majority gave us the lock.
    Won,
    /// The same stands in the way at a majority.
    Lost(Seen),
    /// Enough have answered, and nobody has a majority.
    Split,
    /// Too few have answered for any majority.
    TooFew,
}

impl Majority {
    pub(super) fn open(servers: Vec<Server>, manners: &Manners, settings: &Settings) -> Self {
        let nodes = servers.into_iter().map(|server| Node::open(Place::fixed(server), manners, manners.trial_write()));
        Self { nodes: nodes.collect(), limit: settings.majority_limit(), work: settings.work() }
    }

    pub(super) async fn take(&self, lock: &Lock) -> Result<Verdict, Away> {
        let began = Instant::now();
        // Dropped, whether here or with a client that hung up, the campaign gives back what it has won.
        let mut campaign = Campaign::of(self, lock);
        let decided = timeout_at(began + self.limit, campaign.run()).await;
        let decided = decided.unwrap_or_else(|_| campaign.undecided());
        let decided = match decided {
            Ok(Verdict::Admitted) if left_for_work(lock.window, began.elapsed()) < self.work => Err(Away::TooLate),
            decided => decided,
        };
        if matches!(decided, Ok(Verdict::Admitted)) {
            campaign.keep();
        } else {
            campaign.give_back().await;
        }
        decided
    }

    /// Tells every server how the lock ends, and is content if a majority has heard it.
    pub(super) async fn settle(&self, lock: &Lock, end: &End) -> Result<(), Away> {
        let told = join_all(self.nodes.iter().map(|node| node.settle(lock, end, Way::Plain))).await;
        let heard = told.iter().filter(|answer| answer.is_ok()).count();
        let failed = told.into_iter().find_map(Result::err);
        failed.filter(|_| heard < majority_of(self.nodes.len())).map_or(Ok(()), Err)
    }

    /// Whether a majority answers.
    pub(super) fn answers(&self) -> bool {
        self.nodes.iter().filter(|node| node.is_there()).count() >= majority_of(self.nodes.len())
    }
}

/// One attempt on its way from server to server.
struct Campaign<'a> {
    majority: &'a Majority,
    lock: &'a Lock,
    /// The servers that gave us the lock.
    won: Vec<usize>,
    /// The servers that hold another's lock.
    held: HashMap<usize, Seen>,
}

impl<'a> Campaign<'a> {
    fn of(majority: &'a Majority, lock: &'a Lock) -> Self {
        Self { majority, lock, won: Vec::new(), held: HashMap::new() }
    }

    async fn run(&mut self) -> Result<Verdict, Away> {
        for gate in 0..self.majority.nodes.len() {
            self.ask(&[gate]).await;
            if !self.won.is_empty() {
                return self.ask_the_rest().await;
            }
            let Some(seen) = self.held.get(&gate).cloned() else { continue };
            if let Some(refused) = self.what_a_refusal_is_worth(seen).await? {
                return Ok(Verdict::Refused(refused));
            }
        }
        // Something stands in the way at every server that answers, or none answers.
        match self.count() {
            Count::TooFew => Err(Away::NoMajority),
            _ => Ok(Verdict::Refused(self.first_to_end())),
        }
    }

    /// The gate refused. Is it a majority's refusal, or that of an attempt on its way to one? If not, the gate is gone round.
    async fn what_a_refusal_is_worth(&mut self, gate: Seen) -> Result<Option<Refused>, Away> {
        let looked = self.look_around().await;
        let answers = looked.len() + self.held.len();
        let around = self.held.values().cloned().chain(looked.into_iter().flatten());
        if let Some(same) = said_by_a_majority(around, self.majority.nodes.len()) {
            return Ok(Some(same.refusal()));
        }
        let (left, limit) = (until(gate.until), self.majority.limit);
        let under_way = match &gate.by {
            By::Lock(_) => self.lock.window.saturating_sub(left) < limit,
            By::Budget(spent) => *spent == Spent::ForNow,
        };
        if under_way || left < limit {
            // Not a majority's word: nobody may keep it in mind, nor take an answer from it.
            return Ok(Some(Seen { by: not_for_sure(gate.by), ..gate }.refusal()));
        }
        if answers < majority_of(self.majority.nodes.len()) { Err(Away::NoMajority) } else { Ok(None) }
    }

    /// Asks all others at once, and again where two gates have split the servers, until somebody has a majority.
    async fn ask_the_rest(&mut self) -> Result<Verdict, Away> {
        loop {
            let others: Vec<_> = (0..self.majority.nodes.len()).filter(|node| !self.won.contains(node)).collect();
            self.ask(&others).await;
            match self.count() {
                Count::Won => return Ok(Verdict::Admitted),
                Count::Lost(seen) => return Ok(Verdict::Refused(seen.refusal())),
                Count::TooFew => return Err(Away::NoMajority),
                Count::Split if self.held.values().any(|seen| goes_before(&seen.by, self.lock)) => {
                    return Ok(Verdict::Refused(self.first_to_end()));
                }
                Count::Split => sleep(GIVING_WAY).await,
            }
        }
    }

    /// Asks these servers for the lock, all at once.
    async fn ask(&mut self, nodes: &[usize]) {
        let asked = Instant::now();
        let answers = nodes.iter().map(|node| self.majority.nodes[*node].take(self.lock, Way::Plain));
        for (node, answer) in nodes.iter().zip(join_all(answers).await) {
            self.held.remove(node);
            match answer {
                Ok(Verdict::Admitted) => self.won.push(*node),
                Ok(Verdict::Refused(refused)) => drop(self.held.insert(*node, Seen::at(asked, refused))),
                Err(_) => {}
            }
        }
    }

    /// What stands in the way at the servers that have said nothing yet, for those that answer.
    async fn look_around(&self) -> Vec<Option<Seen>> {
        let asked = Instant::now();
        let others = (0..self.majority.nodes.len()).filter(|node| !self.held.contains_key(node));
        let looks = join_all(others.map(|node| self.majority.nodes[node].look(self.lock))).await;
        let seen = |verdict| match verdict {
            Verdict::Admitted => None,
            Verdict::Refused(refused) => Some(Seen::at(asked, refused)),
        };
        looks.into_iter().filter_map(Result::ok).map(seen).collect()
    }

    /// Time is up. What still stands in the way of a majority may be an attempt that was admitted.
    fn undecided(&self) -> Result<Verdict, Away> {
        match self.count() {
            Count::Split => Ok(Verdict::Refused(self.first_to_end())),
            _ => Err(Away::TooLate),
        }
    }

    fn count(&self) -> Count {
        count(self.won.len(), self.held.values().cloned(), self.majority.nodes.len())
    }

    /// Whoever gives way, or finds no server free, may come again when the first thing that stands in the way is gone.
    fn first_to_end(&self) -> Refused {
        let first = self.held.values().min_by_key(|seen| seen.until).expect("something stands in the way").clone();
        Seen { by: not_for_sure(first.by), ..first }.refusal()
    }

    /// The lock is ours.
    fn keep(mut self) {
        self.won.clear();
    }

    /// A minority's locks help nobody. In a task of its own: whoever waits for it may hang up.
    fn release(&mut self) -> Option<JoinHandle<()>> {
        let won = std::mem::take(&mut self.won);
        if won.is_empty() {
            return None;
        }
        let (nodes, lock) = (self.majority.nodes.clone(), self.lock.clone());
        Some(tokio::spawn(async move {
            join_all(won.iter().map(|node| nodes[*node].settle(&lock, &End::Released, Way::Plain))).await;
        }))
    }

    async fn give_back(mut self) {
        if let Some(releasing) = self.release() {
            // It does not panic, and what it cannot give back ends by itself.
            let _ = releasing.await;
        }
    }
}

impl Drop for Campaign<'_> {
    fn drop(&mut self) {
        drop(self.release());
    }
}

impl Seen {
    /// A server said for how long; the time since it was asked is part of that.
    fn at(asked: Instant, refused: Refused) -> Self {
        Self { by: refused.by, until: asked + refused.left }
    }

    fn refusal(self) -> Refused {
        Refused { left: until(self.until), by: self.by }
    }
}

/// How long until this moment; above zero.
fn until(moment: Instant) -> Duration {
    moment.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// More than half.
fn majority_of(servers: usize) -> usize {
    servers / 2 + 1
}

/// What is left of a window that a majority gave: without the time that it took, and without what clocks may drift.
fn left_for_work(window: Duration, spent: Duration) -> Duration {
    window.saturating_sub(spent).saturating_sub(drift(window))
}

/// What so many locks won, and what stands in the way elsewhere, mean together.
fn count(won: usize, held: impl ExactSizeIterator<Item = Seen>, servers: usize) -> Count {
    let (needed, answers) = (majority_of(servers), won + held.len());
    if won >= needed {
        Count::Won
    } else if let Some(same) = said_by_a_majority(held, servers) {
        Count::Lost(same)
    } else if answers >= needed {
        Count::Split
    } else {
        Count::TooFew
    }
}

/// Whether the servers were split between this lock and another attempt that keeps what it has. A spent budget gives no way.
fn goes_before(by: &By, lock: &Lock) -> bool {
    match by {
        By::Lock(value) => value.token < lock.token,
        By::Budget(_) => true,
    }
}

/// What stands in the way at a majority, if it is the same there: one attempt's lock, or the budget. It does so until fewer
/// than a majority say so: with the M-th longest, fewer than M are left. Only what a majority knows for sure is sure.
fn said_by_a_majority(seen: impl Iterator<Item = Seen>, servers: usize) -> Option<Seen> {
    let mut by_whom: HashMap<Option<String>, Vec<Seen>> = HashMap::new();
    for seen in seen {
        let token = match &seen.by {
            By::Lock(value) => Some(value.token.clone()),
            By::Budget(_) => None,
        };
        by_whom.entry(token).or_default().push(seen);
    }
    let needed = majority_of(servers);
    let mut same = by_whom.into_values().find(|same| same.len() >= needed)?;
    same.sort_unstable_by_key(|seen| Reverse(seen.until));
    let until = same[needed - 1].until;
    Some(Seen { by: together(same.into_iter().map(|seen| seen.by).collect(), needed), until })
}

/// The same thing as several servers say it: for sure if so many of them do.
fn together(all: Vec<By>, needed: usize) -> By {
    let sure: Vec<_> = all.iter().filter(|by| is_for_sure(by)).collect();
    let mut fingerprints = Vec::new();
    for by in &sure {
        match by {
            // Their attempt has ended, and says at every server the same.
            By::Lock(_) if sure.len() >= needed => return (*by).clone(),
            By::Budget(Spent::ForSure(named)) => fingerprints.extend(named),
            _ => {}
        }
    }
    if sure.len() >= needed {
        return By::Budget(Spent::ForSure(fingerprints));
    }
    not_for_sure(all.into_iter().next().expect("a majority is somebody"))
}

fn is_for_sure(by: &By) -> bool {
    match by {
        By::Lock(value) => value.is_final(),
        By::Budget(spent) => matches!(spent, Spent::ForSure(_)),
    }
}

/// The same, as of an attempt that runs: it is asked about again, and answers nobody.
fn not_for_sure(by: By) -> By {
    match by {
        By::Lock(value) => By::Lock(Value { state: State::Running, ..value }),
        By::Budget(_) => By::Budget(Spent::ForNow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cooldown::lock::Fingerprint;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn drift_and_the_time_spent_are_no_part_of_the_window() {
        // A hundredth and two milliseconds of the window, as Redlock has it.
        assert_eq!(left_for_work(MS * 5000, Duration::ZERO), MS * 4948);
        assert_eq!(left_for_work(MS * 5000, MS * 448), MS * 4500);
        assert_eq!(left_for_work(MS * 5000, MS * 4949), Duration::ZERO);
        assert_eq!(left_for_work(MS, Duration::ZERO), Duration::ZERO);
    }

    fn lock(token: &str, until: Instant, state: State) -> Seen {
        Seen { by: By::Lock(Value { token: token.to_owned(), fingerprint: None, state }), until }
    }

    fn spent(until: Instant, spent: Spent) -> Seen {
        Seen { by: By::Budget(spent), until }
    }

    #[test]
    fn what_servers_say_together() {
        let now = Instant::now();
        let runs = |token: &str, ms: u32| lock(token, now + MS * ms, State::Running);
        for (won, held, expected) in [
            (3, vec![], Count::Won),
            (3, vec![runs("a", 1), runs("a", 1)], Count::Won),
            (2, vec![runs("a", 10), runs("a", 30), runs("a", 20)], Count::Lost(runs("a", 10))),
            (0, vec![runs("a", 50), runs("a", 40), runs("a", 30), runs("a", 20)], Count::Lost(runs("a", 30))),
            (1, vec![runs("a", 10), runs("a", 10), runs("b", 10), runs("b", 10)], Count::Split),
            (2, vec![runs("a", 10)], Count::Split),
            (2, vec![], Count::TooFew),
            (0, vec![runs("a", 10), runs("a", 10)], Count::TooFew),
        ] {
            assert_eq!(count(won, held.clone().into_iter(), 5), expected, "{won} won, {held:?} held");
        }
    }

    #[test]
    fn an_answer_is_believed_if_a_majority_gives_it() {
        let now = Instant::now();
        let (one, other) = (Fingerprint::of([1; 32]), Fingerprint::of([2; 32]));
        let ended = || lock("a", now, State::Finished(Some("answer".to_owned())));
        let runs = || lock("a", now, State::Running);
        assert_eq!(said_by_a_majority([ended(), runs(), ended(), ended()].into_iter(), 5), Some(ended()));
        assert_eq!(said_by_a_majority([ended(), runs(), ended(), runs()].into_iter(), 5), Some(runs()));
        let (sure, for_now) = (|named| spent(now, Spent::ForSure(vec![named])), || spent(now, Spent::ForNow));
        let all_are = |named| spent(now, Spent::ForSure(named));
        assert_eq!(said_by_a_majority([sure(one), sure(other)].into_iter(), 3), Some(all_are(vec![one, other])));
        assert_eq!(said_by_a_majority([sure(one), for_now()].into_iter(), 3), Some(for_now()));
        assert_eq!(said_by_a_majority([sure(one), runs()].into_iter(), 3), None, "not the same");
    }
}
