//! Promise: imports run downward: main › api, workers › operations › ledger, cooldown › entity, live › config, error,
//! amount and the other words; operations never import each other; GraphQL and HTTP stay in `api`; `ledger` alone writes the
//! books.
//!
//! Guards the layout itself. It reads the source as text, so that a path in the middle of a function counts as well.

use std::collections::BTreeSet;
use std::path::Path;

/// The modules of the library by height; those of one height do not import each other, except at the bottom.
const HEIGHTS: &[(u8, &[&str])] = &[
    (5, &["api", "workers"]),
    (4, &["operations"]),
    (3, &["ledger", "cooldown"]),
    (2, &["entity", "live"]),
    (
        BOTTOM,
        &[
            "config",
            "error",
            "amount",
            "member",
            "calendar",
            "event",
            "signals",
            "signature",
            "address",
            "global_id",
            "redis",
            "traces",
        ],
    ),
];
const BOTTOM: u8 = 1;

/// Names that say nothing of what is inside.
const EMPTY_NAMES: [&str; 6] = ["utils", "helpers", "services", "models", "common", "misc"];

/// A file of `src/`.
struct Source {
    /// Below `src/`, with slashes.
    path: String,
    text: String,
}

#[test]
fn the_source_keeps_the_order() {
    let sources = sources();
    assert!(sources.len() > 20, "the source was found");
    let broken: Vec<_> = violations(&sources);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Everything that breaks a rule, a line each.
fn violations(sources: &[Source]) -> Vec<String> {
    let binary = modules_of_the_binary(sources);
    let mut broken = Vec::new();
    for source in sources {
        let own = source.module();
        let mut say = |what: String| broken.push(format!("src/{}: {what}", source.path));
        if !source.text.starts_with("//! ") {
            say("does not begin with a line that says what it is for".to_owned());
        }
        for name in source.empty_names() {
            say(format!("\"{name}\" names nothing"));
        }
        // The binary is above all; what it imports of itself starts with `crate::` and is its own affair.
        let code = source.code();
        if !binary.contains(&own[0]) {
            for path in paths(&code, &own) {
                if let Some(why) = forbidden(&own, &path) {
                    say(format!("{}: {why}", path.join("::")));
                }
            }
        }
        for word in ["async_graphql", "axum"] {
            if own[0] != "api" && words(&code).any(|found| found == word) {
                say(format!("names {word}, which is api's alone"));
            }
        }
        for write in writes(&code, &paths(&code, &own)) {
            if own[0] != "ledger" && own[0] != "entity" {
                say(format!("{write}: the books are written by ledger alone"));
            }
        }
    }
    broken
}

/// Why a module may not import a path, if it may not.
fn forbidden(own: &[String], path: &[String]) -> Option<String> {
    let (from, to) = (own[0].as_str(), path[0].as_str());
    let Some(from_height) = height(from) else {
        return (from != "lib").then(|| format!("{from} has no place in the order"));
    };
    if from == to {
        let sibling = own.len() > 1 && path.len() > 1 && path[1] != own[1] && is_module_name(&path[1]);
        let verbs = from == "operations" && sibling;
        return verbs.then(|| "operations do not import each other".to_owned());
    }
    match height(to) {
        Some(to_height) if to_height > from_height => Some(format!("{to} is above {from}")),
        Some(to_height) if to_height == from_height && from_height > BOTTOM => Some(format!("{to} is beside {from}")),
        _ => None,
    }
}

fn height(module: &str) -> Option<u8> {
    HEIGHTS.iter().find(|(_, modules)| modules.contains(&module)).map(|(height, _)| *height)
}

/// Types begin with a capital letter and constants are capitals throughout; both come from the module itself.
fn is_module_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name != "self"
}

/// `main`, and the modules that `main.rs` declares.
fn modules_of_the_binary(sources: &[Source]) -> BTreeSet<String> {
    let mut modules = BTreeSet::from(["main".to_owned()]);
    let main = sources.iter().find(|source| source.path == "main.rs");
    modules.extend(main.iter().flat_map(|main| declared_modules(&main.code())));
    modules
}

fn declared_modules(code: &str) -> Vec<String> {
    let words: Vec<_> = words(code).collect();
    words.windows(2).filter(|pair| pair[0] == "mod").map(|pair| pair[1].to_owned()).collect()
}

impl Source {
    /// The path of the module that the file is: `ledger/tx.rs` is `[ledger, tx]`, `ledger/mod.rs` is `[ledger]`.
    fn module(&self) -> Vec<String> {
        let path = self.path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect()
    }

    /// The text without comments. (A text with two slashes loses its end; no import stands in one.)
    fn code(&self) -> String {
        self.text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    fn empty_names(&self) -> Vec<String> {
        let mut names = self.module();
        names.extend(declared_modules(&self.code()));
        names.retain(|name| EMPTY_NAMES.contains(&name.as_str()) || EMPTY_NAMES.contains(&format!("{name}s").as_str()));
        names
    }
}

/// The words of a text, punctuation left out.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// All paths into this crate, from its root, with groups taken apart: `crate::{a::B, c}` is `a::B` and `c`.
fn paths(code: &str, own: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for root in ["crate::", "largesse::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':') {
                continue;
            }
            let mut base: Vec<String> = Vec::new();
            let mut rest = &code[at..];
            if root == "super::" {
                base = own.to_vec();
                while let Some(further) = rest.strip_prefix("super::") {
                    base.pop();
                    rest = further;
                }
            } else {
                rest = &rest[root.len()..];
            }
            read_tree(rest, &base, &mut found);
        }
    }
    found.retain(|path| !path.is_empty());
    found
}

