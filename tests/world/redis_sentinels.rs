//! A primary, two replicas, and three sentinels that watch them.

use largesse::config::Settings;

use super::redis_server::RedisServer;
use super::wait_until;

/// What the sentinels call the primary.
const SERVICE: &str = "main";

/// The whole set.
pub(crate) struct RedisSentinels {
    /// The first begins as the primary.
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) sentinels: Vec<RedisServer>,
    /// How the settings name the primary.
    service: String,
}

impl RedisSentinels {
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Servers where nobody but this user may run a script, and sentinels that do not know of users.
    pub(crate) async fn start_with_user(name: &'static str, password: &'static str) -> Self {
        let mut set = Self::start_with(&format!(
            "--user default on nopass ~* &* +@all -eval -evalsha --user {name} on >{password} ~* &* +@all"
        ))
        .await;
        set.service = format!("redis://{name}:{password}@{SERVICE}");
        set
    }

    async fn start_with(options: &str) -> Self {
        let primary = RedisServer::start_as(&options.split_whitespace().collect::<Vec<_>>());
        let replica = || {
            let options = format!("--replicaof 127.0.0.1 {} --repl-diskless-sync-delay 0 {options}", primary.port());
            RedisServer::start_as(&options.split_whitespace().collect::<Vec<_>>())
        };
        let replicas = [replica(), replica()];
        let sentinel = |_| RedisServer::start_sentinel(&configuration(primary.port()));
        let sentinels: Vec<_> = (0..3).map(sentinel).collect();
        for sentinel in &sentinels {
            // Sentinels ask each other and the servers once a second, whatever their configuration says.
            sentinel.command(&["SENTINEL", "DEBUG", "ask-period", "100", "info-period", "200", "ping-period", "100"]);
        }
        let servers = std::iter::once(primary).chain(replicas).collect();
        let set = Self { servers, sentinels, service: SERVICE.to_owned() };
        set.is_complete().await;
        set
    }

    /// The settings that name the sentinels.
    pub(crate) fn named_in(&self, settings: &mut Settings) {
        settings.redis_sentinel_urls = self.sentinels.iter().map(|sentinel| sentinel.url().into()).collect();
        settings.redis_sentinel_service = Some(self.service.as_str().into());
    }

    /// Tells the sentinels to promote a replica: the primary is well, and becomes a replica.
    pub(crate) fn switch(&self) {
        self.sentinels[0].command(&["SENTINEL", "FAILOVER", SERVICE]);
    }

    /// The place among the servers of the one that a sentinel calls the primary.
    pub(crate) fn primary(&self) -> usize {
        let asked = self.sentinels.iter().find_map(|sentinel| {
            sentinel.try_command::<(String, u16)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])
        });
        let port = asked.expect("a sentinel answers").1;
        self.servers.iter().position(|server| server.port() == port).expect("one of ours")
    }

    /// Waits until each sentinel knows the others and both replicas: before, there is no failover.
    async fn is_complete(&self) {
        wait_until("the sentinels know each other", async || {
            self.sentinels.iter().all(|sentinel| {
                let facts: Option<std::collections::HashMap<String, String>> =
                    sentinel.try_command(&["SENTINEL", "MASTER", SERVICE]);
                let number = |name: &str| facts.as_ref().and_then(|facts| facts.get(name)?.parse::<u32>().ok());
                number("num-slaves") == Some(2) && number("num-other-sentinels") == Some(2)
            })
        })
        .await;
        // A replica that was never linked to its primary is not promoted.
        wait_until("the replicas follow", async || {
            let told: Option<Vec<std::collections::HashMap<String, String>>> =
                self.sentinels[0].try_command(&["SENTINEL", "REPLICAS", SERVICE]);
            told.is_some_and(|replicas| replicas.iter().all(|replica| replica["master-link-status"] == "ok"))
        })
        .await;
    }
}

/// Times are short, so that a test sees a failover within a few seconds.
fn configuration(primary: u16) -> String {
    format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {SERVICE} 300\n\
         sentinel failover-timeout {SERVICE} 4000\n"
    )
}
