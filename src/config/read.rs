//! The file and the environment, read over the defaults.

use std::collections::BTreeMap;
use std::path::Path;

use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Tag, Value};

use super::{ConfigError, Settings};

/// The environment's variables that are read without the prefix, since every platform sets them by these names.
const CUSTOMARY: [(&str, &str); 5] = [
    ("DATABASE_URL", "database_url"),
    ("REDIS_URL", "redis_url"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "traces.endpoint"),
    ("OTEL_TRACES_SAMPLER_ARG", "traces.sample_ratio"),
    ("OTEL_SERVICE_NAME", "traces.service_name"),
];

/// The prefix of all others: `cooldown.after_refusal_ms` is `LARGESSE_COOLDOWN_AFTER_REFUSAL_MS`.
const PREFIX: &str = "LARGESSE_";
impl Settings {
    /// Reads the file, if there is one, and the environment over `defaults`. Variables with our prefix that name no
    /// setting are returned, to be warned about: Kubernetes sets some for a service of our name.
    pub fn read(
        defaults: &Settings,
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(defaults));
        if let Some(file) = file {
            if !file.is_file() {
                return Err(ConfigError(format!("the settings file {} does not exist", file.display())));
            }
            figment = figment.merge(Toml::file_exact(file));
        }
        let names = variables(defaults);
        let mut unknown = Vec::new();
        for (variable, text) in environment {
            match names.get(&variable) {
                Some(setting) => figment = figment.merge((setting.as_str(), value_of(&text, setting))),
                None if variable.starts_with(PREFIX) => unknown.push(variable),
                None => {}
            }
        }
        let mut settings: Self = figment.extract().map_err(|error| ConfigError(one_sentence(&error.to_string())))?;
        settings.keep_secrets_of(defaults);
        settings.check()?;
        Ok((settings, unknown))
    }

    /// Secrets are not written out, so they do not come back through the defaults.
    fn keep_secrets_of(&mut self, defaults: &Settings) {
        self.database_url = self.database_url.take().or_else(|| defaults.database_url.clone());
        self.redis_url = self.redis_url.take().or_else(|| defaults.redis_url.clone());
        self.redis_sentinel_service =
            self.redis_sentinel_service.take().or_else(|| defaults.redis_sentinel_service.clone());
        for (urls, of_defaults) in [
            (&mut self.redis_sentinel_urls, &defaults.redis_sentinel_urls),
            (&mut self.redis_cluster_urls, &defaults.redis_cluster_urls),
            (&mut self.redis_majority_urls, &defaults.redis_majority_urls),
        ] {
            if urls.is_empty() {
                urls.clone_from(of_defaults);
            }
        }
        self.token.secret = self.token.secret.take().or_else(|| defaults.token.secret.clone());
        if self.webhooks.endpoints.is_empty() {
            self.webhooks.endpoints.clone_from(&defaults.webhooks.endpoints);
        }
        if self.funding.providers.is_empty() {
            self.funding.providers.clone_from(&defaults.funding.providers);
        }
    }
}

/// TOML's errors span lines and quote the file, where a secret may stand: what remains says where and what.
fn one_sentence(error: &str) -> String {
    let quotes = |line: &&str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
    let lines: Vec<_> = error.lines().filter(|line| !quotes(line)).map(str::trim).collect();
    without_secrets(&lines.join(", "))
}

/// A text where a list of secrets belongs is quoted by the error that says so.
fn without_secrets(error: &str) -> String {
    let mut parts = error.split("whsec_");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let of_a_secret = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
        format!("{text}whsec_…{}", part.trim_start_matches(of_a_secret))
    })
}
/// The name of each variable and the setting that it sets, read off the settings themselves.
pub fn variables(settings: &Settings) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    if let Ok(Value::Dict(_, tree)) = Value::serialize(settings) {
        collect_settings("", &tree, &mut names);
    }
    for (variable, setting) in CUSTOMARY {
        names.retain(|_, other| other != setting);
        names.insert(variable.to_owned(), setting.to_owned());
    }
    names
}

