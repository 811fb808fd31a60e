//! Schedules of cron jobs: the five fields of cron and the usual short forms.

use std::collections::BTreeSet;

use crate::zone::{DAY, Zone};

/// When something is to be done.
#[derive(Debug, PartialEq)]
pub enum Schedule {
    Fields {
        minutes: Field,
        hours: Field,
        days: Field,
        months: Field,
        weekdays: Field,
    },
    /// `@every`: seconds between two times.
    Every(i64),
}

/// The numbers that a field allows, and whether it was a star.
#[derive(Debug, PartialEq)]
pub struct Field {
    numbers: BTreeSet<i64>,
    star: bool,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// Longest search for a next time; later there is none (30 February).
const HORIZON_DAYS: i64 = 5 * 366;

impl Schedule {
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        if let Some(every) = text.strip_prefix("@every ") {
            let duration = proto::duration::parse(every.trim()).ok()?;
            return Some(Schedule::Every((duration / 1_000_000_000).max(1)));
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else { return None };
        let mut weekdays = Field::parse(weekdays, 0, 7, &WEEKDAYS, 0)?;
        // Seven is Sunday too.
        if weekdays.numbers.remove(&7) {
            weekdays.numbers.insert(0);
        }
        Some(Schedule::Fields {
            minutes: Field::parse(minutes, 0, 59, &[], 0)?,
            hours: Field::parse(hours, 0, 23, &[], 0)?,
            days: Field::parse(days, 1, 31, &[], 0)?,
            months: Field::parse(months, 1, 12, &MONTHS, 1)?,
            weekdays,
        })
    }

    /// The first time after `after`, in seconds since 1970.
    pub fn next(&self, zone: &Zone, after: i64) -> Option<i64> {
        let (minutes, hours, days, months, weekdays) = match self {
            Schedule::Every(seconds) => return Some(after + seconds),
            Schedule::Fields { minutes, hours, days, months, weekdays } => (minutes, hours, days, months, weekdays),
        };
        let local = after + zone.offset(after);
        let first_day = local.div_euclid(DAY);
        for day in first_day..first_day + HORIZON_DAYS {
            let (month, day_of_month) = civil(day);
            let weekday = (day + 4).rem_euclid(7);
            // Two restricted fields of days mean either of them.
            let (by_date, by_weekday) = (days.numbers.contains(&day_of_month), weekdays.numbers.contains(&weekday));
            let fits = if days.star || weekdays.star { by_date && by_weekday } else { by_date || by_weekday };
            if !fits || !months.numbers.contains(&month) {
                continue;
            }
            for hour in &hours.numbers {
                for minute in &minutes.numbers {
                    let local = day * DAY + hour * 3600 + minute * 60;
                    let Some(at) = zone.to_utc(local) else { continue };
                    if at > after {
                        return Some(at);
                    }
                }
            }
        }
        None
    }
}

impl Field {
    fn parse(text: &str, low: i64, high: i64, names: &[&str], first: i64) -> Option<Self> {
        let mut out = Field { numbers: BTreeSet::new(), star: false };
        let number = |text: &str| -> Option<i64> {
            let named = names.iter().position(|n| n.eq_ignore_ascii_case(text));
            named.and_then(|at| i64::try_from(at).ok()).map(|at| at + first).or_else(|| text.parse().ok())
        };
        for part in text.split(',') {
            let (range, step) = match part.split_once('/') {
                Some((range, step)) => (range, step.parse::<i64>().ok().filter(|s| *s > 0)?),
                None => (part, 1),
            };
            let (from, to) = match range {
                "*" | "?" => {
                    out.star |= step == 1;
                    (low, if names.len() == 7 { 6 } else { high })
                }
                range => match range.split_once('-') {
                    Some((from, to)) => (number(from)?, number(to)?),
                    // `5/15` goes on to the end.
                    None if part.contains('/') => (number(range)?, high),
                    None => (number(range)?, number(range)?),
                },
            };
            if from < low || to > high || from > to {
                return None;
            }
            out.numbers.extend((from..=to).step_by(usize::try_from(step).ok()?));
        }
        Some(out)
    }
}

/// Month and day of a day since 1970.
fn civil(day: i64) -> (i64, i64) {
    let shifted = day + 719_468;
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let index = (5 * of_year + 2) / 153;
    (if index < 10 { index + 3 } else { index - 9 }, of_year - (153 * index + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-31T23:59:30Z.
    const NOW: i64 = 1_769_903_970;

    fn next(text: &str) -> Option<i64> {
        Schedule::parse(text).expect("it is a schedule").next(&Zone::utc(), NOW)
    }

    #[test]
    fn times_come_after_now() {
        assert_eq!(next("* * * * *"), Some(NOW + 30));
        assert_eq!(next("@daily"), Some(NOW + 30));
        assert_eq!(next("*/15 * * * *"), Some(NOW + 30));
        assert_eq!(next("59 23 * * *"), Some(NOW + DAY - 30));
        assert_eq!(next("0 0 29 2 *"), Some(NOW + 30 + DAY * (365 + 365 + 28)));
        assert_eq!(next("0 0 30 2 *"), None);
        assert_eq!(next("@every 90s"), Some(NOW + 90));
    }

    #[test]
    fn two_restricted_fields_of_days_mean_either() {
        // 1 February 2026 is a Sunday, the 2nd a Monday.
        assert_eq!(next("0 0 15 * mon"), Some(NOW + 30 + DAY));
        assert_eq!(next("0 0 * * mon"), Some(NOW + 30 + DAY));
        assert_eq!(next("0 0 15 * *"), Some(NOW + 30 + 14 * DAY));
        assert_eq!(next("0 0 * * 7"), Some(NOW + 30));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "* * * *", "60 * * * *", "* * * * 8", "5-1 * * * *", "*/0 * * * *", "a * * * *"] {
            assert_eq!(Schedule::parse(text), None, "{text}");
        }
    }
}
