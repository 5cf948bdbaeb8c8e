//! Promise: whatever the dashboard shows and an alert waits for is told by the code, under that name and with those labels; every
//! metric is on the dashboard; each alert says what to do, and has numbers at which it fires and at which it is silent.
//!
//! Guards `signals.rs` against the places where something is counted, and `deploy/` against `signals.rs`. `make test` lets promtool
//! check the rules and run their tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use largesse::signals::{Kind, METRICS, Metric};
use serde_json::Value;

const RULES: &str = include_str!("../deploy/prometheus/largesse.rules.yml");
const RULE_TESTS: &str = include_str!("../deploy/prometheus/largesse.rules.test.yml");
const DASHBOARD: &str = include_str!("../deploy/grafana/largesse.json");

/// What Prometheus adds by itself.
const OF_PROMETHEUS: [&str; 3] = ["job", "instance", "le"];

#[test]
fn the_code_counts_what_the_list_has_and_nothing_else() {
    let mut counted = BTreeMap::new();
    for (path, text) in sources(Path::new("src")) {
        if path.ends_with("signals.rs") {
            continue;
        }
        for name in names(&text) {
            assert!(metric(name).is_some(), "{path} counts {name}, which is not in src/signals.rs");
            counted.entry(name.to_owned()).or_insert(path.clone());
        }
    }
    // It is set where the process begins to keep metrics.
    let elsewhere = ["largesse_build_info"];
    let listed = METRICS.iter().map(|metric| metric.name).filter(|name| !elsewhere.contains(name));
    let forgotten: Vec<_> = listed.filter(|name| !counted.contains_key(*name)).collect();
    assert!(forgotten.is_empty(), "listed and counted nowhere: {forgotten:?}");
}

#[test]
fn each_expression_names_metrics_and_labels_that_are_told() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let shown = panels(&dashboard).flat_map(expressions);
    let alerts: Vec<_> = alerts().into_iter().map(|alert| alert.expression).collect();
    let mut checked = 0;
    for expression in shown.chain(alerts.iter().map(String::as_str)) {
        for name in names(expression) {
            let metric = of_series(name).unwrap_or_else(|| panic!("{name} is not told: {expression}"));
            for label in selected(expression, name).chain(grouped(expression)) {
                let known = metric.labels.contains(&label) || OF_PROMETHEUS.contains(&label);
                // A group of one metric may stand beside another in the same expression.
                let of_another = names(expression).filter_map(of_series).any(|other| other.labels.contains(&label));
                assert!(known || of_another, "{name} has no label {label}: {expression}");
            }
            checked += 1;
        }
    }
    assert!(checked > METRICS.len(), "the expressions were found");
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let shown: BTreeSet<_> =
        panels(&dashboard).flat_map(expressions).flat_map(names).filter_map(of_series).map(|m| m.name).collect();
    let missing: Vec<_> = METRICS.iter().map(|metric| metric.name).filter(|name| !shown.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn each_panel_says_what_it_shows_from_a_source_that_is_chosen() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut titles = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap_or_default();
        assert!(!title.is_empty() && titles.insert(title), "{title:?} is empty or there twice");
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{title} has no description");
        assert!(panel["fieldConfig"]["defaults"]["unit"].as_str().is_some_and(|unit| !unit.is_empty()), "{title}");
        for source in [&panel["datasource"], &panel["targets"][0]["datasource"]] {
            assert_eq!(source["uid"], "${datasource}", "{title}");
        }
        let place = &panel["gridPos"];
        let (x, width) = (place["x"].as_u64().unwrap(), place["w"].as_u64().unwrap());
        assert!(x + width <= 24, "{title} is outside of the page");
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["name"] == "datasource" && variable["type"] == "datasource"));
}

#[test]
fn each_alert_says_what_to_do_and_is_tested_both_ways() {
    let alerts = alerts();
    assert!(alerts.len() >= 10, "the alerts were found");
    for Alert { name, expression, text } in alerts {
        for (word, least) in [("severity: ", 4), ("summary: ", 20), ("description: >-\n", 60)] {
            let rest = text.split_once(word).unwrap_or_else(|| panic!("{name} has no {word:?}")).1;
            assert!(rest.trim().len() >= least, "{name}: {word:?} says little");
        }
        // A label that the expression does not keep is empty in the sentence.
        for label in text.split("$labels.").skip(1).map(word) {
            let kept = grouped(&expression).any(|group| group == label) || expression.starts_with("up{");
            assert!(kept, "{name} speaks of {label}, which its expression drops");
        }
        for (kind, expected) in [("fires", "exp_samples:\n"), ("is silent", "exp_samples: []\n")] {
            let tests: Vec<_> =
                RULE_TESTS.split("  - name: ").filter(|test| test.starts_with(&format!("{name} {kind}\n"))).collect();
            let [test] = tests[..] else { panic!("one test in which {name} {kind}") };
            assert!(
                test.contains(&format!("alertname=\"{name}\"")) && format!("{}\n", test.trim_end()).contains(expected),
                "{test}"
            );
        }
    }
}

struct Alert {
    name: String,
    expression: String,
    text: String,
}

/// The rules, cut by their indentation: `expr` ends where `for` or `labels` begins.
fn alerts() -> Vec<Alert> {
    let alert = |text: &str| {
        let (name, rest) = text.split_once('\n').expect("a name and more");
        let expression = rest.split_once("expr: ").expect("an expression").1;
        let end = ["        for: ", "        labels:"].iter().filter_map(|key| expression.find(key)).min();
        let expression = expression[..end.expect("labels")].to_owned();
        Alert { name: name.to_owned(), expression, text: text.to_owned() }
    };
    RULES.split("- alert: ").skip(1).map(alert).collect()
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row")
}

fn expressions(panel: &Value) -> impl Iterator<Item = &str> {
    panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap())
}

fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The metric that a series belongs to: histograms have three kinds of them.
fn of_series(series: &str) -> Option<&'static Metric> {
    metric(series).or_else(|| {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end))?;
        metric(family).filter(|metric| matches!(metric.kind, Kind::Histogram(_)))
    })
}

/// Every name of a metric in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let begins = text.match_indices("largesse_").map(|(place, _)| place);
    // `largesse_migration` is a crate.
    begins.map(|place| word(&text[place..])).filter(|name| *name != "largesse_migration")
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The labels by which series of a name are selected: `name{label="…"}`.
fn selected<'a>(expression: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let braces = expression.split(name).skip(1).filter_map(|rest| rest.strip_prefix('{')?.split_once('}'));
    braces.flat_map(|(inside, _)| inside.split(',').map(|pair| word(pair.trim())))
}

/// The labels by which an expression groups: `by (label, …)`.
fn grouped(expression: &str) -> impl Iterator<Item = &str> {
    let groups = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    groups.flat_map(|(inside, _)| inside.split(',').map(str::trim))
}

/// The code below a folder, with its path.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
    found
}
