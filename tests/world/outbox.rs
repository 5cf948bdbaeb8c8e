//! Endpoints in a world's settings, and the workers that send to them.

use largesse::config::Settings;
use largesse::workers::deliver_outbox::{DeliverOutbox, Delivered};
use serde_json::json;

use super::World;

/// The secret of every endpoint that a test does not give another.
pub(crate) const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Tells an endpoint everything. It is on this machine, so private addresses are allowed from here on.
pub(crate) fn tell(settings: &mut Settings, name: &str, url: &str) {
    tell_of(settings, name, url, &[], &[WHSEC]);
}

/// Tells an endpoint of some types of events, signed with some secrets.
pub(crate) fn tell_of(settings: &mut Settings, name: &str, url: &str, events: &[&str], secrets: &[&str]) {
    settings.webhooks.allow_private_addresses = true;
    let endpoint = json!({ "name": name, "url": url, "secrets": secrets, "events": events });
    settings.webhooks.endpoints.push(serde_json::from_value(endpoint).expect("an endpoint"));
}

/// One round of a worker in this process.
pub(crate) async fn deliver(world: &World) -> Delivered {
    DeliverOutbox::new(&world.app).expect("a worker").run_once().await.expect("the outbox is read and written")
}

/// Rounds until one finds nothing that is due.
pub(crate) async fn deliver_all(world: &World) -> Delivered {
    let mut sum = Delivered::default();
    loop {
        let round = deliver(world).await;
        if round == Delivered::default() {
            return sum;
        }
        sum.delivered += round.delivered;
        sum.failed += round.failed;
        sum.dead += round.dead;
    }
}

/// How many rows the outbox has in which this holds.
pub(crate) async fn outbox(world: &World, holds: &str) -> i64 {
    world.count(&format!("SELECT COUNT(*) FROM outbox WHERE {holds}")).await
}
