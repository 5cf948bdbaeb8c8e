//! A set of public keys, as identity providers publish it (RFC 7517), read strictly.
//!
//! The key decides the algorithm. Each one is bound to its algorithm here, where it is read, and a token's own `alg` can only
//! agree with that: a public key that is taken for an HS256 secret, or a token with `none`, finds no key to be read by.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// The algorithms that a key of a set can have.
pub(super) const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];

/// The shortest RSA key: RFC 7518, section 3.3.
const SHORTEST_RSA_BITS: usize = 2048;

/// The longest one that is verified; a longer key would only cost.
const LONGEST_RSA_BITS: usize = 8192;

/// A coordinate of P-256, and an Ed25519 key.
const COORDINATE_BYTES: usize = 32;

/// Keys that can verify a token: at least one.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<Key>,
    /// Why each other key of the set cannot.
    left_out: Vec<&'static str>,
}

/// A key and the one algorithm that it verifies.
#[derive(Debug)]
pub(super) struct Key {
    id: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) decoding: DecodingKey,
}

/// Why a set has no key for a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoKey {
    /// A newer set may have it.
    #[error("there is no key of this kid")]
    UnknownId,
    #[error("the key of this kid has another algorithm")]
    OtherAlgorithm,
    #[error("without a kid, exactly one key must fit the algorithm")]
    NotOne,
}

/// Why a text is no set of keys.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotKeys {
    #[error("it is no JSON object with a list of \"keys\"")]
    Shape,
    #[error("none of its keys can be used: {0}")]
    NoneFits(String),
}

#[derive(Deserialize)]
struct Published {
    keys: Vec<Value>,
}

/// A key as it is published. What else stands there, such as certificates, is not looked at.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Keys {
    /// Reads a set. Keys for other purposes stand in it quite usually, so what cannot be used is left out.
    pub(super) fn parse(text: &[u8]) -> Result<Self, NotKeys> {
        let published: Published = serde_json::from_slice(text).map_err(|_| NotKeys::Shape)?;
        let (mut keys, mut left_out) = (Vec::<Key>::new(), Vec::new());
        for value in published.keys {
            match Key::parse(value) {
                Ok(key) if keys.iter().any(|other| other.is_called_like(&key)) => left_out.push("a key is there twice"),
                Ok(key) => keys.push(key),
                Err(reason) => left_out.push(reason),
            }
        }
        if keys.is_empty() {
            let reasons = if left_out.is_empty() { "it is empty".to_owned() } else { left_out.join("; ") };
            return Err(NotKeys::NoneFits(reasons));
        }
        Ok(Self { keys, left_out })
    }

    /// The key for a token whose header says this. The header chooses among keys; how a key is used, it cannot say.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<&Key, NoKey> {
        let named = self.keys.iter().filter(|key| id.is_none() || key.id.as_deref() == id);
        let mut fitting = named.clone().filter(|key| key.algorithm == algorithm);
        match (fitting.next(), fitting.next(), id) {
            (Some(key), None, _) => Ok(key),
            (_, _, None) => Err(NoKey::NotOne),
            _ if named.count() == 0 => Err(NoKey::UnknownId),
            _ => Err(NoKey::OtherAlgorithm),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn left_out(&self) -> &[&'static str] {
        &self.left_out
    }
}

impl Key {
    /// Whether a token's header could mean either of the two.
    fn is_called_like(&self, other: &Self) -> bool {
        self.id.is_some() && self.id == other.id && self.algorithm == other.algorithm
    }

