//! Redis servers that know nothing of each other.

use largesse::config::Settings;

use super::redis_server::RedisServer;

/// Some servers, of which a majority decides.
pub(crate) struct RedisMajority {
    pub(crate) servers: Vec<RedisServer>,
}

/// How a server can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Down,
    Frozen,
    RestartedEmpty,
}

impl RedisMajority {
    pub(crate) fn of(number: usize) -> Self {
        Self { servers: (0..number).map(|_| RedisServer::start()).collect() }
    }

    /// The settings that name them in this order.
    pub(crate) fn named_in(&self, settings: &mut Settings) {
        settings.redis_majority_urls = self.servers.iter().map(|server| server.url().into()).collect();
    }

    /// Lets some fail.
    pub(crate) fn fail(&mut self, which: &[usize], fault: Fault) {
        for server in which {
            let server = &mut self.servers[*server];
            match fault {
                Fault::Frozen => server.freeze(),
                Fault::Down => server.stop(),
                Fault::RestartedEmpty => {
                    server.stop();
                    server.start_again();
                }
            }
        }
    }

    /// Makes them well again.
    pub(crate) fn mend(&mut self, which: &[usize], fault: Fault) {
        for server in which {
            let server = &mut self.servers[*server];
            match fault {
                Fault::Frozen => server.thaw(),
                Fault::Down => server.start_again(),
                Fault::RestartedEmpty => {}
            }
        }
    }

    /// At how many of them somebody holds a lock of this member.
    pub(crate) fn locks_of(&self, member: &str, but: &[usize]) -> usize {
        let id = largesse::member::Member::parse(member).unwrap().id().simple().to_string();
        let asked = self.servers.iter().enumerate().filter(|(number, _)| !but.contains(number));
        asked.filter(|(_, server)| server.keys().iter().any(|key| key.contains(&id))).count()
    }
}
