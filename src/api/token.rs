//! Who the caller is: bearer tokens, read in this one place.

use std::fmt;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use chrono::Utc;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use crate::config::{ConfigError, TokenSettings};
use crate::member::Member;

/// Who asks.
#[derive(Clone)]
pub(super) enum Caller {
    /// No token was sent. Such a caller may read the schema.
    Anonymous,
    /// A member.
    Member(Member),
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("anonymous"),
            Self::Member(member) => write!(f, "{}", member.id()),
        }
    }
}

/// A token that was sent and is not good. The reason is for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadToken(String);

/// Reads and makes tokens with one secret.
pub struct Tokens {
    decoding: DecodingKey,
    encoding: EncodingKey,
    validation: Validation,
    member_claim: String,
    issuer: Option<String>,
    audience: Option<String>,
}

impl Tokens {
    /// HS256 with this secret, and no other algorithm.
    pub fn new(secret: &SecretString, settings: &TokenSettings) -> Result<Self, ConfigError> {
        let unusable = |error: jsonwebtoken::errors::Error| ConfigError::because("token.secret", &error);
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = settings.leeway_seconds;
        validation.validate_nbf = true;
        // Whom else the identity provider names as audience is no concern of a server that was told no audience.
        validation.validate_aud = settings.audience.is_some();
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
        Ok(Self {
            decoding: DecodingKey::from_secret(secret.expose_secret().as_bytes()).map_err(unusable)?,
            encoding: EncodingKey::from_secret(secret.expose_secret().as_bytes()).map_err(unusable)?,
            validation,
            member_claim: settings.member_claim.clone(),
            issuer: settings.issuer.clone(),
            audience: settings.audience.clone(),
        })
    }

    /// Makes a token for a member.
    pub fn mint(&self, member: &Member, roles: &[String], expires_in: Duration) -> Result<String, String> {
        let now = Utc::now().timestamp();
        let lifetime = i64::try_from(expires_in.as_secs()).map_err(|error| error.to_string())?;
        let mut claims = Map::new();
        claims.insert(self.member_claim.clone(), json!(member.name()));
        claims.insert("iat".to_owned(), json!(now));
        claims.insert("exp".to_owned(), json!(now.saturating_add(lifetime)));
        let named = [("iss", &self.issuer), ("aud", &self.audience)];
        claims.extend(named.into_iter().filter_map(|(claim, value)| Some((claim.to_owned(), json!(value.as_ref()?)))));
        if !roles.is_empty() {
            claims.insert("roles".to_owned(), json!(roles));
        }
        encode(&Header::new(Algorithm::HS256), &claims, &self.encoding).map_err(|error| error.to_string())
    }

    /// Reads the caller off a request's headers. No token is an anonymous caller; a token that is not good is refused whole.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Caller, BadToken> {
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let Some(header) = sent.next() else { return Ok(Caller::Anonymous) };
        if sent.next().is_some() {
            return Err(BadToken("more than one Authorization header".to_owned()));
        }
        let text = header.to_str().map_err(|_| BadToken("the Authorization header is not ASCII".to_owned()))?;
        let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(BadToken("the Authorization scheme is not Bearer".to_owned()));
        }
        self.member(token.trim()).map(Caller::Member)
    }

    /// Reads the caller off what a client sent in `Authorization`, and for how long the token is good.
    pub(super) fn signed_in(&self, authorization: &str) -> Result<(Caller, Duration), BadToken> {
        let value = authorization.parse().map_err(|_| BadToken("the authorization is no header".to_owned()))?;
        let caller = self.caller(&HeaderMap::from_iter([(AUTHORIZATION, value)]))?;
        let token = authorization.split_once(' ').unwrap_or_default().1.trim();
        let decoded = decode::<Map<String, Value>>(token, &self.decoding, &self.validation);
        let claims = decoded.map_err(|error| BadToken(error.to_string()))?.claims;
        let exp = claims.get("exp").and_then(Value::as_i64).unwrap_or(i64::MAX);
        let left = exp.saturating_sub(Utc::now().timestamp());
        Ok((caller, Duration::from_secs(left.unsigned_abs())))
    }

    fn member(&self, token: &str) -> Result<Member, BadToken> {
        let decoded = decode::<Map<String, Value>>(token, &self.decoding, &self.validation);
        let claims = decoded.map_err(|error| BadToken(error.to_string()))?.claims;
        match claims.get(&self.member_claim) {
            Some(Value::String(name)) => {
                Member::parse(name).map_err(|error| BadToken(format!("the member's name {error}")))
            }
            Some(_) => Err(BadToken(format!("the claim \"{}\" is not a text", self.member_claim))),
            None => Err(BadToken(format!("there is no claim \"{}\"", self.member_claim))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn tokens(secret: &str, change: impl FnOnce(&mut TokenSettings)) -> Tokens {
        let mut settings = Settings::default().token;
        change(&mut settings);
        Tokens::new(&SecretString::from(secret.repeat(32)), &settings).unwrap()
    }

    #[test]
    fn a_token_names_its_member_under_its_secret_alone() {
        let alice = Member::parse("alice").unwrap();
        let token = tokens("0", |_| {}).mint(&alice, &[], Duration::from_mins(1)).unwrap();
        assert_eq!(tokens("0", |_| {}).member(&token).unwrap(), alice);
        assert!(tokens("1", |_| {}).member(&token).is_err());
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
        assert!(strict.member(&mint(Some("https://id.example"), Some("largesse"))).is_ok());
        for (issuer, audience) in [
            (None, None),
            (Some("https://id.example"), None),
            (None, Some("largesse")),
            (Some("https://evil.example"), Some("largesse")),
            (Some("https://id.example"), Some("another")),
        ] {
            assert!(strict.member(&mint(issuer, audience)).is_err(), "{issuer:?} {audience:?}");
        }
        assert!(
            with(None, None).member(&mint(Some("https://id.example"), Some("another"))).is_ok(),
            "nothing demanded"
        );
    }

    #[test]
    fn the_leeway_is_a_setting() {
        let alice = Member::parse("alice").unwrap();
        let expired = tokens("0", |_| {}).mint(&alice, &[], Duration::ZERO).unwrap();
        assert!(tokens("0", |settings| settings.leeway_seconds = 60).member(&expired).is_ok());
    }
}
