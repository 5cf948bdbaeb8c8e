//! Who the caller is: bearer tokens, read in this one place.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use chrono::{DateTime, TimeDelta, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::caller::{Caller, Roles, SignedIn};
use super::jwks::ALGORITHMS;
use super::key_set::{KeySet, Missing};
use crate::config::{ConfigError, TokenSettings};
use crate::error::Failure;
use crate::member::Member;

/// Why a request has no caller.
#[derive(Debug)]
pub(super) enum NoCaller {
    /// The request is refused: its token is not good.
    BadToken(BadToken),
    /// Nobody can tell now whether the token is good. A client that was told "bad" would sign its member out.
    Unavailable(Failure),
}

/// A token that was sent and is not good. The reason is for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadToken(String);

/// Reads tokens, and makes them where it has the secret.
pub struct Tokens {
    keys: TokenKeys,
    rules: Rules,
}

/// What signs tokens, and what verifies them.
enum TokenKeys {
    /// HS256, and no other algorithm.
    Secret { decoding: DecodingKey, encoding: EncodingKey },
    /// Each key of the set with its own algorithm; HS256 is never one of them.
    Set(KeySet),
}

/// What a token must say beside its signature, and what its claims mean.
struct Rules {
    settings: TokenSettings,
    /// One for each algorithm that is verified here.
    validations: Vec<Validation>,
}

impl Tokens {
    /// HS256 with this secret.
    pub fn new(secret: &SecretString, settings: &TokenSettings) -> Result<Self, ConfigError> {
        let unusable = |error: jsonwebtoken::errors::Error| ConfigError::because("token.secret", &error);
        let decoding = DecodingKey::from_secret(secret.expose_secret().as_bytes()).map_err(unusable)?;
        let encoding = EncodingKey::from_secret(secret.expose_secret().as_bytes()).map_err(unusable)?;
        let keys = TokenKeys::Secret { decoding, encoding };
        Ok(Self { keys, rules: Rules::new(settings, &[Algorithm::HS256]) })
    }

    /// RS256, ES256 and EdDSA with the public keys of a file or a URL.
    pub fn by_key_set(source: &str, settings: &TokenSettings) -> Result<Self, ConfigError> {
        let keys = TokenKeys::Set(KeySet::open(source, settings)?);
        Ok(Self { keys, rules: Rules::new(settings, &ALGORITHMS) })
    }

    /// What the settings say: the secret or the key set, and not both.
    pub fn open(settings: &TokenSettings) -> Result<Self, ConfigError> {
        match (&settings.secret, &settings.jwks) {
            (Some(secret), None) => Self::new(secret, settings),
            (None, Some(source)) => Self::by_key_set(source, settings),
            (Some(_), Some(_)) => Err(ConfigError::missing("token.secret and token.jwks exclude each other: set one")),
            (None, None) => Err(ConfigError::missing(
                "a secret or a key set is required: set LARGESSE_TOKEN_SECRET to the secret that signs your members' tokens, \
                 32 bytes or more (`openssl rand -hex 32` makes one), or LARGESSE_TOKEN_JWKS to where your identity provider \
                 publishes its keys",
            )),
        }
    }

    /// Makes a token for a member.
    pub fn mint(&self, member: &Member, roles: &[String], expires_in: Duration) -> Result<String, String> {
        let TokenKeys::Secret { encoding, .. } = &self.keys else {
            return Err("with token.jwks, the identity provider alone makes tokens".to_owned());
        };
        let claims = self.rules.claims(member, roles, expires_in)?;
        encode(&Header::new(Algorithm::HS256), &claims, encoding).map_err(|error| error.to_string())
    }

    /// Keeps a key set fresh for as long as it is polled. A secret needs no care.
    pub(super) async fn keep_fresh(&self) {
        match &self.keys {
            TokenKeys::Secret { .. } => {}
            TokenKeys::Set(set) => set.keep_fresh().await,
        }
    }

    /// Whether tokens can be read at all by now.
    pub(super) fn can_be_read(&self) -> bool {
        match &self.keys {
            TokenKeys::Secret { .. } => true,
            TokenKeys::Set(set) => set.is_there(),
        }
    }

    /// Reads the caller off a request's headers. No token is an anonymous caller; a token that is not good is refused whole.
    pub(super) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, NoCaller> {
        match bearer(headers).map_err(NoCaller::BadToken)? {
            None => Ok(Caller::Anonymous),
            Some(token) => self.signed_in(token).await.map(Caller::SignedIn),
        }
    }

    /// Reads the caller off what a client sent as `Authorization` in a message.
    pub(super) async fn caller_of(&self, authorization: &str) -> Result<Caller, NoCaller> {
        let value = authorization.parse().map_err(|_| bad("the authorization could not be a header"))?;
        self.caller(&HeaderMap::from_iter([(AUTHORIZATION, value)])).await
    }

