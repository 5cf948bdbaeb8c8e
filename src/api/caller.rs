//! Who asks: what a token says of its bearer, read into types.

use std::fmt;

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::member::Member;

/// Who asks.
#[derive(Clone)]
pub(super) enum Caller {
    /// No token was sent. Such a caller may read the schema.
    Anonymous,
    /// The bearer of a good token.
    SignedIn(SignedIn),
}

/// What a good token says of its bearer.
#[derive(Clone)]
pub(super) struct SignedIn {
    pub(super) member: Member,
    pub(super) roles: Roles,
    /// From here on the token would be refused: its `exp` and the leeway after it.
    pub(super) good_until: DateTime<Utc>,
}

/// What a caller may do beside a member's own affairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The app's back end.
    Service,
    /// A person who looks after the books.
    Operator,
}

/// The roles of a token. Names that mean nothing here are ignored: an identity provider serves other APIs as well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Roles(Vec<Role>);

impl Caller {
    /// The member, if somebody is signed in.
    pub(super) fn member(&self) -> Option<&Member> {
        self.signed_in().map(|signed_in| &signed_in.member)
    }

    /// Whether the token carries this role.
    pub(super) fn has(&self, role: Role) -> bool {
        self.signed_in().is_some_and(|signed_in| signed_in.roles.0.contains(&role))
    }

    /// When the token ends to be good; never for whoever sent none.
    pub(super) fn good_until(&self) -> Option<DateTime<Utc>> {
        self.signed_in().map(|signed_in| signed_in.good_until)
    }

    fn signed_in(&self) -> Option<&SignedIn> {
        match self {
            Self::Anonymous => None,
            Self::SignedIn(signed_in) => Some(signed_in),
        }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.member() {
            None => f.write_str("anonymous"),
            Some(member) => write!(f, "{}", member.id()),
        }
    }
}

impl Roles {
    /// Reads a claim: a list of texts, or one text with spaces between the names. Anything else gives nobody a role.
    pub(super) fn of_claim(claim: Option<&Value>) -> Self {
        match claim {
            Some(Value::Array(names)) => names.iter().filter_map(|name| Role::parse(name.as_str()?)).collect(),
            Some(Value::String(names)) => names.split(' ').filter_map(Role::parse).collect(),
            _ => Self::default(),
        }
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().collect())
    }
}

impl Role {
    /// Names are compared exactly.
    fn parse(name: &str) -> Option<Self> {
        match name {
            "service" => Some(Self::Service),
            "operator" => Some(Self::Operator),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn roles_are_a_list_or_a_text_with_spaces_and_unknown_names_are_ignored() {
        for (claim, roles) in [
            (json!(["operator", "support", 5, null, "service"]), vec![Role::Operator, Role::Service]),
            (json!("service  support operator"), vec![Role::Service, Role::Operator]),
            (json!("service"), vec![Role::Service]),
            (json!(["service operator"]), vec![]),
            (json!("Operator operators"), vec![]),
            (json!({ "operator": true }), vec![]),
            (json!(true), vec![]),
            (json!(null), vec![]),
        ] {
            assert_eq!(Roles::of_claim(Some(&claim)).0, roles, "{claim}");
        }
        assert_eq!(Roles::of_claim(None), Roles::default());
    }

    #[test]
    fn nobody_has_a_role() {
        assert!(!Caller::Anonymous.has(Role::Service) && Caller::Anonymous.good_until().is_none());
    }
}
