//! Reads.

use async_graphql::{Context, ID, Interface, Object};

use super::bonus::{BonusClaim, BonusClaimConnection, DailyBonusStatus, SignupBonusStatus};
use super::ids::{GlobalId, global};
use super::paging::{LARGEST_PAGE, PageArguments};
use super::scalars::CurrencyScalar;
use super::wallet::{MemberProfile, Wallet, WalletEntry};
use super::work::Request;
use crate::error::Failure;
use crate::ledger::post::WalletRef;
use crate::ledger::statement::Counterparty;
use crate::member::Member;
use crate::operations::App;

/// Everything that can be fetched again by its global ID.
#[derive(Interface)]
#[graphql(field(name = "id", ty = "ID", desc = "Opaque, globally unique ID. Do not parse it."))]
pub(super) enum Node {
    Wallet(Wallet),
    MemberProfile(MemberProfile),
    WalletEntry(WalletEntry),
    BonusClaim(BonusClaim),
    Viewer(Viewer),
}

/// Reads.
pub(super) struct Query;

/// Reads.
#[Object]
impl Query {
    /// Fetches a thing by its global ID; null where there is none that the caller may see.
    async fn node(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "What to fetch.")] id: ID,
    ) -> Option<Result<Node, Failure>> {
        find(context, &id).await.transpose()
    }

    /// Fetches things by their global IDs, in order; null where there is none that the caller may see.
    async fn nodes(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "What to fetch, at most 100.")] ids: Vec<ID>,
    ) -> Result<Vec<Option<Result<Node, Failure>>>, Failure> {
        if ids.len() > LARGEST_PAGE as usize {
            return Err(Failure::BadInput(format!("`ids` must be at most {LARGEST_PAGE}.")));
        }
        let found = ids.iter().map(|id| async { find(context, id).await.transpose() });
        Ok(futures_util::future::join_all(found).await)
    }

    /// The signed-in member; null with an UNAUTHENTICATED error otherwise.
    async fn viewer(&self, context: &Context<'_>) -> Option<Result<Viewer, Failure>> {
        Some(Viewer::of(context).await)
    }
}

/// The signed-in member.
pub(super) struct Viewer(Member);

impl Viewer {
    async fn of(context: &Context<'_>) -> Result<Self, Failure> {
        let member = context.data_unchecked::<Request>().member()?.clone();
        context.data_unchecked::<App>().ledger.know(&member).await?;
        Ok(Self(member))
    }
}

/// The signed-in member.
#[Object]
impl Viewer {
    /// The member's bonus claims, newest first. Without `first` and `last`, the first 20; more than 100 is BAD_USER_INPUT.
    async fn bonus_claims(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "Only claims after this cursor.")] after: Option<String>,
        #[graphql(desc = "Only claims before this cursor.")] before: Option<String>,
        #[graphql(desc = "The first so many, 1 to 100.")] first: Option<i32>,
        #[graphql(desc = "The last so many, 1 to 100.")] last: Option<i32>,
    ) -> Option<Result<BonusClaimConnection, Failure>> {
        let arguments = PageArguments { first, after, last, before };
        Some(BonusClaimConnection::read(context.data_unchecked(), &self.0, arguments).await)
    }

    /// The daily bonus; null where none is configured.
    async fn daily_bonus(&self, context: &Context<'_>) -> Option<Result<DailyBonusStatus, Failure>> {
        DailyBonusStatus::read(context.data_unchecked(), &self.0).await.transpose()
    }

    /// Opaque, globally unique ID. Do not parse it.
    pub(super) async fn id(&self) -> ID {
        global(GlobalId::Viewer(self.0.id()))
    }

    /// The name that others send value to: the subject of the member's token.
    async fn member_id(&self) -> &str {
        self.0.name()
    }

    /// The signup bonus; null where none is configured.
    async fn signup_bonus(&self, context: &Context<'_>) -> Option<Result<SignupBonusStatus, Failure>> {
        SignupBonusStatus::read(context.data_unchecked(), &self.0).await.transpose()
    }

    /// The wallet in one currency, also before its first movement (then empty). Null only with an error.
    async fn wallet(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "Which one; the server's default currency if left out.")] currency: Option<CurrencyScalar>,
    ) -> Option<Result<Wallet, Failure>> {
        let app = context.data_unchecked::<App>();
        let known = match &currency {
            None => Some(app.settings.default_currency()),
            Some(code) => app.settings.currency(&code.0),
        };
        let Some(known) = known else {
            return Some(Err(Failure::BadInput("There is no such currency here.".to_owned())));
        };
        Some(Wallet::read(app, WalletRef::new(&self.0, &known.code)).await)
    }

    /// One wallet for each configured currency, the default one first.
    async fn wallets(&self, context: &Context<'_>) -> Option<Result<Vec<Wallet>, Failure>> {
        Some(wallets(context.data_unchecked(), &self.0).await)
    }
}

async fn wallets(app: &App, member: &Member) -> Result<Vec<Wallet>, Failure> {
    let references = wallet_refs(app, member);
    let rows = app.ledger.wallets(&references).await?;
    let with_row = |reference: WalletRef| {
        let row = rows.iter().find(|row| row.id == reference.id()).cloned();
        Wallet { reference, row }
    };
    Ok(references.into_iter().map(with_row).collect())
}

pub(super) fn wallet_refs(app: &App, member: &Member) -> Vec<WalletRef> {
    app.settings.currencies.iter().map(|currency| WalletRef::new(member, &currency.code)).collect()
}

/// Finds what the ID names, if it is the caller's to see. Another's thing looks like one that does not exist.
async fn find(context: &Context<'_>, id: &str) -> Result<Option<Node>, Failure> {
    let app = context.data_unchecked::<App>();
    let member = context.data_unchecked::<Request>().member()?;
    let own = |id| wallet_refs(app, member).into_iter().find(|wallet| wallet.id() == id);
    match GlobalId::decode(id) {
        Some(GlobalId::Viewer(id)) if id == member.id() => Ok(Some(Node::Viewer(Viewer(member.clone())))),
        Some(GlobalId::Wallet(id)) => match own(id) {
            Some(reference) => Ok(Some(Node::Wallet(Wallet::read(app, reference).await?))),
            None => Ok(None),
        },
        Some(GlobalId::Entry(wallet, seq)) if own(wallet).is_some() => {
            Ok(app.ledger.entry(wallet, seq).await?.map(|entry| Node::WalletEntry(WalletEntry(entry))))
        }
        Some(GlobalId::Claim(id)) => {
            let claim = app.ledger.claim(id).await?.filter(|claim| claim.member_id == member.id());
            Ok(claim.map(|claim| Node::BonusClaim(claim.into())))
        }
        Some(GlobalId::Profile(id)) if id == member.id() => {
            let own = Counterparty { id, name: member.name().to_owned() };
            Ok(Some(Node::MemberProfile(MemberProfile(own))))
        }
        Some(GlobalId::Profile(id)) => {
            let other = app.ledger.acquaintance(&wallet_refs(app, member), id).await?;
            Ok(other.map(|other| Node::MemberProfile(MemberProfile(other))))
        }
        _ => Ok(None),
    }
}
