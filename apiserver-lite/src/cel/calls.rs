//! Operators and standard functions.

use std::cmp::Ordering;
use std::sync::Arc;

use super::eval::{Budget, Failure};
use super::value::{Value, timestamp};
use super::{authz, equal, library, ordered, semver, strings};
use crate::zone::Zone;

type Out<'a> = Result<Value<'a>, Failure>;

/// Nanoseconds in a second.
const SECOND: i64 = 1_000_000_000;
/// Seconds of the first and last timestamp that there are: of the years 1 and 9999.
const FIRST: i128 = -62_135_596_800 * SECOND as i128;
const LAST: i128 = 253_402_300_800 * SECOND as i128 - 1;

/// Letters that are counted for the price of a step.
const LETTERS: usize = 1000;

/// A value in an error's text, or as `string()` makes it.
pub fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Text(text) => text.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Double(number) => strings::double(*number),
        Value::Bool(truth) => truth.to_string(),
        Value::Ip(address) => address.to_string(),
        Value::Cidr(address, bits) => format!("{address}/{bits}"),
        Value::Duration(nanoseconds) => seconds(*nanoseconds),
        Value::Timestamp(nanoseconds) => rfc3339(*nanoseconds),
        other => other.kind().to_owned(),
    }
}

/// `1.5s`, as expressions print durations.
fn seconds(nanoseconds: i64) -> String {
    let text = format!("{}", nanoseconds as f64 / SECOND as f64);
    format!("{text}s")
}

fn rfc3339(nanoseconds: i128) -> String {
    let moment = time::OffsetDateTime::from_unix_timestamp_nanos(nanoseconds);
    let format = &time::format_description::well_known::Rfc3339;
    moment.ok().and_then(|m| m.format(format).ok()).unwrap_or_default()
}

