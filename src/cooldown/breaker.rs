//! The breaker: a server that fails costs a bounded time once, and then everybody learns at once that it is away.
//!
//! Closed, it hands out the connection. The first command that gets no answer in time, or an answer that a good server does
//! not give, opens it for all. Then nobody asks the server but its keeper, in the background, until it answers again.

use std::sync::atomic::{AtomicU64, Ordering};

use deadpool_redis::redis::aio::MultiplexedConnection;
use tokio::sync::watch;

/// A connection that can be used. Any number of commands share it.
#[derive(Clone)]
pub(super) struct Link {
    number: u64,
    pub(super) connection: MultiplexedConnection,
}

/// Opened by whoever meets a failure, and closed by the keeper alone.
pub(super) struct Breaker {
    link: watch::Sender<Option<Link>>,
    links: AtomicU64,
}

impl Breaker {
    /// Open: nothing is connected yet.
    pub(super) fn new() -> Self {
        Self { link: watch::Sender::new(None), links: AtomicU64::new(0) }
    }

    /// What to ask on, while the breaker is closed.
    pub(super) fn link(&self) -> Option<Link> {
        self.link.borrow().clone()
    }

    /// The connection answers: everybody may use it.
    pub(super) fn close_on(&self, connection: MultiplexedConnection) -> Link {
        let link = Link { number: self.links.fetch_add(1, Ordering::Relaxed), connection };
        self.link.send_replace(Some(link.clone()));
        link
    }

    /// This connection failed. If another took its place, that is old news.
    pub(super) fn open(&self, failed: &Link) {
        self.link.send_if_modified(|link| {
            let current = link.as_ref().is_some_and(|link| link.number == failed.number);
            if current {
                *link = None;
            }
            current
        });
    }

    /// Returns once the breaker is open.
    pub(super) async fn opened(&self) {
        // The sender lives as long as we do.
        let _ = self.link.subscribe().wait_for(Option::is_none).await;
    }

    /// Returns once the breaker is closed.
    pub(super) async fn closed(&self) {
        let _ = self.link.subscribe().wait_for(Option::is_some).await;
    }
}
