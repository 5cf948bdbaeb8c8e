//! Live reads.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use async_graphql::{Context, SimpleObject, Subscription};
use futures_util::Stream;
use uuid::Uuid;

use super::query::wallet_refs;
use super::scalars::CurrencyScalar;
use super::wallet::{Wallet, WalletEntry};
use super::work::Request;
use crate::entity::wallet;
use crate::error::Failure;
use crate::ledger::post::WalletRef;
use crate::live::{Version, Watch};
use crate::operations::App;

/// How long a subscription waits before it reads again what could not be read.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Live reads over graphql-transport-ws.
pub(super) struct Subscription;

/// A wallet's new state.
#[derive(SimpleObject)]
pub(super) struct WalletChangedEvent {
    /// The newest movement in it; null in the first event.
    entry: Option<WalletEntry>,
    /// The wallet.
    wallet: Wallet,
}

/// Live reads over graphql-transport-ws.
#[Subscription]
impl Subscription {
    /// First the state at the moment of subscribing, then the state after each committed movement; under load several
    /// movements may come as one event.
    async fn wallet_changed(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "Which one; all of the member's wallets if left out.")] currency: Option<CurrencyScalar>,
    ) -> Result<impl Stream<Item = Option<WalletChangedEvent>> + use<>, Failure> {
        let app = context.data_unchecked::<App>();
        let mut wallets = wallet_refs(app, context.data_unchecked::<Request>().member()?);
        if let Some(currency) = currency {
            wallets.retain(|wallet| wallet.currency().as_str() == currency.0);
        }
        if wallets.is_empty() {
            return Err(Failure::BadInput("There is no such currency here.".to_owned()));
        }
        let watching = Watching::begin(app.clone(), wallets).await?;
        Ok(futures_util::stream::unfold(watching, async |mut watching| Some((Some(watching.next().await), watching))))
    }
}

/// One subscription to a member's wallets.
struct Watching {
    app: App,
    wallets: Vec<WalletRef>,
    watch: Watch,
    /// How far the client has seen each wallet.
    shown: HashMap<Uuid, Version>,
    /// What it is to see next.
    due: VecDeque<WalletChangedEvent>,
}

impl Watching {
    /// Watches first and reads then, so no movement falls between the two.
    async fn begin(app: App, wallets: Vec<WalletRef>) -> Result<Self, Failure> {
        let watch = app.ledger.live().watch(wallets.iter().map(WalletRef::id).collect());
        let rows = app.ledger.wallets(&wallets).await?;
        let shown = rows.iter().map(|row| (row.id, row.version)).collect();
        let state = |reference: &WalletRef| {
            let row = rows.iter().find(|row| row.id == reference.id()).cloned();
            WalletChangedEvent { entry: None, wallet: Wallet { reference: reference.clone(), row } }
        };
        let due = wallets.iter().map(state).collect();
        Ok(Self { app, wallets, watch, shown, due })
    }

    async fn next(&mut self) -> WalletChangedEvent {
        loop {
            if let Some(event) = self.due.pop_front() {
                return event;
            }
            self.watch.moved().await;
            while let Err(failure) = self.read().await {
                tracing::warn!(?failure, "a subscription could not read its wallets");
                tokio::time::sleep(READ_AGAIN).await;
            }
        }
    }

    /// Reads what moved since it was shown last.
    async fn read(&mut self) -> Result<(), Failure> {
        for row in self.app.ledger.wallets(&self.wallets).await? {
            if row.version <= self.shown.get(&row.id).copied().unwrap_or_default() {
                continue;
            }
            let Some(reference) = self.wallets.iter().find(|wallet| wallet.id() == row.id).cloned() else { continue };
            let event = WalletChangedEvent {
                entry: self.newest(&row).await?,
                wallet: Wallet { reference, row: Some(row.clone()) },
            };
            self.shown.insert(row.id, row.version);
            self.due.push_back(event);
        }
        Ok(())
    }

    /// The entry that brought the wallet to its version, which is the entry's sequence number.
    async fn newest(&self, row: &wallet::Model) -> Result<Option<WalletEntry>, Failure> {
        Ok(self.app.ledger.entry(row.id, row.version).await?.map(WalletEntry))
    }
}