fn collect_settings(path: &str, tree: &figment::value::Dict, names: &mut BTreeMap<String, String>) {
    for (key, value) in tree {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            // An empty table is a map by action, which is set as a whole: `{transfer = {window_ms = 9000}}`.
            Value::Dict(_, inner) if !inner.is_empty() => collect_settings(&path, inner, names),
            _ => drop(names.insert(format!("{PREFIX}{}", path.replace('.', "_").to_uppercase()), path)),
        }
    }
}

/// Reads a variable as figment reads the environment, except that what is text stays text: a secret of digits is no number.
fn value_of(text: &str, setting: &str) -> Value {
    const TEXTS: [&str; 18] = [
        "database_url",
        "redis_url",
        "redis_sentinel_service",
        "redis_ca_file",
        "documents.trusted",
        "token.secret",
        "token.jwks",
        "token.jwks_ca_file",
        "token.member_claim",
        "token.roles_claim",
        "token.issuer",
        "token.audience",
        "cooldown.prefix",
        "log.filter",
        "listen",
        "metrics.listen",
        "traces.endpoint",
        "traces.service_name",
    ];
    if TEXTS.contains(&setting) {
        return Value::String(Tag::Default, text.to_owned());
    }
    text.parse().unwrap_or_else(|_| Value::String(Tag::Default, text.to_owned()))
}
#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::config::WithoutRedis;
    use crate::event::EventType;

    fn read(file: &str, environment: &[(&str, &str)]) -> Result<(Settings, Vec<String>), ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("largesse.toml");
        std::fs::write(&path, file).unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Settings::default(), Some(&path), environment)
    }

    #[test]
    fn the_environment_overrides_the_file_which_overrides_the_defaults() {
        let file = "[request]\ndeadline_ms = 2000\nbody_limit_bytes = 5000\n";
        let (settings, unknown) = read(file, &[("LARGESSE_REQUEST_DEADLINE_MS", "2500")]).unwrap();
        assert_eq!((settings.request.deadline_ms, settings.request.body_limit_bytes), (2500, 5000));
        assert_eq!(settings.database.lock_timeout_ms, 750);
        assert!(unknown.is_empty());
    }

    #[test]
    fn customary_names_secrets_lists_and_tables_are_read_from_the_environment() {
        let (settings, _) = read(
            "",
            &[
                ("DATABASE_URL", "postgres://db/x"),
                ("LARGESSE_TOKEN_SECRET", "01234567890123456789012345678901"),
                ("LARGESSE_DAILY_BONUS_AMOUNTS", "[10, 20]"),
                ("LARGESSE_SIGNUP_BONUS_AMOUNT", "100"),
                ("LARGESSE_COOLDOWN_ACTIONS", "{transfer={window_ms=9000,without_redis=\"refuse\"}}"),
            ],
        )
        .unwrap();
        assert_eq!(settings.database_url.unwrap().expose_secret(), "postgres://db/x");
        assert_eq!(settings.token.secret.unwrap().expose_secret(), "01234567890123456789012345678901");
        assert_eq!((settings.daily_bonus.amounts, settings.signup_bonus.amount), (vec![10, 20], Some(100)));
        assert_eq!(settings.cooldown.actions["transfer"].window_ms, Some(9000));
        assert_eq!(settings.cooldown.actions["transfer"].without_redis, WithoutRedis::Refuse);
    }

    #[test]
    fn unknown_variables_are_named_and_unknown_keys_refused() {
        let (_, unknown) = read("", &[("LARGESSE_PORT", "tcp://10.0.0.1:80"), ("HOME", "/")]).unwrap();
        assert_eq!(unknown, ["LARGESSE_PORT"]);
        let error = read("[request]\ndeadlin_ms = 2000\n", &[]).unwrap_err().to_string();
        assert!(error.contains("deadlin_ms"), "{error}");
    }

    /// Secrets that are good.
    const GOOD: &str = "[\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]";

    fn endpoint(name: &str, url: &str, secrets: &str) -> String {
        format!("[[webhooks.endpoints]]\nname = \"{name}\"\nurl = \"{url}\"\nsecrets = {secrets}\n")
    }

    #[test]
    fn endpoints_are_read_and_not_shown() {
        let of_file = endpoint("crm", "https://crm.example/hunter2", GOOD) + "events = [\"transfer.completed\"]\n";
        let of_environment = format!("[{{name=\"crm\",url=\"https://crm.example/hunter2\",secrets={GOOD}}}]");
        for (file, environment) in
            [(of_file.as_str(), &[][..]), ("", &[("LARGESSE_WEBHOOKS_ENDPOINTS", of_environment.as_str())])]
        {
            let (settings, _) = read(file, environment).unwrap();
            let [endpoint] = &settings.webhooks.endpoints[..] else { panic!("one endpoint") };
            assert_eq!(endpoint.name.as_str(), "crm");
            assert_eq!(endpoint.events, if file.is_empty() { vec![] } else { vec![EventType::TransferCompleted] });
            let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
            assert!(!shown.contains("hunter2") && !shown.contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "{shown}");
        }
        let private = "[webhooks]\nallow_private_addresses = true\n".to_owned();
        assert!(read(&(private + &endpoint("crm", "http://127.0.0.1:9/", GOOD)), &[]).is_ok());
    }

    #[test]
    fn impossible_settings_are_refused_in_one_sentence() {
        for (file, word) in [
            ("[cooldown.actions.transfer]\nwindow_ms = 4000\n", "must cover the work"),
            ("redis_cluster_urls = [\"redis://a:hunter2@a\"]\nredis_url = \"redis://b\"\n", "exclude each other"),
            ("redis_cluster_urls = [\"redis://a\"]\nredis_majority_urls = [\"redis://b\"]\n", "exclude each other"),
            ("redis_sentinel_urls = [\"redis://a\"]\n", "go together"),
            ("redis_sentinel_service = \"main\"\n", "go together"),
            ("redis_majority_urls = [\"redis://a\"]\n", "3 to 9"),
            ("redis_majority_urls = [\"redis://a\", \"redis://b\", \"redis://c\", \"redis://d\"]\n", "an odd number"),
            (
                &(MAJORITY.to_owned()
                    + "[cooldown]\ncommand_timeout_ms = 300\nactions = {transfer = {window_ms = 4500}}\n"),
                "clocks of Redis servers drift",
            ),
            ("[daily_bonus]\ntime_zone = \"Mars/Olympus\"\n", "no zone \"Mars/Olympus\""),
            ("[daily_bonus]\nday_begins_at_hour = 24\n", "0 to 23"),
            ("[token]\nsecret = \"short\"\n", "at least 32 bytes"),
            ("[token]\nsecret = \"01234567890123456789012345678901\"\njwks = \"keys.json\"\n", "exclude each other"),
            ("[documents]\npersisted_most = 0\n", "from 1 to"),
            ("[token]\njwks_refresh_seconds = 0\n", "from 1 to"),
            ("[token]\nleeway_seconds = 601\n", "at most 600"),
            ("[database]\nlock_timeout_ms = 1000\n", "lock_timeout_ms"),
            ("[signup_bonus]\namount = 0\n", "greater than zero"),
            ("currencies = []\n", "at least one currency"),
            ("[keys]\ncompleted_retention_days = 0\n", "at least 1"),
            ("[webhooks]\nlease_ms = 9000\n", "twice webhooks.timeout_ms"),
            ("[webhooks]\nbackoff_ms = 0\n", "backoff_ms"),
            ("[webhooks]\nconcurrency = 0\n", "concurrency"),
            (&endpoint("Crm", "https://crm.example/", GOOD), "a name is"),
            (&endpoint("crm", "https://user:hunter2@crm.example/", GOOD), "no user and no password"),
            (&endpoint("crm", "ftp://crm.example/", GOOD), "begins with https://"),
            (&endpoint("crm", "http://crm.example/", GOOD), "must begin with https://"),
            (&endpoint("crm", "https://127.0.0.1/", GOOD), "private address"),
            (&endpoint("crm", "https://2130706433/", GOOD), "private address"),
            (&endpoint("crm", "https://[::ffff:10.0.0.1]/", GOOD), "private address"),
            (&endpoint("crm", "https://crm.example/", "[\"whsec_hunter2\"]"), "24 to 64 bytes"),
            (&endpoint("crm", "https://crm.example/", "\"whsec_hunter2\""), "sequence"),
            (&endpoint("crm", "https://crm.example/", "[]"), "needs a secret"),
            (&endpoint("crm", "https://crm.example/", GOOD).repeat(2), "twice"),
            (&provider("Acme", "[]"), "lower-case"),
            (&provider("acme", "[]"), "needs a secret"),
            (&provider("acme", "[\"whsec_hunter2\"]"), "24 to 64 bytes"),
            (&provider("acme", "\"whsec_hunter2\""), "sequence"),
            (&provider("acme", GOOD).repeat(2), "twice"),
        ] {
            let error = read(file, &[]).unwrap_err().to_string();
            assert!(error.contains(word) && error.lines().count() == 1, "{file}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    const MAJORITY: &str = "redis_majority_urls = [\"redis://a\", \"redis://b\", \"redis://c\"]\n";

    #[test]
    fn addresses_of_redis_servers_are_read_and_not_shown() {
        let (settings, _) = read(
            "",
            &[
                ("LARGESSE_REDIS_SENTINEL_URLS", "[\"redis://:hunter2@a:26379\", \"redis://:hunter2@b:26379\"]"),
                ("LARGESSE_REDIS_SENTINEL_SERVICE", "redis://:hunter3@main"),
            ],
        )
        .unwrap();
        let service = settings.redis_sentinel_service.as_ref().unwrap().expose_secret();
        assert_eq!((settings.redis_sentinel_urls.len(), service), (2, "redis://:hunter3@main"));
        let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        assert!(!shown.contains("hunter"), "{shown}");
        assert_eq!(Settings::read(&settings, None, []).unwrap().0.redis_sentinel_urls.len(), 2);
        let (settings, _) = read(MAJORITY, &[]).unwrap();
        assert!(settings.names_a_redis() && settings.redis_majority_urls.len() == 3);
    }

    fn provider(name: &str, secrets: &str) -> String {
        format!("[[funding.providers]]\nname = \"{name}\"\nsecrets = {secrets}\n")
    }

    #[test]
    fn the_secrets_of_providers_are_read_and_never_written() {
        let variable = format!("[{{name=\"acme\",secrets={GOOD}}}]");
        for (file, environment) in
            [(provider("acme", GOOD).as_str(), None), ("", Some(("LARGESSE_FUNDING_PROVIDERS", variable.as_str())))]
        {
            let (settings, unknown) = read(file, environment.as_slice()).unwrap();
            let [provider] = &settings.funding.providers[..] else { panic!("{:?}", settings.funding) };
            assert_eq!((provider.name.as_str(), provider.secrets.len(), unknown.len()), ("acme", 1, 0));
            let written = format!("{settings:?} {:?}", Value::serialize(&settings));
            assert!(!written.contains("MfKQ9r8"), "{written}");
            // What was read keeps its secrets where it becomes the defaults of another reading.
            let again = Settings::read(&settings, None, []).unwrap().0;
            assert_eq!(again.funding.providers[0].secrets, provider.secrets);
        }
    }

    #[test]
    fn the_page_of_settings_lists_each_of_them_and_no_other() {
        let page = include_str!("../../docs/settings.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let mut listed: Vec<_> = rows.map(str::to_owned).collect();
        let mut settings: Vec<_> = variables(&Settings::default()).into_values().collect();
        listed.sort();
        settings.sort();
        assert_eq!(listed, settings);
    }
}
