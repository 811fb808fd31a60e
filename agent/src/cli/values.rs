//! What the text of a flag means, in pflag's words where it means nothing.

use proto::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::flags::Form;
use super::labels::{name_errors, value_errors};
use crate::config::parse_ip;

const INVALID: &str = "invalid syntax";
const OUT_OF_RANGE: &str = "value out of range";

pub(super) fn value(form: Form, text: &str) -> Result<Value, String> {
    let parts = || text.split(',').map(str::trim).filter(|p| !p.is_empty());
    Ok(match form {
        Form::Text => json!(text),
        Form::Address if text.is_empty() || parse_ip(text).is_some() => json!(text),
        Form::Address => return Err(format!("{text:?} is not a valid IP address")),
        Form::Bool => json!(boolean(text)?),
        Form::Int | Form::Long => {
            let number = integer(text).and_then(|number| match form {
                Form::Int => i32::try_from(number).map(i64::from).map_err(|_| OUT_OF_RANGE),
                _ => Ok(number),
            });
            json!(number.map_err(|why| format!("strconv.ParseInt: parsing {text:?}: {why}"))?)
        }
        Form::Verbosity => json!(verbosity(text)?),
        Form::Duration => {
            let nanos = proto::duration::parse(text).map_err(|e| e.to_string())?;
            json!(proto::duration::format(nanos))
        }
        Form::List => json!(record(text)?),
        Form::Map => Value::Object(pairs(parts(), '=')?),
        Form::Thresholds => Value::Object(pairs(parts(), '<')?),
        Form::Gates => {
            let mut gates = Map::new();
            for (name, word) in pairs(parts(), '=')? {
                let word = word.as_str().unwrap_or("").to_owned();
                let on = boolean(&word).map_err(|e| format!("invalid value of {name}={word}, err: {e}"))?;
                gates.insert(name, json!(on));
            }
            Value::Object(gates)
        }
        Form::Taints => taints(text)?,
        Form::Headers => {
            let mut headers = Map::new();
            for pair in parts() {
                let (name, content) = pair.split_once(':').ok_or("malformed pair, expect string:string")?;
                if let Value::Array(list) = headers.entry(name.trim()).or_insert_with(|| json!([])) {
                    list.push(json!(content.trim()));
                }
            }
            Value::Object(headers)
        }
        Form::ReservedMemory => reserved_memory(text)?,
        Form::VModule => Value::Array(parts().map(pattern).collect::<Result<_, _>>()?),
        Form::Quantity => {
            let amount: Quantity = text.parse().map_err(|e: proto::quantity::ParseError| e.to_string())?;
            json!(amount.to_string())
        }
    })
}

/// The fields of one line of comma separated values, as pflag reads a list: spaces and empty fields count, and what stands
/// in quotes may have commas. No text is no field.
fn record(text: &str) -> Result<Vec<String>, String> {
    let refused = |rest: &str, why: &str| {
        let column = text.len() - rest.len() + 1;
        Err(format!("parse error on line 1, column {column}: {why}"))
    };
    let mut fields = Vec::new();
    let mut rest = Some(text).filter(|text| !text.is_empty());
    while let Some(at) = rest {
        let Some(mut quoted) = at.strip_prefix('"') else {
            let (field, more) = at.split_once(',').map_or((at, None), |(field, more)| (field, Some(more)));
            if let Some(quote) = field.find('"') {
                return refused(&at[quote..], "bare \" in non-quoted field");
            }
            fields.push(field.to_owned());
            rest = more;
            continue;
        };
        let mut field = String::new();
        rest = loop {
            const WRONG: &str = "extraneous or missing \" in quoted-field";
            let Some((inner, after)) = quoted.split_once('"') else { return refused("", WRONG) };
            field.push_str(inner);
            match (after.strip_prefix('"'), after.strip_prefix(',')) {
                (Some(more), _) => {
                    field.push('"');
                    quoted = more;
                }
                (None, Some(more)) => break Some(more),
                (None, None) if after.is_empty() => break None,
                (None, None) => return refused(&quoted[inner.len()..], WRONG),
            }
        };
        fields.push(field);
    }
    Ok(fields)
}

/// A number as Go reads one of base zero: decimal, `0x`, `0o` or a bare `0` before octal, `0b`, and single underscores
/// between digits and after what tells the base.
fn integer(text: &str) -> Result<i64, &'static str> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = digits.to_ascii_lowercase();
    let (radix, rest) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let told = radix != 10;
    let badly = rest.contains("__") || rest.ends_with('_') || rest.starts_with(['+', '-']);
    if rest.is_empty() || badly || rest.starts_with('_') && !told {
        return Err(INVALID);
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{}", rest.replace('_', "")), radix).map_err(|e| match e.kind() {
        std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => OUT_OF_RANGE,
        _ => INVALID,
    })
}

