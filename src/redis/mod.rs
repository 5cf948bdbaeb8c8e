//! Which Redis servers the settings name, how they stand to each other, and who may vouch for them.
//!
//! | file | what it is for |
//! |---|---|
//! | this one | the servers, read from the settings |
//! | `place` | where a server is to be found, which may change |
//! | `sentinel` | what the sentinels say: which server is the primary |

mod place;
mod sentinel;

use std::fmt::{self, Display};
use std::path::Path;
use std::sync::Arc;

use deadpool_redis::redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates};
use secrecy::{ExposeSecret, SecretString};

use crate::config::{ConfigError, Settings};
pub(crate) use place::Place;
use sentinel::Sentinels;

/// The servers that the settings name.
#[derive(Debug, Clone)]
pub(crate) enum Servers {
    /// One.
    One(Server),
    /// The one that the sentinels call the primary.
    Sentinel(Sentinels),
    /// A cluster, of which these are some.
    Cluster(Vec<Server>),
    /// Servers that know nothing of each other, in their fixed order.
    Majority(Vec<Server>),
}

impl Servers {
    /// Reads the settings; `None` where they name no Redis.
    pub(crate) fn named_by(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        settings.check_redis()?;
        let ca_file = settings.redis_ca_file.as_deref();
        let read_all = |setting: &str, urls: &[SecretString]| {
            urls.iter().map(|url| Server::read(setting, url.expose_secret(), ca_file)).collect::<Result<Vec<_>, _>>()
        };
        if let Some(url) = &settings.redis_url {
            return Server::read("redis_url", url.expose_secret(), ca_file).map(Self::One).map(Some);
        }
        if let Some(service) = &settings.redis_sentinel_service {
            let sentinels = read_all("redis_sentinel_urls", &settings.redis_sentinel_urls)?;
            return Sentinels::read(sentinels, service, ca_file).map(Self::Sentinel).map(Some);
        }
        let cluster = read_all("redis_cluster_urls", &settings.redis_cluster_urls)?;
        if !cluster.is_empty() {
            return Ok(Some(Self::Cluster(cluster)));
        }
        let majority = read_all("redis_majority_urls", &settings.redis_majority_urls)?;
        if majority.iter().enumerate().any(|(place, server)| majority[..place].contains(server)) {
            // Its word would count twice.
            return Err(ConfigError::because("redis_majority_urls", &"a server is named twice"));
        }
        Ok(if majority.is_empty() { None } else { Some(Self::Majority(majority)) })
    }

    /// Where an announcement is to be published and heard so that it reaches everybody: at the one server or the primary, at
    /// any server of a cluster, which tells the others, and at each of those that know nothing of each other.
    pub(crate) fn for_announcements(&self) -> Vec<Place> {
        match self {
            Self::One(server) => vec![Place::fixed(server.clone())],
            Self::Sentinel(sentinels) => vec![Place::primary(sentinels.clone())],
            Self::Cluster(servers) => vec![Place::any_of(servers.clone())],
            Self::Majority(servers) => servers.iter().cloned().map(Place::fixed).collect(),
        }
    }
}

/// A server: its address, who we are there, and how its certificate is verified. It shows its address alone.
#[derive(Clone)]
pub(crate) struct Server(Arc<ConnectionInfo>);

impl Server {
    /// Reads a URL. A certificate is always verified: a file of its own replaces the public authorities, and nothing
    /// switches the check off.
    fn read(setting: &str, url: &str, ca_file: Option<&Path>) -> Result<Self, ConfigError> {
        let server = url.into_connection_info().map_err(|error| ConfigError::because(setting, &error))?;
        if matches!(server.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
            let sentence = "a certificate is always verified: name its authority in redis_ca_file instead of #insecure";
            return Err(ConfigError::because(setting, &sentence));
        }
        let Some(file) = ca_file else { return Ok(Self(Arc::new(server))) };
        let bad_file =
            |reason: &dyn Display| ConfigError::because(&format!("redis_ca_file {}", file.display()), reason);
        let pem = std::fs::read(file).map_err(|error| bad_file(&error))?;
        if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
            return Err(bad_file(&"there is no certificate in PEM format"));
        }
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(pem) };
        let client = Client::build_with_tls(server, certificates).map_err(|error| bad_file(&error))?;
        Ok(Self(Arc::new(client.get_connection_info().clone())))
    }

    /// Another server that is reached in the same way.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let address = match self.0.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        Self(Arc::new(self.connection_info().set_addr(address)))
    }

    /// Its host's name or address.
    pub(crate) fn host(&self) -> String {
        match self.0.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            other => other.to_string(),
        }
    }

    /// What a connection is opened with.
    pub(crate) fn connection_info(&self) -> ConnectionInfo {
        ConnectionInfo::clone(&self.0)
    }

    /// A client of it.
    pub(crate) fn client(&self) -> Result<Client, RedisError> {
        Client::open(self.connection_info())
    }
}

impl Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self.0.addr(), formatter)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, formatter)
    }
}

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        self.0.addr() == other.0.addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(change: impl FnOnce(&mut Settings)) -> Result<Option<Servers>, String> {
        let mut settings = Settings::default();
        change(&mut settings);
        Servers::named_by(&settings).map_err(|error| error.to_string())
    }

    fn urls(urls: &[&str]) -> Vec<SecretString> {
        urls.iter().map(|url| SecretString::from(*url)).collect()
    }

    #[test]
    fn servers_are_read_and_what_cannot_be_is_refused_without_its_password() {
        assert!(named(|_| ()).unwrap().is_none());
        let majority = |list: &[&str]| named(|settings| settings.redis_majority_urls = urls(list));
        let Ok(Some(Servers::Majority(servers))) = majority(&["redis://a", "redis://b:1", "redis://c"]) else {
            panic!()
        };
        assert_eq!(servers.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:6379", "b:1", "c:6379"]);
        for (list, word) in [
            (["redis://a", "redis://b", "redis://:hunter2@a:6379"], "named twice"),
            (["redis://a", "redis://b", "http://u:hunter2@c"], "redis_majority_urls"),
            (["redis://a", "redis://b", "rediss://:hunter2@c/#insecure"], "always verified"),
        ] {
            let error = majority(&list).unwrap_err();
            assert!(error.contains(word) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn another_server_is_reached_in_the_same_way() {
        let server = Server::read("redis_url", "rediss://user:word@a:1/2", None).unwrap();
        let other = server.at("b", 3);
        assert_eq!((other.to_string(), other.host()), ("b:3".to_owned(), "b".to_owned()));
        let info = other.connection_info();
        assert!(matches!(info.addr(), ConnectionAddr::TcpTls { insecure: false, .. }));
        let settings = info.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("user"), Some("word"), 2));
        assert_eq!(format!("{other:?}"), "b:3", "who we are there is no text of a log");
    }
}
