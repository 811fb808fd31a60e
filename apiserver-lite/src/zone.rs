//! Time zones by their names, from the system's database.
//!
//! A zone says how far local time is ahead of UTC at a moment. Cron jobs have one, and expressions name them. Files are
//! TZif (RFC 9636): changes of the clock, and behind them the rule by which it goes on changing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Where systems keep their database, in the order in which Go looks.
const ROOTS: [&str; 3] = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/etc/zoneinfo"];
/// Zones that are kept when they were used; others are read again. Each has some four kilobytes.
const KEPT: usize = 16;
/// Bytes of a file; the longest has some four thousand.
const LARGEST: u64 = 64 << 10;
/// Seconds of a day.
pub const DAY: i64 = 86_400;

static USED: Mutex<Vec<(Box<str>, Arc<Zone>)>> = Mutex::new(Vec::new());

/// How far local time is ahead of UTC, and since when.
#[derive(Debug, PartialEq, Default)]
pub struct Zone {
    /// Seconds before the first change.
    first: i64,
    /// Changes: since when, and to what.
    changes: Vec<(i64, i64)>,
    /// What holds after the last of them; None where nothing changes any more.
    rule: Option<Rule>,
}

impl Zone {
    pub fn utc() -> Self {
        Zone::default()
    }

    /// A zone of the system's database; None for one that it does not have.
    pub fn load(name: &str) -> Option<Arc<Self>> {
        if matches!(name, "" | "UTC" | "Etc/UTC") {
            return Some(Arc::new(Zone::utc()));
        }
        let kept = || USED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, zone)) = kept().iter().find(|(known, _)| **known == *name) {
            return Some(zone.clone());
        }
        let path = file(name)?;
        // Beside the zones lie tables of a hundred kilobytes.
        if std::fs::metadata(&path).ok()?.len() > LARGEST {
            return None;
        }
        let zone = Arc::new(Zone::read(&std::fs::read(path).ok()?)?);
        let mut kept = kept();
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((name.into(), zone.clone()));
        Some(zone)
    }

    /// The second part of a file, which has 64-bit times, and the line behind it.
    fn read(file: &[u8]) -> Option<Self> {
        let header = |at: usize| -> Option<[usize; 6]> {
            let head = file.get(at..at.checked_add(44)?).filter(|h| h.starts_with(b"TZif"))?;
            let mut out = [0; 6];
            for (slot, bytes) in out.iter_mut().zip(head[20..].chunks_exact(4)) {
                *slot = usize::try_from(u32::from_be_bytes(bytes.try_into().ok()?)).ok()?;
            }
            Some(out)
        };
        let [utc, std, leap, times, types, chars] = header(0)?;
        let second = 44 + times * 5 + types * 6 + chars + leap * 8 + std + utc;
        let [utc, std, leap, times, types, chars] = header(second)?;
        let body = file.get(second + 44..)?;
        let kinds = body.get(times * 9..times * 9 + types * 6)?;
        let offset = |kind: u8| -> Option<i64> {
            let at = usize::from(kind) * 6;
            Some(i64::from(i32::from_be_bytes(kinds.get(at..at + 4)?.try_into().ok()?)))
        };
        let mut changes = Vec::with_capacity(times);
        for at in 0..times {
            let time = i64::from_be_bytes(body.get(at * 8..at * 8 + 8)?.try_into().ok()?);
            changes.push((time, offset(*body.get(times * 8 + at)?)?));
        }
        let line = body.get(times * 9 + types * 6 + chars + leap * 12 + std + utc..)?;
        let line = line.strip_prefix(b"\n").and_then(|line| line.strip_suffix(b"\n"));
        let rule = line.and_then(|line| Rule::parse(std::str::from_utf8(line).ok()?));
        Some(Zone { first: offset(0)?, changes, rule })
    }

    /// Seconds by which local time is ahead of UTC at a moment in seconds since 1970.
    pub fn offset(&self, at: i64) -> i64 {
        let after = self.changes.partition_point(|(since, _)| *since <= at);
        match &self.rule {
            Some(rule) if after == self.changes.len() => rule.offset(at),
            _ => after.checked_sub(1).map_or(self.first, |last| self.changes[last].1),
        }
    }

    /// A local time as UTC; None for one that a change of the clock skips.
    pub fn to_utc(&self, local: i64) -> Option<i64> {
        let guess = local - self.offset(local);
        [guess, local - self.offset(guess)].into_iter().find(|at| at + self.offset(*at) == local)
    }
}

