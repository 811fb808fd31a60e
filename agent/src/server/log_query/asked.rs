//! What a query of the node's logs asks for, and what is wrong with it, in the kubelet's words.
//!
//! Mistakes of form are found while it is read, whatever else the query says; the rest is checked when it is known to be one.
//! Besides upstream's names of parameters those are read that builds of vendors have (`unit`, `tail`, `grep`,
//! `case-sensitive`, `since`, `until`, `output`).

use std::collections::HashSet;
use std::path::Path;

use proto::time::{Timestamp, parse_rfc3339};

use super::super::route::query_pairs;
use super::super::{node_logs, pattern};
use crate::env::go_quote;

const MAX_TAIL_LINES: i64 = 100_000;
const MAX_SERVICES: usize = 4;
const MAX_NAME: usize = 256;
/// Forms that the journal's lines can have.
const OUTPUTS: [&str; 8] =
    ["", "cat", "json", "short", "short-iso", "short-iso-precise", "short-precise", "short-unix"];

#[derive(Debug, Default, PartialEq)]
pub(super) struct Query {
    pub services: Vec<String>,
    pub files: Vec<String>,
    pub options: Options,
}

/// What narrows the journal's lines down; files have no use for it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Options {
    pub since_time: Option<Moment>,
    pub until_time: Option<Moment>,
    pub tail: Option<i64>,
    pub boot: Option<i64>,
    pub pattern: String,
    pub case_sensitive: bool,
    /// In the journal's own words, or relative.
    pub since: String,
    pub until: String,
    pub output: String,
}

/// A time of the query, and how it is written in JSON.
#[derive(Debug, PartialEq)]
pub(super) struct Moment {
    pub at: Timestamp,
    text: String,
}

/// Mistakes so far in their order; one that is made twice is told once.
#[derive(Default)]
struct Mistakes {
    told: Vec<String>,
    known: HashSet<String>,
}

impl Mistakes {
    fn add(&mut self, mistake: String) {
        if self.known.insert(mistake.clone()) {
            self.told.push(mistake);
        }
    }

    /// `value` as it is printed.
    fn invalid(&mut self, field: &str, value: &str, why: &str) {
        self.add(format!("{field}: Invalid value: {value}: {why}"));
    }

    /// As Go prints several errors in one.
    fn told(self) -> Result<(), String> {
        match self.told.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

/// A list as Go's JSON has it.
fn list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    let text = serde_json::Value::from(texts).to_string();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

impl Moment {
    fn of(text: &str) -> Option<Self> {
        let at = parse_rfc3339(text).ok()?;
        let (whole, rest) = text.split_at_checked("2006-01-02T15:04:05".len())?;
        let zone = rest.trim_start_matches(|c: char| c == '.' || c == ',' || c.is_ascii_digit());
        let fraction = format!(".{:09}", at.nanos);
        let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
        let zone = if matches!(zone, "+00:00" | "-00:00") { "Z" } else { zone };
        Some(Moment { at, text: format!("{whole}{fraction}{zone}") })
    }
}

impl Query {
    /// # Errors
    /// Values that cannot be read.
    pub fn of(text: &str) -> Result<Self, String> {
        let pairs = query_pairs(text);
        let all = |name: &'static str| pairs.iter().filter(move |(key, _)| key == name).map(|(_, v)| v.as_str());
        let first = |name: &'static str| all(name).next().unwrap_or_default();
        let either = |name, other| if first(name).is_empty() { first(other) } else { first(name) };
        let (mut query, mut mistakes) = (Query::default(), Mistakes::default());
        let names: Vec<&str> = all("query").collect();
        for name in &names {
            if name.contains(['/', '\\']) {
                query.files.push((*name).to_owned());
            } else if !name.trim().is_empty() {
                query.services.push((*name).to_owned());
            }
        }
        query.services.extend(all("unit").filter(|unit| !unit.trim().is_empty()).map(str::to_owned));
        let named = !names.is_empty() || all("unit").next().is_some();
        if named && query.files.is_empty() && query.services.is_empty() {
            let given = if names.is_empty() { "null".to_owned() } else { list(&names) };
            mistakes.invalid("unit", &given, "unit cannot be empty");
        }
        let options = &mut query.options;
        for (name, time) in [("sinceTime", &mut options.since_time), ("untilTime", &mut options.until_time)] {
            let value = first(name);
            *time = Moment::of(value);
            if time.is_none() && !value.is_empty() {
                mistakes.invalid(name, &go_quote(value), "invalid time format");
            }
        }
        let tail = either("tailLines", "tail");
        for (name, value, number) in
            [("boot", first("boot"), &mut options.boot), ("tailLines", tail, &mut options.tail)]
        {
            match value.parse::<i64>() {
                _ if value.is_empty() => {}
                Ok(parsed) => *number = Some(parsed),
                Err(error) => mistakes.invalid(name, &go_quote(value), &not_a_number(value, &error)),
            }
        }
        options.pattern = either("pattern", "grep").to_owned();
        let case = first("case-sensitive");
        if !options.pattern.is_empty() && !case.is_empty() {
            match case {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => options.case_sensitive = true,
                "0" | "f" | "F" | "FALSE" | "false" | "False" => {}
                _ => {
                    let value = go_quote(case);
                    let why = format!("strconv.ParseBool: parsing {value}: invalid syntax");
                    mistakes.invalid("case-sensitive", &value, &why);
                }
            }
        }
        options.since = first("since").to_owned();
        options.until = first("until").to_owned();
        options.output = first("output").to_owned();
        mistakes.told()?;
        Ok(query)
    }

    /// # Errors
    /// What cannot be asked for, or not together.
    pub fn check(&self, folder: &Path) -> Result<(), String> {
        let mut mistakes = Mistakes::default();
        for name in &self.services {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
            if name.len() > MAX_NAME {
                mistakes.invalid("query", &go_quote(name), "length must be less than 100");
            } else if !name.chars().all(fits) {
                mistakes.invalid("query", &go_quote(name), "input contains unsupported characters");
            }
        }
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            mistakes.add(format!("query: Too many: {count}: must have at most {MAX_SERVICES} items"));
        }
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], _) => {}
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                mistakes.invalid("query", &go_quote(&both), "cannot specify a file and service");
            }
            ([_, _, ..], []) => mistakes.invalid("query", &list(&self.files), "cannot specify more than one file"),
            ([_], []) if self.options != Options::default() => {
                mistakes.invalid("query", &list(&self.files), "cannot specify file with options");
            }
            ([file], []) => {
                if let Err(why) = node_logs::inside(folder, file) {
                    mistakes.invalid("query", &list(&self.files), &format!("statat {file}: {why}"));
                }
            }
        }
        self.options.check(&mut mistakes);
        mistakes.told()
    }
}