/// Reads a use tree or a path, and returns what follows it.
fn read_tree<'a>(text: &'a str, base: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        text = group;
        loop {
            text = read_tree(text, base, found).trim_start();
            match text.strip_prefix(',') {
                Some(rest) if !rest.trim_start().starts_with('}') => text = rest,
                Some(rest) => return rest.trim_start().strip_prefix('}').unwrap_or(rest),
                None => return text.strip_prefix('}').unwrap_or(text),
            }
        }
    }
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '*');
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    let mut path = base.to_vec();
    path.extend((!word.is_empty() && word != "*" && word != "self").then(|| word.to_owned()));
    if let Some(further) = rest.strip_prefix("::") {
        return read_tree(further, &path, found);
    }
    found.push(path);
    skip_renaming(rest)
}

/// `as Name`, behind a path in a group.
fn skip_renaming(text: &str) -> &str {
    let Some(name) = text.trim_start().strip_prefix("as ") else { return text };
    name.trim_start().trim_start_matches(|letter: char| letter.is_alphanumeric() || letter == '_')
}

/// Where the code could write wallets or entries: through their tables, or by SQL.
fn writes(code: &str, paths: &[Vec<String>]) -> Vec<String> {
    let mut found = Vec::new();
    let text: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    for table in ["wallet", "entry"] {
        for what in ["ActiveModel", "Entity"] {
            let path = format!("{table}::{what}");
            let inline = text.match_indices(&path).any(|(at, _)| !text[..at].ends_with(char::is_alphanumeric));
            let imported = paths.iter().any(|path| path[..] == ["entity", table, what]);
            found.extend((inline || imported).then_some(path));
        }
    }
    let sql = text.to_lowercase().replace(['"', '\\'], "");
    for table in ["wallets", "entries"] {
        for verb in ["insert into", "update", "delete from"] {
            found.extend(sql.contains(&format!("{verb} {table} ")).then(|| format!("{verb} {table}")));
        }
    }
    found
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    found
}

fn collect(folder: &Path, below: &str, found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{name}/"), found);
        } else if Path::new(&name).extension().is_some_and(|extension| extension == "rs") {
            found.push(Source { path: name, text: std::fs::read_to_string(entry.path()).unwrap() });
        }
    }
}

/// Made-up sources, each with what is wrong in it; nothing where nothing is.
#[test]
fn a_violation_is_noticed() {
    for (path, text, wrong) in [
        ("api/x.rs", "use crate::operations::transfer;", ""),
        ("api/x.rs", "use super::token::Caller;\nuse crate::{ledger::tx::Tx, config::Settings};", ""),
        ("api/x.rs", "use crate::workers::clean;", "workers is beside api"),
        ("operations/x.rs", "use super::App;\nuse crate::operations::Claimed;\nuse crate::ledger::Ledger;", ""),
        ("operations/x.rs", "use crate::api::sdl;", "api is above operations"),
        ("operations/x.rs", "use super::transfer::Transfer;", "do not import each other"),
        ("operations/x.rs", "use super::{App, transfer};", "do not import each other"),
        ("operations/x.rs", "use crate::operations::{App, transfer::Transfer};", "do not import each other"),
        ("operations/x.rs", "fn f() { crate::operations::transfer::transfer() }", "do not import each other"),
        ("ledger/tx.rs", "use crate::cooldown::Cooldown;", "cooldown is beside ledger"),
        ("ledger/tx.rs", "fn f() { let x = crate::operations::App::new(); }", "operations is above ledger"),
        ("ledger/tx.rs", "use super::super::api;", "api is above ledger"),
        ("ledger/tx.rs", "use crate::{\n    error::{Failure, Cause},\n    api as a,\n};", "api is above ledger"),
        ("ledger/tx.rs", "use crate::{entity::{self, wallet as w}, operations};", "operations is above ledger"),
        ("ledger/tx.rs", "pub(in crate::api) fn f() {}", "api is above ledger"),
        ("cooldown/mod.rs", "use largesse::ledger::Ledger;", "ledger is above cooldown,beside"),
        ("entity/mod.rs", "use crate::ledger::Ledger;", "ledger is above entity"),
        ("config.rs", "use crate::amount::CurrencyCode;\nuse crate::member::Member;", ""),
        ("config.rs", "use crate::entity::wallet;", "entity is above config"),
        ("lib.rs", "pub mod api;", ""),
        ("new.rs", "use crate::error::Failure;", "new has no place in the order"),
        ("main.rs", "mod demo;\nuse largesse::api::Server;", ""),
        ("demo.rs", "use crate::failed;\nuse largesse::ledger::Ledger;", ""),
        ("main.rs", "use axum::Router;", "names axum"),
        ("ledger/tx.rs", "fn f(_: async_graphql::Value) {}", "names async_graphql"),
        ("ledger/tx.rs", "// As async_graphql does.\nfn f() {}", ""),
        ("operations/x.rs", "use crate::entity::wallet;\nfn f() { wallet::Entity::insert(row); }", "ledger alone"),
        ("operations/x.rs", "use crate::entity::entry::{ActiveModel};", "ledger alone"),
        ("operations/x.rs", "use crate::entity::wallet::ActiveModel as Row;", "ledger alone"),
        ("api/x.rs", "fn f() { run(\"UPDATE wallets SET balance = 1\") }", "ledger alone"),
        ("api/x.rs", "fn f() { run(\"INSERT INTO \\\"entries\\\" (line) VALUES (1)\") }", "ledger alone"),
        ("api/x.rs", "use crate::entity::wallet;\nfn f(row: wallet::Model) {}", ""),
        ("ledger/post.rs", "use crate::entity::wallet;\nfn f() { wallet::Entity::insert(row); }", ""),
        ("api/utils.rs", "fn f() {}", "\"utils\" names nothing"),
        ("helpers/mod.rs", "fn f() {}", "\"helpers\" names nothing,no place"),
        ("api/x.rs", "mod common { }", "\"common\" names nothing"),
        ("api/x.rs", "mod helper;", "\"helper\" names nothing"),
    ] {
        let made_up = [
            Source { path: "main.rs".to_owned(), text: "//! The command line.\nmod demo;".to_owned() },
            Source { path: path.to_owned(), text: format!("//! Made up.\n{text}") },
        ];
        let broken = violations(if path == "main.rs" { &made_up[1..] } else { &made_up });
        let noticed = wrong.split(',').any(|wrong| broken.iter().any(|line| line.contains(wrong)));
        assert_eq!(!wrong.is_empty(), !broken.is_empty(), "{path}: {text}: {broken:?}");
        assert!(wrong.is_empty() || noticed, "{path}: {text}: {broken:?}");
    }
    let undescribed = [Source { path: "api/x.rs".to_owned(), text: "use std::fmt;".to_owned() }];
    assert_eq!(violations(&undescribed).len(), 1, "a file says first what it is for");
}