/// The file of a zone; None for a name that has none.
fn file(name: &str) -> Option<PathBuf> {
    let within = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !within || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    ROOTS.iter().map(|root| Path::new(root).join(name)).find(|path| path.is_file())
}

/// Whether a name is that of a zone which this machine knows.
pub fn is_known(name: &str) -> bool {
    name == "UTC" || Zone::load(name).is_some()
}

/// What is said of a name that is none of a zone, in the words of Go's `time.LoadLocation`.
pub fn refusal(name: &str) -> String {
    match name.contains("..") || name.starts_with(['/', '\\']) {
        true => "time: invalid location name".into(),
        false => format!("unknown time zone {name}"),
    }
}

/// A rule as `TZ` has it: `CET-1CEST,M3.5.0,M10.5.0/3`.
#[derive(Debug, PartialEq)]
struct Rule {
    /// Seconds ahead of UTC.
    usual: i64,
    summer: Option<Summer>,
}

#[derive(Debug, PartialEq)]
struct Summer {
    offset: i64,
    begins: Change,
    ends: Change,
}

/// A day of every year, and the seconds after its midnight by the clock that is in use.
#[derive(Debug, PartialEq)]
struct Change {
    day: Day,
    time: i64,
}

#[derive(Debug, PartialEq)]
enum Day {
    /// From 1, where 29 February does not count.
    Julian(i64),
    /// From 0.
    OfYear(i64),
    /// Month, which of its weeks (5 is the last), and day of the week from Sunday.
    Weekday(i64, i64, i64),
}

impl Rule {
    fn parse(text: &str) -> Option<Self> {
        let mut left = Text(text);
        left.name()?;
        let usual = -left.time()?;
        if left.0.is_empty() {
            return Some(Rule { usual, summer: None });
        }
        left.name()?;
        let offset = if left.0.starts_with(',') { usual + 3600 } else { -left.time()? };
        let begins = left.change()?;
        let ends = left.change()?;
        left.0.is_empty().then_some(Rule { usual, summer: Some(Summer { offset, begins, ends }) })
    }

    fn offset(&self, at: i64) -> i64 {
        let Some(summer) = &self.summer else { return self.usual };
        let year = year_of((at + self.usual).div_euclid(DAY));
        let begins = summer.begins.seconds(year) - self.usual;
        let ends = summer.ends.seconds(year) - summer.offset;
        // South of the equator it goes on over the end of the year.
        let is_summer = if begins < ends { (begins..ends).contains(&at) } else { !(ends..begins).contains(&at) };
        if is_summer { summer.offset } else { self.usual }
    }
}

impl Change {
    /// Seconds since 1970 by the clock that is in use.
    fn seconds(&self, year: i64) -> i64 {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day = match self.day {
            Day::OfYear(day) => day_of(year, 1, 1) + day,
            Day::Julian(day) => day_of(year, 1, 1) + day - i64::from(!(leap && day >= 60)),
            Day::Weekday(month, week, weekday) => {
                let first = day_of(year, month, 1);
                // 1 January 1970 was a Thursday.
                let day = first + (weekday - (first + 4)).rem_euclid(7) + (week - 1) * 7;
                let next = if month == 12 { day_of(year + 1, 1, 1) } else { day_of(year, month + 1, 1) };
                if day < next { day } else { day - 7 }
            }
        };
        day * DAY + self.time
    }
}

