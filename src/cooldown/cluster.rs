//! Locks in a Redis Cluster: each on the server that holds its slot.
//!
//! Each server has a breaker and a keeper of its own, so that one that is gone is none of the others' business: members whose
//! slots live elsewhere notice nothing. All locks of a member share a slot. The map of slots is looked at now and then, often
//! while something is amiss, and at once when a server says that a key lives elsewhere now.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value, cmd};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::lock::{End, Lock, Verdict};
use super::node::{Away, Manners, Node};
use super::scripts::Way;
use super::slots::{Address, Slots, slot_of};
use crate::redis::{Place, Server};

/// How often the map is looked at while all is well.
const CALM: Duration = Duration::from_secs(5);

/// How often while a slot has no holder, or its holder is away.
const HASTE: Duration = Duration::from_millis(100);

/// Many may say at once that the map is old.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// A cluster. Clones share its connections and its map.
#[derive(Clone)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    _mapping: Arc<AbortOnDropHandle<()>>,
}

struct Shared {
    manners: Manners,
    /// The servers of the settings: how all are reached, and whom to ask for the map before there is one.
    seeds: Vec<(Server, Node)>,
    known: Mutex<Known>,
    /// Told when a server said that the map is old.
    look_again: Notify,
}

#[derive(Default)]
struct Known {
    slots: Slots,
    nodes: HashMap<Address, Node>,
    /// Who is asked for the map next: one that was cut off must not be asked for ever.
    turn: usize,
}

impl Cluster {
    pub(super) fn open(servers: Vec<Server>, manners: &Manners) -> Self {
        let seeds = servers.into_iter().map(|server| {
            let node = Node::open(Place::fixed(server.clone()), manners, ping());
            (server, node)
        });
        let (known, look_again) = (Mutex::default(), Notify::new());
        let shared = Arc::new(Shared { seeds: seeds.collect(), manners: manners.clone(), known, look_again });
        let mapping = tokio::spawn(keep_the_map(shared.clone()));
        Self { shared, _mapping: Arc::new(AbortOnDropHandle::new(mapping)) }
    }

    pub(super) async fn take(&self, lock: &Lock) -> Result<Verdict, Away> {
        let (address, node) = self.holder(lock)?;
        match node.take(lock, Way::Plain).await {
            Err(away) => {
                let (node, way) = self.elsewhere(away, &address).await?;
                node.take(lock, way).await
            }
            answer => answer,
        }
    }

    pub(super) async fn settle(&self, lock: &Lock, end: &End) -> Result<(), Away> {
        let (address, node) = self.holder(lock)?;
        match node.settle(lock, end, Way::Plain).await {
            Err(away) => {
                let (node, way) = self.elsewhere(away, &address).await?;
                node.settle(lock, end, way).await
            }
            answer => answer,
        }
    }

    /// Whether each slot has a holder that answers.
    pub(super) fn answers(&self) -> bool {
        self.shared.is_whole()
    }

    fn holder(&self, lock: &Lock) -> Result<(Address, Node), Away> {
        self.shared.holder(slot_of(&lock.key)).ok_or(Away::NoHolder)
    }

    /// The holder of the slot gave no answer. Whom to ask instead, if it said so.
    async fn elsewhere(&self, away: Away, asked: &Address) -> Result<(Node, Way), Away> {
        self.shared.look_again.notify_one();
        let Away::Failed(error) = &away else { return Err(away) };
        let Some((to, way)) = redirect(error, &asked.0) else { return Err(away) };
        let node = self.shared.node(&to);
        // One that was not known before is connected in a moment.
        let _ = timeout(self.shared.manners.command, node.connected()).await;
        Ok((node, way))
    }
}

impl Shared {
    fn holder(&self, slot: u16) -> Option<(Address, Node)> {
        let mut known = self.known();
        let address = known.slots.holder(slot)?.clone();
        let node = known.node(self, &address);
        Some((address, node))
    }

    fn node(&self, address: &Address) -> Node {
        self.known().node(self, address)
    }

    fn is_whole(&self) -> bool {
        let known = self.known();
        let answers = |address: &Address| known.nodes.get(address).is_some_and(Node::is_there);
        known.slots.are_all_held() && known.slots.holders().into_iter().all(answers)
    }

    /// Whoever is there and next in turn, and its host's name.
    fn whom_to_ask(&self) -> Option<(String, Node)> {
        let mut known = self.known();
        known.turn = known.turn.wrapping_add(1);
        let members = known.nodes.iter().map(|((host, _), node)| (host.clone(), node.clone()));
        let mut there: Vec<_> = members.filter(|(_, node)| node.is_there()).collect();
        if there.is_empty() {
            let seeds = self.seeds.iter().map(|(server, node)| (server.host(), node.clone()));
            there = seeds.filter(|(_, node)| node.is_there()).collect();
        }
        if there.is_empty() { None } else { Some(there.swap_remove(known.turn % there.len())) }
    }

    /// From now on this map holds. Replicas are connected as well, so that one that is promoted can be asked at once.
    fn learn(&self, slots: Slots) {
        let mut known = self.known();
        if known.slots == slots {
            return;
        }
        known.nodes.retain(|address, _| slots.servers().contains(address));
        for address in slots.servers() {
            known.node(self, address);
        }
        known.slots = slots;
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // No code panics between two states while it holds the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The node at an address, connected from now on if it was not before.
    fn node(&mut self, shared: &Shared, address: &Address) -> Node {
        let open = || {
            let server = shared.seeds[0].0.at(&address.0, address.1);
            Node::open(Place::fixed(server), &shared.manners, ping())
        };
        self.nodes.entry(address.clone()).or_insert_with(open).clone()
    }
}

/// A member of a cluster says itself that it is a replica, or cut off, when it is asked for a key.
fn ping() -> Cmd {
    cmd("PING")
}

/// Where the key lives by the server's word, and how to ask there. A server that does not know its own host's name leaves
/// it out.
fn redirect(error: &RedisError, asked: &str) -> Option<(Address, Way)> {
    let way = match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => Way::Plain,
        ErrorKind::Server(ServerErrorKind::Ask) => Way::HandedOver,
        _ => return None,
    };
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some(((host.to_owned(), port.parse().ok()?), way))
}

/// Looks at the map for as long as somebody uses it.
async fn keep_the_map(shared: Arc<Shared>) {
    loop {
        if let Some((host, node)) = shared.whom_to_ask() {
            let answer = node.ask::<Value>(cmd("CLUSTER").arg("SLOTS")).await;
            if let Some(slots) = answer.ok().and_then(|answer| Slots::read(&answer, &host)) {
                shared.learn(slots);
            }
        }
        sleep(SHORTEST_PAUSE).await;
        if shared.is_whole() {
            tokio::select! {
                () = sleep(CALM) => {}
                () = shared.look_again.notified() => {}
            }
        } else {
            sleep(HASTE).await;
        }
    }
}
