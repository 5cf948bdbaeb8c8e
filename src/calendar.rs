//! Which day it is for the daily bonus, and where a member's streak stands on it. Pure: the clock is an argument.

use chrono::{DateTime, Days, MappedLocalTime, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;

use crate::amount::Amount;

/// The rules of the daily bonus.
#[derive(Debug, Clone)]
pub struct DailyBonus {
    /// What the days of a streak pay; never empty. Later days pay as the last one.
    schedule: Vec<Amount>,
    zone: Tz,
    /// The hour of the zone's clock at which a day begins.
    begins_at_hour: u32,
}

/// A claim as far as the streak is concerned: its day, and the days in a row that led to it.
pub type LastClaim = (NaiveDate, i64);

/// Where a member stands with the daily bonus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Today.
    pub day: NaiveDate,
    /// Whether a claim now would be granted.
    pub claimable: bool,
    /// Days in a row up to the last claim; 0 when broken or never begun.
    pub streak: i64,
    /// The streak that the next claim would reach.
    pub next_streak: i64,
    /// What the next claim would credit.
    pub amount: Amount,
    /// When the next claim becomes possible; None if it is now.
    pub next_claim_at: Option<DateTime<Utc>>,
    /// From when on the streak is lost; None at streak 0.
    pub streak_ends_at: Option<DateTime<Utc>>,
}

impl DailyBonus {
    /// The rules; None without amounts, or if one of them is not above zero.
    pub fn new(amounts: &[i64], zone: Tz, begins_at_hour: u32) -> Option<Self> {
        let schedule: Vec<_> = amounts.iter().map(|amount| Amount::new(*amount)).collect::<Option<_>>()?;
        (!schedule.is_empty()).then_some(Self { schedule, zone, begins_at_hour })
    }

    /// What the days of a streak pay, in order.
    pub fn schedule(&self) -> &[Amount] {
        &self.schedule
    }

    /// The zone.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// Where a member with this newest claim stands now. A day that is not later than the newest claim's is taken, also
    /// where a clock went back or the zone was changed.
    pub fn standing(&self, last: Option<LastClaim>, now: DateTime<Utc>) -> Standing {
        let day = self.day_of(now);
        let taken = last.is_some_and(|(last_day, _)| day <= last_day);
        // The streak lives through the day after the last claim's.
        let alive = last.filter(|(last_day, _)| day <= after(*last_day, 1));
        let streak = alive.map_or(0, |(_, streak)| streak);
        let next_streak = streak.saturating_add(1);
        Standing {
            day,
            claimable: !taken,
            streak,
            next_streak,
            amount: self.amount_of(next_streak),
            next_claim_at: last.filter(|_| taken).map(|(last_day, _)| self.beginning_of(after(last_day, 1))),
            streak_ends_at: alive.map(|(last_day, _)| self.beginning_of(after(last_day, 2))),
        }
    }

    fn amount_of(&self, streak: i64) -> Amount {
        let place = usize::try_from(streak - 1).unwrap_or(0).min(self.schedule.len() - 1);
        self.schedule[place]
    }

    /// The last day that has begun. The zone's clock alone would go back to a day that was over where it is set back
    /// across the day's beginning.
    fn day_of(&self, now: DateTime<Utc>) -> NaiveDate {
        let by_the_clock = (now.with_timezone(&self.zone).naive_local() - self.offset()).date();
        let tomorrow = after(by_the_clock, 1);
        if self.beginning_of(tomorrow) <= now { tomorrow } else { by_the_clock }
    }

    /// The first instant of a day. Where the clock skips the hour, the instant of the skip; where it shows the hour twice,
    /// the first time.
    fn beginning_of(&self, day: NaiveDate) -> DateTime<Utc> {
        let local = day.and_time(chrono::NaiveTime::MIN) + self.offset();
        match self.zone.from_local_datetime(&local) {
            MappedLocalTime::Single(instant) | MappedLocalTime::Ambiguous(instant, _) => instant.with_timezone(&Utc),
            MappedLocalTime::None => self.end_of_gap(local),
        }
    }