/// What is left of a rule to be read.
struct Text<'t>(&'t str);

impl Text<'_> {
    fn skip(&mut self, c: char) -> Option<()> {
        self.0 = self.0.strip_prefix(c)?;
        Some(())
    }

    fn name(&mut self) -> Option<()> {
        let end = match self.0.strip_prefix('<') {
            Some(quoted) => quoted.find('>')? + 2,
            None => self.0.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.0.len()),
        };
        self.0 = self.0.get(end..)?;
        (end > 0).then_some(())
    }

    fn number(&mut self) -> Option<i64> {
        let end = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let number = self.0.get(..end)?.parse::<u16>().ok()?;
        self.0 = self.0.get(end..)?;
        Some(number.into())
    }

    /// `[+|-]hh[:mm[:ss]]` in seconds.
    fn time(&mut self) -> Option<i64> {
        let sign = match self.0.as_bytes().first()? {
            b'-' => -1,
            _ => 1,
        };
        self.0 = self.0.strip_prefix(['+', '-']).unwrap_or(self.0);
        let mut seconds = self.number()? * 3600;
        for unit in [60, 1] {
            if self.skip(':').is_some() {
                seconds += self.number()? * unit;
            }
        }
        Some(sign * seconds)
    }

    fn change(&mut self) -> Option<Change> {
        self.skip(',')?;
        let day = if self.skip('M').is_some() {
            let month = self.number().filter(|month| (1..=12).contains(month))?;
            self.skip('.')?;
            let week = self.number().filter(|week| (1..=5).contains(week))?;
            self.skip('.')?;
            Day::Weekday(month, week, self.number().filter(|day| *day < 7)?)
        } else if self.skip('J').is_some() {
            Day::Julian(self.number()?)
        } else {
            Day::OfYear(self.number()?)
        };
        // Two in the morning is what is meant where nothing is said.
        let time = if self.skip('/').is_some() { self.time()? } else { 7200 };
        Some(Change { day, time })
    }
}

