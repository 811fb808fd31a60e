//! Functions of texts and lists, as cel-go's and Kubernetes' extensions have them.

use std::cmp::Ordering;
use std::sync::Arc;

use super::calls::{gone_through, shown, size_of};
use super::equal;
use super::eval::{Budget, Failure};
use super::format;
use super::text::Text;
use super::value::Value;

type Out<'a> = Result<Value<'a>, Failure>;

/// From this power of ten on, Go's `%g` writes a number with an exponent when it may choose how many digits there are.
const PLAIN: i32 = 6;

/// A double as Go's shortest form.
pub fn double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    if number.is_nan() || (-4..PLAIN).contains(&exponent.parse().unwrap_or_default()) {
        return format!("{number}");
    }
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn int(number: usize) -> Value<'static> {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Calls a function of this module; None for others.
pub fn call<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    match args {
        [Value::Text(text), rest @ ..] => of_text(name, text, rest, budget),
        [list, rest @ ..] if list.is_list() => of_list(name, list, rest, budget),
        [Value::Int(end)] if name == "lists.range" => {
            let end = (*end).max(0);
            Some(
                budget
                    .spend(usize::try_from(end).unwrap_or(usize::MAX))
                    .map(|()| Value::list((0..end).map(Value::Int).collect())),
            )
        }
        _ => None,
    }
}

fn of_text<'a>(name: &str, whole: &Text<'a>, rest: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    use Value::{Bool, Int, Text};
    let text: &str = whole;
    // What is made of a text is paid for with it.
    let times = if matches!(name, "replace" | "split") { 2 } else { 1 };
    if let Err(failure) = budget.traverse(text.len().saturating_mul(times)) {
        return Some(Err(failure));
    }
    let error = |why: String| Some(Err(Failure::new(why)));
    let chars = || text.chars().collect::<Vec<char>>();
    let made = |text: String| Some(Ok(Value::text(text)));
    match (name, rest) {
        ("contains", [Text(part)]) => Some(Ok(Bool(text.contains(&**part)))),
        ("startsWith", [Text(part)]) => Some(Ok(Bool(text.starts_with(&**part)))),
        ("endsWith", [Text(part)]) => Some(Ok(Bool(text.ends_with(&**part)))),
        ("charAt", [Int(at)]) => {
            let chars = chars();
            match usize::try_from(*at).ok().filter(|at| *at <= chars.len()) {
                Some(at) => made(chars.get(at).map(ToString::to_string).unwrap_or_default()),
                None => error(format!("index out of range: {at}")),
            }
        }
        ("indexOf" | "lastIndexOf", [Text(part), from @ ..]) => index_of(name, text, part, from),
        ("lowerAscii", []) => made(text.to_ascii_lowercase()),
        ("upperAscii", []) => made(text.to_ascii_uppercase()),
        ("trim", []) => made(text.trim().to_owned()),
        ("strings.quote", []) => made(quoted(text)),
        ("replace", [Text(from), Text(to), limit @ ..]) => match limit {
            [] => Some(replaced(text, (from, to), usize::MAX, budget)),
            // A negative one is no limit.
            [Int(limit)] => Some(replaced(text, (from, to), usize::try_from(*limit).unwrap_or(usize::MAX), budget)),
            _ => None,
        },
        ("split", [Text(by), limit @ ..]) => {
            let most = match limit {
                [] => usize::MAX,
                // A negative one is no limit.
                [Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
                _ => return None,
            };
            Some(split(whole, by, most, budget))
        }
        ("substring", [Int(from), to @ ..]) => {
            let chars = chars();
            let end = match to {
                [] => i64::try_from(chars.len()).unwrap_or(i64::MAX),
                [Int(end)] => *end,
                _ => return None,
            };
            let place = |at: i64| usize::try_from(at).ok().filter(|at| *at <= chars.len());
            if !to.is_empty() && *from > end {
                return error(format!("invalid substring range. start: {from}, end: {end}"));
            }
            match (place(*from), place(end)) {
                (Some(from), Some(end)) if from <= end => made(chars[from..end].iter().collect()),
                (Some(_), Some(_)) => error(format!("invalid substring range. start: {from}, end: {end}")),
                (None, _) => error(format!("index out of range: {from}")),
                (_, None) => error(format!("index out of range: {end}")),
            }
        }
        ("format", [args]) if args.is_list() => Some(format::fill(text, args, budget)),
        _ => None,
    }
}

/// A text as an expression would say it. Letters that have no escape of their own stay.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' | '"' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The parts of a text between others, or its letters; the last of at most so many has what is left. Each is a value, and
/// takes more room than its letters.
fn split<'a>(text: &Text<'a>, by: &str, most: usize, budget: &mut Budget) -> Out<'a> {
    let mut parts = Vec::new();
    let mut start = 0;
    // Before the first letter there is no part, and behind the last one neither.
    let ends = text.match_indices(by).map(|(at, by)| (at, at + by.len()));
    let ends = ends.filter(|(at, _)| !by.is_empty() || (1..text.len()).contains(at)).take(most.saturating_sub(1));
    let last = (!by.is_empty() || !text.is_empty()).then_some((text.len(), text.len()));
    for (end, next) in ends.chain(last).take(most) {
        budget.spend(1)?;
        parts.extend(text.part(start..end).map(Value::Text));
        start = next;
    }
    Ok(Value::list(parts))
}

