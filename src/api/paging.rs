//! Relay's paging arguments and page info.

use async_graphql::SimpleObject;

use super::ids::Cursor;
use crate::error::Failure;
use crate::ledger::statement::{Page, Slice};

/// How many edges a page has where the client does not say.
pub(super) const DEFAULT_PAGE: i32 = 20;

/// The most edges of a page: what one screen or one export step needs, and the database reads at once.
pub(super) const LARGEST_PAGE: i32 = 100;

/// Paging state after the Relay Cursor Connections specification.
#[derive(SimpleObject)]
pub(super) struct PageInfo {
    /// Cursor of the last edge; null on an empty page.
    end_cursor: Option<String>,
    /// Whether more edges follow.
    has_next_page: bool,
    /// Whether more edges precede.
    has_previous_page: bool,
    /// Cursor of the first edge; null on an empty page.
    start_cursor: Option<String>,
}

/// The arguments of a connection, as the client sent them.
pub(super) struct PageArguments {
    pub(super) first: Option<i32>,
    pub(super) after: Option<String>,
    pub(super) last: Option<i32>,
    pub(super) before: Option<String>,
}

impl PageArguments {
    pub(super) fn parse<C: Cursor>(self) -> Result<Page<C>, Failure> {
        let (limit, name) = match (self.first, self.last) {
            (Some(_), Some(_)) => return Err(Failure::BadInput("Give `first` or `last`, not both.".to_owned())),
            (None, Some(last)) => (last, "last"),
            (first, None) => (first.unwrap_or(DEFAULT_PAGE), "first"),
        };
        if !(1..=LARGEST_PAGE).contains(&limit) {
            return Err(Failure::BadInput(format!("`{name}` must be from 1 to {LARGEST_PAGE}.")));
        }
        Ok(Page {
            after: cursor("after", self.after)?,
            before: cursor("before", self.before)?,
            limit: u64::from(limit.unsigned_abs()),
            from_the_end: self.last.is_some(),
        })
    }
}

fn cursor<C: Cursor>(name: &str, text: Option<String>) -> Result<Option<C>, Failure> {
    let unknown = || Failure::BadInput(format!("`{name}` is not a cursor of this list."));
    text.map(|text| C::decode(&text).ok_or_else(unknown)).transpose()
}

/// Turns rows into edges, nodes and page info.
pub(super) fn page_info<Row, C: Cursor>(slice: &Slice<Row>, cursor_of: impl Fn(&Row) -> C) -> PageInfo {
    let cursor = |row: &Row| cursor_of(row).encode();
    PageInfo {
        end_cursor: slice.rows.last().map(cursor),
        has_next_page: slice.has_next,
        has_previous_page: slice.has_previous,
        start_cursor: slice.rows.first().map(cursor),
    }
}