/// `NODE:TYPE=AMOUNT,...` for each NUMA node, separated by semicolons.
fn reserved_memory(text: &str) -> Result<Value, String> {
    let mut nodes = Vec::new();
    for part in text.split(';').filter(|_| !text.is_empty()) {
        let (node, list) = match part.split(':').collect::<Vec<_>>()[..] {
            [node, list] => (node, list),
            _ => {
                return Err(format!(
                    "the reserved memory has incorrect format, expected \
                     numaNodeID:type=quantity[,type=quantity...], got {part}"
                ));
            }
        };
        // The spelling is the kubelet's.
        let node: i64 =
            node.parse().map_err(|_| format!("failed to convert the NUMA node ID, exptected integer, got {node}"))?;
        let node = i32::try_from(node).map_err(|_| format!("the NUMA node ID {node} is out of range"))?;
        let mut limits = Map::new();
        for pair in list.split(',') {
            let (name, amount) = match pair.split('=').collect::<Vec<_>>()[..] {
                [name, amount] => (name, amount),
                _ => {
                    return Err(format!(
                        "the reserved limit has incorrect value, expected type=quantatity, got {pair}"
                    ));
                }
            };
            if name != "memory" && !name.starts_with("hugepages-") {
                return Err(format!("memory type conversion error, unknown type: {name:?}"));
            }
            let parsed: Quantity = amount
                .parse()
                .map_err(|_| format!("failed to parse the quantatity, expected quantatity, got {amount}"))?;
            limits.insert(name.into(), json!(parsed.to_string()));
        }
        nodes.push(json!({"numaNode": node, "limits": limits}));
    }
    Ok(Value::Array(nodes))
}

/// A level of the log: decimal digits alone.
fn verbosity(text: &str) -> Result<u32, String> {
    let refused = |why| format!("strconv.ParseUint: parsing {text:?}: {why}");
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refused(INVALID));
    }
    let level = text.parse::<i32>().ok().and_then(|level| u32::try_from(level).ok());
    level.ok_or_else(|| refused(OUT_OF_RANGE))
}

fn pattern(text: &str) -> Result<Value, String> {
    let (file, level) = text
        .split_once('=')
        .filter(|(file, level)| !file.is_empty() && !level.is_empty() && !level.contains('='))
        .ok_or_else(|| format!("{text:?} does not have the pattern=N format"))?;
    let level = verbosity(level).map_err(|why| format!("parsing verbosity in {text:?}: {why}"))?;
    Ok(json!({"filePattern": file, "verbosity": level}))
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

fn pairs<'a>(parts: impl Iterator<Item = &'a str>, separator: char) -> Result<Map<String, Value>, String> {
    let mut map = Map::new();
    for part in parts {
        let (key, value) =
            part.split_once(separator).ok_or_else(|| format!("malformed pair, expect string{separator}string"))?;
        map.insert(key.trim().into(), json!(value.trim()));
    }
    Ok(map)
}

/// Taints to register with; those that end with `-` are to be taken away, which at a registration is nothing to do.
fn taints(text: &str) -> Result<Value, String> {
    let mut found: Vec<Value> = Vec::new();
    for spec in text.split(',').filter(|_| !text.is_empty()) {
        if let Some(removed) = spec.strip_suffix('-') {
            taint(removed)?;
            continue;
        }
        let (key, value, effect) = taint(spec)?;
        if effect.is_empty() {
            return Err(format!("invalid taint spec: {spec}"));
        }
        if found.iter().any(|other| other["key"] == key && other["effect"] == effect) {
            return Err(format!("duplicated taints with the same key and effect: {{{key} {value} {effect} <nil>}}"));
        }
        let mut taint = json!({"key": key, "effect": effect});
        if !value.is_empty() {
            taint["value"] = json!(value);
        }
        found.push(taint);
    }
    Ok(Value::Array(found))
}