/// A text with at most so many places replaced. What it grows by is paid for before it is made: a text put into itself is
/// as long as its square.
fn replaced<'a>(text: &str, (from, to): (&str, &str), most: usize, budget: &mut Budget) -> Out<'a> {
    if to.len() > from.len() {
        let places = text.matches(from).take(most).count();
        budget.traverse(places.saturating_mul(to.len() - from.len()))?;
    }
    Ok(Value::text(text.replacen(from, to, most)))
}

/// Pays for texts that become part of one: a list may name the same one many times.
fn pay_for_all(items: &[Value<'_>], budget: &mut Budget) -> Result<(), Failure> {
    let length = |item: &Value<'_>| if let Value::Text(text) = item { text.len() } else { 0 };
    budget.traverse(items.iter().map(length).fold(0, usize::saturating_add))
}

/// Where a part first, or last, is in a text, in letters.
fn index_of<'a>(name: &str, text: &str, part: &str, from: &[Value<'a>]) -> Option<Out<'a>> {
    let from = match from {
        [] => None,
        // Nothing is found wherever one looks for it.
        [Value::Int(at)] if part.is_empty() => return Some(Ok(Value::Int(*at))),
        [Value::Int(at)] => match usize::try_from(*at) {
            // The byte at which that letter begins; behind the last one there is nothing to find.
            Ok(letter) => match text.char_indices().nth(letter) {
                Some((byte, _)) => Some(byte),
                None => return Some(Ok(Value::Int(-1))),
            },
            Err(_) if *at < 0 => return Some(Err(Failure::new(format!("index out of range: {at}")))),
            Err(_) => return Some(Ok(Value::Int(-1))),
        },
        _ => return None,
    };
    let found = match (name == "lastIndexOf", from) {
        (false, from) => text[from.unwrap_or(0)..].find(part).map(|at| at + from.unwrap_or(0)),
        (true, None) => text.rfind(part),
        // It may begin there, and end behind it.
        (true, Some(from)) => {
            let mut end = (from + part.len()).min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text[..end].rmatch_indices(part).map(|(at, _)| at).find(|at| *at <= from)
        }
    };
    Some(Ok(found.map_or(Value::Int(-1), |at| int(text[..at].chars().count()))))
}

/// Pays for a look at every text among some items.
pub fn pay_for_looks<'v, 'a: 'v>(
    items: impl IntoIterator<Item = &'v Value<'a>>,
    budget: &mut Budget,
) -> Result<(), Failure> {
    let texts = items.into_iter().filter(|item| matches!(item, Value::Text(_) | Value::Bytes(_)));
    budget.spend(texts.map(size_of).fold(0, usize::saturating_add) / 10)
}

/// Whether the items have an order, which is that of one type.
pub fn are_ordered<'v, 'a: 'v>(mut items: impl Iterator<Item = &'v Value<'a>> + Clone) -> bool {
    let mut after = items.clone().skip(1);
    let is_pair =
        |a: &Value<'_>, b: &Value<'_>| std::mem::discriminant(a) == std::mem::discriminant(b) && a.compare(b).is_some();
    items.by_ref().all(|item| after.next().is_none_or(|next| is_pair(item, next)))
}