impl Options {
    fn check(&self, mistakes: &mut Mistakes) {
        if let (Some(since), Some(until)) = (&self.since_time, &self.until_time)
            && since.at > until.at
        {
            mistakes.invalid("untilTime", &go_quote(&until.text), "must be after `sinceTime`");
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            mistakes.invalid("boot", &boot.to_string(), "must be less than 1");
        }
        if let Some(tail) = self.tail.filter(|tail| !(0..=MAX_TAIL_LINES).contains(tail)) {
            let why = format!("must be between 0 and {MAX_TAIL_LINES}, inclusive");
            mistakes.invalid("tailLines", &tail.to_string(), &why);
        }
        if let Err(why) = pattern::check(&self.pattern) {
            mistakes.invalid("pattern", &go_quote(&self.pattern), &why);
        }
        let dated = !self.since.is_empty() || !self.until.is_empty();
        for (name, time) in [("sinceTime", &self.since_time), ("untilTime", &self.until_time)] {
            if dated && time.is_some() {
                mistakes.add(format!("{name}: Forbidden: `since or until` and `{name}` cannot be specified"));
            }
        }
        for (name, date) in [("since", &self.since), ("until", &self.until)] {
            if !date.is_empty() && !is_relative(date) && !is_date(date) {
                let why = "date must be a relative time of the form '(+|-)[0-9]+(s|m|h|d)' or a date in 'YYYY-MM-DD \
                           HH:MM:SS' form";
                mistakes.invalid(name, &go_quote(date), why);
            }
        }
        if !OUTPUTS.contains(&self.output.as_str()) {
            let known: Vec<String> = OUTPUTS.iter().map(|output| go_quote(output)).collect();
            let value = go_quote(&self.output);
            mistakes.add(format!("output: Unsupported value: {value}: supported values: {}", known.join(", ")));
        }
    }
}

fn not_a_number(value: &str, error: &std::num::ParseIntError) -> String {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let overflows = matches!(error.kind(), PosOverflow | NegOverflow);
    let why = if overflows { "value out of range" } else { "invalid syntax" };
    format!("strconv.Atoi: parsing {}: {why}", go_quote(value))
}