    /// The instant at which the clock skips over a local time: what the time would be without the skip, and back to it.
    fn end_of_gap(&self, skipped: NaiveDateTime) -> DateTime<Utc> {
        // No zone has skipped more than a day; the offset before the skip is the one a day earlier.
        let before = self.zone.offset_from_utc_datetime(&(skipped - TimeDelta::days(2)));
        let as_before = (skipped - chrono::Offset::fix(&before)).and_utc();
        let (mut outside, mut inside) = (as_before - TimeDelta::days(1), as_before);
        // The offset changes once between the two; halving a day finds the second.
        while inside - outside > TimeDelta::seconds(1) {
            let middle = outside + TimeDelta::seconds((inside - outside).num_seconds() / 2);
            let skipped_yet = middle.with_timezone(&self.zone).naive_local() >= skipped;
            if skipped_yet { inside = middle } else { outside = middle }
        }
        inside
    }

    fn offset(&self) -> TimeDelta {
        TimeDelta::hours(i64::from(self.begins_at_hour))
    }
}

/// So many days later; the last day there is, at the end of all calendars.
fn after(day: NaiveDate, days: u64) -> NaiveDate {
    day.checked_add_days(Days::new(days)).unwrap_or(NaiveDate::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(zone: &str, hour: u32) -> DailyBonus {
        DailyBonus::new(&[10, 15, 20], zone.parse().unwrap(), hour).unwrap()
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn day(text: &str) -> NaiveDate {
        text.parse().unwrap()
    }

    #[test]
    fn a_streak_grows_breaks_and_pays_as_the_last_day_in_the_end() {
        let rules = rules("UTC", 0);
        let now = at("2026-11-29T12:00:00Z");
        let fresh = rules.standing(None, now);
        assert_eq!((fresh.streak, fresh.next_streak, fresh.amount.minor_units()), (0, 1, 10));
        assert_eq!((fresh.claimable, fresh.streak_ends_at), (true, None));
        let grown = rules.standing(Some((day("2026-11-28"), 7)), now);
        assert_eq!((grown.streak, grown.next_streak, grown.amount.minor_units()), (7, 8, 20));
        assert_eq!(grown.streak_ends_at, Some(at("2026-11-30T00:00:00Z")));
        let broken = rules.standing(Some((day("2026-11-27"), 7)), now);
        assert_eq!((broken.streak, broken.next_streak, broken.claimable), (0, 1, true));
        let taken = rules.standing(Some((day("2026-11-29"), 2)), now);
        assert_eq!((taken.claimable, taken.streak, taken.next_streak), (false, 2, 3));
        assert_eq!(taken.next_claim_at, Some(at("2026-11-30T00:00:00Z")));
        assert_eq!(taken.streak_ends_at, Some(at("2026-12-01T00:00:00Z")));
    }

    #[test]
    fn a_day_before_the_newest_claim_is_taken() {
        let standing = rules("UTC", 0).standing(Some((day("2026-12-02"), 1)), at("2026-11-29T12:00:00Z"));
        assert!(!standing.claimable);
        assert_eq!(standing.next_claim_at, Some(at("2026-12-03T00:00:00Z")));
    }

    #[test]
    fn a_day_begins_at_the_configured_hour_of_its_zone() {
        let rules = rules("Europe/Berlin", 4);
        assert_eq!(rules.day_of(at("2026-11-29T02:59:59Z")), day("2026-11-28"));
        assert_eq!(rules.day_of(at("2026-11-29T03:00:00Z")), day("2026-11-29"));
    }

    #[test]
    fn a_skipped_hour_begins_the_day_where_the_clock_skips() {
        // Berlin's clock goes from 02:00 to 03:00 on 29 March 2026, at 01:00 UTC.
        let rules = rules("Europe/Berlin", 2);
        assert_eq!(rules.beginning_of(day("2026-03-29")), at("2026-03-29T01:00:00Z"));
        assert_eq!(rules.day_of(at("2026-03-29T00:59:59Z")), day("2026-03-28"));
        assert_eq!(rules.day_of(at("2026-03-29T01:00:00Z")), day("2026-03-29"));
    }

    #[test]
    fn an_hour_shown_twice_begins_the_day_once() {
        // Berlin's clock goes from 03:00 back to 02:00 on 25 October 2026, at 01:00 UTC.
        let rules = rules("Europe/Berlin", 2);
        assert_eq!(rules.beginning_of(day("2026-10-25")), at("2026-10-25T00:00:00Z"));
        // St. John's went from 00:01 back to 23:01 on 7 November 2010: the new day was not taken back.
        let rules = super::tests::rules("America/St_Johns", 0);
        let begun = rules.beginning_of(day("2010-11-07"));
        for minutes in 0..120 {
            assert_eq!(rules.day_of(begun + TimeDelta::minutes(minutes)), day("2010-11-07"), "{minutes}");
        }
    }
}