/// Day since 1970 of a date. The year begins in March, so that the leap day is its last.
fn day_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let of_era = year.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year of a day since 1970.
fn year_of(day: i64) -> i64 {
    // An average year is 365.2425 days long; the guess is right or one off.
    let guess = 1970 + (day * 400).div_euclid(146_097);
    match day {
        day if day < day_of(guess, 1, 1) => guess - 1,
        day if day >= day_of(guess + 1, 1, 1) => guess + 1,
        _ => guess,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds since 1970 of a time in UTC.
    fn at(text: &str) -> i64 {
        let format = &time::format_description::well_known::Rfc3339;
        time::OffsetDateTime::parse(text, format).expect(text).unix_timestamp()
    }

    fn offset(rule: &str, when: &str) -> i64 {
        Rule::parse(rule).expect(rule).offset(at(when)) / 60
    }

    #[test]
    fn rules_say_when_the_clock_changes() {
        for (rule, when, minutes) in [
            ("EST5EDT,M3.2.0,M11.1.0", "2040-03-11T06:59:59Z", -300),
            ("EST5EDT,M3.2.0,M11.1.0", "2040-03-11T07:00:00Z", -240),
            ("EST5EDT,M3.2.0,M11.1.0", "2040-11-04T05:59:59Z", -240),
            ("EST5EDT,M3.2.0,M11.1.0", "2040-11-04T06:00:00Z", -300),
            ("CET-1CEST,M3.5.0,M10.5.0/3", "2050-03-27T01:00:00Z", 120),
            ("CET-1CEST,M3.5.0,M10.5.0/3", "2050-10-30T01:00:00Z", 60),
            ("AEST-10AEDT,M10.1.0,M4.1.0/3", "2045-01-01T00:00:00Z", 660),
            ("AEST-10AEDT,M10.1.0,M4.1.0/3", "2045-07-01T00:00:00Z", 600),
            ("<+0545>-5:45", "2100-01-01T00:00:00Z", 345),
            ("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", "2060-03-28T00:59:59Z", -120),
            ("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", "2060-03-28T01:00:00Z", -60),
            ("IST-1GMT0,M10.5.0,M3.5.0/1", "2060-12-01T00:00:00Z", 0),
            ("IST-1GMT0,M10.5.0,M3.5.0/1", "2060-06-01T00:00:00Z", 60),
            ("A0B,J60/0,59/0", "2044-02-29T12:00:00Z", 0),
            ("A0B,J60/0,300/0", "2044-03-01T00:00:00Z", 60),
        ] {
            assert_eq!(offset(rule, when), minutes, "{rule} {when}");
        }
        for wrong in ["", "5", "EST", "EST5EDT", "EST5EDT,M13.1.0,M1.1.0", "EST5EDT,M3.2.0", "<+1", "A1,x"] {
            assert_eq!(Rule::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn days_and_years_are_those_of_the_calendar() {
        for (text, year) in [
            ("0001-01-01T00:00:00Z", 1),
            ("1969-12-31T00:00:00Z", 1969),
            ("2000-02-29T00:00:00Z", 2000),
            ("2099-12-31T00:00:00Z", 2099),
            ("9999-12-31T00:00:00Z", 9999),
        ] {
            assert_eq!(year_of(at(text) / DAY), year, "{text}");
        }
        assert_eq!(day_of(2000, 2, 29) * DAY, at("2000-02-29T00:00:00Z"));
    }

    #[test]
    fn changes_count_until_the_last_and_then_the_rule() {
        let rule = Rule::parse("EST5EDT,M3.2.0,M11.1.0");
        let zone = Zone {
            first: 60,
            changes: vec![(at("2020-01-01T00:00:00Z"), 120), (at("2021-01-01T00:00:00Z"), 180)],
            rule,
        };
        assert_eq!(zone.offset(0), 60);
        assert_eq!(zone.offset(at("2020-06-01T00:00:00Z")), 120);
        assert_eq!(zone.offset(at("2021-06-01T00:00:00Z")), -4 * 3600);
    }

    #[test]
    fn a_file_is_read_whole_and_nothing_else_is_a_file() {
        // One change, to an hour; what follows it is said by the rule.
        let header = |times: u8, types: u8| {
            let mut head = b"TZif2".to_vec();
            head.extend([0; 15]);
            for count in [0, 0, 0, times, types, 4] {
                head.extend([0, 0, 0, count]);
            }
            head
        };
        let mut file = header(0, 1);
        file.extend([0; 6 + 4]);
        file.extend(header(1, 2));
        file.extend(1_000_000i64.to_be_bytes());
        file.push(1);
        file.extend([0, 0, 0, 0, 0, 0]);
        file.extend(3600i32.to_be_bytes());
        file.extend([0, 0]);
        file.extend(b"UTC\0");
        file.extend(b"\nX-2\n");
        let zone = Zone::read(&file).expect("a zone");
        assert_eq!((zone.offset(999_999), zone.offset(1_000_000)), (0, 7200));
        for length in 0..file.len() - 5 {
            assert_eq!(Zone::read(&file[..length]), None, "{length}");
        }
        for name in ["../../etc/passwd", "/etc/passwd", "Nowhere/Land", "a b", "./UTC", "America"] {
            assert!(Zone::load(name).is_none() && !is_known(name), "{name}");
        }
        assert_eq!(Zone::load("").as_deref(), Some(&Zone::utc()));
    }

    #[test]
    fn a_skipped_hour_has_no_local_time() {
        // Clocks go from +1 h to +2 h at 10 000 000.
        let zone = Zone { first: 3600, changes: vec![(10_000_000, 7200)], rule: None };
        assert_eq!(zone.to_utc(10_000_000 + 3600 + 60), None);
        assert_eq!(zone.to_utc(10_000_000 + 7200 + 60), Some(10_000_060));
        assert_eq!(zone.to_utc(10_000_000 + 3000), Some(9_999_400));
    }
}
