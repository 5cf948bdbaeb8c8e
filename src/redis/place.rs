//! Where a server is to be found, which may change.

use super::Server;
use super::sentinel::{Primary, Sentinels};

/// Where a server is to be found.
#[derive(Debug)]
pub(crate) enum Place {
    /// At one address.
    Fixed(Server),
    /// Where the sentinels say.
    Primary(Primary),
    /// At any of these, asked in turn.
    AnyOf(Vec<Server>),
}

impl Place {
    pub(crate) fn fixed(server: Server) -> Self {
        Self::Fixed(server)
    }

    /// Begins to listen to the sentinels, until the place is dropped.
    pub(crate) fn primary(sentinels: Sentinels) -> Self {
        Self::Primary(Primary::followed(sentinels))
    }

    pub(crate) fn any_of(servers: Vec<Server>) -> Self {
        Self::AnyOf(servers)
    }

    /// The server to connect to now. Waits until there is one.
    pub(crate) async fn server(&mut self) -> Server {
        match self {
            Self::Fixed(server) => server.clone(),
            Self::Primary(primary) => primary.server().await,
            Self::AnyOf(servers) => {
                // Who asks again did not come far with the first.
                servers.rotate_left(1);
                servers.last().expect("the settings name some").clone()
            }
        }
    }

    /// Returns once another server took the place of this one; never where places do not change by themselves.
    pub(crate) async fn moved(&mut self, from: &Server) {
        match self {
            Self::Primary(primary) => primary.moved(from).await,
            Self::Fixed(_) | Self::AnyOf(_) => std::future::pending().await,
        }
    }

    /// The server did not do: whoever knows of another may look for it at once.
    pub(crate) fn doubt(&self) {
        if let Self::Primary(primary) = self {
            primary.doubt();
        }
    }
}
