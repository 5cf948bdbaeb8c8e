//! What holds where nothing is set. `docs/settings.md` says why.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use super::{
    CooldownSettings, CorsSettings, Currency, DailyBonusSettings, DatabaseSettings, DocumentSettings, FundingSettings,
    KeySettings, LimitSettings, LogFormat, LogSettings, MetricsSettings, RequestSettings, Settings,
    SignupBonusSettings, SocketSettings, TokenSettings, TraceSettings, TransferSettings, WebhookSettings,
    WorkerSettings,
};
use crate::amount::CurrencyCode;

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            database_url: None,
            redis_url: None,
            redis_sentinel_urls: Vec::new(),
            redis_sentinel_service: None,
            redis_cluster_urls: Vec::new(),
            redis_majority_urls: Vec::new(),
            redis_ca_file: None,
            token: TokenSettings {
                secret: None,
                jwks: None,
                jwks_ca_file: None,
                jwks_refresh_seconds: 300,
                member_claim: "sub".to_owned(),
                roles_claim: "roles".to_owned(),
                issuer: None,
                audience: None,
                leeway_seconds: 5,
            },
            request: RequestSettings {
                deadline_ms: 3000,
                body_limit_bytes: 1 << 20,
                drain_ms: 500,
                most_at_once: 2000,
                most_waiting: 500,
            },
            database: DatabaseSettings {
                pool_size: 16,
                read_pool_size: 8,
                statement_timeout_ms: 1000,
                lock_timeout_ms: 750,
                set_local: false,
            },
            cors: CorsSettings { origins: Vec::new() },
            limits: LimitSettings {
                document_bytes: 32 << 10,
                tokens: 4000,
                depth: 20,
                fields: 500,
                aliases: 30,
                directives: 30,
                root_mutations: 5,
                cost: 5000,
                introspection: true,
            },
            sockets: SocketSettings {
                most_at_once: 10_000,
                most_per_member: 10,
                operations: 20,
                message_bytes: 64 << 10,
                init_timeout_ms: 5000,
                ping_ms: 15_000,
                send_timeout_ms: 10_000,
                look_again_ms: 3000,
            },
            documents: DocumentSettings { trusted: None, persisted_most: 1000, persisted_bytes: 4 << 20 },
            cooldown: CooldownSettings {
                enabled: true,
                prefix: "largesse".to_owned(),
                after_refusal_ms: 1000,
                command_timeout_ms: 150,
                connect_timeout_ms: 1000,
                remember: 100_000,
                actions: BTreeMap::new(),
            },
            currencies: vec![Currency {
                code: CurrencyCode::parse("PTS").expect("three upper-case letters"),
                decimals: 0,
                transferable: true,
            }],
            daily_bonus: DailyBonusSettings { amounts: Vec::new(), time_zone: "UTC".to_owned(), day_begins_at_hour: 0 },
            signup_bonus: SignupBonusSettings { amount: None },
            transfer: TransferSettings { enabled: true, smallest: 1, largest: None, memo: true },
            keys: KeySettings { refusal_retention_days: 7, completed_retention_days: None },
            webhooks: WebhookSettings {
                endpoints: Vec::new(),
                allow_private_addresses: false,
                timeout_ms: 5000,
                response_bytes: 16 << 10,
                attempts: 16,
                backoff_ms: 5000,
                longest_backoff_ms: 6 * 60 * 60 * 1000,
                concurrency: 32,
                lease_ms: 30_000,
                retention_days: 7,
            },
            workers: WorkerSettings { in_server: true, audit_every_hours: 24 },
            funding: FundingSettings { providers: Vec::new() },
            log: LogSettings { format: LogFormat::Pretty, filter: "info".to_owned(), refusals_per_second: 20 },
            metrics: MetricsSettings { listen: None },
            traces: TraceSettings { endpoint: None, sample_ratio: 1.0, service_name: "largesse".to_owned() },
        }
    }
}