/// Every page that names settings names those that there are.
#[test]
fn pages_name_no_setting_that_does_not_exist() {
    let settings = largesse::config::variables(&largesse::config::Settings::default());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<_> = std::fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path()).collect();
    pages.push(root.join("README.md"));
    for page in pages {
        let Ok(text) = std::fs::read_to_string(&page) else { continue };
        for name in settings_named(&text) {
            assert!(exists(&name, &settings), "{} names the setting {name}, which does not exist", page.display());
        }
    }
    for (text, named) in [
        ("`cooldown.enabled` and `LARGESSE_TOKEN_SECRET='x'`", &["LARGESSE_TOKEN_SECRET", "cooldown.enabled"][..]),
        ("`largesse.toml`, `docs/settings.md`, `wallet.balance`, `LARGESSE_` and `LARGESSE_…`", &[]),
        ("cooldown.enabled in prose", &[]),
    ] {
        assert_eq!(settings_named(text).iter().map(String::as_str).collect::<Vec<_>>(), named, "{text}");
    }
    assert!(!exists("cooldown.enabeld", &settings) && !exists("LARGESSE_TOKEN_SECRETS", &settings));
    assert!(exists("cooldown.actions.transfer.window_ms", &settings) && exists("cooldown.actions", &settings));
}

type Variables = std::collections::BTreeMap<String, String>;

fn exists(name: &str, settings: &Variables) -> bool {
    let of_an_action =
        |name: &str| ["window_ms", "without_redis", "per", "most_per_minute"].iter().any(|field| name.ends_with(field));
    settings.contains_key(name)
        || settings.values().any(|setting| setting == name)
        || name.strip_prefix("cooldown.actions.").is_some_and(of_an_action)
        // The type of an event, such as `transfer.completed`, is named like a setting.
        || serde_json::from_value::<largesse::event::EventType>(name.into()).is_ok()
        // Of the tests' and the measurements' own servers.
        || name.starts_with("LARGESSE_TEST_")
        || name == "LARGESSE_DURABLE"
}

/// Paths in backticks that begin with a table of the settings, and variables with our prefix.
fn settings_named(text: &str) -> BTreeSet<String> {
    let tables = [
        "token",
        "request",
        "database",
        "cooldown",
        "daily_bonus",
        "signup_bonus",
        "transfer",
        "keys",
        "funding",
        "log",
        "webhooks",
        "workers",
    ];
    let code = text.split('`').skip(1).step_by(2).map(str::trim);
    let is_path = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte));
    let is_setting = |name: &&str| name.split_once('.').is_some_and(|(table, _)| tables.contains(&table));
    let mut named: BTreeSet<_> = code.filter(is_path).filter(is_setting).map(str::to_owned).collect();
    named.extend(words(text).filter(|word| word.starts_with("LARGESSE_") && word.len() > 9).map(str::to_owned));
    named
}
