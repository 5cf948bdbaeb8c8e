//! What a process tells Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than the slowest of the metrics needs to be told again, on a slow machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// One scrape.
pub(crate) struct Scrape {
    pub(crate) text: String,
    samples: Vec<Sample>,
}

struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Scrape {
    /// Scrapes a process at its address.
    pub(crate) async fn of(address: &str) -> Self {
        let response = reqwest::get(format!("http://{address}/metrics")).await.expect("it answers");
        let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!(
            (response.status().as_u16(), content_type.as_str()),
            (200, "text/plain; version=0.0.4; charset=utf-8")
        );
        let text = response.text().await.expect("a whole answer");
        let samples = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(sample).collect();
        Self { text, samples }
    }

    /// Scrapes again and again until what is told is as it should be.
    pub(crate) async fn until(address: &str, what: &str, holds: impl Fn(&Self) -> bool) -> Self {
        let started = Instant::now();
        loop {
            let scrape = Self::of(address).await;
            if holds(&scrape) {
                return scrape;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}:\n{}", scrape.text);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The sum of all samples of this name that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|own| own == value))
        };
        self.samples.iter().filter(fits).map(|sample| sample.value).sum()
    }

    /// The metrics by name, with their kinds.
    pub(crate) fn families(&self) -> BTreeMap<&str, &str> {
        let types = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| line.split_once(' ')).collect()
    }

    /// The labels that samples of a metric have, without those that histograms add.
    pub(crate) fn labels_of(&self, family: &str) -> BTreeSet<&str> {
        let own = |sample: &&Sample| {
            let rest = sample.name.strip_prefix(family);
            rest.is_some_and(|rest| ["", "_bucket", "_sum", "_count"].contains(&rest))
        };
        let labels = self.samples.iter().filter(own).flat_map(|sample| sample.labels.keys());
        labels.map(String::as_str).filter(|label| *label != "le").collect()
    }

    /// Every value of every label.
    pub(crate) fn label_values(&self) -> BTreeSet<&str> {
        self.samples.iter().flat_map(|sample| sample.labels.values()).map(String::as_str).collect()
    }
}

/// `promtool check metrics`: what it has to say; nothing if all is well.
pub(crate) fn lint(text: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool is installed (Debian: prometheus)");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("promtool reads");
    let ended = child.wait_with_output().expect("promtool ends");
    let said = format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.success(), said.is_empty(), "{said}");
    said
}

/// `name{label="value",…} 1.5`; the tests' label values hold neither quotes nor commas.
fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.strip_suffix('}').expect("labels end");
    let pairs = labels.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (label, value) = pair.split_once('=').expect("a label");
        (label.to_owned(), value.trim_matches('"').to_owned())
    });
    Sample { name: name.to_owned(), labels: pairs.collect(), value: value.parse().expect("a number") }
}