/// Calls a function or operator; of a member the first argument is the value it is called on.
pub fn call<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Out<'a> {
    use Value::{Bool, Bytes, Double, Duration, Int, Text, Timestamp, Uint};
    let overflow = |what: &str| Failure::new(format!("{what} overflow"));
    Ok(match (name, args) {
        ("!_", [Bool(truth)]) => Bool(!truth),
        ("-_", [Int(a)]) => Int(a.checked_neg().ok_or_else(|| overflow("integer"))?),
        ("-_", [Double(a)]) => Double(-a),
        ("-_", [Duration(a)]) => Duration(a.checked_neg().ok_or_else(|| overflow("duration"))?),
        ("_==_" | "_!=_", [a, b]) => {
            let size = size_of(a).min(size_of(b));
            budget.spend(size / 10)?;
            Bool(equal::equal(a, b, size, budget)? == (name == "_==_"))
        }
        ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => {
            if let (Text(_), Text(_)) | (Bytes(_), Bytes(_)) = (a, b) {
                budget.spend(size_of(a).min(size_of(b)) / 10)?;
            }
            let order = a.compare(b);
            if order.is_none() && !matches!((a, b), (Double(_), _) | (_, Double(_))) {
                return Err(Failure::no_overload());
            }
            Bool(match name {
                "_<_" => order.is_some_and(Ordering::is_lt),
                "_<=_" => order.is_some_and(Ordering::is_le),
                "_>_" => order.is_some_and(Ordering::is_gt),
                _ => order.is_some_and(Ordering::is_ge),
            })
        }
        ("@in", [item, list]) if list.is_list() => {
            let count = list.count();
            budget.spend(count)?;
            Bool(equal::position(list.walk().into_iter().flatten(), item, count, budget)?.is_some())
        }
        ("@in", [key, map]) if map.is_map() => {
            budget.spend(map.effort() / equal::PARTS)?;
            Bool(map.has_entry(key))
        }
        ("_+_", [Int(a), Int(b)]) => Int(a.checked_add(*b).ok_or_else(|| overflow("integer"))?),
        ("_+_", [Uint(a), Uint(b)]) => Uint(a.checked_add(*b).ok_or_else(|| overflow("unsigned integer"))?),
        ("_+_", [Double(a), Double(b)]) => Double(a + b),
        ("_+_", [Text(a), Text(b)]) => {
            budget.traverse(a.len() + b.len())?;
            Value::text(format!("{a}{b}"))
        }
        ("_+_", [Bytes(a), Bytes(b)]) => {
            budget.traverse(a.len() + b.len())?;
            Bytes([&a[..], &b[..]].concat().into())
        }
        ("_+_", [Duration(a), Duration(b)]) => Duration(a.checked_add(*b).ok_or_else(|| overflow("duration"))?),
        ("_+_", [Timestamp(a), Duration(b)] | [Duration(b), Timestamp(a)]) => moment(a + i128::from(*b))?,
        ("_+_", [a, b]) if a.is_list() && b.is_list() => {
            budget.spend(a.count() + b.count())?;
            let order = ordered::order(a);
            let (a, b) = (gone_through(a, budget)?, gone_through(b, budget)?);
            ordered::joined(order, a, b, budget)?
        }
        ("_-_", [Int(a), Int(b)]) => Int(a.checked_sub(*b).ok_or_else(|| overflow("integer"))?),
        ("_-_", [Uint(a), Uint(b)]) => Uint(a.checked_sub(*b).ok_or_else(|| overflow("unsigned integer"))?),
        ("_-_", [Double(a), Double(b)]) => Double(a - b),
        ("_-_", [Duration(a), Duration(b)]) => Duration(a.checked_sub(*b).ok_or_else(|| overflow("duration"))?),
        ("_-_", [Timestamp(a), Duration(b)]) => moment(a - i128::from(*b))?,
        ("_-_", [Timestamp(a), Timestamp(b)]) => Duration(i64::try_from(a - b).map_err(|_| overflow("duration"))?),
        ("_*_", [Int(a), Int(b)]) => Int(a.checked_mul(*b).ok_or_else(|| overflow("integer"))?),
        ("_*_", [Uint(a), Uint(b)]) => Uint(a.checked_mul(*b).ok_or_else(|| overflow("unsigned integer"))?),
        ("_*_", [Double(a), Double(b)]) => Double(a * b),
        ("_/_", [Int(_), Int(0)] | [Uint(_), Uint(0)]) => return Err(Failure::new("division by zero")),
        ("_/_", [Int(a), Int(b)]) => Int(a.checked_div(*b).ok_or_else(|| overflow("integer"))?),
        ("_/_", [Uint(a), Uint(b)]) => Uint(a / b),
        ("_/_", [Double(a), Double(b)]) => Double(a / b),
        ("_%_", [Int(_), Int(0)] | [Uint(_), Uint(0)]) => return Err(Failure::new("modulus by zero")),
        ("_%_", [Int(a), Int(b)]) => Int(a.checked_rem(*b).ok_or_else(|| overflow("integer"))?),
        ("_%_", [Uint(a), Uint(b)]) => Uint(a % b),
        ("size", [value]) => {
            // Letters are counted, which is quick.
            budget.spend(if let Text(text) = value { text.len() / LETTERS } else { 0 })?;
            Int(i64::try_from(length(value)?).unwrap_or(i64::MAX))
        }
        ("dyn", [value]) => value.clone(),
        ("type", [value]) => Value::Kind(value.kind().into()),
        ("int" | "uint" | "double" | "bool" | "string" | "bytes" | "timestamp" | "duration", [value]) => {
            budget.traverse(size_of(value))?;
            return convert(name, value);
        }
        (name, [Timestamp(at), rest @ ..]) if name.starts_with("get") => return of_moment(name, *at, rest),
        ("getHours", [Duration(d)]) => Int(d / (3600 * SECOND)),
        ("getMinutes", [Duration(d)]) => Int(d / (60 * SECOND)),
        ("getSeconds", [Duration(d)]) => Int(d / SECOND),
        // All of them, unlike those of a moment.
        ("getMilliseconds", [Duration(d)]) => Int(d / 1_000_000),
        _ => {
            if let Some(out) = strings::call(name, args, budget) {
                return out;
            }
            let out = library::call(name, args, budget);
            let out = out.or_else(|| semver::call(name, args)).or_else(|| authz::call(name, args, budget));
            return out.unwrap_or_else(|| Err(Failure::no_overload()));
        }
    })
}

fn moment<'a>(nanoseconds: i128) -> Out<'a> {
    if !(FIRST..=LAST).contains(&nanoseconds) {
        return Err(Failure::new("timestamp overflow"));
    }
    Ok(Value::Timestamp(nanoseconds))
}

/// About how much there is to go through.
pub fn size_of(value: &Value<'_>) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        value if value.is_list() || value.is_map() => value.count(),
        _ => 1,
    }
}

/// The items of a list, of which bytes are paid for that had to be decoded.
pub fn gone_through<'a>(list: &Value<'a>, budget: &mut Budget) -> Result<Vec<Value<'a>>, Failure> {
    let items = list.members().unwrap_or_default();
    budget.decode(list, &items)?;
    Ok(items)
}

fn length(value: &Value<'_>) -> Result<usize, Failure> {
    Ok(match value {
        Value::Text(text) => text.chars().count(),
        Value::Bytes(_) | Value::List(_) | Value::Items(..) | Value::Map(_) | Value::Members(..) => size_of(value),
        _ => return Err(Failure::no_overload()),
    })
}

