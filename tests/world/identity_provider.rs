//! An identity provider on loopback: it publishes a set of keys that a test can change, and counts who asks.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What the provider answers.
#[derive(Clone)]
pub(crate) struct Published {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
    /// How long it takes to answer.
    pub(crate) after: Duration,
}

impl Published {
    /// A good set of these keys.
    pub(crate) fn keys(keys: &[Value]) -> Self {
        Self::text(json!({ "keys": keys }).to_string())
    }

    /// This text, whatever it is.
    pub(crate) fn text(body: String) -> Self {
        Self { status: StatusCode::OK, headers: Vec::new(), body, after: Duration::ZERO }
    }
}

/// A running provider.
pub(crate) struct IdentityProvider {
    pub(crate) url: String,
    published: Arc<Mutex<Published>>,
    fetches: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl IdentityProvider {
    pub(crate) async fn start(published: Published) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, published)
    }

    /// One that listens on what was bound before.
    pub(crate) fn on(listener: TcpListener, published: Published) -> Self {
        let url = format!("http://{}/jwks", listener.local_addr().unwrap());
        let (published, fetches) = (Arc::new(Mutex::new(published)), Arc::new(AtomicUsize::new(0)));
        let (now, counter) = (published.clone(), fetches.clone());
        let answer = async move || {
            counter.fetch_add(1, Ordering::SeqCst);
            let Published { status, headers, body, after } = now.lock().unwrap().clone();
            tokio::time::sleep(after).await;
            let response = Response::builder().status(status);
            let response = headers.into_iter().fold(response, |response, (name, value)| response.header(name, value));
            response.body(Body::from(body)).unwrap()
        };
        let routes = Router::new().route("/jwks", get(answer));
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self { url, published, fetches, serving }
    }

    /// What it answers from now on.
    pub(crate) fn publish(&self, published: Published) {
        *self.published.lock().unwrap() = published;
    }

    /// How often it was asked.
    pub(crate) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }
}

impl Drop for IdentityProvider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A provider behind TLS, with a certificate that nobody knows.
pub(crate) struct TlsProvider {
    pub(crate) url: String,
    folder: tempfile::TempDir,
    server: Child,
}

impl TlsProvider {
    pub(crate) fn start(set: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let body = set.to_string();
        let answer = format!("HTTP/1.0 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        std::fs::write(folder.path().join("jwks"), answer).unwrap();
        let request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out certificate.pem -days 2 \
                       -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
                       -addext basicConstraints=critical,CA:FALSE";
        let made = Command::new("openssl").args(request.split_whitespace()).current_dir(&folder).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let serve = format!("s_server -quiet -HTTP -accept 127.0.0.1:{port} -cert certificate.pem -key key.pem");
        let mut serving = Command::new("openssl");
        serving.args(serve.split_whitespace()).current_dir(&folder).stdin(Stdio::null());
        let server = serving.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("openssl is installed");
        Self { url: format!("https://localhost:{port}/jwks"), folder, server }
    }

    /// The file of the certificate, which vouches for itself.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }
}

impl Drop for TlsProvider {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A key pair of the provider's.
pub(crate) struct KeyPair {
    kid: String,
    algorithm: Algorithm,
    private: EncodingKey,
}

impl KeyPair {
    pub(crate) fn rsa(kid: &str, bits: u32) -> Self {
        let der = openssl(&["genrsa", "-traditional", &bits.to_string()]);
        Self { kid: kid.to_owned(), algorithm: Algorithm::RS256, private: EncodingKey::from_rsa_der(&der) }
    }

    pub(crate) fn p256(kid: &str) -> Self {
        let der = openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        Self { kid: kid.to_owned(), algorithm: Algorithm::ES256, private: EncodingKey::from_ec_der(&der) }
    }

    pub(crate) fn ed25519(kid: &str) -> Self {
        let der = openssl(&["genpkey", "-algorithm", "ED25519"]);
        Self { kid: kid.to_owned(), algorithm: Algorithm::EdDSA, private: EncodingKey::from_ed_der(&der) }
    }

    /// The public half, as it is published.
    pub(crate) fn public(&self) -> Value {
        let jwk = Jwk::from_encoding_key(&self.private, self.algorithm).expect("a key pair has a public half");
        let mut jwk = serde_json::to_value(jwk).unwrap();
        jwk["kid"] = json!(self.kid);
        jwk["use"] = json!("sig");
        jwk
    }

    /// A token that only its claims can make bad.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.algorithm, "typ": "JWT", "kid": self.kid }), claims)
    }

    /// A token whose header may lie.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        signed(header, claims, self.algorithm, &self.private)
    }

    /// The same, signed by another algorithm that the key can do.
    pub(crate) fn token_by(&self, algorithm: Algorithm, claims: &Value) -> String {
        signed(&json!({ "alg": algorithm, "kid": self.kid }), claims, algorithm, &self.private)
    }
}

/// A token put together by hand: its header may lie about how it was signed.
pub(crate) fn signed(header: &Value, claims: &Value, algorithm: Algorithm, key: &EncodingKey) -> String {
    let message = format!("{}.{}", part(header), part(claims));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// What a command of OpenSSL prints as PEM.
fn openssl(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("openssl").args(arguments).output().expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pem = String::from_utf8(output.stdout).unwrap();
    let base64: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    STANDARD.decode(base64).expect("PEM")
}