/// Key, value and effect of `key=value:effect`; a key alone has neither.
fn taint(text: &str) -> Result<(&str, &str, &str), String> {
    let invalid = |why: &[String]| {
        let colon = if why.is_empty() { "" } else { ", " };
        Err(format!("invalid taint spec: {text}{colon}{}", why.join("; ")))
    };
    let parts: Vec<&str> = text.split(':').collect();
    let (left, effect) = match parts[..] {
        [key] => (vec![key], ""),
        [left, effect] => (left.split('=').collect(), effect),
        _ => return invalid(&[]),
    };
    if parts.len() == 2 && !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(format!("invalid taint effect: {effect}, unsupported taint effect"));
    }
    let (key, value) = match left[..] {
        [key] => (key, ""),
        [key, value] => (key, value),
        _ => return invalid(&[]),
    };
    for wrong in [value_errors(value), name_errors(key)] {
        if !wrong.is_empty() {
            return invalid(&wrong);
        }
    }
    Ok((key, value, effect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_have_qualified_names() {
        for bad in ["a/b/c:NoSchedule", "Bad Prefix/x=y:NoExecute", ":NoSchedule", "=v:NoSchedule"] {
            assert!(value(Form::Taints, bad).expect_err("refused").starts_with("invalid taint"), "{bad}");
        }
        assert!(value(Form::Taints, "example.com/a=b:NoSchedule,c:NoExecute").is_ok());
        for bad in ["a", "a:NoSchedule,", "a:b:NoSchedule", "a=b=c:NoSchedule", "a=-:NoSchedule", " a:NoSchedule"] {
            assert!(value(Form::Taints, bad).expect_err("refused").starts_with("invalid taint spec: "), "{bad}");
        }
        assert_eq!(
            value(Form::Taints, "a=b:Maybe").unwrap_err(),
            "invalid taint effect: Maybe, unsupported taint effect"
        );
        assert_eq!(
            value(Form::Taints, "a=b:NoSchedule,c:NoExecute,a=d:NoSchedule").unwrap_err(),
            "duplicated taints with the same key and effect: {a d NoSchedule <nil>}"
        );
        assert_eq!(value(Form::Taints, "a:NoSchedule-,b-"), Ok(json!([])));
        assert_eq!(value(Form::Taints, ""), Ok(json!([])));
    }

    /// What was in quotes was parted, spaces were taken away.
    #[test]
    fn lists_are_lines_of_comma_separated_values() {
        for (text, fields) in [
            ("", json!([])),
            ("a,b", json!(["a", "b"])),
            ("a, b,,", json!(["a", " b", "", ""])),
            (r#""a,b",c,"say ""x""""#, json!(["a,b", "c", r#"say "x""#])),
            (r#"a,"""#, json!(["a", ""])),
        ] {
            assert_eq!(value(Form::List, text), Ok(fields), "{text}");
        }
        for (text, column, why) in [
            (r#"a,b"c"#, 4, "bare \" in non-quoted field"),
            (r#""a"b"#, 3, "extraneous or missing \" in quoted-field"),
            (r#""a,b"#, 5, "extraneous or missing \" in quoted-field"),
        ] {
            let told = format!("parse error on line 1, column {column}: {why}");
            assert_eq!(value(Form::List, text), Err(told), "{text}");
        }
        assert_eq!(value(Form::Headers, "a").unwrap_err(), "malformed pair, expect string:string");
    }

    #[test]
    fn numbers_are_those_of_go() {
        for (text, number) in
            [("10", 10), ("+7", 7), ("-1", -1), ("0", 0), ("0x1F", 31), ("017", 15), ("0o1_7", 15), ("-0b11", -3)]
        {
            assert_eq!(integer(text), Ok(number), "{text}");
        }
        for (text, number) in [("1_000", 1000), ("-1_0_0", -100), ("0_7", 7), ("0x_f", 15)] {
            assert_eq!(integer(text), Ok(number), "{text}");
        }
        for text in ["", "-", "_1", "-_1", "1_", "1__0", "0x", "0x_", "0x1__0", "08", "1.5", "--1", "0x-1", "ten"] {
            assert_eq!(integer(text), Err("invalid syntax"), "{text}");
        }
        assert_eq!(integer("9223372036854775808"), Err("value out of range"));
        assert_eq!(value(Form::Int, "2147483647"), Ok(json!(2_147_483_647)));
        let over = "strconv.ParseInt: parsing \"2147483648\": value out of range";
        assert_eq!(value(Form::Int, "2147483648").unwrap_err(), over);
        assert_eq!(value(Form::Long, "2147483648"), Ok(json!(2_147_483_648_i64)));
        for (text, why) in [("-1", INVALID), ("+1", INVALID), ("0x1", INVALID), ("2147483648", OUT_OF_RANGE)] {
            let told = format!("strconv.ParseUint: parsing {text:?}: {why}");
            assert_eq!(value(Form::Verbosity, text).unwrap_err(), told);
            let pair = format!("a={text}");
            assert_eq!(value(Form::VModule, &pair).unwrap_err(), format!("parsing verbosity in {pair:?}: {told}"));
        }
        assert_eq!(value(Form::Verbosity, "010"), Ok(json!(10)));
        assert_eq!(value(Form::Int, "1k").unwrap_err(), "strconv.ParseInt: parsing \"1k\": invalid syntax");
    }
}
