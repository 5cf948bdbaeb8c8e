//! Distance: a server as it is seen from far away.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A way to a server on this machine that takes a while in each direction.
pub(crate) struct Distance {
    port: u16,
    accepting: JoinHandle<()>,
}

impl Distance {
    pub(crate) async fn to(server: u16, one_way: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().unwrap().port();
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let far = TcpStream::connect(("127.0.0.1", server)).await?;
                    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                    // Whichever side ends, the other learns of it.
                    tokio::select! {
                        ended = carry(from_near, to_far, one_way) => ended,
                        ended = carry(from_far, to_near, one_way) => ended,
                    }
                });
            }
        });
        Self { port, accepting }
    }

    /// Where to connect to.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration) -> std::io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        tokio::time::sleep(one_way).await;
        to.write_all(&bytes[..length]).await?;
    }
}