    async fn signed_in(&self, token: &str) -> Result<SignedIn, NoCaller> {
        let read = match &self.keys {
            TokenKeys::Secret { decoding, .. } => self.rules.read(token, decoding, Algorithm::HS256),
            TokenKeys::Set(set) => {
                let header = decode_header(token).map_err(|error| NoCaller::BadToken(BadToken(error.to_string())))?;
                let read = set.with_key(header.kid.as_deref(), header.alg, |key| {
                    self.rules.read(token, &key.decoding, key.algorithm)
                });
                match read.await {
                    Ok(read) => read,
                    Err(Missing::Key(reason)) => Err(BadToken(reason.to_string())),
                    Err(Missing::Set) => {
                        return Err(NoCaller::Unavailable(Failure::unavailable(
                            "the keys of tokens could not be fetched",
                        )));
                    }
                }
            }
        };
        read.map_err(NoCaller::BadToken)
    }
}

fn bad(reason: &str) -> NoCaller {
    NoCaller::BadToken(BadToken(reason.to_owned()))
}

/// The bearer token of a request, if it has one.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, BadToken> {
    let mut sent = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = sent.next() else { return Ok(None) };
    if sent.next().is_some() {
        return Err(BadToken("more than one Authorization header".to_owned()));
    }
    let text = header.to_str().map_err(|_| BadToken("the Authorization header is not ASCII".to_owned()))?;
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(BadToken("the Authorization scheme is not Bearer".to_owned()));
    }
    Ok(Some(token.trim()))
}

impl Rules {
    fn new(settings: &TokenSettings, algorithms: &[Algorithm]) -> Self {
        let mut validation = Validation {
            leeway: settings.leeway_seconds,
            validate_nbf: true,
            // Whom else the identity provider names as audience is no concern of a server that was told no audience.
            validate_aud: settings.audience.is_some(),
            ..Validation::default()
        };
        let mut required = vec!["exp"];
        if let Some(issuer) = &settings.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        if let Some(audience) = &settings.audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        validation.set_required_spec_claims(&required);
        let of = |algorithm: &Algorithm| Validation { algorithms: vec![*algorithm], ..validation.clone() };
        let validations = algorithms.iter().map(of).collect();
        Self { settings: TokenSettings { secret: None, ..settings.clone() }, validations }
    }

    /// Verifies a token by a key and the key's algorithm, whatever the token says of itself.
    fn read(&self, token: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<SignedIn, BadToken> {
        let validation = self.validations.iter().find(|validation| validation.algorithms == [algorithm]);
        let validation = validation.ok_or_else(|| BadToken("the key's algorithm is not one of ours".to_owned()))?;
        let decoded = decode::<Map<String, Value>>(token, key, validation);
        self.meaning(&decoded.map_err(|error| BadToken(error.to_string()))?.claims)
    }

    /// What the claims of a good token mean.
    fn meaning(&self, claims: &Map<String, Value>) -> Result<SignedIn, BadToken> {
        let roles = Roles::of_claim(claim_at(claims, &self.settings.roles_claim));
        Ok(SignedIn { member: self.member(claims)?, roles, good_until: self.good_until(claims) })
    }

    fn member(&self, claims: &Map<String, Value>) -> Result<Member, BadToken> {
        let claim = &self.settings.member_claim;
        match claims.get(claim) {
            Some(Value::String(name)) => {
                Member::parse(name).map_err(|error| BadToken(format!("the member's name {error}")))
            }
            Some(_) => Err(BadToken(format!("the claim \"{claim}\" is not a text"))),
            None => Err(BadToken(format!("there is no claim \"{claim}\""))),
        }
    }

    /// Validation has seen that `exp` is there and a number; one beyond the calendar is as good as its end.
    #[allow(clippy::cast_possible_truncation, reason = "a fraction of a second is of no concern")]
    fn good_until(&self, claims: &Map<String, Value>) -> DateTime<Utc> {
        let seconds =
            claims.get("exp").and_then(|exp| exp.as_i64().or_else(|| exp.as_f64().map(|exp| exp.round() as i64)));
        let leeway = i64::try_from(self.settings.leeway_seconds).ok().and_then(TimeDelta::try_seconds);
        let until = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0)).zip(leeway);
        until.and_then(|(exp, leeway)| exp.checked_add_signed(leeway)).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// The claims of a token that these rules accept.
    fn claims(&self, member: &Member, roles: &[String], expires_in: Duration) -> Result<Value, String> {
        let now = Utc::now().timestamp();
        let lifetime = i64::try_from(expires_in.as_secs()).map_err(|error| error.to_string())?;
        let mut claims = Map::new();
        claims.insert(self.settings.member_claim.clone(), json!(member.name()));
        claims.insert("iat".to_owned(), json!(now));
        claims.insert("exp".to_owned(), json!(now.saturating_add(lifetime)));
        let named = [("iss", &self.settings.issuer), ("aud", &self.settings.audience)];
        claims.extend(named.into_iter().filter_map(|(claim, value)| Some((claim.to_owned(), json!(value.as_ref()?)))));
        if !roles.is_empty() {
            claims.insert(self.settings.roles_claim.clone(), json!(roles));
        }
        Ok(claims.into())
    }
}