    fn parse(value: Value) -> Result<Self, &'static str> {
        let jwk: Jwk = serde_json::from_value(value).map_err(|_| "a key is malformed")?;
        if jwk.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return Err("a key is not for signatures (use)");
        }
        if jwk.key_ops.as_ref().is_some_and(|operations| !operations.iter().any(|operation| operation == "verify")) {
            return Err("a key is not for verifying (key_ops)");
        }
        let (algorithm, names, decoding) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => (Algorithm::RS256, &["RS256"][..], rsa(&jwk)?),
            ("EC", Some("P-256")) => (Algorithm::ES256, &["ES256"][..], p256(&jwk)?),
            // The first name is RFC 8037's; RFC 9864 has renamed it.
            ("OKP", Some("Ed25519")) => (Algorithm::EdDSA, &["EdDSA", "Ed25519"][..], ed25519(&jwk)?),
            _ => return Err("a key is neither RSA nor P-256 nor Ed25519"),
        };
        if jwk.alg.as_deref().is_some_and(|alg| !names.contains(&alg)) {
            return Err("a key's alg is not RS256, ES256 or EdDSA, or does not fit its kind");
        }
        Ok(Self { id: jwk.kid, algorithm, decoding })
    }
}

fn rsa(jwk: &Jwk) -> Result<DecodingKey, &'static str> {
    let (n, e) = (number(jwk.n.as_deref())?, number(jwk.e.as_deref())?);
    let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
    if bits < SHORTEST_RSA_BITS {
        return Err("an RSA key has fewer than 2048 bits");
    }
    if bits > LONGEST_RSA_BITS {
        return Err("an RSA key has more than 8192 bits");
    }
    // With an exponent of one, everybody can sign.
    if e.is_empty() || e == [1] {
        return Err("an RSA key's exponent is too small");
    }
    Ok(DecodingKey::from_rsa_raw_components(&n, &e))
}

fn p256(jwk: &Jwk) -> Result<DecodingKey, &'static str> {
    let mut point = vec![4];
    point.extend(coordinate(jwk.x.as_deref())?);
    point.extend(coordinate(jwk.y.as_deref())?);
    usable(DecodingKey::from_ec_der(&point), Algorithm::ES256)
}

fn ed25519(jwk: &Jwk) -> Result<DecodingKey, &'static str> {
    usable(DecodingKey::from_ed_der(&coordinate(jwk.x.as_deref())?), Algorithm::EdDSA)
}

/// A point that does not lie on its curve is found here, not at the first token.
fn usable(key: DecodingKey, algorithm: Algorithm) -> Result<DecodingKey, &'static str> {
    jsonwebtoken::crypto::verify("", b"", &key, algorithm).map_err(|_| "a key is no point of its curve")?;
    Ok(key)
}

/// Exactly 32 bytes: the library would read past the end of fewer.
fn coordinate(text: Option<&str>) -> Result<Vec<u8>, &'static str> {
    let bytes = bytes(text)?;
    if bytes.len() == COORDINATE_BYTES { Ok(bytes) } else { Err("a key's coordinate is not of 32 bytes") }
}

/// A number without leading zeros.
fn number(text: Option<&str>) -> Result<Vec<u8>, &'static str> {
    Ok(bytes(text)?.into_iter().skip_while(|byte| *byte == 0).collect())
}

