//! What one Redis server says of a lock: that it is taken, what stands in the way, and that it is ended.

use deadpool_redis::redis::ErrorKind;

use super::breaker::Link;
use super::lock::{End, Lock, Verdict};
use super::node::{Away, Node};
use super::scripts::{Call, Way};

impl Node {
    /// Takes the lock unless something stands in the way, in one round trip.
    pub(super) async fn take(&self, lock: &Lock, way: Way) -> Result<Verdict, Away> {
        let link = self.link()?;
        let taking = Taking { node: self, link: &link, way, lock: Some(lock) };
        let answer = Call::take(lock).run(way, &mut link.connection.clone()).await;
        // A server that says why it does not run the script has taken nothing.
        if answer.as_ref().map_or_else(|error| matches!(error.kind(), ErrorKind::Server(_)), |_: &Verdict| true) {
            taking.decided();
        }
        self.heard(&link, answer)
    }

    /// Says what would stand in the way, and takes nothing.
    pub(super) async fn look(&self, lock: &Lock) -> Result<Verdict, Away> {
        let link = self.link()?;
        let answer = Call::look(lock).run(Way::Plain, &mut link.connection.clone()).await;
        self.heard(&link, answer)
    }

    /// Ends the lock if it is still ours.
    pub(super) async fn settle(&self, lock: &Lock, end: &End, way: Way) -> Result<(), Away> {
        let link = self.link()?;
        let answer = Call::settle(lock, end).run::<i64>(way, &mut link.connection.clone()).await;
        self.heard(&link, answer).map(drop)
    }
}

/// An attempt that waits for a server. A frozen server applies late what it was sent: if no answer came, or nobody waits for
/// it any more, the release of the token follows on the same connection, so no lock is left without an attempt behind it.
struct Taking<'a> {
    node: &'a Node,
    link: &'a Link,
    way: Way,
    lock: Option<&'a Lock>,
}

impl Taking<'_> {
    fn decided(mut self) {
        self.lock = None;
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let Some(lock) = self.lock else { return };
        let (release, way) = (Call::settle(lock, &End::Released), self.way);
        let (node, link) = (self.node.clone(), self.link.clone());
        tokio::spawn(async move {
            let answer = release.run_whole::<i64>(way, &mut link.connection.clone()).await;
            // The breaker is all that is told: whoever waited was told already.
            let _ = node.heard(&link, answer);
        });
    }
}
