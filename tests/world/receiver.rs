//! An endpoint for webhooks that answers as a test wants, and remembers what came.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// One attempt as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
    /// How often the same event came before.
    pub(crate) before: usize,
}

impl Received {
    /// The event's id.
    pub(crate) fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    /// What the body says.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("an event is JSON")
    }

    /// Whose wallet moved, and its version after it.
    pub(crate) fn place(&self) -> (String, i64) {
        let data = &self.json()["data"];
        let text = |name: &str| data[name].as_str().expect(name).to_owned();
        (text("member"), text("version").parse().expect("a number"))
    }
}

/// What the endpoint does with an attempt.
pub(crate) enum Reply {
    Status(u16),
    /// A status with one header.
    With(u16, &'static str, String),
    /// 200 and a body that never ends by itself.
    Endless,
    /// Nothing, until [`Receiver::let_go`]; then 200.
    Hold,
    /// Nothing: the connection is dropped, though the event was taken.
    Drop,
    /// 200, after so long.
    Late(std::time::Duration),
}

type Answer = dyn Fn(&Received) -> Reply + Send + Sync;

/// A receiver on a port of its own.
pub(crate) struct Receiver {
    url: String,
    shared: Arc<Shared>,
    serving: JoinHandle<std::io::Result<()>>,
}

struct Shared {
    answer: Box<Answer>,
    received: Mutex<Vec<Received>>,
    /// How many attempts at each event are here in this moment, and the most there ever were.
    here: Mutex<(HashMap<String, usize>, usize)>,
    held: Semaphore,
}

impl Receiver {
    /// One that takes everything.
    pub(crate) async fn taking() -> Self {
        Self::answering(|_| Reply::Status(204)).await
    }

    pub(crate) async fn answering(answer: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            answer: Box::new(answer),
            received: Mutex::default(),
            here: Mutex::default(),
            held: Semaphore::new(0),
        });
        let routes = Router::new().fallback(receive).with_state(shared.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, shared, serving }
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Everything that came so far, in the order in which it came.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// The same by wallet and version.
    pub(crate) fn places(&self) -> Vec<(String, i64)> {
        self.received().iter().map(Received::place).collect()
    }

    /// Answers so many attempts that it holds.
    pub(crate) fn let_go(&self, attempts: usize) {
        self.shared.held.add_permits(attempts);
    }

    /// The most attempts at one event that were ever here at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.here.lock().unwrap().1
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let headers: HashMap<_, _> =
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let mut received = Received { headers, body: String::from_utf8(body.to_vec()).unwrap(), before: 0 };
    let id = received.id().to_owned();
    {
        let mut all = shared.received.lock().unwrap();
        received.before = all.iter().filter(|other| other.id() == id).count();
        all.push(received.clone());
    }
    let _here = Here::come(&shared, &id);
    let response = Response::builder();
    match (shared.answer)(&received) {
        Reply::Status(status) => response.status(status).body(Body::empty()),
        Reply::With(status, name, value) => response.status(status).header(name, value).body(Body::empty()),
        Reply::Endless => {
            let chunk = || Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 4096]));
            response.body(Body::from_stream(futures_util::stream::repeat_with(chunk)))
        }
        // What a handler that dies leaves behind: hyper closes the connection without a word.
        Reply::Drop => std::panic::resume_unwind(Box::new("the receiver drops the connection")),
        Reply::Late(time) => {
            tokio::time::sleep(time).await;
            response.status(200).body(Body::empty())
        }
        Reply::Hold => {
            shared.held.acquire().await.unwrap().forget();
            response.status(200).body(Body::empty())
        }
    }
    .unwrap()
}

/// An attempt that is here until it is answered, or until its sender hangs up.
struct Here {
    shared: Arc<Shared>,
    id: String,
}

impl Here {
    fn come(shared: &Arc<Shared>, id: &str) -> Self {
        let mut here = shared.here.lock().unwrap();
        let count = here.0.get(id).copied().unwrap_or_default() + 1;
        here.0.insert(id.to_owned(), count);
        here.1 = here.1.max(count);
        drop(here);
        Self { shared: shared.clone(), id: id.to_owned() }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(count) = self.shared.here.lock().unwrap().0.get_mut(&self.id) {
            *count -= 1;
        }
    }
}