fn of_list<'a>(name: &str, list: &Value<'a>, rest: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    use Value::{Bool, Int};
    let items = match budget.spend(list.count()).and_then(|()| gone_through(list, budget)) {
        Ok(items) => items,
        Err(failure) => return Some(Err(failure)),
    };
    let contains = |items: &[Value<'a>], one: &Value<'a>, budget: &mut Budget| {
        equal::position(items.iter().cloned(), one, items.len(), budget).map(|at| at.is_some())
    };
    let is_subset = |a: &[Value<'a>], b: &[Value<'a>], budget: &mut Budget| -> Result<bool, Failure> {
        for one in a {
            if !contains(b, one, budget)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let pairs = |other: &Value<'a>, budget: &mut Budget| -> Result<Vec<Value<'a>>, Failure> {
        budget.spend(items.len().saturating_mul(other.count()))?;
        gone_through(other, budget)
    };
    let out: Out<'a> = match (name, rest) {
        ("join", []) => pay_for_all(&items, budget).map(|()| Value::text(items.iter().map(shown).collect::<String>())),
        ("join", [Value::Text(by)]) => pay_for_all(&items, budget)
            .and_then(|()| budget.traverse(items.len().saturating_mul(by.len())))
            .map(|()| Value::text(items.iter().map(shown).collect::<Vec<_>>().join(by))),
        ("isSorted", []) => pay_for_looks(&items, budget)
            .map(|()| Bool(items.windows(2).all(|w| w[0].compare(&w[1]).is_some_and(Ordering::is_le)))),
        ("sum", []) => {
            let mut sum = match items.first() {
                Some(Value::Double(_)) => Value::Double(0.0),
                Some(Value::Uint(_)) => Value::Uint(0),
                Some(Value::Duration(_)) => Value::Duration(0),
                _ => Int(0),
            };
            for item in items {
                match super::calls::call("_+_", &[sum, item], budget) {
                    Ok(next) => sum = next,
                    Err(failure) => return Some(Err(failure)),
                }
            }
            Ok(sum)
        }
        ("min" | "max", []) => {
            if let Err(failure) = pay_for_looks(&items, budget) {
                return Some(Err(failure));
            }
            let better = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let best =
                items.into_iter().reduce(|best, item| if item.compare(&best) == Some(better) { item } else { best });
            best.ok_or_else(|| Failure::new(format!("{name} called on empty list")))
        }
        ("indexOf", [one]) => {
            let count = items.len();
            equal::position(items, one, count, budget).map(|at| at.map_or(Int(-1), int))
        }
        ("lastIndexOf", [one]) => {
            let count = items.len();
            let at = equal::position(items.into_iter().rev(), one, count, budget);
            at.map(|at| at.map_or(Int(-1), |at| int(count - 1 - at)))
        }
        ("reverse", []) => Ok(Value::list(items.into_iter().rev().collect())),
        ("slice", [Int(from), Int(to)]) => {
            let place = |at: i64| usize::try_from(at).ok().filter(|at| *at <= items.len());
            match (place(*from), place(*to)) {
                (Some(from), Some(to)) if from <= to => Ok(Value::list(items[from..to].to_vec())),
                _ => Err(Failure::new(format!("cannot slice({from}, {to}), list is length {}", items.len()))),
            }
        }
        ("distinct", []) => {
            if let Err(failure) = budget.spend(items.len().saturating_mul(items.len())) {
                return Some(Err(failure));
            }
            let mut out: Vec<Value<'a>> = Vec::new();
            for item in items {
                match contains(&out, &item, budget) {
                    Ok(false) => out.push(item),
                    Ok(true) => {}
                    Err(failure) => return Some(Err(failure)),
                }
            }
            Ok(Value::list(out))
        }
        ("sort", []) => {
            if let Err(failure) = pay_for_looks(&items, budget) {
                return Some(Err(failure));
            }
            if !are_ordered(items.iter()) {
                return Some(Err(Failure::new("list elements must have the same type")));
            }
            let mut items = items;
            items.sort_by(|a, b| a.compare(b).unwrap_or(Ordering::Equal));
            Ok(Value::list(items))
        }
        ("flatten", []) => flattened(items, 1, budget),
        ("flatten", [Int(depth)]) if *depth < 0 => Err(Failure::new("level must be non-negative")),
        ("flatten", [Int(depth)]) => flattened(items, *depth, budget),
        ("first", []) => Ok(Value::Optional(items.into_iter().next().map(Arc::new))),
        ("last", []) => Ok(Value::Optional(items.into_iter().next_back().map(Arc::new))),
        ("unwrapOpt" | "optional.unwrap", []) => {
            let values = items.into_iter().filter_map(|item| match item {
                Value::Optional(value) => value.map(|value| Ok((*value).clone())),
                _ => Some(Err(Failure::no_overload())),
            });
            values.collect::<Result<Vec<_>, _>>().map(Value::list)
        }
        ("sets.contains", [other]) => {
            pairs(other, budget).and_then(|other| is_subset(&other, &items, budget)).map(Bool)
        }
        ("sets.equivalent", [other]) => pairs(other, budget)
            .and_then(|other| Ok(is_subset(&other, &items, budget)? && is_subset(&items, &other, budget)?))
            .map(Bool),
        ("sets.intersects", [other]) => pairs(other, budget).and_then(|other| {
            for item in &items {
                if contains(&other, item, budget)? {
                    return Ok(Bool(true));
                }
            }
            Ok(Bool(false))
        }),
        _ => return None,
    };
    Some(out)
}

/// Lists in a list, so many levels of them, as their items.
fn flattened<'a>(items: Vec<Value<'a>>, levels: i64, budget: &mut Budget) -> Out<'a> {
    let mut items = items;
    for _ in 0..levels {
        if !items.iter().any(Value::is_list) {
            break;
        }
        // One list may be in another many times.
        let sizes = items.iter().map(|item| if item.is_list() { item.count() } else { 1 });
        budget.spend(sizes.fold(0, usize::saturating_add))?;
        let mut flat = Vec::new();
        for item in items {
            if item.is_list() {
                flat.extend(gone_through(&item, budget)?);
            } else {
                flat.push(item);
            }
        }
        items = flat;
    }
    Ok(Value::list(items))
}
