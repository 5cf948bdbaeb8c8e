//! Which Redis the settings name, and who may vouch for it.

use std::fmt::Display;
use std::path::Path;

use deadpool_redis::redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates};
use secrecy::{ExposeSecret, SecretString};

use crate::config::ConfigError;

/// Reads the URL. A certificate is always verified: a file of its own replaces the public authorities, and nothing switches
/// the check off.
pub(crate) fn server(url: &SecretString, ca_file: Option<&Path>) -> Result<ConnectionInfo, ConfigError> {
    let server = url.expose_secret().into_connection_info().map_err(|error| unusable(&error))?;
    if matches!(server.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        let sentence = "a certificate is always verified: name its authority in redis_ca_file instead of #insecure";
        return Err(ConfigError::because("redis_url", &sentence));
    }
    let Some(file) = ca_file else { return Ok(server) };
    let bad_file = |reason: &dyn Display| ConfigError::because(&format!("redis_ca_file {}", file.display()), reason);
    let pem = std::fs::read(file).map_err(|error| bad_file(&error))?;
    if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
        return Err(bad_file(&"there is no certificate in PEM format"));
    }
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(pem) };
    let client = Client::build_with_tls(server, certificates).map_err(|error| bad_file(&error))?;
    Ok(client.get_connection_info().clone())
}

pub(crate) fn unusable(error: &RedisError) -> ConfigError {
    ConfigError::because("redis_url", error)
}
