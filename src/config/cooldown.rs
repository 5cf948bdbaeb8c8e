//! Layer 1, and what holds for each guarded mutation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Layer 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CooldownSettings {
    /// Whether the layer is on.
    pub enabled: bool,
    /// What every key in Redis begins with.
    pub prefix: String,
    /// How long the lock lasts after a business refusal.
    pub after_refusal_ms: u64,
    /// The longest a Redis command may take.
    pub command_timeout_ms: u64,
    /// The longest connecting to Redis may take; nobody waits for it.
    pub connect_timeout_ms: u64,
    /// How many locks of others a process remembers at most, to refuse without asking Redis; 0 asks for each attempt.
    pub remember: u32,
    /// Settings per mutation, by its field name.
    pub actions: BTreeMap<String, ActionSettings>,
}

/// The cooldown of one mutation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActionSettings {
    /// The window; the schema's default if left out.
    pub window_ms: Option<u64>,
    /// What to do while Redis is away.
    pub without_redis: WithoutRedis,
    /// The argument whose value has locks of its own, such as `input.to`; the schema's default if left out, and none if
    /// empty.
    pub per: Option<String>,
    /// How many attempts of a member are admitted in a minute; the schema's default if left out, and any number with 0.
    pub most_per_minute: Option<u32>,
}

/// What a guarded mutation does while Redis is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithoutRedis {
    /// Keep cooldowns inside the process.
    #[default]
    UseProcess,
    /// Answer UNAVAILABLE.
    Refuse,
}