fn convert<'a>(to: &str, value: &Value<'a>) -> Out<'a> {
    use Value::{Bool, Bytes, Double, Duration, Int, Text, Timestamp, Uint};
    let bad = || {
        // Types that are messages go by the names of their messages.
        let to = match to {
            "timestamp" => "google.protobuf.Timestamp",
            "duration" => "google.protobuf.Duration",
            to => to,
        };
        Failure::new(format!("type conversion error from '{}' to '{to}'", value.kind()))
    };
    let range = |kind: &str| Failure::new(format!("{kind} overflow"));
    Ok(match (to, value) {
        ("int", Int(_)) | ("uint", Uint(_)) | ("double", Double(_)) | ("bool", Bool(_)) | ("string", Text(_)) => {
            value.clone()
        }
        ("bytes", Bytes(_)) | ("timestamp", Timestamp(_)) | ("duration", Duration(_)) => value.clone(),
        ("int", Uint(a)) => Int(i64::try_from(*a).map_err(|_| range("integer"))?),
        ("int", Double(a)) => {
            if !(a.is_finite() && *a > -9.223_372_036_854_776e18 && *a < 9.223_372_036_854_776e18) {
                return Err(range("integer"));
            }
            Int(*a as i64)
        }
        ("int", Text(text)) => Int(text.parse().map_err(|_| bad())?),
        ("int", Timestamp(at)) => Int(i64::try_from(at.div_euclid(i128::from(SECOND))).map_err(|_| range("integer"))?),
        ("int", Duration(d)) => Int(*d),
        ("uint", Int(a)) => Uint(u64::try_from(*a).map_err(|_| range("unsigned integer"))?),
        ("uint", Double(a)) => {
            if !(a.is_finite() && *a > -1.0 && *a < 1.844_674_407_370_955_2e19) {
                return Err(range("unsigned integer"));
            }
            Uint(*a as u64)
        }
        ("uint", Text(text)) => Uint(text.parse().map_err(|_| bad())?),
        ("double", Int(a)) => Double(*a as f64),
        ("double", Uint(a)) => Double(*a as f64),
        ("double", Text(text)) => Double(text.parse().map_err(|_| bad())?),
        ("bool", Text(text)) => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Bool(true),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Bool(false),
            _ => return Err(bad()),
        },
        ("string", Bytes(bytes)) => Value::text(
            String::from_utf8(bytes.to_vec())
                .map_err(|_| Failure::new("invalid UTF-8 in bytes, cannot convert to string"))?,
        ),
        (
            "string",
            Int(_) | Uint(_) | Double(_) | Bool(_) | Timestamp(_) | Duration(_) | Value::Ip(_) | Value::Cidr(..),
        ) => Value::text(shown(value)),
        ("bytes", Text(text)) => Bytes(Arc::from(text.as_bytes())),
        ("timestamp", Text(text)) => match timestamp(text).filter(|_| text.len() > 10) {
            Some(at) => Timestamp(at),
            None => return Err(bad()),
        },
        ("timestamp", Int(at)) => return moment(i128::from(*at) * i128::from(SECOND)),
        ("duration", Text(text)) => Duration(proto::duration::parse(text).map_err(|_| bad())?),
        _ => return Err(Failure::no_overload()),
    })
}

/// A part of a moment, in UTC or where a zone is named, as `Europe/Berlin` or `+01:00`.
fn of_moment<'a>(name: &str, at: i128, rest: &[Value<'a>]) -> Out<'a> {
    let mut at = at;
    if let Some(zone) = rest.first() {
        let Value::Text(zone) = zone else { return Err(Failure::no_overload()) };
        let seconds = i64::try_from(at.div_euclid(i128::from(SECOND))).unwrap_or_default();
        at += i128::from(ahead(zone, seconds)?) * i128::from(SECOND);
    }
    // What the clock shows there is what it shows at another moment in UTC.
    let moment = time::OffsetDateTime::from_unix_timestamp_nanos(at);
    let moment = moment.map_err(|_| Failure::new("timestamp overflow"))?;
    let number = match name {
        "getFullYear" => i64::from(moment.year()),
        "getMonth" => i64::from(u8::from(moment.month())) - 1,
        "getDayOfYear" => i64::from(moment.ordinal()) - 1,
        "getDayOfMonth" => i64::from(moment.day()) - 1,
        "getDate" => i64::from(moment.day()),
        "getDayOfWeek" => i64::from(moment.weekday().number_days_from_sunday()),
        "getHours" => i64::from(moment.hour()),
        "getMinutes" => i64::from(moment.minute()),
        "getSeconds" => i64::from(moment.second()),
        "getMilliseconds" => i64::from(moment.millisecond()),
        _ => return Err(Failure::no_overload()),
    };
    Ok(Value::Int(number))
}

/// Seconds by which a zone is ahead of UTC at a moment in seconds since 1970.
fn ahead(zone: &str, at: i64) -> Result<i64, Failure> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        let known = Zone::load(zone).ok_or_else(|| Failure::new(crate::zone::refusal(zone)))?;
        return Ok(known.offset(at));
    };
    let number = |text: &str| {
        let why = || Failure::new(format!("strconv.Atoi: parsing {}: invalid syntax", crate::status::quote(text)));
        // Nothing is farther away than a few days, whatever is said.
        text.parse::<i16>().map(i64::from).map_err(|_| why())
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    Ok((hours * 60 + if zone.starts_with('-') { -minutes } else { minutes }) * 60)
}
