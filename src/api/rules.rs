//! What the schema declares of each guarded mutation, and what the settings make of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use async_graphql::parser::types::{
    BaseType, ConstDirective, FieldDefinition, ServiceDocument, Type, TypeKind, TypeSystemDefinition,
};

use crate::config::{ActionSettings, ConfigError, Settings};
use crate::cooldown::Rule;

/// The schema's mutation type.
pub(super) const MUTATION: &str = "Mutation";

/// The rule of each guarded mutation.
pub(super) struct Rules(HashMap<String, Guarded>);

/// One guarded mutation.
pub(super) struct Guarded {
    pub(super) rule: Rule,
    /// The argument whose value has locks of its own.
    pub(super) per: Option<String>,
}

/// What `@cooldown` says, and which arguments there are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Declared {
    window: Duration,
    per: Option<String>,
    most_per_minute: Option<u32>,
    arguments: BTreeSet<String>,
}

impl Rules {
    /// Puts the settings over what the schema declares. A setting for what is not guarded is a mistake.
    pub(super) fn new(settings: &Settings, declared: BTreeMap<String, Declared>) -> Result<Self, ConfigError> {
        for action in settings.cooldown.actions.keys() {
            if !declared.contains_key(action) {
                return Err(ConfigError::unknown_action(action));
            }
        }
        let mut rules = HashMap::new();
        for (action, declared) in declared {
            let own = settings.cooldown.actions.get(&action).cloned().unwrap_or_default();
            let guarded = declared.with(&action, own)?;
            settings.check_window(&action, guarded.rule.window)?;
            rules.insert(action, guarded);
        }
        Ok(Self(rules))
    }

    /// The rule of a mutation, if it is guarded.
    pub(super) fn of(&self, action: &str) -> Option<&Guarded> {
        self.0.get(action)
    }
}

impl Declared {
    fn with(self, action: &str, own: ActionSettings) -> Result<Guarded, ConfigError> {
        let per = own.per.or(self.per).filter(|per| !per.is_empty());
        if let Some(per) = per.as_ref().filter(|per| !self.arguments.contains(*per)) {
            let setting = format!("cooldown.actions.{action}.per");
            return Err(ConfigError::because(&setting, &format!("there is no argument \"{per}\" that is one value")));
        }
        let rule = Rule {
            window: own.window_ms.map_or(self.window, Duration::from_millis),
            without_redis: own.without_redis,
            most_per_minute: own.most_per_minute.or(self.most_per_minute).filter(|most| *most > 0),
        };
        Ok(Guarded { rule, per })
    }
}

/// Reads `@cooldown` off the mutations of a schema's text: where a mutation is defined is the one place that says so.
pub(super) fn declared(sdl: &str) -> BTreeMap<String, Declared> {
    let document = async_graphql::parser::parse_schema(sdl).expect("the schema that we print can be read");
    let Some(TypeKind::Object(mutation)) = kind(&document, MUTATION) else { return BTreeMap::new() };
    let guarded = mutation.fields.iter().filter_map(|field| {
        let directive = field.node.directives.iter().find(|directive| directive.node.name.node == "cooldown")?;
        Some((field.node.name.node.to_string(), of_directive(&document, &field.node, &directive.node)?))
    });
    guarded.collect()
}

fn of_directive(document: &ServiceDocument, field: &FieldDefinition, directive: &ConstDirective) -> Option<Declared> {
    use async_graphql::Value::{Number, String};
    let number = |name| match &directive.get_argument(name)?.node {
        Number(number) => number.as_u64(),
        _ => None,
    };
    let per = match directive.get_argument("per").map(|value| &value.node) {
        Some(String(path)) => Some(path.clone()),
        _ => None,
    };
    let window = Duration::from_millis(number("windowMs")?);
    let most_per_minute = number("mostPerMinute").and_then(|most| u32::try_from(most).ok());
    Some(Declared { window, per, most_per_minute, arguments: scalar_arguments(document, field) })
}

/// The paths of all arguments that are one value: `input.to`. Inputs do not contain themselves in this schema.
fn scalar_arguments(document: &ServiceDocument, field: &FieldDefinition) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let arguments = field.arguments.iter();
    let mut waiting: Vec<_> =
        arguments.map(|argument| (argument.node.name.node.to_string(), &argument.node.ty.node)).collect();
    while let Some((path, ty)) = waiting.pop() {
        let Type { base: BaseType::Named(name), .. } = ty else { continue };
        if let Some(TypeKind::InputObject(input)) = kind(document, name) {
            let fields = input.fields.iter();
            waiting.extend(fields.map(|field| (format!("{path}.{}", field.node.name.node), &field.node.ty.node)));
        } else {
            paths.insert(path);
        }
    }
    paths
}

fn kind<'a>(document: &'a ServiceDocument, name: &str) -> Option<&'a TypeKind> {
    document.definitions.iter().find_map(|definition| match definition {
        TypeSystemDefinition::Type(definition) if definition.node.name.node == name => Some(&definition.node.kind),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_where_they_are_declared() {
        let declared = declared(&crate::api::sdl());
        let said: Vec<_> = declared
            .iter()
            .map(|(action, one)| (action.as_str(), one.window.as_millis(), one.per.as_deref(), one.most_per_minute))
            .collect();
        let claims = ["claimDailyBonus", "claimSignupBonus"].map(|claim| (claim, 5000, None, None));
        assert_eq!(said, [claims[0], claims[1], ("transfer", 5000, Some("input.to"), Some(20))]);
        let arguments: Vec<_> = declared["transfer"].arguments.iter().map(String::as_str).collect();
        assert_eq!(arguments, ["input.amount", "input.currency", "input.idempotencyKey", "input.memo", "input.to"]);
    }

    fn with(action: &str, own: ActionSettings) -> Result<Rules, String> {
        let mut settings = Settings::default();
        settings.cooldown.actions.insert(action.to_owned(), own);
        Rules::new(&settings, declared(&crate::api::sdl())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_rule_for_what_is_not_there_is_a_mistake() {
        assert!(with("transfers", ActionSettings::default()).err().unwrap().contains("transfers"));
        for (action, per) in [("transfer", "input"), ("transfer", "to"), ("claimDailyBonus", "input.to")] {
            let own = ActionSettings { per: Some(per.to_owned()), ..ActionSettings::default() };
            assert!(with(action, own).err().unwrap().contains(per), "{action} {per}");
        }
    }

    #[test]
    fn a_setting_can_take_away_what_the_schema_declares() {
        let own = ActionSettings { per: Some(String::new()), most_per_minute: Some(0), ..ActionSettings::default() };
        let rules = with("transfer", own).unwrap();
        let transfer = rules.of("transfer").unwrap();
        assert_eq!((&transfer.per, transfer.rule.most_per_minute), (&None, None));
        let own = ActionSettings { per: Some("input.currency".to_owned()), ..ActionSettings::default() };
        let rules = with("transfer", own).unwrap();
        assert_eq!(rules.of("transfer").unwrap().per.as_deref(), Some("input.currency"));
    }
}
