//! Whether a text is a cron schedule, in the words of the library that upstream parses it with.

use std::num::IntErrorKind;

/// Number ranges and names of the five fields: minute, hour, day, month, day of the week.
const FIELDS: [(u64, u64, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// Checks a schedule: five fields, or a descriptor such as `@daily`, after an optional zone.
///
/// # Errors
/// Why it is none.
pub fn check(schedule: &str) -> Result<(), String> {
    let mut rest = schedule;
    if rest.is_empty() {
        return Err("empty spec string".into());
    }
    if let Some(zoned) = rest.strip_prefix("TZ=").or_else(|| rest.strip_prefix("CRON_TZ=")) {
        // The library that others read schedules with looks for the blank and trusts that it is there.
        let Some((zone, after)) = zoned.split_once(' ') else {
            return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".into());
        };
        if !is_zone(zone) {
            return Err(format!("provided bad location {zone}: {}", crate::zone::refusal(zone)));
        }
        rest = after.trim();
    }
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (text, (low, high, names)) in fields.iter().zip(FIELDS) {
        for part in text.split(',').filter(|p| !p.is_empty()) {
            range(part, low, high, names)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), String> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => Ok(()),
        _ => match text.strip_prefix("@every ") {
            Some(duration) => match proto::duration::parse(duration) {
                Ok(_) => Ok(()),
                Err(why) => Err(format!("failed to parse duration {text}: {why}")),
            },
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

fn range(part: &str, low: u64, high: u64, names: &[&str]) -> Result<(), String> {
    let stepped: Vec<&str> = part.split('/').collect();
    let ends: Vec<&str> = stepped[0].split('-').collect();
    let single = ends.len() == 1;
    let (start, mut end) = if ends[0] == "*" || ends[0] == "?" {
        (low, high)
    } else {
        let start = number(ends[0], low, names)?;
        match ends.len() {
            1 => (start, start),
            2 => (start, number(ends[1], low, names)?),
            _ => return Err(format!("too many hyphens: {part}")),
        }
    };
    let step = match stepped.len() {
        1 => 1,
        2 => {
            if single {
                end = high;
            }
            integer(stepped[1])?
        }
        _ => return Err(format!("too many slashes: {part}")),
    };
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {part}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {part}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    Ok(())
}

fn number(text: &str, low: u64, names: &[&str]) -> Result<u64, String> {
    let lower = text.to_lowercase();
    match names.iter().position(|n| *n == lower).and_then(|at| u64::try_from(at).ok()) {
        Some(at) => Ok(at + low),
        None => integer(text),
    }
}

fn integer(text: &str) -> Result<u64, String> {
    let failed = |why: &str| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {}: {why}", crate::status::quote(text))
    };
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => Ok(number.unsigned_abs()),
        Err(error) => Err(failed(match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        })),
    }
}

/// Whether a name is that of a time zone that this machine knows.
pub fn is_zone(name: &str) -> bool {
    let good = |part: &str| {
        (1..=14).contains(&part.len())
            && !part.starts_with('-')
            && part != "."
            && part != ".."
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'))
    };
    name.split('/').all(good) && crate::zone::is_known(name)
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules_are_read_as_cron_reads_them() {
        for good in ["0 3 * * *", "*/5 0-6/2 1,15 JAN-mar sun", "@daily", "@every 1h30m", "TZ=UTC 0 3 * * *"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("every day", "expected exactly 5 fields, found 2: [every day]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            (
                "99999999999999999999 * * * *",
                "failed to parse int from 99999999999999999999: strconv.Atoi: parsing \
              \"99999999999999999999\": value out of range",
            ),
            ("5000000000 * * * *", "end of range (5000000000) above maximum (59): 5000000000"),
            ("TZ=UTC", "invalid schedule format: runtime error: slice bounds out of range [:-1]"),
            ("TZ=../x * * * * *", "provided bad location ../x: time: invalid location name"),
            ("@often", "unrecognized descriptor: @often"),
        ] {
            assert_eq!(check(bad).unwrap_err(), why);
        }
    }
}
