//! A proxy in front of PostgreSQL that can cut a connection, or hold an answer back, at a chosen statement.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What happens at the chosen statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// The connection is cut, and the statement never reaches the server.
    CutBefore,
    /// The server does the statement, and the connection is cut instead of its answer.
    CutAfter,
    /// The server does the statement, and its answer waits in the proxy until [`Proxy::let_go`].
    HoldAnswer,
}

/// Carries bytes between Largesse and PostgreSQL, until a statement comes that it has an order for.
pub(crate) struct Proxy {
    url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// A part of the statement's text, and what happens there. The first connection that sends it uses it up.
    order: Mutex<Option<(&'static str, Deed)>>,
    carried_out: Notify,
    let_go: Notify,
}

impl Proxy {
    /// Stands in front of the server of a database URL.
    pub(crate) async fn in_front_of(url: &str) -> Self {
        let host = url.split('@').nth(1).and_then(|rest| rest.split('/').next()).expect("a URL with user and host");
        let server: SocketAddr = host.parse().expect("the tests' servers have addresses, no names");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = url.replace(host, &listener.local_addr().unwrap().to_string());
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(listener, server, shared.clone()));
        Self { url, shared, accepting }
    }

    /// The database's URL through the proxy.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Does the deed once, at the next statement whose text holds these words.
    pub(crate) fn at_next(&self, words: &'static str, deed: Deed) {
        *self.shared.order.lock().unwrap() = Some((words, deed));
    }

    /// Waits until the order was carried out: the connection is cut, or the answer is here and waits.
    pub(crate) async fn carried_out(&self) {
        let waiting = self.shared.carried_out.notified();
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("the statement came by");
    }

    /// Sends the answer on that was held back.
    pub(crate) fn let_go(&self) {
        self.shared.let_go.notify_one();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let server = TcpStream::connect(server).await?;
            carry(client, server, &shared).await
        });
    }
}

/// Ends when either direction ends, which closes both sockets: that is the cut.
async fn carry(client: TcpStream, server: TcpStream, shared: &Shared) -> io::Result<()> {
    let deed = Mutex::new(None);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        ended = carry_statements(from_client, to_server, shared, &deed) => ended,
        ended = carry_answers(from_server, to_client, shared, &deed) => ended,
    }
}

/// The deed is set before the statement goes on, so its answer cannot slip through.
async fn carry_statements(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    deed: &Mutex<Option<Deed>>,
) -> io::Result<()> {
    let mut started = false;
    loop {
        let message = read_message(&mut from, &mut started).await?;
        let ordered = take_order(shared, &message);
        if ordered == Some(Deed::CutBefore) {
            shared.carried_out.notify_one();
            return Ok(());
        }
        if ordered.is_some() {
            *deed.lock().unwrap() = ordered;
        }
        to.write_all(&message).await?;
    }
}

async fn carry_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    deed: &Mutex<Option<Deed>>,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        let due = deed.lock().unwrap().take();
        if due.is_some() {
            shared.carried_out.notify_one();
        }
        match due {
            Some(Deed::CutAfter | Deed::CutBefore) => return Ok(()),
            Some(Deed::HoldAnswer) => shared.let_go.notified().await,
            None => {}
        }
        to.write_all(&bytes[..length]).await?;
    }
}

fn take_order(shared: &Shared, message: &[u8]) -> Option<Deed> {
    let mut order = shared.order.lock().unwrap();
    let (words, deed) = (*order)?;
    message.windows(words.len()).any(|part| part == words.as_bytes()).then(|| {
        *order = None;
        deed
    })
}

/// One message of PostgreSQL's protocol: a kind, a length that counts itself, and as much text. The start-up message, and
/// the question for TLS that may precede it, have no kind.
async fn read_message(from: &mut OwnedReadHalf, started: &mut bool) -> io::Result<Vec<u8>> {
    const ASKS_FOR_TLS: [u8; 4] = 80_877_103_u32.to_be_bytes();
    let kind = usize::from(*started);
    let mut message = vec![0; kind + 4];
    from.read_exact(&mut message).await?;
    let length = u32::from_be_bytes(message[kind..].try_into().expect("four bytes"));
    message.resize(kind + usize::try_from(length).expect("32 bits fit"), 0);
    from.read_exact(&mut message[kind + 4..]).await?;
    if !*started {
        *started = message.get(4..8) != Some(&ASKS_FOR_TLS);
    }
    Ok(message)
}
