//! `/metrics` on a listener of its own, for Prometheus to scrape: what it tells of the traffic is not for whoever reaches
//! the API.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::config::ConfigError;
use crate::signals;

/// Prometheus's text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How often values of histograms are sorted into their buckets. Until then each of them takes memory.
const UPKEEP: Duration = Duration::from_secs(5);

/// Keeps metrics from here on and serves them until the process ends. Nothing is kept where no address is set.
pub async fn serve(listen: Option<SocketAddr>) -> Result<(), ConfigError> {
    let Some(listen) = listen else { return Ok(()) };
    let trouble = |error: &dyn std::fmt::Display| ConfigError::because("metrics.listen", error);
    let listener = TcpListener::bind(listen).await.map_err(|error| trouble(&error))?;
    let address = listener.local_addr().map_err(|error| trouble(&error))?;
    let metrics = signals::keep().map_err(|error| trouble(&error))?;
    let rendered = metrics.clone();
    let page = get(async move || ([(CONTENT_TYPE, TEXT_FORMAT)], rendered.render()));
    // Nothing waits for its end: a scrape that is cut off is scraped again.
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/metrics", page)).await });
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            metrics.run_upkeep();
        }
    });
    tracing::info!(metrics_address = %address, "serving metrics");
    Ok(())
}