/// The claim of this name, or else the one at this path, whose steps stand between dots. The name comes first, because
/// some providers name their claims by URLs, which have dots.
fn claim_at<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    claims.get(path).or_else(|| {
        let (first, rest) = path.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, step| value.get(step))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::caller::Role;
    use crate::config::Settings;

    fn tokens(secret: &str, change: impl FnOnce(&mut TokenSettings)) -> Tokens {
        let mut settings = Settings::default().token;
        change(&mut settings);
        Tokens::new(&SecretString::from(secret.repeat(32)), &settings).unwrap()
    }

    fn read(tokens: &Tokens, token: &str) -> Result<SignedIn, BadToken> {
        let TokenKeys::Secret { decoding, .. } = &tokens.keys else { panic!("no secret") };
        tokens.rules.read(token, decoding, Algorithm::HS256)
    }

    fn caller(tokens: &Tokens, token: &str) -> Caller {
        Caller::SignedIn(read(tokens, token).unwrap())
    }

    #[test]
    fn a_token_names_its_member_under_its_secret_alone() {
        let alice = Member::parse("alice").unwrap();
        let token = tokens("0", |_| {}).mint(&alice, &[], Duration::from_mins(1)).unwrap();
        assert_eq!(read(&tokens("0", |_| {}), &token).unwrap().member, alice);
        assert!(read(&tokens("1", |_| {}), &token).is_err());
    }

    #[test]
    fn issuer_and_audience_are_demanded_where_they_are_set() {
        let alice = Member::parse("alice").unwrap();
        let with = |issuer: Option<&str>, audience: Option<&str>| {
            tokens("0", |settings| {
                settings.issuer = issuer.map(str::to_owned);
                settings.audience = audience.map(str::to_owned);
            })
        };
        let mint = |issuer, audience| with(issuer, audience).mint(&alice, &[], Duration::from_mins(1)).unwrap();
        let strict = with(Some("https://id.example"), Some("largesse"));
        assert!(read(&strict, &mint(Some("https://id.example"), Some("largesse"))).is_ok());
        for (issuer, audience) in [
            (None, None),
            (Some("https://id.example"), None),
            (None, Some("largesse")),
            (Some("https://evil.example"), Some("largesse")),
            (Some("https://id.example"), Some("another")),
        ] {
            assert!(read(&strict, &mint(issuer, audience)).is_err(), "{issuer:?} {audience:?}");
        }
        assert!(
            read(&with(None, None), &mint(Some("https://id.example"), Some("another"))).is_ok(),
            "nothing demanded"
        );
    }

    #[test]
    fn the_leeway_is_a_setting() {
        let alice = Member::parse("alice").unwrap();
        let expired = tokens("0", |_| {}).mint(&alice, &[], Duration::ZERO).unwrap();
        assert!(read(&tokens("0", |settings| settings.leeway_seconds = 60), &expired).is_ok());
    }

    #[test]
    fn roles_are_read_where_the_setting_says() {
        let alice = Member::parse("alice").unwrap();
        let with = |claim: &str| tokens("0", |settings| settings.roles_claim = claim.to_owned());
        for claim in ["roles", "realm_access.roles", "https://id.example/roles"] {
            let token = with(claim).mint(&alice, &["operator".to_owned()], Duration::from_mins(1)).unwrap();
            let caller = caller(&with(claim), &token);
            assert!(caller.has(Role::Operator) && !caller.has(Role::Service), "{claim}");
            assert!(!super::tests::caller(&with("groups"), &token).has(Role::Operator), "{claim}");
        }
        let keycloak = json!({ "realm_access": { "roles": ["service"] } });
        let claims = keycloak.as_object().unwrap();
        assert_eq!(claim_at(claims, "realm_access.roles"), Some(&json!(["service"])));
        for path in ["realm_access", "realm_access.roles.service", "realm_access.", ".roles", "."] {
            assert_eq!(Roles::of_claim(claim_at(claims, path)), Roles::default(), "{path}");
        }
    }

    #[test]
    fn a_token_is_good_until_its_end_and_the_leeway() {
        let rules = Rules::new(&Settings::default().token, &[Algorithm::HS256]);
        let until = |exp: Value| rules.good_until(json!({ "exp": exp }).as_object().unwrap()).timestamp();
        assert_eq!((until(json!(1000)), until(json!(1000.6))), (1005, 1006));
        assert_eq!(until(json!(1e300)), DateTime::<Utc>::MAX_UTC.timestamp());
    }
}
