//! Which media type a request is in, and which its answer is to be in: GraphQL over HTTP, sections "Media Types" and
//! "Legacy Watershed".

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};

/// What an answer is written as. They differ in what the status code says: under `application/json` a proxy's answer
/// cannot be told from ours, so what is well formed gets 200 there whatever comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MediaType {
    /// `application/graphql-response+json`.
    GraphqlResponse,
    /// `application/json`.
    Json,
}

impl MediaType {
    /// Its name in `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::GraphqlResponse => "application/graphql-response+json; charset=utf-8",
            Self::Json => "application/json; charset=utf-8",
        }
    }

    /// Chooses by `Accept`: the higher quality, then what stands first. None if the client takes neither. A client that
    /// takes anything, or says nothing, is an old one and gets the old type.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let mut ranges =
            headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(ranges).peekable();
        if ranges.peek().is_none() {
            return Some(Self::Json);
        }
        // `max_by` would take the last of equals.
        let best =
            ranges.filter(|(_, quality)| *quality > 0).reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.map(|(media_type, _)| media_type)
    }
}

/// The ranges of an `Accept` value that name something we write, each with its quality in thousandths.
fn ranges(accept: &str) -> impl Iterator<Item = (MediaType, u16)> {
    accept.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = match parts.next()?.to_ascii_lowercase().as_str() {
            "application/graphql-response+json" => MediaType::GraphqlResponse,
            "application/json" | "application/*" | "*/*" => MediaType::Json,
            _ => return Some((MediaType::Json, 0)),
        };
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(1000, thousandths);
        Some((media_type, quality))
    })
}

/// A quality as RFC 9110, section 12.4.2, writes it: 0 to 1 with three decimals at most. Nonsense counts as 0.
fn thousandths(quality: &str) -> u16 {
    let (whole, decimals) = quality.split_once('.').unwrap_or((quality, ""));
    match (whole, decimals.len(), format!("{decimals:0<3}").parse::<u16>()) {
        ("0", 0..=3, Ok(thousandths)) => thousandths,
        ("1", 0..=3, Ok(0)) => 1000,
        _ => 0,
    }
}

/// Whether the body is declared as JSON in UTF-8. Nothing else is read: a page of another origin can send forms and plain
/// text with a visitor's credentials, but not this without asking first.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let mut declared = headers.get_all(CONTENT_TYPE).iter();
    let (Some(Ok(media_type)), None) = (declared.next().map(HeaderValue::to_str), declared.next()) else {
        return false;
    };
    let mut parts = media_type.split(';').map(|part| part.trim().to_ascii_lowercase());
    parts.next().as_deref() == Some("application/json")
        && parts.all(|parameter| {
            parameter.strip_prefix("charset=").is_none_or(|charset| charset.trim_matches('"') == "utf-8")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(accept: &'static str) -> Option<MediaType> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        MediaType::accepted(&headers)
    }

    #[test]
    fn the_clients_wish_decides() {
        use MediaType::{GraphqlResponse, Json};
        assert_eq!(MediaType::accepted(&HeaderMap::new()), Some(Json));
        for (accept, media_type) in [
            ("*/*", Some(Json)),
            ("application/*", Some(Json)),
            ("application/json", Some(Json)),
            ("Application/GraphQL-Response+JSON", Some(GraphqlResponse)),
            ("application/graphql-response+json,application/json;q=0.9", Some(GraphqlResponse)),
            ("application/graphql-response+json;q=0.1, application/json", Some(Json)),
            (
                "application/graphql-response+json, application/graphql+json, application/json, text/event-stream",
                Some(GraphqlResponse),
            ),
            ("application/json; charset=utf-8; q=0.5, application/graphql-response+json; q=0.25", Some(Json)),
            ("image/png", None),
            ("application/json;q=0", None),
            ("image/png, */*;q=0.001", Some(Json)),
            ("application/json;q=nonsense", None),
        ] {
            assert_eq!(accepted(accept), media_type, "{accept}");
        }
    }

    #[test]
    fn only_json_in_utf_8_is_read() {
        for (content_type, good) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json; charset=\"utf-8\"", true),
            ("application/json; charset=utf-16", false),
            ("text/plain; application/json", false),
            ("application/jsonp", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(is_json(&headers), good, "{content_type}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
