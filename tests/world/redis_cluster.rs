//! A Redis Cluster: three masters, and a replica of each.

use largesse::config::Settings;
use largesse::member::Member;

use super::redis_server::{RedisServer, free_port};
use super::wait_until;

const MASTERS: usize = 3;

/// The last slot of each master.
const LAST_SLOTS: [u16; MASTERS] = [5460, 10_922, 16_383];

/// The servers: three masters, and their replicas in the same order.
pub(crate) struct RedisCluster {
    pub(crate) servers: Vec<RedisServer>,
}

impl RedisCluster {
    pub(crate) async fn start() -> Self {
        let bus_ports: Vec<u16> = (0..2 * MASTERS).map(|_| free_port()).collect();
        let start = |bus_port: &u16| {
            // Times are short, so that a test sees a failover within a few seconds. The loss of one master's slots must not
            // stop the others.
            let options = format!(
                "--cluster-enabled yes --cluster-port {bus_port} --cluster-node-timeout 500 \
                 --cluster-require-full-coverage no --cluster-replica-validity-factor 0 --repl-diskless-sync-delay 0"
            );
            RedisServer::start_as(&options.split_whitespace().collect::<Vec<_>>())
        };
        let cluster = Self { servers: bus_ports.iter().map(start).collect() };
        cluster.divide_slots();
        cluster.introduce(&bus_ports).await;
        cluster.give_replicas().await;
        cluster
    }

    /// The settings that name two of them: the others are learned.
    pub(crate) fn named_in(&self, settings: &mut Settings) {
        settings.redis_cluster_urls = self.servers[..2].iter().map(|server| server.url().into()).collect();
    }

    /// The place of the server that holds a member's locks from the beginning.
    pub(crate) fn holder_of(&self, member: &str) -> usize {
        let slot = self.slot_of(member);
        LAST_SLOTS.iter().position(|last| slot <= *last).expect("every slot is held")
    }

    /// The slot of a member's locks, as a server says.
    fn slot_of(&self, member: &str) -> u16 {
        let id = Member::parse(member).unwrap().id().simple().to_string();
        let asked = self.servers.iter().find_map(|server| server.try_command(&["CLUSTER", "KEYSLOT", &id]));
        asked.expect("a server answers")
    }

    /// Begins to move a member's slot from one master to another: what is there stays, what is new goes there.
    pub(crate) fn begin_to_move(&self, member: &str, from: usize, to: usize) {
        let slot = self.slot_of(member).to_string();
        let [source, target] = [from, to].map(|server| self.id_of(server));
        self.servers[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.servers[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    }

    /// The slot has arrived.
    pub(crate) fn end_move(&self, member: &str, from: usize, to: usize) {
        let (slot, target) = (self.slot_of(member).to_string(), self.id_of(to));
        for server in [to, from] {
            self.servers[server].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }

    fn id_of(&self, server: usize) -> String {
        self.servers[server].try_command(&["CLUSTER", "MYID"]).expect("it has an id")
    }

    /// A member whose locks this server holds.
    pub(crate) fn member_of(&self, holder: usize, name: &str) -> String {
        let mut names = (0..).map(|number| format!("{name} {number}"));
        names.find(|name| self.holder_of(name) == holder).expect("slots are spread")
    }

    fn divide_slots(&self) {
        let mut first = 0;
        for (server, last) in self.servers.iter().zip(LAST_SLOTS) {
            server.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            first = last + 1;
        }
        for (epoch, server) in self.servers.iter().enumerate() {
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(epoch + 1).to_string()]);
        }
    }

    async fn introduce(&self, bus_ports: &[u16]) {
        for (server, bus_port) in self.servers.iter().zip(bus_ports) {
            let (port, bus_port) = (server.port().to_string(), bus_port.to_string());
            self.servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]);
        }
        wait_until("the servers know each other", async || {
            self.servers.iter().all(|server| server.info().contains("cluster_known_nodes:6"))
        })
        .await;
    }

    async fn give_replicas(&self) {
        for (number, replica) in self.servers[MASTERS..].iter().enumerate() {
            let master = self.id_of(number);
            wait_until("the replica knows its master", async || {
                replica.try_command::<String>(&["CLUSTER", "REPLICATE", &master]).is_some()
            })
            .await;
        }
        wait_until("all replicas follow, and everybody knows", async || {
            self.servers.iter().all(|server| {
                let nodes: String = server.try_command(&["CLUSTER", "NODES"]).unwrap_or_default();
                server.info().contains("cluster_state:ok")
                    && nodes.matches(" slave ").count() + nodes.matches("myself,slave").count() == MASTERS
            }) && self.servers[MASTERS..].iter().all(RedisServer::follows_its_primary)
        })
        .await;
    }
}

impl RedisServer {
    fn info(&self) -> String {
        self.try_command(&["CLUSTER", "INFO"]).unwrap_or_default()
    }

    fn follows_its_primary(&self) -> bool {
        self.try_command::<String>(&["INFO", "replication"]).is_some_and(|text| text.contains("master_link_status:up"))
    }
}