/// A number of seconds, minutes, hours or days from now.
fn is_relative(text: &str) -> bool {
    let number = text.strip_prefix(['+', '-']).unwrap_or(text).strip_suffix(['s', 'm', 'h', 'd']);
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// `2006-1-2 15:4:5`, all but the year in one digit or two.
fn is_date(text: &str) -> bool {
    let Some((date, time)) = text.split_once(' ') else { return false };
    let mut days = date.split('-');
    let Some(year) = days.next().filter(|year| year.len() == 4) else { return false };
    let numbers: Vec<&str> = days.chain(time.split(':')).collect();
    let two = |text: &&str| matches!(text.len(), 1 | 2) && text.bytes().all(|b| b.is_ascii_digit());
    if date.split('-').count() != 3 || numbers.len() != 5 || !numbers.iter().all(two) {
        return false;
    }
    let [month, day, hour, minute, second] = [0, 1, 2, 3, 4].map(|at| numbers[at].parse::<u32>().unwrap_or(u32::MAX));
    // A day that its month has not is none either.
    parse_rfc3339(&format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(query: &str) -> String {
        match Query::of(query).map(|q| q.check(Path::new("/nonexistent"))) {
            Ok(Ok(())) => String::new(),
            Ok(Err(why)) | Err(why) => why,
        }
    }

    #[test]
    fn mistakes_are_named_in_the_kubelets_words() {
        const DATE: &str = "date must be a relative time of the form '(+|-)[0-9]+(s|m|h|d)' or a date in \
                            'YYYY-MM-DD HH:MM:SS' form";
        let date = format!("since: Invalid value: \"soon\": {DATE}");
        for (query, told) in [
            ("query=", "unit: Invalid value: [\"\"]: unit cannot be empty"),
            ("unit=+", "unit: Invalid value: null: unit cannot be empty"),
            ("query=a&unit=", ""),
            ("query=a&tailLines=x", "tailLines: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax"),
            ("tail=x", "tailLines: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax"),
            ("query=a&tailLines=&tail=-1", "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive"),
            ("query=a&boot=1", "boot: Invalid value: 1: must be less than 1"),
            ("query=a&sinceTime=x", "sinceTime: Invalid value: \"x\": invalid time format"),
            ("query=a%24", "query: Invalid value: \"a$\": input contains unsupported characters"),
            ("query=a%24&query=a%24", "query: Invalid value: \"a$\": input contains unsupported characters"),
            ("query=a.b:c@d", ""),
            ("query=a&pattern=%5B", "pattern: Invalid value: \"[\": error parsing regexp: missing closing ]: `[`"),
            ("query=a&pattern=oom%7C%5Bkill%5D", ""),
            (
                "grep=x&case-sensitive=maybe",
                "case-sensitive: Invalid value: \"maybe\": strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            ("query=a&case-sensitive=maybe", ""),
            ("query=a&query=b", ""),
            ("query=a&query=b/c", "query: Invalid value: \"[b/c], [a]\": cannot specify a file and service"),
            ("query=a/b&query=b/c", "query: Invalid value: [\"a/b\",\"b/c\"]: cannot specify more than one file"),
            ("query=a/b&boot=0", "query: Invalid value: [\"a/b\"]: cannot specify file with options"),
            ("query=a&since=-2h&until=2020-1-2+3:04:5", ""),
            ("query=a&since=soon", date.as_str()),
            (
                "query=a&since=1d&untilTime=2020-01-01T00:00:00Z",
                "untilTime: Forbidden: `since or until` and `untilTime` cannot be specified",
            ),
            (
                "query=a&sinceTime=2020-01-01T00:00:00Z&untilTime=2019-01-01T00:00:00.50%2B01:00",
                "untilTime: Invalid value: \"2019-01-01T00:00:00.5+01:00\": must be after `sinceTime`",
            ),
            (
                "query=a&output=xml",
                "output: Unsupported value: \"xml\": supported values: \"\", \"cat\", \"json\", \"short\", \"short-iso\", \
                 \"short-iso-precise\", \"short-precise\", \"short-unix\"",
            ),
            (
                "query=a&boot=2&tailLines=-1",
                "[boot: Invalid value: 2: must be less than 1, tailLines: Invalid value: -1: must be between 0 and 100000, \
                 inclusive]",
            ),
        ] {
            assert_eq!(why(query), told, "{query}");
        }
        assert!(why("query=..%2Fshadow").ends_with("path escapes from parent"));
    }

    #[test]
    fn dates_are_relative_or_whole() {
        for good in ["2020-01-02 03:04:05", "2020-1-2 3:4:5", "2020-2-29 0:0:0"] {
            assert!(is_date(good), "{good}");
        }
        for bad in
            ["2020-1-2", "20-1-2 3:4:5", "2020-1-2-3 4:5", "2021-2-29 0:0:0", "2020-1-2 24:0:0", "2020-+1-2 3:4:5"]
        {
            assert!(!is_date(bad) && !is_relative(bad), "{bad}");
        }
        assert!(["5s", "+10m", "-3d"].into_iter().all(is_relative));
        assert!(!["", "s", "5", "5w", "+-5s"].into_iter().any(is_relative));
    }
}