fn bytes(text: Option<&str>) -> Result<Vec<u8>, &'static str> {
    URL_SAFE_NO_PAD.decode(text.ok_or("a key has a part too few")?).map_err(|_| "a key is no Base64url")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// RFC 8037, appendix A.2.
    fn ed25519(kid: &str) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" })
    }

    fn rsa(bits: usize) -> Value {
        let mut n = vec![0; bits.div_ceil(8)];
        n[0] = 1 << ((bits - 1) % 8);
        json!({ "kty": "RSA", "kid": "r", "n": URL_SAFE_NO_PAD.encode(n), "e": "AQAB" })
    }

    fn with(mut key: Value, change: &Value) -> Value {
        key.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        key
    }

    fn parse(keys: &[Value]) -> Result<Keys, NotKeys> {
        Keys::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    /// RFC 7517, appendix A.1.
    fn p256() -> Value {
        json!({ "kty": "EC", "crv": "P-256", "kid": "p", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
            "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM" })
    }

    #[test]
    fn what_cannot_verify_safely_is_left_out() {
        for (bad, why) in [
            (with(ed25519("a"), &json!({ "use": "enc" })), "use"),
            (with(ed25519("a"), &json!({ "key_ops": ["sign"] })), "key_ops"),
            (with(ed25519("a"), &json!({ "alg": "HS256" })), "alg"),
            (with(ed25519("a"), &json!({ "alg": "ES256" })), "alg"),
            (with(ed25519("a"), &json!({ "alg": "none" })), "alg"),
            (with(ed25519("a"), &json!({ "x": "AAAA" })), "32 bytes"),
            (with(ed25519("a"), &json!({ "x": 5 })), "malformed"),
            (with(ed25519("a"), &json!({ "crv": "Ed448" })), "neither"),
            (with(ed25519("a"), &json!({ "x": "not base64!" })), "Base64url"),
            (with(p256(), &json!({ "crv": "P-384" })), "neither"),
            (with(p256(), &json!({ "y": p256()["x"] })), "curve"),
            (with(p256(), &json!({ "alg": "RS256" })), "alg"),
            (with(rsa(2048), &json!({ "alg": "RS512" })), "alg"),
            (with(rsa(2048), &json!({ "alg": "PS256" })), "alg"),
            (with(rsa(2048), &json!({ "alg": "RSA-OAEP" })), "alg"),
            (with(rsa(2048), &json!({ "e": "AQ" })), "exponent"),
            (rsa(2047), "2048"),
            (rsa(1024), "2048"),
            (rsa(8200), "8192"),
            (json!({ "kty": "oct", "kid": "o", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0" }), "neither"),
            (json!({ "kid": "x" }), "malformed"),
            (json!("key"), "malformed"),
        ] {
            let error = parse(std::slice::from_ref(&bad)).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
            // Beside a good key, it does no harm.
            assert_eq!(parse(&[bad, ed25519("good")]).unwrap().len(), 1);
        }
        for good in
            [rsa(2048), rsa(4096), p256(), with(rsa(3072), &json!({ "alg": "RS256", "use": "sig", "x5c": ["…"] }))]
        {
            assert_eq!(parse(std::slice::from_ref(&good)).unwrap().len(), 1, "{good}");
        }
    }

    #[test]
    fn a_text_that_is_no_set_is_refused() {
        for text in ["", "[]", "{}", "{\"keys\":{}}", "<html>"] {
            assert_eq!(Keys::parse(text.as_bytes()).unwrap_err(), NotKeys::Shape, "{text}");
        }
        assert!(matches!(parse(&[]), Err(NotKeys::NoneFits(_))));
        let twice = parse(&[ed25519("a"), ed25519("a"), ed25519("b")]).unwrap();
        assert_eq!((twice.len(), twice.left_out()), (2, ["a key is there twice"].as_slice()));
    }

    #[test]
    fn a_key_is_found_by_its_kid_and_never_for_another_algorithm() {
        let keys = parse(&[rsa(2048), p256(), ed25519("a"), ed25519("b")]).unwrap();
        assert_eq!(keys.find(Some("r"), Algorithm::RS256).unwrap().algorithm, Algorithm::RS256);
        assert_eq!(keys.find(Some("b"), Algorithm::EdDSA).unwrap().id.as_deref(), Some("b"));
        for algorithm in [Algorithm::HS256, Algorithm::RS512, Algorithm::PS256, Algorithm::ES256, Algorithm::ES384] {
            assert_eq!(keys.find(Some("r"), algorithm).unwrap_err(), NoKey::OtherAlgorithm);
        }
        assert_eq!(keys.find(Some("c"), Algorithm::RS256).unwrap_err(), NoKey::UnknownId);
        assert_eq!(keys.find(None, Algorithm::RS256).unwrap().id.as_deref(), Some("r"));
        assert_eq!(keys.find(None, Algorithm::EdDSA).unwrap_err(), NoKey::NotOne, "two would fit");
        assert_eq!(keys.find(None, Algorithm::HS256).unwrap_err(), NoKey::NotOne);
    }
}
